"""Record batches of message format v2 as bytes: parse, check and stamp headers; records stay encoded.

A batch travels from the producer's socket to the consumer's unchanged. The broker reads its 61-byte header, checks its
CRC and writes two fields that the CRC does not cover (KIP-98's layout)::

    0   base offset            i64   stamped by the leader
    8   length                 i32   bytes after this field, so size = length + 12
    12  partition leader epoch i32   stamped by the leader
    16  magic                  i8    2; the same position in formats 0 and 1
    17  crc                    u32   CRC-32C of everything from byte 21 on
    21  attributes             i16   bits: 0-2 codec, 3 log append time, 4 transactional,
                                     5 control, 6 delete horizon
    23  last offset delta      i32
    27  base timestamp         i64   ms; the delete horizon when bit 6 is set
    35  max timestamp          i64   ms
    43  producer id            i64   -1 without idempotence
    51  producer epoch         i16
    53  base sequence          i32
    57  record count           i32
    61  records                      compressed by the codec, as a whole

All functions accept any contiguous byte buffer and raise Kafka errors only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kclient.wire.crc import crc32c
from kclient.wire.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)

HEADER_SIZE: Final = 61
"""Bytes of a batch before its records."""

LENGTH_END: Final = 12
"""Bytes of a batch that its length field does not count: base offset and length."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
IN_TRANSACTION: Final = TRANSACTIONAL | CONTROL
"""The attributes of batches that may begin or end a transaction."""

MAX_CODEC: Final = 4
ZSTD: Final = 4
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1

LARGEST_OFFSET: Final = 2**63 - 2
"""The largest record offset: the log end offset after it is an int64, too."""

