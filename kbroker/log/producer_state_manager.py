"""The producers of one log: what is known of them, kept over restarts and truncations.

Joins the machine (`producer_state`) with its snapshots, and with what of the log a mirror copied.
What is known at any offset is the newest snapshot before it and the headers of the batches from
there on: so it is found again after a crash, and after a truncation that took away more than is
remembered.

Owner: the thread that owns the log. `open_producers` reads batch headers: it runs in a pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from kbroker.log import copied_offsets, scan
from kbroker.log.copied_offsets import CopiedOffsets
from kbroker.log.disk import Disk, read_file, replace_file
from kbroker.log.log_segment import LogSegment
from kbroker.log.producer_snapshots import ProducerSnapshots
from kbroker.log.producer_state import ProducerStates
from kclient.wire.batches import BatchInfo
from kclient.wire.errors import CorruptMessage

_FIRST_LOOK: Final = 1024
_WIDER: Final = 8
"""How many offsets from the end a lost producer is looked for first, and how much further next."""


class ProducerStateManager:
    """What the log in *directory* remembers of producers. Every method may raise OSError."""

    __slots__ = ("_disk", "_unsynced", "copied", "directory", "snapshots", "states")

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
        self._unsynced: list[str] = []

    # Appends

    def replicated(self, infos: Sequence[BatchInfo], now_ms: int) -> None:
        """Record batches as the leader of the partition wrote them."""
        self.states.replay(infos, now_ms)

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
        self.snapshots.write(offset, self.states, [one.base_offset for one in segments])
        self._unsynced.append(self.snapshots.path(offset))

    def write_last_snapshot(self, offset: int, segments: Sequence[LogSegment]) -> None:
        """Put down what is known at *offset*, the log end, unless it is there: a clean shutdown."""
        newest = self.snapshots.newest
        if newest < offset and (self.states or newest >= 0):
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

    def truncated(self, end_offset: int, segments: Sequence[LogSegment]) -> None:
        """Remove what the log, cut off at *end_offset*, does not have any more."""
        if self.copied.truncate_from_end(end_offset):
            self._write_copied()
        self.snapshots.drop_behind(end_offset)
        lost = self.states.truncate_from_end(end_offset)
        if lost:
            self._look_back(lost, end_offset, segments)

    def _look_back(
        self, lost: Mapping[int, int], end_offset: int, segments: Sequence[LogSegment]
    ) -> None:
        """Find the last batches of *lost* producers, which wrote lately: from the end of the log backwards.

        To read it all from the snapshot on could take the owner's thread seconds.
        """
        floor = max(self.snapshots.newest, segments[0].base_offset)
        found = ProducerStates()
        start, width = end_offset, _FIRST_LOOK
        while start > floor and len(found) < len(lost):
            start, width = max(floor, end_offset - width), width * _WIDER
            found.clear()
            found.replay(
                (one for one in self._own_headers(segments, start, []) if one.producer_id in lost),
                0,
            )
        if len(found) < len(lost):
            loaded = self.snapshots.load(end_offset, [])
            earlier = loaded[1].entries if loaded is not None else {}
        else:
            earlier = {}
        for producer_id, touched_ms in lost.items():
            entry = found.entries.get(producer_id) or earlier.get(producer_id)
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

    def segments_deleted(self, base_offsets: Sequence[int], log_start_offset: int) -> None:
        """Remove the snapshots of segments that are gone; producers are remembered (KIP-360)."""
        for offset in base_offsets:
            self.snapshots.gone(offset)
        self.copied.truncate_from_start(log_start_offset)

    def moved_to(self, directory: str) -> None:
        """Follow the rename of the directory."""
        self.directory = self.snapshots.directory = directory

    # Finding

    def restore(
        self, end_offset: int, segments: Sequence[LogSegment], now_ms: int, notes: list[str]
    ) -> None:
        """Find what is known at *end_offset*, the log end. Slow."""
        start = segments[0].base_offset
        loaded = self.snapshots.load(end_offset, notes)
        self.states = ProducerStates()
        if loaded is not None:
            start = max(start, loaded[0])
            self.states = loaded[1]
        if start >= end_offset:
            return
        self.states.reload(self._own_headers(segments, start, notes), now_ms)

    def _own_headers(
        self, segments: Sequence[LogSegment], start: int, notes: list[str]
    ) -> Iterator[BatchInfo]:
        """Yield the headers from offset *start* on, but of what a mirror copied."""
        found = _headers(segments, start, notes)
        copied = self.copied
        return (info for info in found if info.base_offset not in copied) if copied else found


def _headers(segments: Sequence[LogSegment], start: int, notes: list[str]) -> Iterator[BatchInfo]:
    """Yield the batch headers from offset *start* on; what lies behind damage in a segment not."""
    ends = [later.base_offset for _, later in pairwise(segments)] + [start + 1]
    for segment, end in zip(segments, ends, strict=True):
        if end <= start:
            continue
        try:
            position = segment.indexed_position(start) if start > segment.base_offset else 0
            for _, info in scan.headers(segment.file, position, segment.size):
                if info.base_offset >= start:
                    yield info
        except CorruptMessage as error:
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
    producers.snapshots.drop_behind(synced_below)
    if clean and not producers.snapshots.offsets:
        return producers
    producers.restore(end_offset, segments, now_ms, notes)
    return producers
