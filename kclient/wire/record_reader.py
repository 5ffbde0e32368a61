"""Decodes the records of a batch of message format 2 from untrusted bytes. See records.py.

Every number is checked: varints of at most 32 or 64 bits, lengths within their record, records within their batch, the
record count of the header, offsets in order. Any error is InvalidRecord (or an error of compression.py). No count
allocates memory before its bytes are there.
"""

from __future__ import annotations

from typing import NamedTuple

from kclient.wire.batches import HEADER_SIZE, BatchInfo, Buffer
from kclient.wire.compression import MAX_DECOMPRESSED, decompress
from kclient.wire.errors import CorruptMessage, InvalidRecord
from kclient.wire.record_writer import Headers, Record

_SMALLEST_RECORD = 7
_INT64_END = 1 << 63
_SAFE_TIMESTAMP = 1 << 61


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
    try:
        columns, last_delta = _read_records(bytes(records), info)
    except IndexError:
        raise InvalidRecord("the last record of the batch is truncated") from None
    if last_delta > info.last_offset_delta or (contiguous and last_delta != count - 1):
        raise InvalidRecord(
            f"the last record's offset delta is {last_delta}, "
            f"the batch header has {info.last_offset_delta} for {count} records"
        )
    if info.log_append_time:
        columns = columns._replace(timestamps=[info.max_timestamp] * count)
    elif abs(info.base_timestamp) > _SAFE_TIMESTAMP:
        for timestamp in columns.timestamps:
            _check_timestamp(timestamp)
    return columns


def _read_records(raw: bytes, info: BatchInfo) -> tuple[Columns, int]:  # noqa: C901, PLR0915
    """Decode all records of *raw*; return them and the last offset delta.

    One loop with inlined varints, against the lint rules that the noqa names: calls would make it four times as slow. A
    read past the end raises IndexError, because positions never decrease; the next read, or the last check, detects a
    slice past the end.
    """
    base_offset, base_timestamp = info.base_offset, info.base_timestamp
    columns = Columns([], [], [], [], [])
    add_offset, add_timestamp = columns.offsets.append, columns.timestamps.append
    add_key, add_value = columns.keys.append, columns.values.append
    add_headers = columns.headers.append
    last_delta = -1
    pos = 0
    for _ in range(info.record_count):
        # length
        number = raw[pos]
        pos += 1
        if number > 127:
            high = raw[pos]
            pos += 1
            if high > 127:
                number, pos = _long_varint(raw, pos - 2, 32)
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
                number, pos = _long_varint(raw, pos - 2, 64)
                _check_timestamp(base_timestamp + ((number >> 1) ^ -(number & 1)))
            else:
                number = number & 127 | high << 7
        add_timestamp(base_timestamp + ((number >> 1) ^ -(number & 1)))
        # offset delta
        number = raw[pos]
        pos += 1
        if number > 127:
            high = raw[pos]
            pos += 1
            if high > 127:
                number, pos = _long_varint(raw, pos - 2, 32)
            else:
                number = number & 127 | high << 7
        if number & 1 or number >> 1 <= last_delta:
            raise InvalidRecord(
                f"offset delta {(number >> 1) ^ -(number & 1)} does not follow {last_delta}"
            )
        last_delta = number >> 1
        add_offset(base_offset + last_delta)
        # key
        number = raw[pos]
        pos += 1
        if number == 1:
            add_key(None)
        else:
            if number > 127:
                high = raw[pos]
                pos += 1
                if high > 127:
                    number, pos = _long_varint(raw, pos - 2, 32)
                else:
                    number = number & 127 | high << 7
            if number & 1:
                raise InvalidRecord("a key's length is below -1")
            after = pos + (number >> 1)
            add_key(raw[pos:after])
            pos = after
        # value
        number = raw[pos]
        pos += 1
        if number == 1:
            add_value(None)
        else:
            if number > 127:
                high = raw[pos]
                pos += 1
                if high > 127:
                    number, pos = _long_varint(raw, pos - 2, 32)
                else:
                    number = number & 127 | high << 7
            if number & 1:
                raise InvalidRecord("a value's length is below -1")
            after = pos + (number >> 1)
            add_value(raw[pos:after])
            pos = after
        # headers
        if raw[pos]:
            headers, pos = _read_headers(raw, pos)
            add_headers(headers)
        else:
            pos += 1
            add_headers(())
        if pos != end:
            raise InvalidRecord(f"a record ends at byte {end}, its fields end at {pos}")
    if pos != len(raw):
        raise InvalidRecord(f"the records end at byte {pos} of {len(raw)}")
    return columns, last_delta


def _read_headers(raw: bytes, pos: int) -> tuple[Headers, int]:
    count, pos = _varint(raw, pos)
    if count < 0 or count * 2 > len(raw) - pos:
        raise InvalidRecord(f"{count} headers cannot fit in {len(raw) - pos} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, pos = _varint(raw, pos)
        if size < 0:
            raise InvalidRecord("a header's key is null")
        try:
            name = raw[pos : pos + size].decode()
        except UnicodeDecodeError as problem:
            raise InvalidRecord(f"a header's key is not UTF-8: {problem}") from None
        pos += size
        size, pos = _varint(raw, pos)
        if size < -1:
            raise InvalidRecord("a header's value has a length below -1")
        if size == -1:
            headers.append((name, None))
        else:
            headers.append((name, raw[pos : pos + size]))
            pos += size
    return headers, pos


def _varint(raw: bytes, pos: int) -> tuple[int, int]:
    number, pos = _long_varint(raw, pos, 32)
    return (number >> 1) ^ -(number & 1), pos


def _long_varint(raw: bytes, pos: int, bits: int) -> tuple[int, int]:
    """Read a varint of up to *bits* bits, still zigzag-encoded."""
    number = shift = 0
    while True:
        byte = raw[pos]
        pos += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise InvalidRecord(f"a varint is longer than {bits} bits")
    if number >> bits:
        raise InvalidRecord(f"a varint is longer than {bits} bits")
    return number, pos


def _check_timestamp(timestamp: int) -> None:
    if not -_INT64_END <= timestamp < _INT64_END:
        raise InvalidRecord(f"timestamp {timestamp} does not fit 64 bits")
