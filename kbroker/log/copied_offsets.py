"""Which offsets of a log a mirror copied: their producer ids are those of another cluster.

A producer of this cluster may have the same id as one of the other's. Its batches must neither pass for duplicates of
copied ones nor be rejected because of them (redpanda#31659). So copied batches do not change the producer state. The
batches do not show where they came from, and the log does not change them. A file beside the log does,
``copied-offsets``, an addition of ours that Kafka leaves alone. It has a line with the version, then ``first end`` per
range, ``-`` for the end of a range that goes on.

It is written when a mirror begins to copy and when a producer of our own follows: seldom.

Invariant: ranges are in order, do not touch, and only the last one goes on.

Owner: the thread that owns the log. Pure: the file's content goes in and out as bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from kclient.wire.errors import CorruptMessage

FILE_NAME: Final = "copied-offsets"
ONWARDS: Final = 2**63 - 1
"""The end of a range that goes on."""


class CopiedOffsets:
    """The ranges of one log."""

    __slots__ = ("_ranges", "goes_on")

    def __init__(self, ranges: list[tuple[int, int]] | None = None) -> None:
        self._ranges = ranges or []
        self.goes_on = bool(self._ranges) and self._ranges[-1][1] == ONWARDS
        """Whether what is appended next is copied, as far as is written down."""

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._ranges, (offset, ONWARDS)) - 1
        return at >= 0 and offset < self._ranges[at][1]

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """All ranges: first offset and end."""
        return tuple(self._ranges)

    def begin(self, offset: int) -> None:
        """Begin a copied range at *offset*."""
        if self.goes_on:
            return
        first = offset
        if self._ranges and self._ranges[-1][1] >= offset:
            first = self._ranges.pop()[0]
        self._ranges.append((first, ONWARDS))
        self.goes_on = True

    def end(self, offset: int) -> None:
        """End the copied range at *offset*."""
        if self.goes_on:
            self.goes_on = False
            first = self._ranges.pop()[0]
            if first < offset:
                self._ranges.append((first, offset))

    def truncate_from_end(self, offset: int) -> bool:
        """Remove what was cut off at *offset*; return whether anything changed."""
        before = len(self._ranges)
        while self._ranges and self._ranges[-1][0] >= offset:
            self._ranges.pop()
            self.goes_on = False
        if self._ranges and offset < self._ranges[-1][1] < ONWARDS:
            self._ranges[-1] = (self._ranges[-1][0], offset)  # others take the place of the copies
            return True
        return len(self._ranges) != before

    def truncate_from_start(self, offset: int) -> None:
        """Remove what lies before *offset*."""
        self._ranges = [one for one in self._ranges if one[1] > offset]

    def encode(self) -> bytes:
        """Return the content of the file."""
        lines = ["0", *(f"{a} {'-' if b == ONWARDS else b}" for a, b in self._ranges)]
        return ("\n".join(lines) + "\n").encode("ascii")


def decode(content: bytes) -> CopiedOffsets:
    """Read the content of the file; raise CorruptMessage when it makes no sense."""
    try:
        version, *lines = content.decode("ascii").split()
        pairs = list(zip(lines[::2], lines[1::2], strict=True))
        ranges = [(int(first), ONWARDS if end == "-" else int(end)) for first, end in pairs]
    except ValueError as error:
        raise CorruptMessage(f"{FILE_NAME} cannot be read: {error}") from error
    if version != "0":
        raise CorruptMessage(f"version {version} of {FILE_NAME} is not known")
    last = -1
    for first, end in ranges:
        if not last < first < end:
            raise CorruptMessage(f"{FILE_NAME}: {first} {end} does not follow {last}")
        last = end
    return CopiedOffsets(ranges)
