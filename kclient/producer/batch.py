"""A batch of a producer: records of one partition that are sent, retried and acknowledged together.

Records are encoded when they are added: what a batch holds are keys, values and shared bytes, which the garbage
collector does not visit. There is no callback per record. A caller that needs a record's result keeps the batch and the
record's index. It reads the result when the batch is done, or registers a sink. A batch that is too large for the
broker is split in two; `leaf` maps the old index to the new one.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from kclient.types import Headers, RecordMetadata, TopicPartition
from kclient.wire import batches
from kclient.wire.batches import Buffer
from kclient.wire.compression import compress
from kclient.wire.errors import KafkaError
from kclient.wire.records import EncodedRecords, Record, RecordEncoder, decode_batch

Row = tuple[int, int, bytes | None, bytes | None, Headers]
"""The fields of a `Record` (its offset is not used) as a plain tuple."""

LAST_SEQUENCE: Final = 0x7FFFFFFF
"""After it comes 0."""

RECORD_OVERHEAD: Final = 12
"""Bytes of a record beside key, value and headers: an upper bound of its varints."""


class Sink(Protocol):
    """A receiver of one record's result: a Deferred, or an object with its methods."""

    def callback(self, result: Any) -> Any:
        """Receive the RecordMetadata."""

    def errback(self, fail: Any) -> Any:
        """Receive the error."""


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return an upper bound of a record's bytes in a batch."""
    size = RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += 10 + 3 * len(name) + (len(content) if content else 0)
    return size


