"""The sparse indexes beside a segment: offset -> position, and timestamp -> offset.

Kafka's formats: ``.index`` holds 8-byte entries (relative offset, position), ``.timeindex`` 12-byte
entries (timestamp, relative offset), both big-endian and growing in every column. An entry of the
offset index means that a batch (or run of batches) with that last offset starts at that
position. An entry of the time index means that every later record has a greater offset, or a
timestamp no greater than that one.

An index is advice: its reader checks that a batch header lies where it points. So a new entry waits in memory until the
log is flushed, rolled or closed. An index file that is missing, cut off or full of zeros (Kafka preallocates them)
costs time but no data.

No file is kept open and no file is read before it is asked for: an idle index costs an object of a
few words. Owner: the thread that owns the log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import ClassVar, Final

from kbroker.log.disk import READ, READ_WRITE, Disk, unlink_if_there, write_all

SPILL_BYTES: Final = 4096
"""Pending entries of this size are written out with the next append, not kept for the flush."""

_WINDOW_ENTRIES: Final = 512
_UNKNOWN: Final = -1

_windows: deque[SparseIndex] = deque()
_MAX_WINDOWS: Final = 256  # of at most 6 KiB: the part of the file that was searched last


class SparseIndex:
    """One index file: *stem* plus the suffix of the kind. Entries are pairs of integers."""

    __slots__ = ("_disk", "_on_disk", "_pending", "_window", "stem", "suffix")

    SUFFIX: ClassVar[str]
    ENTRY: ClassVar[Struct]

    def __init__(self, disk: Disk, stem: str, *, new: bool = False, suffix: str = "") -> None:
        self._disk = disk
        self.stem = stem
        self.suffix = suffix
        """Behind the name of the file: that of the segment."""
        self._on_disk = 0 if new else _UNKNOWN
        self._pending: bytearray | None = None
        self._window: tuple[int, bytes] | None = None

    @property
    def path(self) -> str:
        """The index file."""
        return self.stem + self.SUFFIX + self.suffix

    def __len__(self) -> int:
        pending = len(self._pending) // self.ENTRY.size if self._pending else 0
        return self._entries_on_disk() + pending

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that are not in the file yet."""
        return len(self._pending) if self._pending else 0

    def append(self, first: int, second: int) -> None:
        """Add an entry, in memory; `write_out` brings it to the file."""
        if self._pending is None:
            self._pending = bytearray()
        self._pending += self.ENTRY.pack(first, second)

    def last(self) -> tuple[int, int] | None:
        """Return the last entry."""
        count = len(self)
        return self.entry(count - 1) if count else None

    def entry(self, number: int) -> tuple[int, int]:
        """Return entry *number*, counted from 0."""
        size = self.ENTRY.size
        on_disk = self._entries_on_disk()
        if number >= on_disk and self._pending is not None:
            return self._pair(self._pending, (number - on_disk) * size)
        return self._pair(self._read(number, 1), 0)

    def at_most(self, key: int) -> tuple[int, int] | None:
        """Return the last entry with a first column no greater than *key*."""
        size = self.ENTRY.size
        pending = self._pending
        if pending and self._pair(pending, 0)[0] <= key:
            chunk = memoryview(pending)
        else:
            window = self._window_around(key)
            if window is None:
                return None
            chunk = memoryview(window)
        low = bisect_right(
            range(len(chunk) // size), key, key=lambda n: self._pair(chunk, n * size)[0]
        )
        return self._pair(chunk, (low - 1) * size) if low else None

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yield every entry in order."""
        count = self._entries_on_disk()
        for number in range(0, count, _WINDOW_ENTRIES):
            chunk = self._read(number, min(_WINDOW_ENTRIES, count - number))
            yield from self.ENTRY.iter_unpack(chunk)
        if self._pending:
            yield from self.ENTRY.iter_unpack(bytes(self._pending))

    def write_out(self) -> None:
        """Write pending entries to the file, and create it where it is missing. Not synced."""
        on_disk = self._entries_on_disk()
        fd = self._disk.open(self.path, READ_WRITE)
        try:
            if self._pending:
                position = on_disk * self.ENTRY.size
                write_all(self._disk, fd, [self._pending], position)
                end = position + len(self._pending)
                self._on_disk = end // self.ENTRY.size
                self._pending = None
        finally:
            self._disk.close(fd)

    def keep(self, count: int) -> None:
        """Remove every entry after the first *count*, in the file too."""
        on_disk = self._entries_on_disk()
        size = self.ENTRY.size
        if count >= on_disk:
            if self._pending:
                del self._pending[(count - on_disk) * size :]
            return
        self._pending = None
        self._window = None
        fd = self._disk.open(self.path, READ_WRITE)
        try:
            self._disk.ftruncate(fd, count * size)
        finally:
            self._disk.close(fd)
        self._on_disk = count

    def count_below(self, value: int, *, column: int) -> int:
        """Return how many entries have less than *value* in *column*."""
        return bisect_left(range(len(self)), value, key=lambda n: self.entry(n)[column])

    def trim(self) -> None:
        """Cut zeros and a partial entry off the end of the file, as a killed Kafka leaves them."""
        count = self._entries_on_disk()
        try:
            on_file = self._disk.size(self.path)
        except FileNotFoundError:
            return
        if on_file != count * self.ENTRY.size:
            fd = self._disk.open(self.path, READ_WRITE)
            try:
                self._disk.ftruncate(fd, count * self.ENTRY.size)
            finally:
                self._disk.close(fd)

    def exists(self) -> bool:
        """Return whether the file is there."""
        try:
            self._disk.size(self.path)
        except FileNotFoundError:
            return False
        return True

    def reset(self) -> None:
        """Remove every entry, the file's content too."""
        self._pending = None
        self._window = None
        unlink_if_there(self._disk, self.path)
        self._on_disk = 0

    def _pair(self, buf: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
        first, second = self.ENTRY.unpack_from(buf, position)
        return first, second

    def _entries_on_disk(self) -> int:
        """Count the entries of the file: up to the zeros that preallocation left."""
        if self._on_disk != _UNKNOWN:
            return self._on_disk
        size = self.ENTRY.size
        try:
            count = self._disk.size(self.path) // size
        except FileNotFoundError:
            count = 0
        self._on_disk = count
        zeros = bytes(size)
        if count and self._read(count - 1, 1) == zeros:
            self._on_disk = bisect_left(range(count), True, key=lambda n: self._read(n, 1) == zeros)
        return self._on_disk

    def _read(self, number: int, count: int) -> bytes:
        size = self.ENTRY.size
        fd = self._disk.open(self.path, READ)
        try:
            data = self._disk.pread(fd, count * size, number * size)
        finally:
            self._disk.close(fd)
        # A file that shrank under us reads as zeros, which no batch header will confirm.
        return data.ljust(count * size, b"\0")

    def _window_around(self, key: int) -> bytes | None:
        """Return entries of the file of which one is the last with a first column <= *key*."""
        count = self._entries_on_disk()
        if not count:
            return None
        size = self.ENTRY.size
        if self._window is not None:
            start, window = self._window
            last = start + len(window) // size == count
            if self._pair(window, 0)[0] <= key and (
                last or key < self._pair(window, len(window) - size)[0]
            ):
                return window
        low = 0
        high = count
        fd = self._disk.open(self.path, READ)
        try:
            while high - low > _WINDOW_ENTRIES:
                middle = (low + high) // 2
                probe = self._disk.pread(fd, size, middle * size).ljust(size, b"\0")
                if self._pair(probe, 0)[0] <= key:
                    low = middle
                else:
                    high = middle
            # From the entry found on, so that a sequential reader finds its next entries too.
            entries = min(_WINDOW_ENTRIES, count - low)
            data = self._disk.pread(fd, entries * size, low * size)
        finally:
            self._disk.close(fd)
        window = data[: len(data) // size * size]
        if not window:
            return None
        if self._window is None:
            _windows.append(self)
            if len(_windows) > _MAX_WINDOWS:
                _windows.popleft()._window = None
        self._window = (low, window)
        return window


class OffsetIndex(SparseIndex):
    """Offset -> position: entries of (offset relative to the segment's base, position)."""

    __slots__ = ()
    SUFFIX = ".index"
    ENTRY = Struct(">ii")


class TimeIndex(SparseIndex):
    """Timestamp -> offset: entries of (timestamp in ms, offset relative to the base)."""

    __slots__ = ()
    SUFFIX = ".timeindex"
    ENTRY = Struct(">qi")
