"""Decodes the records of a batch of message format 2 from untrusted bytes. See records.py.

mypyc compiles the module (`COMPILED` of the package's build): a record of 100 bytes costs 0.1 us compiled, 0.8 us
interpreted. Compiled i64 arithmetic wraps at 64 bits, so no expression here may leave that range.

Every number is checked. Varints have at most 32 or 64 bits, lengths are within their record, records within their
batch. The record count is that of the header, and offsets are in order. Any error is InvalidRecord (or an error of
compression.py). No count allocates memory before its bytes are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.wire.batches import HEADER_SIZE, BatchInfo, Buffer
from kclient.wire.compression import MAX_DECOMPRESSED, decompress
from kclient.wire.errors import CorruptMessage, InvalidRecord
from kclient.wire.record_cursor import unsigned32, varlong
from kclient.wire.record_writer import Headers, Record

if TYPE_CHECKING:
    from mypy_extensions import i64

_SMALLEST_RECORD: Final = 7
_INT64_END: Final = 1 << 63
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_SAFE_TIMESTAMP: Final = 1 << 61
"""A base timestamp up to this, plus or minus a delta of two bytes, fits 64 bits."""


class Columns(NamedTuple):
    """The records of a batch as five columns of the same length."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]


def decode_batch(
    buf: Buffer,
    info: BatchInfo,
    *,
    max_size: int = MAX_DECOMPRESSED,
    contiguous: bool = False,
) -> list[Record]:
    """Return the records of one batch of *buf*. See decode_columns."""
    columns = decode_columns(buf, info, max_size=max_size, contiguous=contiguous)
    return list(map(Record._make, zip(*columns, strict=True)))


def decode_columns(
    buf: Buffer,
    info: BatchInfo,
    *,
    max_size: int = MAX_DECOMPRESSED,
    contiguous: bool = False,
) -> Columns:
    """Return the records of one batch of *buf*; the caller has checked its CRC.

    Offsets may have gaps, as after compaction; *contiguous* requires offset deltas 0..n-1, as producers send them.
    *max_size* limits the decompressed bytes of the records. Records of a control batch are returned like others (see
    records.control_type).
    """
    count = info.record_count
    records = decompressed(buf, info, max_size)
    try:
        columns, last_delta = _read_records(records, info)
    except IndexError:
        raise InvalidRecord("the last record of the batch is truncated") from None
    if last_delta > info.last_offset_delta or (contiguous and last_delta != count - 1):
        raise InvalidRecord(
            f"the last record's offset delta is {last_delta}, "
            f"the batch header has {info.last_offset_delta} for {count} records"
        )
    if info.log_append_time:
        columns = columns._replace(timestamps=[info.max_timestamp] * count)
    return columns


def decompressed(buf: Buffer, info: BatchInfo, max_size: int = MAX_DECOMPRESSED) -> bytes:
    """Return the encoded records of one batch of *buf*; they can be as many as its header has."""
    start = info.position + HEADER_SIZE
    if info.end > len(buf):
        raise CorruptMessage(
            f"record batch of {info.size} bytes is truncated after {len(buf) - info.position} bytes"
        )
    records = decompress(info.codec, memoryview(buf)[start : info.end], max_size)
    count = info.record_count
    if count < 0 or count * _SMALLEST_RECORD > len(records):
        raise InvalidRecord(f"{count} records cannot fit in {len(records)} bytes")
    if info.base_offset < 0 or info.last_offset >= _INT64_END:
        raise InvalidRecord(
            f"offsets {info.base_offset} to {info.last_offset} are not valid offsets"
        )
    return bytes(records)


