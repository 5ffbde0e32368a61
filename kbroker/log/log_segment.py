"""One segment of a log: a file of batches, its indexes, and what is known of them.

A segment is named by its base offset in twenty digits. Bytes beyond `size` do not exist for any
reader, whatever the file holds: an append counts only after it was written whole.

Owner: the thread that owns the log.
"""

from __future__ import annotations

import zlib
from collections import deque
from contextlib import suppress
from operator import attrgetter
from typing import Final, NamedTuple
from weakref import ref

from kbroker.config.log import LogConfig
from kbroker.log import open_files, scan
from kbroker.log.disk import READ_WRITE, Disk, read_file, replace_file, unlink_if_there
from kbroker.log.indexes import SPILL_BYTES, OffsetIndex, TimeIndex
from kbroker.log.slices import FileSlice, SegmentFile
from kbroker.log.transaction_index import SUFFIX as TRANSACTIONS_SUFFIX
from kbroker.log.transaction_index import TransactionIndex
from kclient.wire.batches import HEADER_SIZE, LARGEST_OFFSET, NO_TIMESTAMP, BatchInfo
from kclient.wire.errors import CorruptMessage

LOG_SUFFIX: Final = ".log"
DELETED_SUFFIX: Final = ".deleted"
SNAPSHOT_SUFFIX: Final = ".snapshot"
"""What the log knew of producers where the segment begins (`producer_snapshots`)."""

GAP_SUFFIX: Final = ".gap"
"""Where the segment before this one ended, when this one does not begin there: a file of ours (`write_gap`)."""

MAX_RELATIVE: Final = 2**31 - 1
"""The greatest relative offset or position that an index entry can hold."""

BASE_OFFSET: Final = attrgetter("base_offset")
"""What a row of segments is searched by."""

_RECENT: Final = 128
_INTERVAL: Final = 4096  # of a rebuilt index, in bytes
_UNREAD: Final = -2  # a timestamp not read from the file yet

max_open_files = 1024
"""Segment files that stay open; the one opened first is closed for the next one (any may be asked
for again). `LogManager` sets it from the limit of the process."""

_opened: deque[ref[LogSegment]] = deque()


def _close_oldest() -> bool:
    """Close the file that was opened first; return whether it was open still."""
    oldest = _opened.popleft()()
    was_open = oldest is not None and oldest._file is not None
    if oldest is not None:
        oldest.close()
    return was_open


class Found(NamedTuple):
    """Where a batch lies: its position in the segment's file and its header."""

    position: int
    info: BatchInfo


_SPREAD = 0x9E3779B1
"""2^32 divided by the golden ratio, as in Fibonacci hashing."""


