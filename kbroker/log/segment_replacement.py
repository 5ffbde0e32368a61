"""The replacement of a run of sealed segments by one new segment, in crash-safe steps: what log compaction needs.

Theory of operation
===================
The new segment has the base offset of the run's first segment, and holds batches with offsets of the run, not
necessarily all. The owner and the pool take turns:

    1  pool   `write`: the new segment as .cleaned, with the aborted transactions that stay, synced
    2  pool   `publish`: the .gap file becomes .swap, synced
    3  pool   `publish`: the segment becomes .swap, synced; from here on recovery completes the replacement
    4  owner  `LogSegments.replace`: the new segment is in the list; the files of the old ones become .deleted
    5  pool   `sync`
    6  owner  `LogSegments.complete_replacement`: .swap becomes the final names, the transaction index last
    7  pool   `sync`; only then may another replacement of this log begin

The suffixes are Kafka's (``LocalLog.replaceSegments``, KAFKA-6264): either broker opens a directory that the other one
left in the midst of a replacement. The syncs 2, 3 and 5 are ours: docs/design/segment-replacement.md shows what a power
loss could do without each.

A truncation or a deletion that touches the run before step 4 cancels the replacement. So does a truncation of records
that are the reason why the new segment lacks others. The names that exist then are removed before the log is cut, under
the lock that the pool holds for its renames. Recovery of a killed process would otherwise bring back what was cut. The
pool opens each file that it writes under the same lock, and opens none after a cancellation. A deleted partition's
directory has another name then, and that is no failure of the disk. A truncation of the new segment after step 4 does
steps 5 and 6 first, with a sync on the owner's thread. An append to a .swap file that is torn could not be recovered.

The .gap file states where the new segment ends if that is before the next segment begins (`log_segment.write_gap`).
Recovery removes the old segments up to the next one by it. Without it an old segment, the records of which were all
cleaned away, would come back.

Owner: each method names its thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Final, NamedTuple

from kbroker.log.core.cleaned_transactions import AbortedTransaction
from kbroker.log.disk import CREATE, Buffer, Disk, read_file, sync_file, unlink_if_there, write_all
from kbroker.log.log_segment import GAP_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, LogSegment, write_gap
from kbroker.log.transaction_index import SUFFIX as TRANSACTIONS_SUFFIX
from kclient.wire.batches import iterate
from kclient.wire.errors import CorruptMessage, KafkaStorageError

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

_NAME: Final = re.compile(r"^(\d{20})(\.[a-z]+)(?:(\.cleaned|\.swap))?$")
_OF_SEGMENT: Final = frozenset({LOG_SUFFIX, ".index", ".timeindex", TRANSACTIONS_SUFFIX})
_BESIDE: Final = frozenset({SNAPSHOT_SUFFIX, GAP_SUFFIX})


class SegmentReplacement:
    """A new segment for the place of *old*, sealed segments side by side, the next of which is *following*.

    What it leaves out was decided by records below *decided_below*.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        old: Sequence[LogSegment],
        following: LogSegment,
        *,
        index_interval_bytes: int,
        decided_below: int = 0,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._decided_below = decided_below
        self._index_interval_bytes = index_interval_bytes
        self._lock = Lock()
        self.old = tuple(old)
        self.following = following
        self.segment = LogSegment(
            disk,
            directory,
            old[0].base_offset,
            size=0,
            created_ms=old[-1].created_ms,
            suffix=CLEANED_SUFFIX,
        )
        """The new segment."""
        self._gap_suffix = ""
        """Suffix of the .gap file of *following*; "" if there is none."""
        self.is_cancelled = False
        self.is_published = False
        """Whether the pool has done steps 2 and 3."""
        self.is_replaced = False
        """Whether the owner has done step 4."""
        self.is_synced = False
        """Whether the pool has done step 5."""
        self.is_complete = False
        """Whether the owner has done step 6."""
        self.is_over = False
        """Whether another replacement of the log may begin: the names of this one are synced."""

    # Pool

    def write(
        self,
        batches: Iterable[Buffer],
        aborted: Callable[[], Iterable[AbortedTransaction]] | None = None,
    ) -> None:
        """Write the new segment: buffers of whole batches, in the order of their offsets, all within the run.

        *aborted* gives what stays of the transaction indexes, and is called behind the last batch; without it, all
        entries of the old segments stay. Slow. Raise CorruptMessage for a batch that cannot be in the run, OSError.
        Nothing is replaced then, and the caller cancels.
        """
        segment = self.segment
        limit = self.following.base_offset
        end = segment.base_offset
        with self._lock:
            if self.is_cancelled:
                return
            segment.reset_indexes()
            fd = self._disk.open(segment.path, CREATE)
        try:
            for buffer in batches:
                end = self._append(fd, buffer, end)
                if not self._by_name(segment.spill_indexes):
                    return
            for entry in self._all_aborted() if aborted is None else aborted():
                segment.transaction_index.append(entry)
                if not self._by_name(segment.spill_indexes):
                    return
            if not self._by_name(segment.seal):
                return
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
        for index in (segment.offset_index, segment.time_index):
            self._sync(index.path)
        if segment.transaction_index.has_file:
            self._sync(segment.transaction_index.path)
        if end != limit and self._by_name(
            lambda: write_gap(self._disk, self._directory, limit, end, suffix=CLEANED_SUFFIX)
        ):
            self._sync(self._gap_path(CLEANED_SUFFIX))
            self._gap_suffix = CLEANED_SUFFIX
        self._sync_names()

    def _append(self, fd: int, buffer: Buffer, end: int) -> int:
        """Write *buffer* behind the batches that end at offset *end*; return where they end then."""
        segment, limit = self.segment, self.following.base_offset
        position = segment.size
        for info in iterate(buffer):
            if not (end <= info.base_offset <= info.last_offset < limit):
                raise CorruptMessage(
                    f"{segment.path}: offsets {info.base_offset}-{info.last_offset} are not"
                    f" within {end}-{limit - 1}"
                )
            segment.appended(
                info.size,
                info.base_offset,
                info.last_offset,
                info.max_timestamp,
                self._index_interval_bytes,
            )
            end = info.next_offset
        if segment.size - position != len(memoryview(buffer)):
            raise CorruptMessage(f"{segment.path}: a buffer ends within a batch")
        write_all(self._disk, fd, [buffer], position)
        return end

    def _by_name(self, write: Callable[[], object]) -> bool:
        """Have *write* open files by their names; return False, and do nothing, after `cancel`.

        A partition is deleted by a rename of its directory. The names lead nowhere then, or into another log.
        """
        with self._lock:
            if not self.is_cancelled:
                write()
            return not self.is_cancelled

    def _sync(self, path: str) -> None:
        """Sync a file that `cancel`, in another thread, may have removed."""
        try:
            sync_file(self._disk, path)
        except FileNotFoundError:
            if not self.is_cancelled:
                raise

    def _all_aborted(self) -> Iterator[AbortedTransaction]:
        for old in self.old:
            yield from old.transaction_index.entries()

    def publish(self) -> bool:
        """Give the new segment the names by which recovery completes the replacement; False if it was cancelled.

        Slow. Raise OSError.
        """
        self.is_published = self._rename_and_sync(self._publish_gap) and self._rename_and_sync(
            lambda: self._rename(SWAP_SUFFIX)
        )
        return self.is_published

    def _rename_and_sync(self, rename: Callable[[], None]) -> bool:
        with self._lock:
            if self.is_cancelled:
                return False
            rename()
        self._sync_names()
        return True

    def _publish_gap(self) -> None:
        if self._gap_suffix:
            self._disk.rename(self._gap_path(CLEANED_SUFFIX), self._gap_path(SWAP_SUFFIX))
            self._gap_suffix = SWAP_SUFFIX

    def sync(self) -> None:
        """Sync the names: steps 5 and 7, and the end of a replacement that was cancelled. Slow. Raise OSError."""
        is_replaced, is_over = self.is_replaced, self.is_complete or self.is_cancelled
        if self.is_cancelled:
            self._remove_files()  # those that `write` created after `cancel`
        self._sync_names()
        self.is_synced = is_replaced
        self.is_over = is_over

    def _sync_names(self) -> None:
        with suppress(FileNotFoundError):  # the partition was deleted, directory and all
            self._disk.sync_dir(self._directory)

    # Owner

    def reaches(self, offset: int) -> bool:
        """Return whether a truncation to *offset* cuts the run, or a record in favour of which one was left out."""
        return offset < max(self.following.base_offset, self._decided_below)

    def cancel(self) -> None:
        """Give the replacement up, and remove its files; nothing after step 4. Raise OSError.

        It is over when the pool, which may be at work on it, has called `sync`.
        """
        if self.is_replaced or self.is_cancelled:
            return
        with self._lock:
            self.is_cancelled = True
            self._remove_files()

    def _remove_files(self) -> None:
        # Recovery would complete a replacement of which the batches, and not all the rest, are .swap files.
        with suppress(FileNotFoundError):
            self._disk.rename(self._paths(SWAP_SUFFIX)[-1], self._paths(CLEANED_SUFFIX)[-1])
        for suffix in (SWAP_SUFFIX, CLEANED_SUFFIX):
            for path in (*self._paths(suffix), self._gap_path(suffix)):
                unlink_if_there(self._disk, path)

    def put_old_aside(self) -> list[str]:
        """Rename the files of the old segments to ``.deleted``; return their paths, to unlink later. Raise OSError.

        What belongs to the base offset and not to the batches stays for the new segment. That is the first segment's
        snapshot of producers, and where the segment before it ended.
        """
        self.is_replaced = True
        first, *others = self.old
        paths = first.mark_deleted(beside=False)
        for segment in others:
            paths += segment.mark_deleted()
        return paths

    def take_final_names(self, segments: Collection[LogSegment]) -> None:
        """Rename what is left of the replacement among *segments*, those of the log, to final names. Raise OSError."""
        if self.is_complete:
            return
        if self._gap_suffix:
            path = self._gap_path(SWAP_SUFFIX)
            if any(each is self.following for each in segments):
                self._disk.rename(path, self._gap_path(""))
            else:  # it would excuse a hole before a later segment of that base offset
                unlink_if_there(self._disk, path)
            self._gap_suffix = ""
        if any(each is self.segment for each in segments):
            self._rename("")
        self.is_complete = True

    def moved_to(self, directory: str) -> None:
        """Handle the rename of the partition's directory, after `cancel` or step 4."""
        self._directory = directory
        self.segment.moved_to(directory)  # a new log may have the former name

    # Names

    def _paths(self, suffix: str) -> list[str]:
        segment = self.segment
        indexes = (segment.offset_index.SUFFIX, segment.time_index.SUFFIX, TRANSACTIONS_SUFFIX)
        return [f"{segment.stem}{kind}{suffix}" for kind in (*indexes, LOG_SUFFIX)]

    def _gap_path(self, suffix: str) -> str:
        return f"{self._directory}/{self.following.base_offset:020d}{GAP_SUFFIX}{suffix}"

    def _rename(self, suffix: str) -> None:
        """Give the files of the new segment another suffix: the batches last, but for final names.

        While the batches are a .swap file, recovery takes an index with its final name for that of an old segment, and
        removes it. The indexes of offsets and times are rebuilt then, and that of transactions would be lost.
        """
        pairs = zip(self._paths(self.segment.suffix), self._paths(suffix), strict=True)
        offsets, times, transactions, batches = pairs
        last = (transactions, batches) if suffix else (batches, transactions)
        for pair in (offsets, times, *last):
            if pair is batches:
                self._disk.rename(*pair)
            else:
                # An index that was rebuilt is written by the next flush.
                with suppress(FileNotFoundError):
                    self._disk.rename(*pair)
        self.segment.renamed(suffix)


