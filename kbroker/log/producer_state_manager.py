"""The producers of one log and their transactions: what is known of them, kept over restarts and truncations.

Joins the machines (`producer_state`, `core.log_transactions`) with the snapshots of both and the transaction indexes of
the segments. It also joins them with what of the log a mirror copied. Copied batches do not change the state of
producers. They begin and end transactions as others do (docs/design/transactions.md).

What is known at any offset is the newest snapshot before it and the headers of the batches from there on. So it is
found again after a crash, and after a truncation that took away more than is remembered.

Owner: the thread that owns the log. `open_producers` reads batch headers: it runs in a pool.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from kbroker.log import copied_offsets, scan
from kbroker.log.copied_offsets import CopiedOffsets
from kbroker.log.core.cleaned_transactions import AbortedTransaction
from kbroker.log.core.log_transactions import LogTransactions, OngoingTransaction
from kbroker.log.core.producer_state import ProducerStateEntry, ProducerStates
from kbroker.log.disk import Buffer, Disk, read_file, replace_file
from kbroker.log.log_segment import BASE_OFFSET, LogSegment
from kbroker.log.producer_snapshots import ProducerSnapshots
from kclient.wire.batches import IN_TRANSACTION, BatchInfo
from kclient.wire.errors import CorruptMessage
from kclient.wire.records import LARGEST_MARKER, transaction_marker

_FIRST_LOOK: Final = 1024
_WIDER: Final = 8
"""How many offsets from the end a lost producer is looked for first, and how much further next."""


class ProducerStateManager:
    """What the log in *directory* remembers of producers. Every method may raise OSError."""

    __slots__ = (
        "_cuts_marker",
        "_disk",
        "_unsynced",
        "copied",
        "directory",
        "markers",
        "snapshots",
        "states",
        "transactions",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        snapshots: ProducerSnapshots | None = None,
        copied: CopiedOffsets | None = None,
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.snapshots = snapshots or ProducerSnapshots(disk, directory)
        self.copied = copied or CopiedOffsets()
        """Which offsets a mirror copied: nothing in there is remembered."""
        self.states = ProducerStates()
        self.transactions = LogTransactions()
        self.markers: dict[int, tuple[int, int]] = {}
        """By producer id: the number of the transaction that its last marker ended, and the offset of that marker.

        In memory only, and of the markers since the newest snapshot: a message that is late does not survive a restart.
        """
        self._unsynced: list[str] = []
        self._cuts_marker = False
        """Whether the truncation under way cuts a marker that `transactions` does not remember."""

    # Appends

    def replicated(self, infos: Sequence[BatchInfo], now_ms: int) -> None:
        """Record batches as the leader of the partition wrote them."""
        self.states.replay(infos, now_ms)

    def in_transaction(
        self, buf: Buffer, info: BatchInfo, base_offset: int, segment: LogSegment, *, is_own: bool
    ) -> None:
        """Record a transactional or control batch that is at *base_offset* in *segment* now.

        After the states of producers: *is_own* is False for a batch that a mirror copied.
        """
        if info.producer_id < 0:
            return
        aborted = self._passed(buf, info, base_offset, self.transactions, is_own=is_own)
        if aborted is not None:
            segment.transaction_index.append(aborted)

    def _passed(
        self,
        buf: Buffer,
        info: BatchInfo,
        base_offset: int,
        transactions: LogTransactions,
        *,
        is_own: bool,
    ) -> AbortedTransaction | None:
        """Pass a batch to *transactions*; return the transaction that it aborts."""
        if not info.is_control:
            transactions.transactional_batch(info.producer_id, info.producer_epoch, base_offset)
            return None
        marker = transaction_marker(buf, info)
        if marker is None:
            return None
        if is_own:
            self.states.transaction_ended(info.producer_id, marker.coordinator_epoch)
            if marker.number >= 0:
                self.markers[info.producer_id] = marker.number, base_offset
        completed = transactions.marker(info.producer_id, base_offset, is_aborted=marker.is_aborted)
        if completed is None or not completed.is_aborted:
            return None
        return AbortedTransaction(
            completed.producer_id,
            completed.first_offset,
            completed.last_offset,
            transactions.last_stable_offset_behind(completed),
        )

    def _passed_in_file(
        self,
        segment: LogSegment,
        position: int,
        info: BatchInfo,
        transactions: LogTransactions,
        *,
        is_own: bool,
    ) -> AbortedTransaction | None:
        """Do as `_passed` for a batch at *position* in the file of *segment*; one of no transaction has no effect."""
        if not info.attributes & IN_TRANSACTION or info.producer_id < 0:
            return None
        whole = _whole(segment, position, info)
        at_start = info._replace(position=0)
        return self._passed(whole, at_start, info.base_offset, transactions, is_own=is_own)

    def expire(self, idle_since_ms: int) -> int:
        """Remove producers that wrote nothing after *idle_since_ms* and have no open transaction; return how many."""
        count = self.states.expire(idle_since_ms, self.transactions.ongoing)
        known = self.states.entries
        for producer_id in [each for each in self.markers if each not in known]:
            del self.markers[producer_id]
        return count

    def before_copy(self, base_offset: int) -> None:
        """Handle an append of a mirror at *base_offset*, before it."""
        if not self.copied.goes_on:
            self.copied.begin(base_offset)
            self._write_copied()

    def end_copied(self, base_offset: int) -> None:
        """Handle an append of a client of this cluster at *base_offset*, before it: it must not count as a copy."""
        self.copied.end(base_offset)
        self._write_copied()

    def _write_copied(self) -> None:
        path = f"{self.directory}/{copied_offsets.FILE_NAME}"
        replace_file(self._disk, path, self.copied.encode(), durable=False)
        self._unsynced.append(path)

    # Snapshots

    def write_snapshot(self, offset: int, segments: Sequence[LogSegment]) -> None:
        """Put down what is known at *offset*, the log end: a roll."""
        bases = [one.base_offset for one in segments]
        self.snapshots.write(offset, self.states, bases, self.transactions.ongoing)
        self._unsynced.append(self.snapshots.path(offset))

    def write_last_snapshot(self, offset: int, segments: Sequence[LogSegment]) -> None:
        """Put down what is known at *offset*, the log end, unless it is there: a clean shutdown."""
        newest = self.snapshots.newest
        if newest < offset and (self.states or self.transactions.ongoing or newest >= 0):
            self.write_snapshot(offset, segments)

    @property
    def unsynced(self) -> bool:
        """Whether a file was written that is not on the disk itself."""
        return bool(self._unsynced)

    def take_unsynced(self) -> list[str]:
        """Return the files to sync, for once."""
        paths, self._unsynced = self._unsynced, []
        return paths

    # Cutting

    def before_truncation(self, offset: int, segments: Sequence[LogSegment]) -> None:
        """Handle a truncation to *offset*, before the log is cut."""
        self._cuts_marker = False
        if offset >= self.transactions.known_from:
            return
        first = bisect_right(segments, offset, key=BASE_OFFSET) - 1
        try:
            for segment in segments[max(first, 0) :]:
                start = segment.indexed_position(offset) if offset > segment.base_offset else 0
                for _, info in scan.headers(segment.file, start, segment.size):
                    if info.is_control and info.last_offset >= offset:
                        self._cuts_marker = True
                        return
        except CorruptMessage:
            self._cuts_marker = True

    def truncated(self, end_offset: int, segments: Sequence[LogSegment]) -> None:
        """Remove what the log, cut off at *end_offset*, does not have any more."""
        if self.copied.truncate_from_end(end_offset):
            self._write_copied()
        self.snapshots.drop_behind(end_offset)
        coordinator_epochs = {
            producer_id: entry.coordinator_epoch
            for producer_id, entry in self.states.entries.items()
            if entry.last_offset >= end_offset
        }
        for producer_id in [k for k, (_, offset) in self.markers.items() if offset >= end_offset]:
            del self.markers[producer_id]
        lost = self.states.truncate_from_end(end_offset)
        if lost:
            self._look_back(lost, end_offset, segments)
        for producer_id, epoch in coordinator_epochs.items():
            # Headers do not have it. The coordinator of a marker that was cut had replaced the former ones, too.
            self.states.transaction_ended(producer_id, epoch)
        if self._cuts_marker:
            self._restore_transactions(end_offset, segments)
            self._cuts_marker = False
        else:
            self.transactions.truncate_from_end(end_offset)

    def _restore_transactions(self, end_offset: int, segments: Sequence[LogSegment]) -> None:
        """Find the open transactions at *end_offset*, the log end, from the newest snapshot on."""
        loaded = self.snapshots.load(end_offset, [])
        start = segments[0].base_offset
        ongoing: Mapping[int, OngoingTransaction] = {}
        if loaded is not None and loaded[0] >= start:
            start, ongoing = loaded[0], loaded[1].ongoing
        self.transactions = transactions = LogTransactions(ongoing, start)
        for segment, position, info in _headers(segments, start, []):
            self._passed_in_file(segment, position, info, transactions, is_own=False)

    def _look_back(
        self, lost: Mapping[int, int], end_offset: int, segments: Sequence[LogSegment]
    ) -> None:
        """Find the last batches of *lost* producers, which wrote lately: from the end of the log backwards.

        To read it all from the snapshot on could take the owner's thread seconds.
        """
        floor = max(self.snapshots.newest, segments[0].base_offset)
        found = ProducerStates()
        start, width = end_offset, _FIRST_LOOK
        # A producer of which only a marker was found may have batches before it.
        while start > floor and not _have_batches(found, lost):
            start, width = max(floor, end_offset - width), width * _WIDER
            found.clear()
            found.replay(
                (one for one in self._own_headers(segments, start, []) if one.producer_id in lost),
                0,
            )
        earlier: Mapping[int, ProducerStateEntry] = {}
        if not _have_batches(found, lost):
            loaded = self.snapshots.load(end_offset, [])
            earlier = loaded[1].states.entries if loaded is not None else {}
        for producer_id, touched_ms in lost.items():
            entry, before = found.entries.get(producer_id), earlier.get(producer_id)
            if entry is None:
                entry = before
            elif before is not None and not entry.batches and entry.epoch == before.epoch:
                entry.batches = before.batches
            if entry is not None:
                entry.complete = False
                entry.touched_ms = touched_ms
                self.states.remember(producer_id, entry)

    def truncate_fully(self) -> None:
        """Remove all state: no batch is left, and the next one may have any offset."""
        if self.copied.truncate_from_end(0):
            self._write_copied()
        self.snapshots.drop_behind(-1)
        self.states.clear()
        self.markers.clear()
        self.transactions = LogTransactions()
        self._cuts_marker = False

    def segments_deleted(self, base_offsets: Sequence[int], log_start_offset: int) -> None:
        """Remove the snapshots of segments that are gone; producers are remembered (KIP-360)."""
        for offset in base_offsets:
            self.snapshots.gone(offset)
        self.copied.truncate_from_start(log_start_offset)

    def moved_to(self, directory: str) -> None:
        """Follow the rename of the directory."""
        former = self.directory
        self._unsynced = [directory + path.removeprefix(former) for path in self._unsynced]
        self.directory = self.snapshots.directory = directory

    def take_over(
        self, former: ProducerStateManager, end_offset: int, segments: Sequence[LogSegment]
    ) -> None:
        """Know what *former* knows, of a log with the same records up to *end_offset*, the log end of both.

        A copy remembers less: nothing of producers with deleted records, and nothing of what a mirror copied.
        """
        self.states, self.transactions = former.states, former.transactions
        self.markers = former.markers
        if former.copied:
            self.copied = CopiedOffsets(list(former.copied.ranges))
            self._write_copied()
            self.snapshots.drop_behind(-1)  # they have the producers of copied batches
        if self.states or self.transactions.ongoing or self.snapshots.offsets:
            self.write_snapshot(end_offset, segments)

    # Finding

    def restore(
        self, end_offset: int, segments: Sequence[LogSegment], now_ms: int, notes: list[str]
    ) -> None:
        """Find what is known at *end_offset*, the log end, and make the transaction indexes right. Slow."""
        start = segments[0].base_offset
        loaded = self.snapshots.load(end_offset, notes)
        self.states = ProducerStates()
        self.markers = {}
        ongoing: Mapping[int, OngoingTransaction] = {}
        if loaded is not None:
            self.states, ongoing = loaded[1]
            if loaded[0] < start:  # all their records are gone, and maybe their markers
                ongoing = {}
            start = max(start, loaded[0])
        self.transactions = LogTransactions(ongoing, start)
        damaged: set[LogSegment] = set()
        aborted: dict[LogSegment, list[AbortedTransaction]] = {}
        self.states.reload(self._replayed(segments, start, notes, damaged, aborted), now_ms)
        for segment in segments[max(bisect_right(segments, start, key=BASE_OFFSET) - 1, 0) :]:
            if segment not in damaged and segment.transaction_index.replace_behind(
                start, aborted.get(segment, ())
            ):
                notes.append(f"{segment.transaction_index.path}: rebuilt from the batches")

    def _replayed(
        self,
        segments: Sequence[LogSegment],
        start: int,
        notes: list[str],
        damaged: set[LogSegment],
        aborted: dict[LogSegment, list[AbortedTransaction]],
    ) -> Iterator[BatchInfo]:
        """Yield the headers from offset *start* on, but of what a mirror copied, and add to *aborted*."""
        copied = self.copied
        for segment, position, info in _headers(segments, start, notes, damaged):
            is_own = not copied or info.base_offset not in copied
            if is_own:
                yield info  # its state is recorded before the next one is asked for
            found = self._passed_in_file(segment, position, info, self.transactions, is_own=is_own)
            if found is not None:
                aborted.setdefault(segment, []).append(found)

    def _own_headers(
        self, segments: Sequence[LogSegment], start: int, notes: list[str]
    ) -> Iterator[BatchInfo]:
        """Yield the headers from offset *start* on, but of what a mirror copied."""
        copied = self.copied
        for _, _, info in _headers(segments, start, notes):
            if not copied or info.base_offset not in copied:
                yield info


def _have_batches(states: ProducerStates, producers: Iterable[int]) -> bool:
    entries = states.entries
    return all(each in entries and entries[each].batches for each in producers)


def _whole(segment: LogSegment, position: int, info: BatchInfo) -> bytes:
    """Return the bytes of a control batch; nothing of others is needed."""
    if not info.is_control or info.size > LARGEST_MARKER:
        return b""
    return segment.file.pread(info.size, position)


def _headers(
    segments: Sequence[LogSegment],
    start: int,
    notes: list[str],
    damaged: set[LogSegment] | None = None,
) -> Iterator[tuple[LogSegment, int, BatchInfo]]:
    """Yield the batches from offset *start* on, each with its place; what lies behind damage in a segment not."""
    ends = [later.base_offset for _, later in pairwise(segments)] + [start + 1]
    for segment, end in zip(segments, ends, strict=True):
        if end <= start:
            continue
        try:
            position = segment.indexed_position(start) if start > segment.base_offset else 0
            for at, info in scan.headers(segment.file, position, segment.size):
                if info.base_offset >= start:
                    yield segment, at, info
        except CorruptMessage as error:
            if damaged is not None:
                damaged.add(segment)
            notes.append(f"{segment.path}: producers behind the damage are not known: {error}")


def open_producers(
    disk: Disk,
    directory: str,
    names: set[str],
    segments: Sequence[LogSegment],
    end_offset: int,
    *,
    clean: bool,
    synced_below: int,
    now_ms: int,
    notes: list[str],
) -> ProducerStateManager:
    """Find what the log that ends at *end_offset* knows of producers; *names* are its files.

    A log that was closed *clean* without a snapshot has none. A snapshot above *synced_below* is removed: a truncation
    may have removed it before, without a sync, and a power loss brought it back. Its batches are not those of the log.
    Slow: may read all batch headers.
    """
    copied = None
    if copied_offsets.FILE_NAME in names:
        path = f"{directory}/{copied_offsets.FILE_NAME}"
        try:
            copied = copied_offsets.decode(read_file(disk, path))
            copied.truncate_from_end(end_offset)
        except CorruptMessage as error:
            notes.append(f"{path}: {error.message}; going on without it")
    producers = ProducerStateManager(
        disk, directory, ProducerSnapshots(disk, directory, names), copied
    )
    producers.transactions.known_from = end_offset
    producers.snapshots.drop_behind(synced_below)
    if clean and not producers.snapshots.offsets:
        return producers
    producers.restore(end_offset, segments, now_ms, notes)
    return producers