class LogSegment:
    """The batches from *base_offset* up to the next segment's base offset."""

    __slots__ = (
        "__weakref__",
        "_disk",
        "_file",
        "_first_timestamp",
        "_indexed_timestamp",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_older",
        "_recent",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "offset_index",
        "size",
        "stem",
        "suffix",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        size: int,
        created_ms: int,
        suffix: str = "",
    ) -> None:
        self._disk = disk
        self._file: SegmentFile | None = None
        self.base_offset = base_offset
        self.stem = f"{directory}/{base_offset:020d}"
        self.suffix = suffix
        """Behind the names of its files; "" but during a replacement (`segment_replacement`)."""
        self.size = size
        """Bytes of whole batches; readers never see what the file holds beyond."""
        self.created_ms = created_ms
        new = size == 0
        self.offset_index = OffsetIndex(disk, self.stem, new=new, suffix=suffix)
        self.time_index = TimeIndex(disk, self.stem, new=new, suffix=suffix)
        self.transaction_index = TransactionIndex(disk, self.stem, new=new, suffix=suffix)
        """The aborted transactions with their marker in this segment; `ProducerStateManager` adds them."""
        self.bytes_since_index = 0
        self._first_timestamp = _UNREAD
        self._max_timestamp = NO_TIMESTAMP if new else _UNREAD
        self._max_timestamp_offset = base_offset
        self._indexed_timestamp = self._max_timestamp
        # Where recent batches begin: what consumers at the end of the log ask for. Two
        # generations, so that forgetting the oldest costs nothing per append.
        self._recent: dict[int, int] | None = None
        self._older: dict[int, int] | None = None

    @classmethod
    def create(cls, disk: Disk, directory: str, base_offset: int, now_ms: int) -> LogSegment:
        """Start an empty segment, and its file; leftovers of the same name are emptied."""
        segment = cls(disk, directory, base_offset, size=0, created_ms=now_ms)
        segment.reset_indexes()
        # Empty files: Kafka's tools read the indexes of an active segment, too, and end where there are none.
        segment.write_indexes()
        disk.ftruncate(segment.file.fd, 0)
        return segment

    def __repr__(self) -> str:
        return f"LogSegment({self.path!r}, size={self.size})"

    @property
    def path(self) -> str:
        """The file of batches."""
        return self.stem + LOG_SUFFIX + self.suffix

    @property
    def indexes(self) -> tuple[OffsetIndex, TimeIndex, TransactionIndex]:
        """Its indexes, which have the suffix of the segment."""
        return self.offset_index, self.time_index, self.transaction_index

    @property
    def file(self) -> SegmentFile:
        """The open file; opened when asked for."""
        file = self._file
        if file is None:
            file = self._file = SegmentFile(self._disk, self.path, READ_WRITE)
            _opened.append(ref(self))
            while len(_opened) > max_open_files:
                _close_oldest()
            if open_files.is_scarce(file.fd):
                while len(_opened) > 1 and not _close_oldest():
                    pass
        return file

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp of the segment in ms, or -1 without any."""
        if self._max_timestamp == _UNREAD:
            self._read_max_timestamp()
        return self._max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the first batch that has `max_timestamp`."""
        if self._max_timestamp == _UNREAD:
            self._read_max_timestamp()
        return self._max_timestamp_offset

    def first_timestamp(self) -> int:
        """Return the max timestamp of the first batch, from which segment.ms counts; else -1."""
        if self._first_timestamp == _UNREAD and self.size:
            self._first_timestamp = scan.header_at(self.file, 0).max_timestamp
        return max(self._first_timestamp, NO_TIMESTAMP)

    # Appending

    def index_is_full(self, max_index_bytes: int) -> bool:
        """Return whether an index has no room: segment.index.bytes, one time entry in reserve."""
        return (
            len(self.offset_index) >= max_index_bytes // OffsetIndex.ENTRY.size
            or len(self.time_index) >= max_index_bytes // TimeIndex.ENTRY.size - 1
        )

    def roll_is_due(
        self,
        config: LogConfig,
        size: int,
        last_offset: int,
        max_timestamp: int,
        now_ms: int,
        *,
        pending: int = 0,
    ) -> bool:
        """Return whether a batch of *size* bytes up to *last_offset* belongs into a new segment.

        *pending* bytes will be written to this one before it.
        """
        if last_offset - self.base_offset > MAX_RELATIVE:
            return True
        filled = self.size + pending
        if not filled:
            return False
        if filled + size > config.segment_bytes:
            return True
        first = self._first_timestamp
        if first == _UNREAD:
            first = self.first_timestamp()
        waited = max_timestamp - first if first >= 0 else now_ms - self.created_ms
        limit = config.max_segment_ms
        if config.segment_jitter_ms:
            limit -= self._jitter(min(config.segment_jitter_ms, limit))
        return waited > limit or self.index_is_full(config.segment_index_bytes)

    def _jitter(self, bound: int) -> int:
        """Return a number below *bound* that depends on the segment's path: the same after a restart."""
        # Checksums of paths that differ in one digit differ in a few bits: their remainders would often be equal.
        return (zlib.crc32(self.stem.encode()) * _SPREAD & 0xFFFFFFFF) * bound >> 32

    def holds(self, info: BatchInfo) -> bool:
        """Return whether a batch with these offsets can be in this segment."""
        return 0 <= info.base_offset - self.base_offset <= info.last_offset - self.base_offset and (
            info.last_offset - self.base_offset <= MAX_RELATIVE
        )

    def spill_indexes(self) -> None:
        """Write out index entries that piled up; before an append, so that it fails whole."""
        if self.offset_index.pending_bytes >= SPILL_BYTES:
            self.offset_index.write_out()
            self.time_index.write_out()
        if self.transaction_index.pending_bytes >= SPILL_BYTES:
            self.transaction_index.write_out()

    def appended(
        self, size: int, base_offset: int, last_offset: int, max_timestamp: int, interval: int
    ) -> None:
        """Count a batch of *size* bytes that was written at the end of the file."""
        position = self.size
        if max_timestamp > self.max_timestamp:
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if not position:
            self._first_timestamp = max_timestamp
        if self.bytes_since_index > interval:
            self.offset_index.append(last_offset - self.base_offset, position)
            self.index_time()
            self.bytes_since_index = 0
        self.bytes_since_index += size
        self.size = position + size
        recent = self._recent
        if recent is None or len(recent) >= _RECENT:
            self._older = recent
            self._recent = recent = {}
        recent[base_offset] = position

    def index_time(self) -> None:
        """Add the greatest timestamp so far to the time index, if it is greater than the last one there."""
        if self._indexed_timestamp == _UNREAD:
            last = self.time_index.last()
            self._indexed_timestamp = last[0] if last else NO_TIMESTAMP
        if self.max_timestamp > self._indexed_timestamp:
            self._indexed_timestamp = timestamp = self._max_timestamp
            self.time_index.append(timestamp, self._max_timestamp_offset - self.base_offset)

    def seal(self) -> None:
        """Write out the indexes of a segment that takes no more appends (or is closed for now).

        The last entry of the time index is the segment's greatest timestamp from here on, which
        retention goes by.
        """
        self.index_time()
        self.write_indexes()
        self._recent = self._older = None

    def write_indexes(self) -> None:
        """Write the indexes to their files, and create those of offsets and times where they are missing."""
        for index in self.indexes:
            index.write_out()

    def reset_indexes(self) -> None:
        """Remove every entry of the indexes, and their files."""
        for index in self.indexes:
            index.reset()

    def cut_file(self) -> None:
        """Cut off what the file has behind the last batch, and give back what was reserved there. Raise OSError."""
        self._disk.ftruncate(self.file.fd, self.size)

    # Finding

    def locate(self, offset: int) -> Found | None:
        """Find the first batch with a last offset at or behind *offset*.

        None when every batch lies before. Raise CorruptMessage when the file cannot be followed.
        """
        position = self.recent_position(offset)
        if position is not None:
            return Found(position, scan.header_at(self.file, position))
        start = self.indexed_position(offset)
        for at, info in scan.headers(self.file, start, self.size):
            if info.last_offset >= offset:
                return Found(at, info)
        return None

    def recent_position(self, offset: int) -> int | None:
        """Return where the batch that begins at *offset* lies, if it was appended lately."""
        recent = self._recent
        if recent is None:
            return None
        position = recent.get(offset)
        if position is None and self._older is not None:
            position = self._older.get(offset)
        return position

    def indexed_position(self, offset: int) -> int:
        """Return a position at or before the batch of *offset*, at which a batch begins.

        An index that points to anything else is rebuilt.
        """
        position = self._checked_lookup(offset)
        if position is None:
            self.rebuild_indexes()
            position = self._checked_lookup(offset)
        return position or 0

    def offset_above(self, position: int) -> int:
        """Return the base offset of a batch at or behind *position*: the first that is indexed, else LARGEST_OFFSET."""
        index = self.offset_index
        number = index.count_below(position, column=1)
        if number == len(index):
            return LARGEST_OFFSET
        at = index.entry(number)[1]
        if not position <= at <= self.size - HEADER_SIZE:
            return LARGEST_OFFSET
        try:
            return scan.header_at(self.file, at).base_offset
        except CorruptMessage:
            return LARGEST_OFFSET

    def has(self, part: FileSlice) -> bool:
        """Return whether *part* is a slice of the open file of this segment."""
        return part.is_of(self._file)

    def _checked_lookup(self, offset: int) -> int | None:
        """Look *offset* up; None when no batch header lies where the index points."""
        entry = self.offset_index.at_most(offset - self.base_offset)
        if entry is None:
            return 0
        relative, position = entry
        if not 0 <= position <= self.size - HEADER_SIZE:
            return None
        try:
            info = scan.header_at(self.file, position)
        except CorruptMessage:
            return None
        if self.base_offset <= info.base_offset <= self.base_offset + relative:
            return position
        return None

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the batch headers, up to the first that cannot be read."""
        size = self.size
        self.clear()
        with suppress(CorruptMessage):
            for at, info in scan.headers(self.file, 0, size):
                if not self.holds(info):
                    break
                self.size = at
                self.appended(
                    info.size, info.base_offset, info.last_offset, info.max_timestamp, _INTERVAL
                )
                self.spill_indexes()
        self.size = size
        self.seal()

    def clear(self) -> None:
        """Drop all but the batches and the aborted transactions: what recovery and a rebuild begin with."""
        self.size = 0
        self.offset_index.reset()
        self.time_index.reset()
        self.bytes_since_index = 0
        self._recent = self._older = None
        self._first_timestamp = _UNREAD
        self._max_timestamp = self._indexed_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset

    def find_end(self) -> int:
        """Return the offset after the last batch; raise CorruptMessage unless one ends the file."""
        last = self.offset_index.last()
        start = self.indexed_position(self.base_offset + last[0]) if last else 0
        end, next_offset = start, self.base_offset
        for at, info in scan.headers(self.file, start, self.size):
            end, next_offset = at + info.size, info.next_offset
        if end != self.size:
            raise CorruptMessage(f"{self.path}: {self.size - end} bytes at the end are no batch")
        return next_offset

    def rewind(self, offset: int) -> int:
        """Drop index entries for batches from about *offset* on; return the position to read on from.

        Index entries of earlier batches stay, if they are right; `size` is that position.
        """
        relative = offset - self.base_offset
        self.offset_index.trim()
        self.time_index.trim()
        count = self.offset_index.count_below(relative, column=0)
        position = None
        timestamp, at = NO_TIMESTAMP, 0
        if count and len(self.time_index):
            self.offset_index.keep(count)
            last = self.offset_index.entry(count - 1)[0]
            self.time_index.keep(self.time_index.count_below(last + 1, column=1))
            timestamp, at = self.time_index.last() or (NO_TIMESTAMP, 0)
            if self._time_entry_holds(timestamp, at):
                position = self._checked_lookup(self.base_offset + last)
        if not position:
            self.clear()
            return 0
        self._max_timestamp = self._indexed_timestamp = timestamp
        self._max_timestamp_offset = self.base_offset + at
        self.bytes_since_index = 0
        self.size = position
        return position

    def _read_max_timestamp(self) -> None:
        """Read the last entry of the time index, and the batches behind it."""
        last = self.time_index.last()
        if last is not None and not self._time_entry_holds(*last):
            self.rebuild_indexes()
            return
        timestamp, relative = last or (NO_TIMESTAMP, 0)
        offset = self.base_offset + relative
        start = self.indexed_position(offset) if last else 0
        # What is behind damage cannot be read, and must not keep retention from the segment.
        with suppress(CorruptMessage):
            for _, info in scan.headers(self.file, start, self.size):
                if info.max_timestamp > timestamp:
                    timestamp, offset = info.max_timestamp, info.last_offset
        self._max_timestamp = timestamp
        self._max_timestamp_offset = offset

    def _time_entry_holds(self, timestamp: int, relative: int) -> bool:
        """Return whether the batch that ends at *relative* has that timestamp."""
        offset = self.base_offset + relative
        start = self._checked_lookup(offset)
        if start is None:
            return False
        with suppress(CorruptMessage):
            for _, info in scan.headers(self.file, start, self.size):
                if info.last_offset >= offset:
                    return info.last_offset == offset and info.max_timestamp == timestamp
        return False

    def gap_from(self) -> int | None:
        """Return the end of the segment before this one if it is known to be further down, else None."""
        try:
            text = read_file(self._disk, self.stem + GAP_SUFFIX)
        except FileNotFoundError:
            return None
        return int(text) if text.isdigit() else None

    # Cutting and removing

    def truncate(self, size: int, next_offset: int) -> None:
        """Cut the file off after *size* bytes, where *next_offset* would begin; indexes too."""
        relative = next_offset - self.base_offset
        self.offset_index.keep(self.offset_index.count_below(relative, column=0))
        self.time_index.keep(self.time_index.count_below(relative, column=1))
        self.transaction_index.truncate(next_offset)
        self._disk.ftruncate(self.file.fd, size)
        self.size = size
        self.bytes_since_index = 0
        self._recent = self._older = None
        self._max_timestamp = self._indexed_timestamp = _UNREAD if size else NO_TIMESTAMP
        if not size:
            self._max_timestamp_offset = self.base_offset
            self._first_timestamp = _UNREAD

    def close(self) -> None:
        """Close the file; slices of it keep it open."""
        self._file = None

    def moved_to(self, directory: str) -> None:
        """Follow the rename of the partition's directory."""
        self.stem = f"{directory}/{self.base_offset:020d}"
        for index in self.indexes:
            index.stem = self.stem

    def renamed(self, suffix: str) -> None:
        """Handle the rename of the files; the next access opens the batches by their new name."""
        self.close()
        self.suffix = suffix
        for index in self.indexes:
            index.suffix = suffix

    def replace_file(self) -> None:
        """Put an empty file in the place of the segment's, in one step; slices keep the old one open. Raise OSError."""
        self.close()
        for suffix in (SNAPSHOT_SUFFIX, GAP_SUFFIX, TRANSACTIONS_SUFFIX):
            unlink_if_there(self._disk, self.stem + suffix)
        replace_file(self._disk, self.path, b"", durable=False)

    def mark_deleted(self, *, beside: bool = True) -> list[str]:
        """Rename the segment's files to ``.deleted`` and return their paths, to unlink later.

        *beside*: those that belong to its base offset, too. Another segment that begins there keeps them.
        """
        self.close()
        paths = []
        others = (self.stem + SNAPSHOT_SUFFIX, self.stem + GAP_SUFFIX) if beside else ()
        for path in (self.path, *(index.path for index in self.indexes), *others):
            try:
                self._disk.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            paths.append(path + DELETED_SUFFIX)
        return paths


def write_gap(disk: Disk, directory: str, base_offset: int, end: int, *, suffix: str = "") -> None:
    """Note that the segment of *base_offset* follows one that ends at *end*, with a gap between them.

    Not synced. A power loss may take the file: then the segment counts as one behind a hole, as without it. When the
    segment before it lost records that were not synced, it ends elsewhere than the file states, and there is a hole.
    """
    path = f"{directory}/{base_offset:020d}{GAP_SUFFIX}{suffix}"
    replace_file(disk, path, b"%d" % end, durable=False)