# Recovery


class RecoverySteps(NamedTuple):
    """What recovery does with the names of a directory, in this order."""

    replaced: list[str]
    """Files of old segments, and .gap files that are of no use: to remove."""
    renames: list[tuple[str, str]]
    """Files of new segments: to rename."""


def abandoned_files(names: Collection[str]) -> list[str]:
    """Return the files of replacements that were not published, those that recovery could complete by mistake first.

    The first segment is renamed to .swap last, its batches after its indexes. So where a .log.cleaned file is left,
    every .swap file at or above its base offset belongs to the same replacement (KAFKA-6264).
    """
    found = [match for name in sorted(names) if (match := _NAME.match(name))]
    lowest = min(
        (match[1] for match in found if (match[2], match[3]) == (LOG_SUFFIX, CLEANED_SUFFIX)),
        default=None,
    )
    swaps = [
        match[0]
        for match in found
        if match[3] == SWAP_SUFFIX and lowest is not None and match[1] >= lowest
    ]
    return swaps + [match[0] for match in found if match[3] == CLEANED_SUFFIX]


def recovery_steps(
    names: Collection[str], ends: Mapping[int, int], gaps: Mapping[int, int]
) -> RecoverySteps:
    """Return how to complete the published replacements in a directory with the files *names*.

    Without `abandoned_files`.

    *ends*: the end offset of each .log.swap by its base offset. *gaps*: the content of each .gap.swap by the base
    offset of the segment behind the gap. A new segment takes the place of every old one that begins below its end. If a
    gap begins at its end, it takes the place of those below the segment behind the gap.
    """
    found = {
        name: (int(match[1]), match[2], match[3])
        for name in sorted(names)
        if (match := _NAME.match(name))
    }
    covered = []
    matched = set()
    for base, end in ends.items():
        behind = [next_base for next_base, gap in gaps.items() if gap == end and next_base > base]
        until = max(end, base + 1)
        if behind:
            until = min(behind)
            matched.add(until)
        covered.append((base, until))
    replaced = []
    renames = []
    for name, (base, kind, suffix) in found.items():
        if suffix == SWAP_SUFFIX:
            if kind == GAP_SUFFIX and base not in matched:
                replaced.append(name)
            else:
                renames.append((name, name.removesuffix(SWAP_SUFFIX)))
        elif any(
            (first <= base < until and kind in _OF_SEGMENT)
            or (first < base < until and kind in _BESIDE)
            for first, until in covered
        ):
            replaced.append(name)
    # As in step 6: while the batches are a .swap file, the rest of the replacement is completed at the next start.
    order = (GAP_SUFFIX, ".index", ".timeindex", LOG_SUFFIX, TRANSACTIONS_SUFFIX)
    renames.sort(key=lambda each: order.index("." + each[1].rpartition(".")[2]))
    return RecoverySteps(replaced, renames)


