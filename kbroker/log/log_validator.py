"""What a leader requires of the records of a producer's batch before it appends the batch (Kafka's LogValidator).

`check_produced` has checked the header and the CRC. A validation decompresses the records and walks over them once
(`kclient.wire.record_cursor`); nothing of them is kept. It refuses

- records that do not decompress, do not add up to the record count or have other offset deltas than 0, 1, 2...:
  INVALID_RECORD. The CRC was right, so another attempt cannot help; CORRUPT_MESSAGE would make clients try again.
- records without a key on a compacted topic: INVALID_RECORD, with an error for each of these records (KIP-467)
- timestamps out of message.timestamp.before.max.ms and message.timestamp.after.max.ms, unless the topic uses
  LogAppendTime: INVALID_TIMESTAMP, with an error for each of these records
- records that decompress to more than `MAX_DECOMPRESSED` bytes: MESSAGE_TOO_LARGE; producers then split the batch.

A batch with another codec than compression.type is compressed again, if that names one (*target codec*). The records
stay the same bytes. MESSAGE_TOO_LARGE if the new batch exceeds max.message.bytes.

A max timestamp in the header that is not that of the records is replaced, as in Kafka: look-ups by time rely on it.

Only a leader validates, and only what a producer sent. Followers and conditional appends of a mirror copy batches that
a leader has accepted.

A validation is *brief* up to `BRIEF_BYTES` decompressed bytes and `BRIEF_RECORDS` records: it runs in the reactor's
thread. Others run in a pool, in steps of `BRIEF_RECORDS` records, because compiled code keeps the interpreter's lock.
"""

from __future__ import annotations

from typing import Final

from kbroker.config.log import LONG_MAX, LZ4_FAST, LogConfig
from kclient.wire.batches import (
    CODEC_MASK,
    HEADER_SIZE,
    BatchInfo,
    Buffer,
    build,
    parse,
    with_max_timestamp,
)
from kclient.wire.compression import MAX_DECOMPRESSED, Codec, compress, decompress
from kclient.wire.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
)
from kclient.wire.record_cursor import IS_COMPILED, RecordCheck

BRIEF_BYTES: Final = 4 << 20
"""Decompressed bytes that are checked in the reactor's thread: about 10 ms with the slowest codec, gzip."""

BRIEF_BYTES_TO_COMPRESS: Final = 256 << 10
"""Decompressed bytes that are compressed again in the reactor's thread: about 10 ms with gzip."""

BRIEF_RECORDS: Final = 500_000 if IS_COMPILED else 10_000
"""Records that are checked in the reactor's thread: about 6 ms compiled, 8 ms interpreted."""

PIECE: Final = 64 << 10
"""Bytes that are copied at once to be walked over."""

MAX_LZ4_LEVEL: Final = 12
"""The highest level of the LZ4 library; Kafka's levels 13 to 17 mean the same as 12."""

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


class LongValidationError(Exception):
    """The validation is too long for the reactor's thread: call `validation.run` in a pool, then append again."""

    def __init__(self, validation: RecordValidation) -> None:
        super().__init__("the records of a batch are to be checked in a pool")
        self.validation = validation


