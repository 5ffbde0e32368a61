"""What a leader requires of the records of a producer's batch before it appends the batch (Kafka's LogValidator).

`check_produced` has checked the header and the CRC. A validation decompresses the records and walks over them once
(`kclient.wire.record_cursor`); nothing of them is kept. It refuses

- records that do not decompress, do not add up to the record count or have other offset deltas than 0, 1, 2...:
  INVALID_RECORD. The CRC was right, so another attempt cannot help; CORRUPT_MESSAGE would make clients try again.
- records without a key on a compacted topic: INVALID_RECORD, with an error for each of these records (KIP-467)
- timestamps out of message.timestamp.before.max.ms and message.timestamp.after.max.ms, unless the topic uses
  LogAppendTime: INVALID_TIMESTAMP, with an error for each of these records
- records that decompress to more than `MAX_DECOMPRESSED` bytes: MESSAGE_TOO_LARGE; producers then split the batch.

A max timestamp in the header that is not that of the records is replaced, as in Kafka: look-ups by time rely on it.

Only a leader validates, and only what a producer sent. Followers and conditional appends of a mirror copy batches that
a leader has accepted.

A validation is *brief* up to `BRIEF_BYTES` decompressed bytes and `BRIEF_RECORDS` records: it runs in the reactor's
thread. Others run in a pool, in steps of `BRIEF_RECORDS` records, because compiled code keeps the interpreter's lock.
"""

from __future__ import annotations

from typing import Final

from kbroker.config.log import LONG_MAX, LogConfig
from kclient.wire.batches import HEADER_SIZE, BatchInfo, Buffer, parse, with_max_timestamp
from kclient.wire.compression import MAX_DECOMPRESSED, decompress
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

BRIEF_RECORDS: Final = 500_000 if IS_COMPILED else 10_000
"""Records that are checked in the reactor's thread: about 6 ms compiled, 8 ms interpreted."""

PIECE: Final = 64 << 10
"""Bytes that are copied at once to be walked over."""

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


class LongValidationError(Exception):
    """The validation is too long for the reactor's thread: call `validation.run` in a pool, then append again."""

    def __init__(self, validation: RecordValidation) -> None:
        super().__init__("the records of a batch are to be checked in a pool")
        self.validation = validation


class RecordValidation:
    """The check of the records of one batch *info* of *buf*, for a topic with *config*."""

    __slots__ = ("_buf", "_check", "_config", "_info", "_now_ms", "_problem")

    def __init__(self, buf: Buffer, info: BatchInfo, config: LogConfig, now_ms: int) -> None:
        self._buf = buf
        self._info = info
        self._config = config
        self._now_ms = now_ms
        self._check: RecordCheck | None = None
        self._problem: KafkaError | None = None

    def run_briefly(self) -> None:
        """Check the records, or raise LongValidationError."""
        is_long = self._info.record_count > BRIEF_RECORDS
        if not is_long:
            try:
                self._walk(self._records(BRIEF_BYTES))
            except MessageTooLarge:
                is_long = True
            except KafkaError as error:
                self._problem = _without_traceback(error)
        if is_long:
            raise LongValidationError(self)

    def run(self) -> None:
        """Check the records, however many there are; for a pool. Never raises: `result` does."""
        try:
            self._walk(self._records(max(MAX_DECOMPRESSED, self._config.max_message_bytes)))
        except KafkaError as error:
            self._problem = _without_traceback(error)

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
