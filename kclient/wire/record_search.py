"""Finds the first record of a batch at or after a time: its timestamp and offset, without decoding other fields.

`record_reader` needs a hundred bytes per record; a batch of a million records would exhaust a broker's memory. This
search skips records by their lengths. Owner: none; it runs in a pool thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kclient.wire.batches import HEADER_SIZE, BatchInfo, Buffer
from kclient.wire.compression import MAX_DECOMPRESSED, decompress
from kclient.wire.errors import CorruptMessage, InvalidRecord

_INT64_END: Final = 1 << 63
RECORDS_AT_ONCE: Final = 1000
"""Records skipped between two pauses: half a millisecond."""


def first_at_or_after(
    buf: Buffer,
    info: BatchInfo,
    timestamp: int,
    from_offset: int,
    *,
    max_size: int = MAX_DECOMPRESSED,
    pause: Callable[[], None] = lambda: None,
) -> tuple[int, int] | None:
    """Return (timestamp, offset) of the first record at or after both *timestamp* (ms) and *from_offset*.

    Raise MessageTooLarge for a batch of more than *max_size* bytes, CorruptMessage or InvalidRecord for an invalid one.
    *pause* is called regularly, so that this thread yields the interpreter to others.
    """
    if info.end > len(buf):
        raise CorruptMessage(
            f"record batch of {info.size} bytes is truncated after {len(buf)} bytes"
        )
    records = decompress(
        info.codec, memoryview(buf)[info.position + HEADER_SIZE : info.end], max_size
    )
    pause()
    return _search(_indexable(records), info, timestamp, from_offset, pause)


def _indexable(records: memoryview) -> Buffer | bytearray:
    """Return *records*, without a copy if they are fast to index: a memoryview is not."""
    whole = records.obj
    if isinstance(whole, bytes | bytearray) and len(whole) == len(records):
        return whole
    return bytes(records)


def _search(
    raw: Buffer | bytearray,
    info: BatchInfo,
    timestamp: int,
    from_offset: int,
    pause: Callable[[], None],
) -> tuple[int, int] | None:
    pos, end = 0, len(raw)
    try:
        for count in range(info.record_count):
            if count % RECORDS_AT_ONCE == 0:
                pause()
            size, pos = _varint(raw, pos, 35)
            stop = pos + size
            if size < 0 or stop > end:
                raise InvalidRecord(f"a record of {size} bytes with {end - pos} bytes left")
            delta, at = _varint(raw, pos + 1, 70)
            found = info.base_timestamp + delta
            if found >= timestamp:
                number, _ = _varint(raw, at, 35)
                if found >= _INT64_END or not 0 <= number <= info.last_offset_delta:
                    raise InvalidRecord(f"a record has timestamp {found} and offset delta {number}")
                if info.base_offset + number >= from_offset:
                    return found, info.base_offset + number
            pos = stop
    except IndexError:
        raise InvalidRecord("the last record of the batch is truncated") from None
    return None


def _varint(raw: Buffer | bytearray, pos: int, bits: int) -> tuple[int, int]:
    """Read a zigzag varint of up to *bits* bits; return it and the position after it."""
    byte = raw[pos]
    pos += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos
    number = byte & 0x7F
    shift = 7
    while True:
        byte = raw[pos]
        pos += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), pos
        shift += 7
        if shift >= bits:
            raise InvalidRecord(f"a varint is longer than {bits} bits")