def recover_replacements(disk: Disk, directory: str, names: set[str], notes: list[str]) -> None:
    """Complete the replacements that were published, and remove the others; *names* follows. Slow.

    Before any segment of *directory* is opened. May be interrupted, and is repeated then. Raise KafkaStorageError for
    a new segment that cannot be read: no old segment is removed then.
    """
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        return
    abandoned = abandoned_files(names)
    for name in abandoned:
        disk.unlink(f"{directory}/{name}")
    names.difference_update(abandoned)
    if abandoned:
        disk.sync_dir(directory)
        notes.append(f"{directory}: removed an unfinished compaction ({', '.join(abandoned)})")
    ends, gaps = _published(disk, directory, names)
    steps = recovery_steps(names, ends, gaps)
    for name in steps.replaced:
        disk.unlink(f"{directory}/{name}")
    names.difference_update(steps.replaced)
    if steps.replaced:
        disk.sync_dir(directory)
    for source, target in steps.renames:
        disk.rename(f"{directory}/{source}", f"{directory}/{target}")
        names.discard(source)
        names.add(target)
    if steps.renames:
        disk.sync_dir(directory)
    for base, end in ends.items():
        notes.append(f"{directory}: completed the compaction of offsets {base}-{end - 1}")


def _published(
    disk: Disk, directory: str, names: Collection[str]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the end of each new segment by its base offset, and the content of each new .gap file by its own."""
    ends: dict[int, int] = {}
    gaps: dict[int, int] = {}
    for name in sorted(names):
        match = _NAME.match(name)
        if match is None or match[3] != SWAP_SUFFIX:
            continue
        if match[2] == LOG_SUFFIX:
            ends[int(match[1])] = _end_of_swap(disk, directory, int(match[1]))
        elif match[2] == GAP_SUFFIX and (text := read_file(disk, f"{directory}/{name}")).isdigit():
            gaps[int(match[1])] = int(text)
    return ends, gaps


def _end_of_swap(disk: Disk, directory: str, base: int) -> int:
    path = f"{directory}/{base:020d}{LOG_SUFFIX}{SWAP_SUFFIX}"
    segment = LogSegment(
        disk, directory, base, size=disk.size(path), created_ms=0, suffix=SWAP_SUFFIX
    )
    try:
        segment.offset_index.trim()
        return segment.find_end()
    except CorruptMessage as error:
        raise KafkaStorageError(
            f"{path}, half of an interrupted compaction, cannot be read: {error.message}",
            hint="if the segments that it replaces are there, remove the .swap files of that name",
        ) from error
    finally:
        segment.close()
