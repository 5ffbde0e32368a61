"""The segments of one log: the one place where segments are added, replaced and deleted, in crash-safe order.

Theory of operation
===================
The segments lie in the order of their base offsets. The last one is the active segment, which alone takes appends. Each
operation below is a row of file-system calls. A kill or a power loss may follow any prefix of the row. Recovery
(`log_loader`) then opens the log as it was before the operation or after it:

    roll                            create the next segment, then delete the sealed one if it is empty
    truncate_to                     delete segments from the end, then cut the last one
    truncate_fully_and_start_at     create the new segment, then delete the others, the one furthest from it first
    delete_oldest                   rename to .deleted, oldest first; a later task removes the files
    quarantine_behind               rename to .quarantined, behind the last whole batch; recovery only
    replace                         one new segment for a run of sealed ones; see `segment_replacement`

Invariants:
1. There is always an active segment, in memory and on the disk: an empty directory would be a log that ends at 0.
2. Base offsets grow strictly.
3. A reader that holds a slice keeps its file: a deleted file stays open until the last slice is released.

Owner: the thread that owns the log. Every method may raise OSError; the log takes no appends after that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, overload

from kbroker.log import quarantine, scan
from kbroker.log.core.cleaned_transactions import AbortedTransaction
from kbroker.log.disk import Disk
from kbroker.log.log_segment import BASE_OFFSET, MAX_RELATIVE, LogSegment, write_gap
from kbroker.log.segment_replacement import SegmentReplacement
from kbroker.log.slices import FileSlice
from kbroker.log.transaction_index import LaterIndexes
from kclient.wire.batches import LARGEST_OFFSET


class LogSlice(NamedTuple):
    """The result of a read: slices to send one after the other, each beginning with a batch.

    `max_bytes` may cut off the last batch; Kafka's clients drop such a tail and fetch it again.
    """

    slices: tuple[FileSlice, ...]
    size: int


EMPTY: Final = LogSlice((), 0)


class LogSegments(Sequence[LogSegment]):
    """The segments in *directory*, oldest first; at least one."""

    __slots__ = ("_disk", "_replacement", "_segments", "active", "directory")

    def __init__(self, disk: Disk, directory: str, segments: Sequence[LogSegment]) -> None:
        self._disk = disk
        self.directory = directory
        self._segments = list(segments)
        self._replacement: SegmentReplacement | None = None
        """The newest one; the next one begins after it is over."""
        self.active = self._segments[-1]
        """The segment that takes appends: the last one."""

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    @overload
    def __getitem__(self, index: int) -> LogSegment: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LogSegment]: ...
    def __getitem__(self, index: int | slice) -> LogSegment | Sequence[LogSegment]:
        return self._segments[index]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def first_offset(self) -> int:
        """The base offset of the oldest segment."""
        return self._segments[0].base_offset

    def index_of(self, offset: int) -> int:
        """Return the index of the segment that holds *offset*; 0 for an offset before the first one."""
        return max(bisect_right(self._segments, offset, key=BASE_OFFSET) - 1, 0)

    def to_flush(
        self, recovery_point: int, cut_at: int | None, *, sealed_only: bool
    ) -> Sequence[LogSegment]:
        """Return the segments with records at or above *recovery_point*, and those that a cut at *cut_at* touched."""
        first = bisect_right(self._segments, recovery_point, key=BASE_OFFSET) - 1
        if cut_at is not None:
            first = min(first, bisect_left(self._segments, cut_at, key=BASE_OFFSET) - 1)
        return self._segments[max(first, 0) : -1 if sealed_only else None]

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        up_to_offset: int,
        log_end_offset: int,
        min_one_batch: bool,
    ) -> LogSlice:
        """Return batches, the first of which holds *offset*, from one segment; see `UnifiedLog.read`."""
        active = segment = self.active
        number = -1
        if offset < segment.base_offset:
            number = bisect_right(self._segments, offset, key=BASE_OFFSET) - 1
            segment = self._segments[number]
        position = segment.recent_position(offset)
        while position is None:
            found = segment.locate(offset)
            if found is not None:
                position = found.position
            elif segment is active:
                return EMPTY
            else:  # a gap before the next segment
                number += 1
                segment = self._segments[number]
        if segment is active:
            bounded = up_to_offset < log_end_offset
        else:
            bounded = up_to_offset < self._segments[number + 1].base_offset
        end = segment.size
        if bounded:
            bound = segment.recent_position(up_to_offset)
            if bound is None:
                found = segment.locate(up_to_offset)
                bound = end if found is None else found.position
            end = bound
        size = end - position
        if size > max_bytes:
            first = scan.header_at(segment.file, position).size
            if first > max_bytes and not min_one_batch:
                return EMPTY
            size = max(first, max_bytes)
        if size <= 0:
            return EMPTY
        return LogSlice((FileSlice(segment.file, position, size),), size)

    def aborted_transactions(
        self, offset: int, found: LogSlice, up_to_offset: int
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap *found*; see `UnifiedLog.aborted_transactions`."""
        number = self.index_of(offset)
        aborted: list[AbortedTransaction] = []
        bound: int | None = None
        for segment in self._segments[number:]:
            if not len(segment.transaction_index):
                continue
            if bound is None:
                bound = min(self._upper_bound(number, found), up_to_offset)
            if segment.transaction_index.collect(offset, bound, aborted):
                break
        return aborted

    def later_indexes(self, offset: int) -> LaterIndexes:
        """Return the transaction indexes of the segments from *offset* on, where one begins."""
        sealed = self._segments[self.index_of(offset) : -1]
        active = self.active.transaction_index
        return LaterIndexes(
            [each.transaction_index.path for each in sealed], active.path, *active.parts()
        )

    def _upper_bound(self, number: int, found: LogSlice) -> int:
        """Return an offset that is not below the end of *found*.

        *found* is in segment *number* or, behind a gap, in a later one.
        """
        last = found.slices[-1]
        for index in range(number, len(self._segments)):
            segment = self._segments[index]
            if segment.has(last):
                following = self._segments[index + 1 : index + 2]
                end = following[0].base_offset if following else LARGEST_OFFSET
                return min(segment.offset_above(last.position + last.size), end)
        return LARGEST_OFFSET

    # Adding

    def roll(self, log_end_offset: int, now_ms: int, *, last_offset: int = 0) -> LogSegment:
        """Seal the active segment, start the next one at *log_end_offset*, and return the sealed one.

        The new segment begins behind the log end offset only where *last_offset*, which is written next, is too far
        from it for an index entry. A segment that does not begin at the end of the one before it is behind a hole for
        recovery. A ``.gap`` file beside it that names that end prevents this.
        """
        sealed = self.active
        base_offset = max(log_end_offset, last_offset - MAX_RELATIVE)
        if sealed.size:
            sealed.seal()
        if base_offset != log_end_offset:
            write_gap(self._disk, self.directory, base_offset, log_end_offset)
        active = LogSegment.create(self._disk, self.directory, base_offset, now_ms)
        if not sealed.size:  # Kafka too replaces an empty segment: two cannot begin at one offset
            del self._segments[-1]
        self._segments.append(active)
        self.active = active
        if not sealed.size and sealed.base_offset != base_offset:
            self._delete(sealed)
        return sealed

    # Replacing

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Put an empty segment at *offset* in the place of all segments.

        A power loss in between leaves a log that ends where the old one did, or at *offset*.
        """
        self._end_replacement()
        former = self._segments[:]
        same = next((each for each in former if each.base_offset == offset), None)
        if same is None:
            self.active = LogSegment.create(self._disk, self.directory, offset, now_ms)
            self._segments.append(self.active)
        # The newest first where the new segment is before them: a killed process leaves no hole between the two.
        for segment in former if former[-1].base_offset < offset else former[::-1]:
            if segment is not same:
                self._segments.remove(segment)
                self._delete(segment)
        if same is not None:
            same.replace_file()
            self.active = LogSegment.create(self._disk, self.directory, offset, now_ms)
            self._segments[:] = [self.active]

    def quarantine_all_and_start_at(self, offset: int, now_ms: int) -> None:
        """Put an empty segment at *offset* in the place of all segments, and keep their batches: recovery only."""
        former = self._segments
        self.active = LogSegment.create(self._disk, self.directory, offset, now_ms)
        self._segments = [self.active]
        for segment in former:
            quarantine.put_aside(self._disk, segment)

    def start_replacement(
        self, index: int, count: int, *, index_interval_bytes: int, decided_below: int = 0
    ) -> SegmentReplacement:
        """Begin to replace *count* sealed segments from *index* on. A truncation below *decided_below* cancels it.

        Raise ValueError for the active segment, and while an earlier replacement is not over.
        """
        if not 0 <= index < index + count < len(self._segments):
            raise ValueError(f"{count} segments from {index} on are not all sealed")
        if self._replacement is not None and not self._replacement.is_over:
            raise ValueError(f"{self.directory}: segments are being replaced already")
        self._replacement = SegmentReplacement(
            self._disk,
            self.directory,
            self._segments[index : index + count],
            self._segments[index + count],
            index_interval_bytes=index_interval_bytes,
            decided_below=decided_below,
        )
        return self._replacement

    def replace(self, replacement: SegmentReplacement) -> list[str]:
        """Put the new segment in the place of the old ones; return the files, renamed, for a later task to remove.

        Nothing, and no files, for a replacement that was cancelled.
        """
        if replacement.is_cancelled:
            return []
        if not replacement.is_published:
            raise ValueError(f"{self.directory}: the new segment is not synced")
        index = self._segments.index(replacement.old[0])
        self._segments[index : index + len(replacement.old)] = [replacement.segment]
        return replacement.put_old_aside()

    def complete_replacement(self, replacement: SegmentReplacement) -> None:
        """Give the files of the new segment their final names, after the names of the old ones were synced."""
        if replacement.is_cancelled:
            return
        if not replacement.is_synced:
            raise ValueError(f"{self.directory}: the names of the old segments are not synced")
        replacement.take_final_names(self._segments)

    def _end_replacement(self) -> None:
        """Cancel the replacement under way, or complete it now: its segments are about to be cut."""
        replacement = self._replacement
        if replacement is None:
            return
        replacement.cancel()
        if replacement.is_replaced and not replacement.is_complete:
            replacement.sync()
            replacement.take_final_names(self._segments)

    # Deleting

    def truncate_to(self, offset: int) -> int:
        """Remove every batch that reaches to *offset* or beyond; return the end of the log, *offset* or less.

        *offset* is above the first segment's base offset.
        """
        if self._replacement is not None and self._replacement.reaches(offset):
            self._end_replacement()
        while self.active.base_offset > offset:
            self._delete(self._segments.pop())
            self.active = self._segments[-1]
        found = self.active.locate(offset)
        if found is not None:
            self.active.truncate(found.position, min(offset, found.info.base_offset))
        return self.active.find_end()

    def delete_oldest(self, count: int) -> list[str]:
        """Take the *count* oldest segments out of the log; return the files, renamed, for a later task to remove."""
        deleted = self._segments[:count]
        if self._replacement is not None and self._replacement.old[0] in deleted:
            self._replacement.cancel()
        del self._segments[:count]
        return [path for segment in deleted for path in segment.mark_deleted()]

    def quarantine_behind(self, index: int) -> list[tuple[LogSegment, str]]:
        """Take the segments behind *index* out of the log; return each with the new name of its file, "" if empty."""
        later = self._segments[index + 1 :]
        quarantined = [(segment, quarantine.put_aside(self._disk, segment)) for segment in later]
        del self._segments[index + 1 :]
        self.active = self._segments[-1]
        return quarantined

    def _delete(self, segment: LogSegment) -> None:
        for path in segment.mark_deleted():
            self._disk.unlink(path)

    # All at once

    def close(self) -> None:
        """Close the files; slices keep theirs open, and the next access opens a file again."""
        if self._replacement is not None:
            with suppress(OSError):  # then recovery completes it: nothing was cut
                self._replacement.cancel()
        for segment in self._segments:
            segment.close()

    def moved_to(self, directory: str) -> None:
        """Handle the rename of the partition's directory."""
        self.directory = directory
        if self._replacement is not None:
            self._replacement.moved_to(directory)
        for segment in self._segments:
            segment.moved_to(directory)
