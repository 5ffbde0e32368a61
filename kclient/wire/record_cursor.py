"""Walks over the encoded records of a batch without making an object of them, and checks them as a broker must.

`RecordCursor` reads one record after the other from decompressed bytes. The log cleaner uses it, too. `RecordCheck` is
what a leader requires of the records of a producer's batch before it appends them.

mypyc compiles the module where there is a C compiler (`COMPILED` of the package's build). It is interpreted otherwise:
the same source, with the same results. A record of 100 bytes costs 15 to 20 ns compiled and 760 ns interpreted.
Therefore the code is plain: bytes, integers, lists, no call for a number of one or two bytes.

Compiled i64 arithmetic wraps at 64 bits and interpreted arithmetic does not: no expression here may leave the range of
an int64.

Any bytes raise InvalidRecord or are read; no count allocates memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kclient.wire.errors import InvalidRecord

if TYPE_CHECKING:
    from mypy_extensions import i64

SMALLEST_RECORD: Final = 7
"""Bytes of the smallest record: length, attributes, deltas, null key and value, no headers."""

MAX_RECORD_ERRORS: Final = 1000
"""Records of a batch that `RecordCheck` reports: the limit of a response's size."""

IS_COMPILED: Final = not __file__.endswith(".py")
"""Whether this module is compiled."""

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_NO_TIMESTAMP: Final = -1


def record_starts(raw: bytes, first: int, end: int, count: int, found: list[int]) -> int:
    """Append where each of *count* records in raw[first:end] begins to *found*; return where the last one ends.

    Only their lengths are read, which are unsigned if a record is valid. -1 if a record or its length is cut off.
    """
    pos: i64 = first
    stop: i64 = end
    left: i64 = count
    while left > 0:
        if pos >= stop:
            return -1
        found.append(pos)
        size: i64 = raw[pos]
        pos += 1
        if size > 127:
            size &= 127
            shift: i64 = 7
            byte: i64 = 128
            while byte > 127:
                if pos >= stop or shift > 28:
                    return -1
                byte = raw[pos]
                pos += 1
                size |= (byte & 127) << shift
                shift += 7
        pos += size >> 1
        left -= 1
    return pos if pos <= stop else -1


class RecordCursor:
    """A position in the decompressed records *raw* of a batch, and the fields of the record before it.

    Positions are indexes into *raw*. With *is_strict* it refuses what Kafka stores and clients in Python cannot read.
    Those are header keys that are not UTF-8, and negative attributes, which kafka-python reads as a varint. Logs may
    have such records, from before or by a mirror.
    """

    def __init__(self, raw: bytes, is_strict: bool = False) -> None:
        self.raw: Final = raw
        self._is_strict: Final = is_strict
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
        self.value_start: i64 = 0
        self.value_size: i64 = -1
        """-1 is a null value: a tombstone."""

    def at_end(self) -> bool:
        """Return whether no bytes are left."""
        return self.end >= self._size

    def bytes_of_next(self) -> i64:
        """Return the bytes of the next record by its length, or 0 if the length is cut off or invalid."""
        pos: i64 = self.end
        number: i64 = 0
        shift: i64 = 0
        while pos < self._size and shift < 35:
            byte: i64 = self.raw[pos]
            pos += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return 0 if number & 1 else pos - self.end + (number >> 1)
            shift += 7
        return 0

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
                number, pos = unsigned32(raw, pos - 1)
            else:
                number = number & 127 | high << 7
                pos += 1
        if number & 1:
            raise InvalidRecord("a record's length is negative")
        end: i64 = pos + (number >> 1)
        if end > self._size:
            raise InvalidRecord("the last record of the batch is truncated")
        # attributes are unused in format 2; timestamp delta
        if raw[pos] > 127 and self._is_strict:
            raise InvalidRecord("a record's attributes are negative")
        number = raw[pos + 1]
        pos += 2
        if number > 127:
            high = raw[pos]
            if high > 127:
                self.timestamp_delta, pos = varlong(raw, pos - 1)
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
                number, pos = unsigned32(raw, pos - 1)
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
                number, pos = unsigned32(raw, pos - 1)
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
                number, pos = unsigned32(raw, pos - 1)
            else:
                number = number & 127 | high << 7
                pos += 1
        self.value_start = pos
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
        pos = _after_headers(raw, pos, end, self._is_strict) if number else pos + 1
        if pos != end:
            raise InvalidRecord(f"a record ends at byte {end}, its fields end at {pos}")
        self.end = end