def _read_records(raw: bytes, info: BatchInfo) -> tuple[Columns, int]:  # noqa: C901, PLR0915
    """Decode all records of *raw*; return them and the last offset delta.

    One loop with inlined varints, against the lint rules that the noqa names: calls would make it four times as slow. A
    read past the end raises IndexError, because positions never decrease; the next read, or the last check, detects a
    slice past the end.
    """
    base_offset: i64 = info.base_offset
    base_timestamp: i64 = info.base_timestamp
    is_far = abs(info.base_timestamp) > _SAFE_TIMESTAMP and not info.log_append_time
    offsets: list[int] = []
    timestamps: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    all_headers: list[Headers] = []
    last_delta: i64 = -1
    pos: i64 = 0
    number: i64 = 0
    high: i64 = 0
    end: i64 = 0
    after: i64 = 0
    for _ in range(info.record_count):
        # length
        number = raw[pos]
        pos += 1
        if number > 127:
            high = raw[pos]
            pos += 1
            if high > 127:
                number, pos = unsigned32(raw, pos - 2)
            else:
                number = number & 127 | high << 7
        end = pos + (number >> 1)
        if number & 1:
            raise InvalidRecord("a record's length is negative")
        # attributes are unused in format 2; timestamp delta
        number = raw[pos + 1]
        pos += 2
        if number > 127:
            high = raw[pos]
            pos += 1
            if high > 127:
                number, pos = varlong(raw, pos - 2)
                check_timestamp(base_timestamp, number)
            else:
                number = number & 127 | high << 7
                number = (number >> 1) ^ -(number & 1)
        else:
            number = (number >> 1) ^ -(number & 1)
        if is_far:
            check_timestamp(base_timestamp, number)
        timestamps.append(base_timestamp + number)
        # offset delta
        number = raw[pos]
        pos += 1
        if number > 127:
            high = raw[pos]
            pos += 1
            if high > 127:
                number, pos = unsigned32(raw, pos - 2)
            else:
                number = number & 127 | high << 7
        if number & 1 or number >> 1 <= last_delta:
            raise InvalidRecord(
                f"offset delta {(number >> 1) ^ -(number & 1)} does not follow {last_delta}"
            )
        last_delta = number >> 1
        offsets.append(base_offset + last_delta)
        # key
        number = raw[pos]
        pos += 1
        if number == 1:
            keys.append(None)
        else:
            if number > 127:
                high = raw[pos]
                pos += 1
                if high > 127:
                    number, pos = unsigned32(raw, pos - 2)
                else:
                    number = number & 127 | high << 7
            if number & 1:
                raise InvalidRecord("a key's length is below -1")
            after = pos + (number >> 1)
            keys.append(raw[pos:after])
            pos = after
        # value
        number = raw[pos]
        pos += 1
        if number == 1:
            values.append(None)
        else:
            if number > 127:
                high = raw[pos]
                pos += 1
                if high > 127:
                    number, pos = unsigned32(raw, pos - 2)
                else:
                    number = number & 127 | high << 7
            if number & 1:
                raise InvalidRecord("a value's length is below -1")
            after = pos + (number >> 1)
            values.append(raw[pos:after])
            pos = after
        # headers
        if raw[pos]:
            headers: list[tuple[str, bytes | None]] = []
            pos = read_headers(raw, pos, headers)
            all_headers.append(headers)
        else:
            pos += 1
            all_headers.append(())
        if pos != end:
            raise InvalidRecord(f"a record ends at byte {end}, its fields end at {pos}")
    if pos != len(raw):
        raise InvalidRecord(f"the records end at byte {pos} of {len(raw)}")
    return Columns(offsets, timestamps, keys, values, all_headers), last_delta


def read_headers(raw: bytes, pos: i64, headers: list[tuple[str, bytes | None]]) -> i64:
    """Append the headers at *pos* to *headers*; return the position after them."""
    count: i64 = 0
    size: i64 = 0
    count, pos = unsigned32(raw, pos)
    left: i64 = len(raw) - pos
    if count & 1 or count > left:  # zigzag: twice the count, and a header has two bytes or more
        raise InvalidRecord(f"{(count >> 1) ^ -(count & 1)} headers cannot fit in {left} bytes")
    while count > 0:
        count -= 2
        size, pos = unsigned32(raw, pos)
        if size & 1:
            raise InvalidRecord("a header's key is null")
        size >>= 1
        try:
            name = raw[pos : pos + size].decode()
        except UnicodeDecodeError as problem:
            raise InvalidRecord(f"a header's key is not UTF-8: {problem}") from None
        pos += size
        size, pos = unsigned32(raw, pos)
        if size & 1:
            if size != 1:
                raise InvalidRecord("a header's value has a length below -1")
            headers.append((name, None))
        else:
            size >>= 1
            headers.append((name, raw[pos : pos + size]))
            pos += size
    return pos


def check_timestamp(base: i64, delta: i64) -> None:
    """Raise InvalidRecord unless base + delta fits 64 bits."""
    if base > _INT64_MAX - delta if delta >= 0 else base < _INT64_MIN - delta:
        raise InvalidRecord(f"timestamp {int(base) + int(delta)} does not fit 64 bits")