LARGEST_COPIED_OFFSET: Final = 2**62 - 1
"""The largest offset of a mirrored record: half of all offsets remain for later appends."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CHECKED_HEADER = struct.Struct(">hiqqqhii")  # the header after the CRC
_STAMP = struct.Struct(">qii")
_EPOCH = struct.Struct(">i")
_MAGIC_AT = 16
_CRC_FROM = 21
_FORBIDDEN_TO_CLIENTS = 0xFFFF & ~(CODEC_MASK | TRANSACTIONAL)
_SMALLEST_OLD_MESSAGE = 14  # the length in format 0 with null key and value
_SMALLEST_RECORD = 7  # length, attributes, deltas, null key and value, no headers: a byte each

# The largest expansion of one compressed byte. A higher record count is impossible and is
# rejected without decompression: otherwise 70 bytes could reserve two billion offsets.
_EXPANSION = (1, 1040, 64, 260, 1 << 15)

_unpack_header = _HEADER.unpack_from
_tuple_new = tuple.__new__

Buffer = bytes | bytearray | memoryview


class BatchInfo(NamedTuple):
    """The header of one batch and its position in the buffer. Timestamps are in milliseconds since the epoch.

    A named tuple, because every produce and fetch creates one per batch: it costs a fifth of a frozen dataclass.
    """

    position: int
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_END

    @property
    def end(self) -> int:
        """The position after the batch."""
        return self.position + self.length + LENGTH_END

    @property
    def codec(self) -> int:
        """The compression codec id (`kclient.wire.compression.Codec`); ids above 4 are not assigned."""
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        """Whether max_timestamp is the leader's clock and applies to every record (KIP-32)."""
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction (KIP-98)."""
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        """Whether this is a control batch (a transaction marker), invisible to applications."""
        return self.attributes & CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether base_timestamp holds a delete horizon (KIP-534) instead of a timestamp."""
        return self.attributes & DELETE_HORIZON != 0

    @property
    def last_offset(self) -> int:
        """The offset of the last record, also if compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; after 2^31 - 1 comes 0. -1 without idempotence."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def parse(buf: Buffer, position: int = 0) -> BatchInfo:
    """Parse the header at *position*; the records after it need not be in *buf*.

    Raise CorruptMessage for an invalid header, UnsupportedForMessageFormat for formats 0 and 1.
    """
    if len(buf) - position < HEADER_SIZE:
        _check_magic(buf, position)
        raise CorruptMessage(
            f"record batch is truncated in its header: {len(buf) - position} of {HEADER_SIZE} bytes"
        )
    info: BatchInfo = _tuple_new(BatchInfo, (position, *_unpack_header(buf, position)))
    if info.magic != 2:
        _check_magic(buf, position)
    if info.length < HEADER_SIZE - LENGTH_END:
        raise CorruptMessage(
            f"record batch length {info.length} at byte {position} is shorter than its own header"
        )
    return info


def iterate(buf: Buffer, position: int = 0) -> Iterator[BatchInfo]:
    """Yield the headers of the whole batches in *buf* in order; stop before a truncated one.

    An invalid header raises as in parse(); records and CRC are not checked.
    """
    total = len(buf)
    while total - position >= HEADER_SIZE:
        info = parse(buf, position)
        position += info.length + LENGTH_END
        if position > total:
            return
        yield info
    # A message of an old format may be shorter than the header of a batch.
    if 0 < _old_message_size(buf, position) <= total - position:
        _check_magic(buf, position)


def check_crc(buf: Buffer, info: BatchInfo) -> None:
    """Raise CorruptMessage unless the batch *info* of *buf* is complete and its CRC-32C is correct."""
    start, end = info.position, info.position + info.length + LENGTH_END
    if end > len(buf):
        raise CorruptMessage(
            f"record batch of {end - start} bytes is truncated after {len(buf) - start} bytes"
        )
    found = crc32c(memoryview(buf)[start + _CRC_FROM : end])
    if found != info.crc:
        raise CorruptMessage(
            f"record batch is corrupt (CRC-32C {found:#010x}, its header has {info.crc:#010x}, "
            f"{end - start} bytes, base offset {info.base_offset})"
        )


def check_produced(buf: Buffer, *, max_batch_bytes: int, zstd_allowed: bool = True) -> BatchInfo:
    """Validate a producer's records for one partition: exactly one valid v2 batch.

    Reads the header and computes one CRC; `kclient.wire.record_cursor` checks the records. Pass zstd_allowed=False for
    Produce requests before v7 (KIP-110). Raise InvalidRecord, CorruptMessage, MessageTooLarge,
    UnsupportedForMessageFormat, UnsupportedCompressionType or InvalidTimestamp, as Kafka does.
    """
    total = len(buf)
    if not total:
        raise InvalidRecord(
            "the records are empty, Produce v3 and above requires exactly one record batch"
        )
    info = parse(buf)
    size = info.length + LENGTH_END
    if size > max_batch_bytes:
        raise MessageTooLarge(
            f"record batch of {size} bytes is larger than the {max_batch_bytes} bytes that the "
            "topic takes",
            hint="raise max.message.bytes of the topic or lower batch.size of the producer",
        )
    if size != total:
        if size > total:
            raise CorruptMessage(f"record batch of {size} bytes is truncated after {total} bytes")
        raise InvalidRecord(
            f"{total - size} bytes follow the first record batch; "
            "Produce v3 and above accepts exactly one batch per partition"
        )
    check_crc(buf, info)
    count = info.record_count
    if count <= 0 or info.last_offset_delta != count - 1:
        raise InvalidRecord(
            f"batch header has {count} records but a last offset delta of {info.last_offset_delta}"
        )
    if info.base_offset:
        raise InvalidRecord(
            f"base offset {info.base_offset}: a producer's batch has base offset 0, the leader assigns offsets"
        )
    attributes = info.attributes
    if attributes & _FORBIDDEN_TO_CLIENTS:
        _refuse_attributes(info)
    codec = attributes & CODEC_MASK
    if codec > MAX_CODEC or (codec == ZSTD and not zstd_allowed):
        raise UnsupportedCompressionType(
            f"compression codec {codec} is unknown; codecs are 0 (none) to 4 (zstd)"
            if codec > MAX_CODEC
            else "zstd needs Produce v7 or above (KIP-110)",
            hint="upgrade the client or set another compression.type",
        )
    if count * _SMALLEST_RECORD > (size - HEADER_SIZE) * _EXPANSION[codec]:
        raise InvalidRecord(
            f"{count} records cannot fit in the {size - HEADER_SIZE} bytes of the batch"
        )
    if info.producer_id != NO_PRODUCER_ID or attributes & TRANSACTIONAL:
        _check_producer(info)
    return info


def check_copied(buf: Buffer, *, next_offset: int, max_batch_bytes: int) -> list[BatchInfo]:
    """Validate batches that keep their offsets: complete and in order from *next_offset* on.

    The source's leader has already accepted them, so control batches, LogAppendTime timestamps and gaps by compaction
    are valid. Raise InvalidRecord, CorruptMessage, MessageTooLarge or UnsupportedForMessageFormat.
    """
    found: list[BatchInfo] = []
    position, total = 0, len(buf)
    while position < total:
        info = parse(buf, position)
        size = info.length + LENGTH_END
        if size > max_batch_bytes:
            raise MessageTooLarge(
                f"record batch of {size} bytes at offset {info.base_offset} is larger than the "
                f"{max_batch_bytes} bytes that the topic accepts",
                hint="raise max.message.bytes of the topic",
            )
        check_crc(buf, info)
        if info.base_offset < next_offset or info.last_offset_delta < 0:
            raise InvalidRecord(
                f"record batch of offsets {info.base_offset}-{info.last_offset} does not follow "
                f"offset {next_offset - 1}"
            )
        if info.last_offset > LARGEST_COPIED_OFFSET:
            raise InvalidRecord(
                f"record batch of offsets {info.base_offset}-{info.last_offset}: the largest offset of a"
                f" copied record is {LARGEST_COPIED_OFFSET}"
            )
        if not 0 <= info.record_count <= info.last_offset_delta + 1:
            raise InvalidRecord(
                f"record batch of offsets {info.base_offset}-{info.last_offset} has {info.record_count}"
                " records"
            )
        next_offset = info.next_offset
        found.append(info)
        position += size
    if not found:
        raise InvalidRecord("the records are empty")
    return found


def with_leader_epoch(buf: Buffer, found: Sequence[BatchInfo], leader_epoch: int) -> Buffer:
    """Return the batches of *buf* with another leader epoch: *buf* itself, changed, if it is writable."""
    view = memoryview(buf)
    if view.readonly:
        view = memoryview(bytearray(view))
    for info in found:
        if info.leader_epoch != leader_epoch:
            _EPOCH.pack_into(view, info.position + LENGTH_END, leader_epoch)
    return view


def stamp(info: BatchInfo, base_offset: int, leader_epoch: int) -> bytes:
    """Return the first 16 bytes of the batch with the leader's base offset and epoch; the rest stays unchanged."""
    return _STAMP.pack(base_offset, info.length, leader_epoch)


