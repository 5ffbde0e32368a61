"""A segment file (``.log``), batch by batch, whatever its condition.

The walk reads one batch at a time with plain reads, so the file may grow, or be cut, while a broker uses it. It ends at
the first bytes that are no whole batch; `Segment.rest` describes them. A wrong CRC does not end the walk: the length is
not covered by it, and the batches behind are worth reading.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from kclient.wire.batches import HEADER_SIZE, BatchInfo, check_crc, parse
from kclient.wire.errors import CorruptMessage, KafkaError

SUFFIX: Final = ".log"
_AT_LEAST_ZEROS: Final = 17
"""Bytes: with fewer it may be the beginning of a torn batch. The 17th is its magic, 2."""

_DIGITS: Final = 20
_BUFFER_BYTES: Final = 1 << 20


class Batch(NamedTuple):
    """One batch of a segment."""

    position: int
    """The byte of the file at which it begins."""
    info: BatchInfo
    """Its header, at position 0 of *data*."""
    data: bytes
    wrong: str | None
    """What is wrong with its CRC; None: nothing."""


class Segment:
    """The segment file *path*; *max_bytes* limits what is read of it."""

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self.end = 0
        """The byte after the last batch of the walk."""
        self.rest: str | None = None
        """After the walk: what lies behind the last whole batch; None: nothing."""
        self.rest_bytes = 0
        self.is_preallocated = False
        """Whether the rest is zeros, as Kafka's log.preallocate leaves them behind the last batch."""

    @property
    def base_offset(self) -> int:
        """The offset in the name; raise ValueError if it has none."""
        return base_offset(self.path)

    def batches(self) -> Iterator[Batch]:
        """Yield the whole batches in order. Raise OSError."""
        with self.path.open("rb", buffering=_BUFFER_BYTES) as file:
            size = os.fstat(file.fileno()).st_size
            limit = size if self._max_bytes is None else min(size, self._max_bytes)
            self.end = 0
            while self.end < limit:
                head = file.read(min(HEADER_SIZE, limit - self.end))
                try:
                    info = parse(head)
                except KafkaError as problem:
                    self._end_at(limit, head, problem.message, file)
                    return
                if self.end + info.size > limit:
                    self._end_at(
                        limit,
                        head,
                        f"a batch of {info.size} bytes (base offset {info.base_offset}) is cut off",
                        file,
                    )
                    return
                data = head + file.read(info.size - len(head))
                try:
                    check_crc(data, info)
                    wrong = None
                except CorruptMessage as problem:
                    wrong = problem.message
                    if len(data) < info.size:  # the file was cut meanwhile
                        self._end_at(self.end + len(data), data, problem.message, file)
                        return
                yield Batch(self.end, info, data, wrong)
                self.end += info.size
        self.rest, self.rest_bytes, self.is_preallocated = None, 0, False

    def _end_at(self, limit: int, head: bytes, problem: str, file: BinaryIO) -> None:
        self.rest = problem
        self.rest_bytes = limit - self.end
        self.is_preallocated = (
            self.rest_bytes >= _AT_LEAST_ZEROS and not any(head) and _only_zeros(file)
        )


def _only_zeros(file: BinaryIO) -> bool:
    """Return whether the rest of *file* is zeros."""
    while piece := file.read(_BUFFER_BYTES):
        if piece.count(0) != len(piece):
            return False
    return True


def has_base_offset(path: Path) -> bool:
    """Return whether the name of *path* is that of a file of a segment."""
    digits = path.name.partition(".")[0]
    return len(digits) == _DIGITS and digits.isdecimal()


def base_offset(path: Path) -> int:
    """Return the offset in the name of a file of a segment; raise ValueError if it has none."""
    if not has_base_offset(path):
        raise ValueError(f"{path}: the name of a segment's file is its base offset in 20 digits")
    return int(path.name.partition(".")[0])