class RecordValidation:
    """The check of the records of one batch *info* of *buf*, for a topic with *config*."""

    __slots__ = ("_buf", "_check", "_config", "_info", "_now_ms", "_problem", "_rebuilt", "_target")

    def __init__(self, buf: Buffer, info: BatchInfo, config: LogConfig, now_ms: int) -> None:
        self._buf = buf
        self._info = info
        self._config = config
        self._now_ms = now_ms
        self._check: RecordCheck | None = None
        self._problem: KafkaError | None = None
        self._target = target_codec(config.compression_type, info.codec)
        self._rebuilt: bytes | None = None

    def run_briefly(self) -> None:
        """Check the records, or raise LongValidationError."""
        is_long = self._info.record_count > BRIEF_RECORDS
        if not is_long:
            try:
                if self._target == self._info.codec:
                    self._walk(self._records(BRIEF_BYTES))
                else:
                    self._check_and_compress(BRIEF_BYTES_TO_COMPRESS)
            except MessageTooLarge:
                is_long = True
            except KafkaError as error:
                self._problem = _without_traceback(error)
        if is_long:
            raise LongValidationError(self)

    def run(self) -> None:
        """Check the records, however many there are; for a pool. Never raises: `result` does."""
        try:
            self._check_and_compress(max(MAX_DECOMPRESSED, self._config.max_message_bytes))
        except KafkaError as error:
            self._problem = _without_traceback(error)

    def _check_and_compress(self, limit: int) -> None:
        """Check the records, and compress them with the target codec; MessageTooLarge above *limit* bytes."""
        records = self._records(limit)
        if len(records) > limit:
            raise MessageTooLarge(f"{len(records)} bytes of records, the limit is {limit}")
        self._walk(records)
        info, check, target = self._info, self._check, self._target
        if target == info.codec or check is None or check.error_count:
            return
        has_append_time = self._config.log_append_time
        self._rebuilt = build(
            compress(target, records, _level(target, self._config)),
            record_count=info.record_count,
            last_offset_delta=info.last_offset_delta,
            base_timestamp=info.base_timestamp,
            max_timestamp=info.max_timestamp if has_append_time else check.max_timestamp,
            attributes=info.attributes & ~CODEC_MASK | target,
            base_offset=info.base_offset,
            leader_epoch=info.leader_epoch,
            producer_id=info.producer_id,
            producer_epoch=info.producer_epoch,
            base_sequence=info.base_sequence,
        )
        if len(self._rebuilt) > self._config.max_message_bytes:
            raise MessageTooLarge(
                f"compressed again with compression.type={self._config.compression_type}, a batch of {info.size} bytes"
                f" takes {len(self._rebuilt)}, the limit is {self._config.max_message_bytes}"
            )

    def _records(self, limit: int) -> memoryview:
        """Return the decompressed records; MessageTooLarge above *limit* bytes of a compressed batch."""
        info = self._info
        records = memoryview(self._buf)[info.position + HEADER_SIZE : info.end]
        if not info.codec:
            return records
        try:
            return decompress(info.codec, records, limit)
        except CorruptMessage as error:
            raise InvalidRecord(error.message, hint=error.hint) from error

    def _walk(self, records: memoryview) -> None:
        """Check all records, in pieces: a copy of a whole batch costs more than the check, by its page faults."""
        self._check = check = self._begin(bytes(records[:PIECE]), len(records))
        position = 0
        while not check.run(BRIEF_RECORDS):
            if check.wanted:
                position += check.position
                check.feed(bytes(records[position : position + max(PIECE, check.wanted)]))

    def result(self, partition: object) -> tuple[Buffer, BatchInfo]:
        """Return the batch to append, after a run; raise InvalidRecord, InvalidTimestamp or MessageTooLarge."""
        check, problem = self._check, self._problem
        if problem is not None:
            raise type(problem)(f"{partition}: {problem.message}", hint=problem.hint)
        if check is None:
            raise InvalidRecord(f"{partition}: the records were not checked")
        if check.error_count:
            raise _record_errors(check, partition)
        if self._rebuilt is not None:
            return self._rebuilt, parse(self._rebuilt)
        if check.max_timestamp == self._info.max_timestamp or self._config.log_append_time:
            return self._buf, self._info
        corrected = with_max_timestamp(self._buf, self._info, check.max_timestamp)
        return corrected, parse(corrected)

    def _begin(self, raw: bytes, size: int) -> RecordCheck:
        info, config = self._info, self._config
        earliest, latest = _INT64_MIN, _INT64_MAX
        before, after = config.timestamp_bounds
        if (before != LONG_MAX or after != LONG_MAX) and not config.log_append_time:
            earliest = _INT64_MIN if before == LONG_MAX else self._now_ms - before
            latest = min(_INT64_MAX, self._now_ms + after)
        return RecordCheck(
            raw,
            info.record_count,
            info.base_timestamp,
            earliest=earliest,
            latest=latest,
            needs_key=config.compacted,
            size=size,
        )


def target_codec(compression_type: str, codec: int) -> int:
    """Return the codec with which a batch of *codec* is stored in a topic of *compression_type*."""
    if compression_type == "producer":
        return codec
    return Codec.NONE if compression_type == "uncompressed" else Codec.named(compression_type)


def _level(codec: int, config: LogConfig) -> int | None:
    """Return the level to compress with; None is the default of `compress`."""
    if codec == Codec.GZIP and config.compression_gzip_level > 0:
        return config.compression_gzip_level
    if codec == Codec.LZ4 and config.compression_lz4_level != LZ4_FAST:
        return min(config.compression_lz4_level, MAX_LZ4_LEVEL)
    return config.compression_zstd_level if codec == Codec.ZSTD else None


def _without_traceback(error: KafkaError) -> KafkaError:
    """Return an equal error. The frames in the traceback of *error* hold what was decompressed, 64 MiB of a bomb."""
    return type(error)(error.message, hint=error.hint)


def _record_errors(check: RecordCheck, partition: object) -> KafkaError:
    """Return the error for records that break a rule of the topic."""
    errors = [
        (
            index,
            "it has no key, and the topic is compacted"
            if timestamp is None
            else f"its timestamp {timestamp} is out of the range that message.timestamp.before.max.ms and"
            " message.timestamp.after.max.ms allow",
        )
        for index, timestamp in check.errors
    ]
    first, reason = errors[0]
    text = f"{partition}: {check.error_count} records are refused; the first is record {first}: {reason}"
    error: InvalidTimestamp | InvalidRecord
    error = InvalidTimestamp(text) if check.has_invalid_timestamp else InvalidRecord(text)
    error.record_errors = errors
    return error
