"""The transaction index of a segment: its aborted transactions, those with their marker in the segment (KIP-98).

The format is Kafka's. ``.txnindex`` holds 34-byte entries, big-endian: version i16 (0), producer id i64, first offset
i64, last offset i64 (the marker), last stable offset i64 when the marker was appended. Last offsets and last stable
offsets grow. A segment without aborted transactions has no file.

New entries wait in memory until the log is flushed, rolled or closed, as those of the other indexes. But this index is
no advice: a reader cannot see that an entry is missing. So recovery compares what was not synced with the batches
(`ProducerStateManager.restore`).

Owner: the thread that owns the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from kbroker.log.core.cleaned_transactions import AbortedTransaction
from kbroker.log.disk import (
    READ,
    READ_WRITE,
    Buffer,
    Disk,
    replace_file,
    unlink_if_there,
    write_all,
)
from kclient.wire.errors import CorruptMessage

SUFFIX: Final = ".txnindex"

ENTRY_BYTES: Final = 34

_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0
_UNKNOWN: Final = -1
_AT_ONCE: Final = 512


class TransactionIndex:
    """The index file *stem*.txnindex; *new*: there is none."""

    __slots__ = ("_disk", "_on_disk", "_pending", "has_file", "stem", "suffix")

    def __init__(self, disk: Disk, stem: str, *, new: bool = False, suffix: str = "") -> None:
        self._disk = disk
        self.stem = stem
        self.suffix = suffix
        """Behind the name of the file: that of the segment."""
        self._on_disk = 0 if new else _UNKNOWN
        self._pending: list[bytes] = []
        self.has_file = False
        """Whether there is a file, as far as it was looked for."""

    @property
    def path(self) -> str:
        """The index file."""
        return self.stem + SUFFIX + self.suffix

    def __len__(self) -> int:
        return self._entries_on_disk() + len(self._pending)

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that are not in the file yet."""
        return len(self._pending) * _ENTRY.size

    def parts(self) -> tuple[int, list[AbortedTransaction]]:
        """Return how many entries are in the file, and those behind them, in memory."""
        on_disk = self._entries_on_disk()
        return on_disk, [entry for each in self._pending for entry in unpacked(each, self.path)]

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry, in memory; `write_out` brings it to the file."""
        self._pending.append(packed(entry))

    def entries(self, start: int = 0) -> Iterator[AbortedTransaction]:
        """Yield the entries from number *start* on. Raise CorruptMessage for an entry of another version."""
        on_disk = self._entries_on_disk()
        for number in range(start, on_disk, _AT_ONCE):
            yield from unpacked(self._read(number, min(_AT_ONCE, on_disk - number)), self.path)
        for pending in self._pending[max(start - on_disk, 0) :]:
            yield from unpacked(pending, self.path)

    def collect(self, fetch_offset: int, upper_bound: int, found: list[AbortedTransaction]) -> bool:
        """Add to *found* the transactions that overlap *fetch_offset* up to *upper_bound*, which is not in the range.

        Return whether the search ends here: every later transaction begins behind the range.
        """
        if not len(self):
            return False
        for entry in self.entries(self._count_below(fetch_offset)):
            if entry.first_offset < upper_bound:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return True
        return False

    def write_out(self) -> None:
        """Write pending entries to the file. Not synced."""
        if not self._pending:
            return
        position = self._entries_on_disk() * _ENTRY.size
        fd = self._disk.open(self.path, READ_WRITE)
        try:
            self.has_file = True
            write_all(self._disk, fd, [b"".join(self._pending)], position)
        finally:
            self._disk.close(fd)
        self._on_disk += len(self._pending)
        self._pending = []

    def truncate(self, end_offset: int) -> None:
        """Remove the transactions with a marker at or above *end_offset*."""
        count = self._count_below(end_offset) if len(self) else 0
        on_disk = self._entries_on_disk()
        del self._pending[max(count - on_disk, 0) :]
        if count >= on_disk:
            return
        fd = self._disk.open(self.path, READ_WRITE)
        try:
            self._disk.ftruncate(fd, count * _ENTRY.size)
        finally:
            self._disk.close(fd)
        self._on_disk = count

    def reset(self) -> None:
        """Remove every entry, and the file."""
        self._pending = []
        unlink_if_there(self._disk, self.path)
        self._on_disk = 0
        self.has_file = False

    def replace_behind(self, offset: int, entries: Iterable[AbortedTransaction]) -> bool:
        """Put *entries* in the place of those with a marker at or above *offset*; return whether that changed the file.

        Of the others, those up to the first that cannot be are kept. For recovery: the file may hold anything behind
        what was synced. Slow: the file is replaced in one step, and synced.
        """
        content = self._content()
        end = 0
        last = -1
        for version, _, first_offset, last_offset, _ in _ENTRY.iter_unpack(
            content[: len(content) // _ENTRY.size * _ENTRY.size]
        ):
            if version != _VERSION or not max(first_offset, last) < last_offset < offset:
                break
            last = last_offset
            end += _ENTRY.size
        right = content[:end] + b"".join(map(packed, entries))
        self._pending = []
        self._on_disk = len(right) // _ENTRY.size
        if right == content:
            return False
        replace_file(self._disk, self.path, right)
        self.has_file = True
        return True

    def _content(self) -> bytes:
        try:
            size = self._disk.size(self.path)
        except FileNotFoundError:
            return b""
        self.has_file = True
        fd = self._disk.open(self.path, READ)
        try:
            return self._disk.pread(fd, size, 0)
        finally:
            self._disk.close(fd)

    def _count_below(self, offset: int) -> int:
        """Return how many entries have their marker below *offset*."""
        return bisect_left(range(len(self)), offset, key=self._last_offset)

    def _last_offset(self, number: int) -> int:
        on_disk = self._entries_on_disk()
        entry = self._pending[number - on_disk] if number >= on_disk else self._read(number, 1)
        return int(_ENTRY.unpack(entry)[3])

    def _entries_on_disk(self) -> int:
        if self._on_disk == _UNKNOWN:
            try:
                self._on_disk = self._disk.size(self.path) // _ENTRY.size
                self.has_file = True
            except FileNotFoundError:
                self._on_disk = 0
        return self._on_disk

    def _read(self, number: int, count: int) -> bytes:
        size = count * _ENTRY.size
        fd = self._disk.open(self.path, READ)
        try:
            return self._disk.pread(fd, size, number * _ENTRY.size).ljust(size, b"\0")
        finally:
            self._disk.close(fd)


# Entries without an index


class LaterIndexes(NamedTuple):
    """The transaction indexes of the last segments of a log, as they are at one moment: for another process."""

    sealed: Sequence[str] = ()
    """The files of sealed segments."""
    active: str = ""
    """The file of the active segment."""
    in_active: int = 0
    """The entries in that file."""
    newest: Sequence[AbortedTransaction] = ()
    """Those behind them, which are in memory."""

    def entries(self, disk: Disk) -> Iterator[AbortedTransaction]:
        """Yield all of them. Slow. Raise OSError, CorruptMessage."""
        for path in self.sealed:
            yield from entries_of(disk, path)
        if self.in_active:
            yield from entries_of(disk, self.active, self.in_active)
        yield from self.newest


def entries_of(disk: Disk, path: str, count: int | None = None) -> Iterator[AbortedTransaction]:
    """Yield the entries of the file *path*, the first *count* or all; none if there is no file.

    For another process or thread than the owner's: a file that is deleted meanwhile is read to its end. Slow. Raise
    OSError, CorruptMessage.
    """
    try:
        fd = disk.open(path, READ)
    except FileNotFoundError:
        return
    try:
        position = 0
        while count is None or count > 0:
            at_once = _AT_ONCE if count is None else min(count, _AT_ONCE)
            content = disk.pread(fd, at_once * ENTRY_BYTES, position)
            if not content:
                break
            whole = len(content) // ENTRY_BYTES
            if not whole:
                raise CorruptMessage(f"{path}: byte {position}: no whole entry")
            position += whole * ENTRY_BYTES
            count = None if count is None else count - whole
            yield from unpacked(content[: whole * ENTRY_BYTES], path)
    finally:
        disk.close(fd)


def packed(entry: AbortedTransaction) -> bytes:
    """Return an entry in the format of the file."""
    return _ENTRY.pack(_VERSION, *entry)


def unpacked(entries: Buffer, path: str) -> Iterator[AbortedTransaction]:
    """Yield whole *entries* in the format of the file *path*. Raise CorruptMessage for another version."""
    for version, *fields in _ENTRY.iter_unpack(entries):
        if version != _VERSION:
            raise CorruptMessage(f"{path}: version {version} of an entry is not known")
        yield AbortedTransaction(*fields)