def with_log_append_time(buf: Buffer, info: BatchInfo, now_ms: int) -> bytes:
    """Return a copy of the batch with the leader's timestamp, for message.timestamp.type=LogAppendTime."""
    return _with_timestamp(buf, info, info.attributes | LOG_APPEND_TIME, now_ms)


def with_max_timestamp(buf: Buffer, info: BatchInfo, max_timestamp: int) -> bytes:
    """Return a copy of the batch with another max timestamp: that of its records, where the producer's is wrong."""
    return _with_timestamp(buf, info, info.attributes, max_timestamp)


def _with_timestamp(buf: Buffer, info: BatchInfo, attributes: int, max_timestamp: int) -> bytes:
    """Copy a batch; its CRC is computed again, because it covers attributes and timestamps."""
    whole = memoryview(buf)[info.position : info.end]
    checked = _CHECKED_HEADER.pack(
        attributes,
        info.last_offset_delta,
        info.base_timestamp,
        max_timestamp,
        info.producer_id,
        info.producer_epoch,
        info.base_sequence,
        info.record_count,
    )
    records = whole[HEADER_SIZE:]
    crc = crc32c(records, crc32c(checked))
    return b"".join((whole[: _CRC_FROM - 4], crc.to_bytes(4, "big"), checked, records))


def build(
    records: Buffer,
    *,
    record_count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """Return a batch of *records*, which are encoded and compressed by the codec in *attributes*."""
    checked = _CHECKED_HEADER.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    length = HEADER_SIZE - LENGTH_END + len(records)
    crc = crc32c(records, crc32c(checked))
    head = _STAMP.pack(base_offset, length, leader_epoch)
    return b"".join((head, b"\x02", crc.to_bytes(4, "big"), checked, records))


def _check_magic(buf: Buffer, position: int) -> None:
    """Reject formats other than 2; zeros, as a crash may leave them, are not an old message."""
    if len(buf) - position <= _MAGIC_AT or buf[position + _MAGIC_AT] == 2:
        return
    magic = buf[position + _MAGIC_AT]
    if _old_message_size(buf, position):
        raise UnsupportedForMessageFormat(
            f"message format {magic} at byte {position} is not supported, only format 2 is",
            hint="it is of Kafka before 0.11: upgrade the client that writes it; Apache Kafka's tools copy such a log",
        )
    length = _length_at(buf, position)
    raise CorruptMessage(f"no record batch at byte {position}: magic {magic}, length {length}")


def _old_message_size(buf: Buffer, position: int) -> int:
    """Return the size of the message of format 0 or 1 at *position*; 0 if there is none."""
    if len(buf) - position <= _MAGIC_AT or buf[position + _MAGIC_AT] >= 2:
        return 0
    length = _length_at(buf, position)
    return length + LENGTH_END if length >= _SMALLEST_OLD_MESSAGE else 0


def _length_at(buf: Buffer, position: int) -> int:
    return int.from_bytes(buf[position + 8 : position + LENGTH_END], "big", signed=True)


def _refuse_attributes(info: BatchInfo) -> None:
    if info.is_control:
        raise InvalidRecord("clients may not write control batches")
    if info.log_append_time:
        raise InvalidTimestamp(
            "clients may not set the timestamp type LogAppendTime, only the leader does", hint=""
        )
    raise InvalidRecord(f"reserved attribute bits are set: {info.attributes & 0xFFFF:#06x}")


def _check_producer(info: BatchInfo) -> None:
    if info.producer_id < 0:
        raise InvalidRecord(
            f"transactional batch has no producer id ({info.producer_id})"
            if info.is_transactional
            else f"producer id {info.producer_id} is negative"
        )
    if info.producer_epoch < 0 or info.base_sequence < 0:
        raise InvalidRecord(
            f"producer id {info.producer_id} with epoch {info.producer_epoch} and "
            f"sequence {info.base_sequence}: neither may be negative"
        )