class RecordCheck:
    """Checks the *count* records of a producer's batch, in as many calls of `run` as its caller likes.

    *raw* is all of them, or the first piece of *size* bytes. A piece ends anywhere; `feed` gives the next one.

    The records are complete, nothing follows them, and their offset deltas are 0 to count - 1: any other raises
    InvalidRecord. A record without a key where *needs_key*, or with a timestamp outside *earliest* to *latest* (ms), is
    reported in `errors`, up to `MAX_RECORD_ERRORS`. -1 is no timestamp, and always in range.
    """

    def __init__(
        self,
        raw: bytes,
        count: int,
        base_timestamp: int,
        *,
        earliest: int = _INT64_MIN,
        latest: int = _INT64_MAX,
        needs_key: bool = False,
        size: int = -1,
    ) -> None:
        size = len(raw) if size < 0 else size
        if count < 0 or count * SMALLEST_RECORD > size:
            raise InvalidRecord(f"{count} records cannot fit in {size} bytes")
        self._cursor = RecordCursor(raw, is_strict=True)
        self._left: i64 = size - len(raw)
        self.wanted = 0
        """After a run that ended before its limit: the least size of the next piece."""
        self._count: i64 = count
        self._checked: i64 = 0
        self._base_timestamp: i64 = base_timestamp
        self._earliest: i64 = earliest
        self._latest: i64 = latest
        self._needs_key = needs_key
        self._max_timestamp: i64 = _NO_TIMESTAMP
        self.errors: Final[list[tuple[int, int | None]]] = []
        """(index, timestamp) of the records that break a rule; the timestamp is None for a missing key."""
        self.error_count = 0
        """All that break one, reported or not."""
        self.has_invalid_timestamp = False

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp of the records checked so far; -1 is none."""
        return self._max_timestamp

    @property
    def position(self) -> int:
        """Where in the piece the next record begins, and so the next piece."""
        return self._cursor.end

    def feed(self, raw: bytes) -> None:
        """Go on with the piece *raw*, of `wanted` bytes or more, from `position` of the one before it."""
        cursor = self._cursor
        self._left += len(cursor.raw) - cursor.end - len(raw)
        self._cursor = RecordCursor(raw, is_strict=True)
        self.wanted = 0

    def run(self, limit: int) -> bool:
        """Check up to *limit* records more; return whether all are checked. See `wanted` if not."""
        cursor = self._cursor
        left: i64 = self._left
        index: i64 = self._checked
        stop: i64 = min(self._count, index + limit)
        base: i64 = self._base_timestamp
        earliest: i64 = self._earliest
        latest: i64 = self._latest
        greatest: i64 = self._max_timestamp
        needs_key = self._needs_key
        while index < stop:
            if left > 0 and self._ends_in_next_piece():
                break
            cursor.next()
            if cursor.offset_delta != index:
                raise InvalidRecord(
                    f"record {index} has offset delta {cursor.offset_delta}; the offset deltas of a"
                    " produced batch are 0, 1, 2 and so on"
                )
            delta: i64 = cursor.timestamp_delta
            if delta >= 0:
                if base > _INT64_MAX - delta:
                    raise InvalidRecord(f"the timestamp of record {index} does not fit 64 bits")
            elif base < _INT64_MIN - delta:
                raise InvalidRecord(f"the timestamp of record {index} does not fit 64 bits")
            timestamp: i64 = base + delta
            if timestamp > greatest:
                greatest = timestamp
            if needs_key and cursor.key_size < 0:
                self._report(index, None)
            elif (timestamp < earliest or timestamp > latest) and timestamp != _NO_TIMESTAMP:
                self.has_invalid_timestamp = True
                self._report(index, timestamp)
            index += 1
        self._checked = index
        self._max_timestamp = greatest
        if index < self._count:
            return False
        if left > 0 or not cursor.at_end():
            raise InvalidRecord(f"bytes follow the last of {index} records, at byte {cursor.end}")
        return True

    def _ends_in_next_piece(self) -> bool:
        """Return whether the next record is not whole in this piece; `wanted` has its size then."""
        cursor = self._cursor
        size: i64 = cursor.bytes_of_next()
        unread: i64 = len(cursor.raw) - cursor.end
        # A length beyond the batch is for RecordCursor.next to refuse; one that is cut off is in the next piece.
        if unread < size <= unread + self._left or (size == 0 and unread < 5):
            self.wanted = max(5, size)
            return True
        return False

    def _report(self, index: int, timestamp: int | None) -> None:
        self.error_count += 1
        if len(self.errors) < MAX_RECORD_ERRORS:
            self.errors.append((index, timestamp))


def _after_headers(raw: bytes, pos: i64, end: i64, is_strict: bool) -> i64:
    """Return the position after the headers; their count is at *pos*, and their record ends at *end*."""
    count: i64 = 0
    size: i64 = 0
    count, pos = unsigned32(raw, pos)
    if (
        count & 1 or count > end - pos
    ):  # zigzag: twice the count, and a header has two bytes or more
        raise InvalidRecord(
            f"{(count >> 1) ^ -(count & 1)} headers cannot fit in {end - pos} bytes"
        )
    while count > 0:
        count -= 2
        size, pos = unsigned32(raw, pos)
        if size & 1:
            raise InvalidRecord("a header's key is null")
        size >>= 1
        if pos + size > end:
            raise InvalidRecord(f"a record ends at byte {end}, its headers are longer")
        if is_strict:
            try:
                raw[pos : pos + size].decode()
            except UnicodeDecodeError:
                raise InvalidRecord("a header's key is not UTF-8") from None
        pos += size
        size, pos = unsigned32(raw, pos)
        if size & 1:
            if size != 1:
                raise InvalidRecord("a header's value has a length below -1")
        else:
            pos += size >> 1
        if pos > end:
            raise InvalidRecord(f"a record ends at byte {end}, its headers are longer")
    return pos


def unsigned32(raw: bytes, pos: i64) -> tuple[i64, i64]:
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


def varlong(raw: bytes, pos: i64) -> tuple[i64, i64]:
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