class ProducerBatch:
    """Records of one partition. Times are in seconds of the client's clock.

    *number* increases per partition: batches must reach the log in this order. *base_sequence* is -1 until the
    sequencer sets it.
    """

    __slots__ = (
        "_compressed",
        "_encoded",
        "_encoder",
        "attempts",
        "base_offset",
        "base_sequence",
        "closed",
        "created_at",
        "error",
        "last_problem",
        "log_append_time",
        "number",
        "parts",
        "producer_epoch",
        "producer_id",
        "raw",
        "record_count",
        "retry_at",
        "size",
        "tp",
        "urgent",
        "waiters",
    )

    def __init__(self, tp: TopicPartition, number: int, created_at: float) -> None:
        self.tp = tp
        self.number = number
        self.created_at = created_at
        self.record_count = 0
        self.size = batches.HEADER_SIZE
        self.closed = False
        self.urgent = False
        self.attempts = 0
        self.retry_at = 0.0
        self.last_problem: KafkaError | None = None
        self.producer_id = self.producer_epoch = self.base_sequence = -1
        self.raw: Buffer | None = None
        self.error: KafkaError | None = None
        self.base_offset: int | None = None
        self.log_append_time = -1
        self.parts: tuple[ProducerBatch, ProducerBatch] | None = None
        self.waiters: list[tuple[int, int, Sink]] = []
        self._encoder = RecordEncoder()
        self._encoded: EncodedRecords | None = None
        self._compressed: Buffer | None = None

    @classmethod
    def of_bytes(
        cls, tp: TopicPartition, number: int, created_at: float, raw: Buffer, record_count: int
    ) -> ProducerBatch:
        """Return a batch of encoded bytes, to be sent unchanged."""
        batch = cls(tp, number, created_at)
        batch.raw, batch.record_count, batch.size = raw, record_count, len(raw)
        batch.closed = True
        return batch

    @classmethod
    def of_encoded(
        cls, tp: TopicPartition, number: int, created_at: float, encoded: EncodedRecords
    ) -> ProducerBatch:
        """Return a closed batch of encoded records."""
        batch = cls(tp, number, created_at)
        batch._encoded, batch.record_count = encoded, encoded.record_count
        batch.size += len(encoded.payload)
        batch.closed = True
        return batch

    @property
    def done(self) -> bool:
        """Whether the batch is acknowledged or failed."""
        return self.base_offset is not None or self.error is not None

    def add(self, row: Row, size: int) -> None:
        """Encode and append a record of about *size* bytes; an error changes nothing."""
        _, timestamp, key, value, headers = row
        self._encoder.append(timestamp, key, value, headers)
        self.size += size
        self.record_count += 1

    def encode(
        self, codec: int, level: int | None = None, *, is_transactional: bool = False
    ) -> Buffer:
        """Return the batch's bytes; compress only once for all attempts."""
        self.closed = True
        if self.raw is not None:
            return self.raw
        encoded = self._encoded
        if encoded is None:
            encoded = self._encoded = self._encoder.encoded()
            self._encoder = RecordEncoder()
        if self._compressed is None:
            self._compressed = compress(codec, encoded.payload, level)
        return batches.build(
            self._compressed,
            record_count=encoded.record_count,
            last_offset_delta=encoded.last_offset_delta,
            base_timestamp=encoded.base_timestamp,
            max_timestamp=encoded.max_timestamp,
            attributes=codec | batches.TRANSACTIONAL if is_transactional else codec,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
        )

    def leaf(self, index: int) -> tuple[ProducerBatch, int]:
        """Return the batch that contains record *index* after all splits, and its index there."""
        batch = self
        while batch.parts is not None:
            first, second = batch.parts
            if index < first.record_count:
                batch = first
            else:
                index -= first.record_count
                batch = second
        return batch, index

    def outcome(self, index: int, timestamp: int) -> RecordMetadata | KafkaError | None:
        """Return the result of record *index*, None while it is pending."""
        batch, index = self.leaf(index)
        if batch.error is not None:
            return batch.error
        if batch.base_offset is None:
            return None
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        appended = batch.log_append_time
        topic, partition = batch.tp
        if appended >= 0:
            return RecordMetadata(topic, partition, offset, appended, 1)
        return RecordMetadata(topic, partition, offset, timestamp, 0)

    def notify(self, index: int, timestamp: int, sink: Sink) -> None:
        """Pass the result of record *index* to *sink*, now or when it is known."""
        batch, index = self.leaf(index)
        if batch.done:
            batch._notify_now(index, timestamp, sink)
        else:
            batch.waiters.append((index, timestamp, sink))

    def acknowledged(self, base_offset: int, log_append_time: int = -1) -> None:
        """Complete the batch; *base_offset* is -1 without one in the response."""
        # base_offset comes last: other threads read the rest once it is set.
        self.log_append_time = log_append_time
        self.base_offset = base_offset
        self._finish()

    def failed(self, error: KafkaError) -> None:
        """Fail the batch."""
        self.error = error
        self._finish()

    def split(self, number: int) -> tuple[ProducerBatch, ProducerBatch]:
        """Split into two halves, numbered *number* and the next; requires two records or more.

        They share the sequences, so nothing changes for later batches.
        """
        middle = self.record_count // 2
        first = ProducerBatch(self.tp, number, self.created_at)
        second = ProducerBatch(self.tp, number + 1, self.created_at)
        for i, record in enumerate(self._records()):
            half = first if i < middle else second
            half.add(record, record_size(record.key, record.value, record.headers))
        for half in (first, second):
            half.closed = True
            half.attempts = self.attempts
            half.producer_id, half.producer_epoch = self.producer_id, self.producer_epoch
        if self.base_sequence >= 0:
            first.base_sequence = self.base_sequence
            second.base_sequence = (self.base_sequence + first.record_count) & LAST_SEQUENCE
        waiters, self.waiters = self.waiters, []
        self.parts = (first, second)
        for index, timestamp, sink in waiters:
            self.notify(index, timestamp, sink)
        self._encoded = self._compressed = None
        return first, second

    def _records(self) -> list[Record]:
        """Return the records, decoded."""
        encoded = self._encoder.encoded() if self._encoded is None else self._encoded
        raw = batches.build(
            encoded.payload,
            record_count=encoded.record_count,
            last_offset_delta=encoded.last_offset_delta,
            base_timestamp=encoded.base_timestamp,
            max_timestamp=encoded.max_timestamp,
        )
        return decode_batch(raw, batches.parse(raw), max_size=len(raw))

    def _finish(self) -> None:
        self.closed = True
        self._encoder = RecordEncoder()
        self._encoded = self._compressed = self.raw = None
        waiters, self.waiters = self.waiters, []
        for index, timestamp, sink in waiters:
            self._notify_now(index, timestamp, sink)

    def _notify_now(self, index: int, timestamp: int, sink: Sink) -> None:
        outcome = self.outcome(index, timestamp)
        if isinstance(outcome, KafkaError):
            sink.errback(outcome)
        else:
            sink.callback(outcome)
