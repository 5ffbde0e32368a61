"""The deliveries of `kclient produce`: records go to the producer in order, a bounded number at a time.

Without the bound all lines of a large input would wait in the producer, and delivery.timeout.ms counts that wait. With
it a record waits for at most `MOST_UNDELIVERED` others, and those of its piece of the input.

Lines that differ in key and value only are sent as columns, which need no object for each record. A few lines are not:
columns do not wait for linger.ms, so each line of a slow pipe would be a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kclient.errors import BufferExhausted, KafkaTimeoutError, RowsNotAcknowledged

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from kclient.cli.pace import Pace
    from kclient.producer.producer import Producer
    from kclient.types import ColumnsMetadata, RecordMetadata

MOST_UNDELIVERED = 50_000
"""Records that may wait for an acknowledgement before the next lines are read."""

FEWEST_ROWS = 50
"""Rows that are sent as columns; fewer are sent as records."""


class Given(NamedTuple):
    """A record to produce."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None = None
    partition: int | None = None


class Deliveries:
    """Sends records to one topic and counts what became of them; *partition* is for records without their own.

    With a *pace* each record is sent when it is due. After a record that was not acknowledged in time no other one is
    sent, unless it *goes_on*: then the next ones are tried, as by kafka-console-producer.
    """

    def __init__(
        self,
        producer: Producer[Any, Any],
        topic: str,
        partition: int | None = None,
        *,
        most: int = MOST_UNDELIVERED,
        pace: Pace | None = None,
        acknowledged: Callable[[RecordMetadata], object] | None = None,
        when_timed_out: Callable[[], object] = lambda: None,
        goes_on: bool = False,
    ) -> None:
        self._producer = producer
        self._pace = pace
        self._topic = topic
        self._partition = partition
        self._most = most
        self._waiter: Deferred[None] | None = None
        self.sent = self.delivered = self.failed = 0
        self.problems: Counter[str] = Counter()
        """Error texts, with the number of their records."""
        self._acknowledged = acknowledged
        """Is called with the place of each delivered record."""
        self._goes_on = goes_on
        self.timed_out = False
        """Whether a record was not acknowledged in time: then more records would wait in vain."""
        self._when_timed_out = when_timed_out
        """Is called when the first record was not acknowledged in time."""

    async def send(self, records: Iterable[Given]) -> None:
        """Send *records* as fast as they are delivered; return before their last acknowledgements."""
        # Imported here, so that `kclient --help` does not import Twisted.
        from twisted.internet.defer import Deferred

        send_to, has_room = self._producer.send_to, self._producer.accumulator.has_room
        topic, partition = self._topic, self._partition
        for each in records:
            if self._pace is not None:
                await self._pace.wait()
            if self.undelivered >= self._most:
                await self._half_delivered()
            size = len(each.value or b"") + len(each.key or b"")
            if not has_room(size):
                try:
                    await self._producer.ready(size)
                except BufferExhausted as problem:
                    self._note(problem)
                    if self._goes_on:
                        continue  # it would wait for memory once more
            if self.timed_out:
                return
            self.sent += 1
            where = partition if each.partition is None else each.partition
            sink: Any = self
            if self._acknowledged is not None:
                # A Deferred keeps an error of the callback from the other records of the batch.
                sink = Deferred()
                sink.addCallback(self._placed)
                sink.addErrback(lambda failure: self.errback(failure.value))
            send_to(sink, topic, each.value, each.key, each.headers, where, each.timestamp_ms)

    async def send_rows(
        self,
        values: list[bytes | None],
        keys: list[bytes | None] | None,
        headers: list[tuple[str, bytes | None]],
    ) -> None:
        """Send a record for each row, as `send` does; *headers* are those of all."""
        count = len(values)
        if count >= FEWEST_ROWS and self._acknowledged is None and self._pace is None:
            if self.undelivered >= self._most:
                await self._half_delivered()
            if self.timed_out:
                return
            # Imported here, so that `kclient --help` does not import it.
            from kclient.producer.columns import ListColumn

            rows = _Rows(self, count)
            self.sent += count
            key_column = None if keys is None else ListColumn(keys)
            self._producer.send_columns_to(
                rows, self._topic, ListColumn(values), key_column, headers, self._partition, None
            )
            if not rows.refused:
                return
            self.sent -= count  # One row is too large: the others are delivered.
        each_key: Iterable[bytes | None] = [None] * count if keys is None else keys
        await self.send(
            Given(key, value, headers) for key, value in zip(each_key, values, strict=True)
        )

    @property
    def undelivered(self) -> int:
        """The number of records that wait for an acknowledgement."""
        return self.sent - self.delivered - self.failed

    def _half_delivered(self) -> Deferred[None]:
        """Fire when half of the records that may wait are delivered, so that the reader goes on with large pieces."""
        from twisted.internet.defer import Deferred

        self._waiter = Deferred()
        return self._waiter

    def callback(self, _: object) -> None:
        """Count a record that is acknowledged: this object is the sink of each."""
        self.delivered += 1
        if self._waiter is not None:
            self._ended()

    def errback(self, problem: BaseException) -> None:
        """Count a record that failed."""
        self.failed += 1
        self._note(problem)
        self._ended()

    def rows_ended(self, delivered: int, failed: int, problem: BaseException | None) -> None:
        """Count the rows of one piece; *problem* is why some failed."""
        self.delivered += delivered
        self.failed += failed
        if problem is not None:
            self._note(problem, failed)
        self._ended()

    def _placed(self, place: RecordMetadata) -> None:
        if self._acknowledged is not None:
            self._acknowledged(place)
        self.callback(place)

    def _note(self, problem: BaseException, count: int = 1) -> None:
        self.problems[str(problem)] += count
        if isinstance(problem, KafkaTimeoutError) and not self.timed_out and not self._goes_on:
            self.timed_out = True
            self._when_timed_out()

    def _ended(self) -> None:
        """Let the reader go on when half of the records are delivered."""
        waiter = self._waiter
        if waiter is not None and self.undelivered <= self._most // 2:
            self._waiter = None
            if not waiter.called:
                waiter.callback(None)


class _Rows:
    """Receives the result of *count* rows."""

    def __init__(self, deliveries: Deliveries, count: int) -> None:
        self._deliveries = deliveries
        self._count = count
        self.refused = False
        """Whether none of the rows was sent, because one cannot be."""

    def callback(self, _: ColumnsMetadata) -> None:
        """Count rows that are all acknowledged."""
        self._deliveries.rows_ended(self._count, 0, None)

    def errback(self, problem: BaseException) -> None:
        """Count the rows that are not acknowledged."""
        if isinstance(problem, RowsNotAcknowledged):
            lost: Sequence[int] = problem.rows
            self._deliveries.rows_ended(self._count - len(lost), len(lost), problem.cause)
        else:
            self.refused = True
