"""Walks over the encoded records of a batch without making an object of them.

`RecordCursor` reads one record after the other from decompressed bytes. The log cleaner uses it.

mypyc can compile the module. So the code is plain: bytes, integers, no call for a number of one or two bytes. Compiled
i64 arithmetic wraps at 64 bits and interpreted arithmetic does not: no expression here may leave the range of an int64.

Any bytes raise InvalidRecord or are read; no count allocates memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kclient.wire.errors import InvalidRecord

if TYPE_CHECKING:
    from mypy_extensions import i64


class RecordCursor:
    """A position in the decompressed records *raw* of a batch, and the fields of the record before it.

    Positions are indexes into *raw*.
    """

    def __init__(self, raw: bytes) -> None:
        self.raw: Final = raw
        self._size: i64 = len(raw)
        self.start: i64 = 0
        """Where the record begins."""
        self.end: i64 = 0
        """Where it ends and the next one begins."""
        self.timestamp_delta: i64 = 0
        self.behind_timestamp: i64 = 0
        """Where the offset delta begins."""
        self.offset_delta: i64 = 0
        self.key_start: i64 = 0
        self.key_size: i64 = -1
        """-1 is a null key."""
        self.value_size: i64 = -1
        """-1 is a null value: a tombstone."""

    def at_end(self) -> bool:
        """Return whether no bytes are left."""
        return self.end >= self._size

    def next(self) -> None:
        """Read the next record; raise InvalidRecord where the bytes are none."""
        try:
            self._next()
        except IndexError:
            raise InvalidRecord("the last record of the batch is truncated") from None

    def _next(self) -> None:  # noqa: C901, PLR0915  # one function: see the module
        raw = self.raw
        pos: i64 = self.end
        self.start = pos
        high: i64 = 0
        # length
        number: i64 = raw[pos]
        pos += 1
        if number > 127:
            high = raw[pos]
            if high > 127:
                number, pos = _unsigned32(raw, pos - 1)
            else:
                number = number & 127 | high << 7
                pos += 1
        if number & 1:
            raise InvalidRecord("a record's length is negative")
        end: i64 = pos + (number >> 1)
        if end > self._size:
            raise InvalidRecord("the last record of the batch is truncated")
        # attributes are unused in format 2, but kafka-python reads them as a varint; timestamp delta
        if raw[pos] > 127:
            raise InvalidRecord("a record's attributes are negative")
        number = raw[pos + 1]
        pos += 2
        if number > 127:
            high = raw[pos]
            if high > 127:
                self.timestamp_delta, pos = _varlong(raw, pos - 1)
            else:
                number = number & 127 | high << 7
                self.timestamp_delta = (number >> 1) ^ -(number & 1)
                pos += 1
        else:
            self.timestamp_delta = (number >> 1) ^ -(number & 1)
        self.behind_timestamp = pos
        # offset delta
        number = raw[pos]
        pos += 1
        if number > 127:
            high = raw[pos]
            if high > 127:
                number, pos = _unsigned32(raw, pos - 1)
            else:
                number = number & 127 | high << 7
                pos += 1
        self.offset_delta = (number >> 1) ^ -(number & 1)
        # key
        number = raw[pos]
        pos += 1
        if number > 127:
            high = raw[pos]
            if high > 127:
                number, pos = _unsigned32(raw, pos - 1)
            else:
                number = number & 127 | high << 7
                pos += 1
        self.key_start = pos
        if number & 1:
            if number != 1:
                raise InvalidRecord("a key's length is below -1")
            self.key_size = -1
        else:
            number >>= 1
            self.key_size = number
            pos += number
        # value
        number = raw[pos]
        pos += 1
        if number > 127:
            high = raw[pos]
            if high > 127:
                number, pos = _unsigned32(raw, pos - 1)
            else:
                number = number & 127 | high << 7
                pos += 1
        if number & 1:
            if number != 1:
                raise InvalidRecord("a value's length is below -1")
            self.value_size = -1
        else:
            number >>= 1
            self.value_size = number
            pos += number
        # headers
        number = raw[pos]
        pos = _after_headers(raw, pos, end) if number else pos + 1
        if pos != end:
            raise InvalidRecord(f"a record ends at byte {end}, its fields end at {pos}")
        self.end = end


def _after_headers(raw: bytes, pos: i64, end: i64) -> i64:
    """Return the position after the headers; their count is at *pos*, and their record ends at *end*."""
    count: i64 = 0
    size: i64 = 0
    count, pos = _unsigned32(raw, pos)
    if (
        count & 1 or count > end - pos
    ):  # zigzag: twice the count, and a header has two bytes or more
        raise InvalidRecord(
            f"{(count >> 1) ^ -(count & 1)} headers cannot fit in {end - pos} bytes"
        )
    while count > 0:
        count -= 2
        size, pos = _unsigned32(raw, pos)
        if size & 1:
            raise InvalidRecord("a header's key is null")
        size >>= 1
        if pos + size > end:
            raise InvalidRecord(f"a record ends at byte {end}, its headers are longer")
        try:
            raw[pos : pos + size].decode()
        except UnicodeDecodeError:
            raise InvalidRecord("a header's key is not UTF-8") from None
        pos += size
        size, pos = _unsigned32(raw, pos)
        if size & 1:
            if size != 1:
                raise InvalidRecord("a header's value has a length below -1")
        else:
            pos += size >> 1
        if pos > end:
            raise InvalidRecord(f"a record ends at byte {end}, its headers are longer")
    return pos


def _unsigned32(raw: bytes, pos: i64) -> tuple[i64, i64]:
    """Read a varint of up to 32 bits, still zigzag-encoded; return it and the position after it."""
    number: i64 = 0
    shift: i64 = 0
    while True:
        byte: i64 = raw[pos]
        pos += 1
        number |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 28:
            raise InvalidRecord("a varint is longer than 32 bits")
    if number >> 32:
        raise InvalidRecord("a varint is longer than 32 bits")
    return number, pos


def _varlong(raw: bytes, pos: i64) -> tuple[i64, i64]:
    """Read a varint of up to 64 bits; return it and the position after it."""
    number: i64 = 0
    shift: i64 = 0
    top: i64 = 0
    while shift < 63:
        byte: i64 = raw[pos]
        pos += 1
        number |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    else:  # nine bytes are 63 bits; the tenth has the last one
        top = raw[pos]
        pos += 1
        if top > 1:
            raise InvalidRecord("a varint is longer than 64 bits")
    return ((number >> 1) | (top << 62)) ^ -(number & 1), pos
