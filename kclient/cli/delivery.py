"""The deliveries of `kclient produce`: records go to the producer in order, a bounded number at a time.

Without the bound all lines of a large input would wait in the producer, and delivery.timeout.ms counts that wait. With
it a record waits for at most `MOST_UNDELIVERED` others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kclient.errors import BufferExhausted, KafkaTimeoutError

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from kclient.producer.producer import Producer
    from kclient.types import RecordMetadata

MOST_UNDELIVERED = 50_000
"""Records that may wait for an acknowledgement before the next lines are read."""


class Given(NamedTuple):
    """A record to produce."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None = None
    partition: int | None = None


class Deliveries:
    """Sends records to one topic and counts what became of them; *partition* is for records without their own."""

    def __init__(
        self,
        producer: Producer[Any, Any],
        topic: str,
        partition: int | None = None,
        *,
        most: int = MOST_UNDELIVERED,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._most = most
        self._waiter: Deferred[None] | None = None
        self.sent = self.delivered = self.failed = 0
        self.problems: Counter[str] = Counter()
        """Error texts, with the number of their records."""
        self.acknowledged: Callable[[RecordMetadata], object] | None = None
        """Is called with the place of each delivered record."""
        self.timed_out = False
        """Whether a record was not acknowledged in time: then more records would wait in vain."""

    async def send(self, records: Iterable[Given]) -> None:
        """Send *records* as fast as they are delivered; return before their last acknowledgements."""
        # Imported here, so that `kclient --help` does not import Twisted.
        from twisted.internet.defer import Deferred

        send_to, has_room = self._producer.send_to, self._producer.accumulator.has_room
        topic, partition = self._topic, self._partition
        for each in records:
            if self.sent - self.delivered - self.failed >= self._most:
                self._waiter = Deferred()
                await self._waiter
            size = len(each.value or b"") + len(each.key or b"")
            if not has_room(size):
                try:
                    await self._producer.ready(size)
                except BufferExhausted as problem:
                    self._note(problem)
            if self.timed_out:
                return
            self.sent += 1
            where = partition if each.partition is None else each.partition
            sink: Any = self
            if self.acknowledged is not None:
                # A Deferred keeps an error of the callback from the other records of the batch.
                sink = Deferred()
                sink.addCallback(self._placed)
                sink.addErrback(lambda failure: self.errback(failure.value))
            send_to(sink, topic, each.value, each.key, each.headers, where, each.timestamp_ms)

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

    def _placed(self, place: RecordMetadata) -> None:
        if self.acknowledged is not None:
            self.acknowledged(place)
        self.callback(place)

    def _note(self, problem: BaseException) -> None:
        self.timed_out = self.timed_out or isinstance(problem, KafkaTimeoutError)
        self.problems[str(problem)] += 1

    def _ended(self) -> None:
        """Let the reader go on when half of the records are delivered, so that it reads large pieces."""
        waiter = self._waiter
        if waiter is not None and self.sent - self.delivered - self.failed <= self._most // 2:
            self._waiter = None
            if not waiter.called:
                waiter.callback(None)
