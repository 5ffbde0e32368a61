"""The deliveries of `kclient produce`: records go to the producer in order, a bounded number at a time.

Without the bound all lines of a large input would wait in the producer, and delivery.timeout.ms counts that wait. With
it a record waits for at most `MOST_UNDELIVERED` others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kclient.errors import BufferExhausted, KafkaError, KafkaTimeoutError

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

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

        for each in records:
            if self.sent - self.delivered - self.failed >= self._most:
                self._waiter = Deferred()
                await self._waiter
            room = self._producer.ready(len(each.value or b"") + len(each.key or b""))
            if not room.called:
                try:
                    await room
                except BufferExhausted as problem:
                    self._note(problem)
            if self.timed_out:
                return
            sending = self._producer.send(
                self._topic,
                each.value,
                each.key,
                headers=each.headers,
                partition=self._partition if each.partition is None else each.partition,
                timestamp_ms=each.timestamp_ms,
            )
            self.sent += 1
            sending.addCallbacks(self._acknowledged, self._refused)

    def _acknowledged(self, place: RecordMetadata) -> None:
        self.delivered += 1
        if self.acknowledged is not None:
            self.acknowledged(place)
        self._ended()

    def _refused(self, failure: Failure) -> None:
        problem = failure.value
        if not isinstance(problem, KafkaError):
            failure.raiseException()
        self.failed += 1
        self._note(problem)
        self._ended()

    def _note(self, problem: KafkaError) -> None:
        self.timed_out = self.timed_out or isinstance(problem, KafkaTimeoutError)
        self.problems[str(problem)] += 1

    def _ended(self) -> None:
        """Let the reader go on when half of the records are delivered, so that it reads large pieces."""
        waiter = self._waiter
        if waiter is not None and self.sent - self.delivered - self.failed <= self._most // 2:
            self._waiter = None
            if not waiter.called:
                waiter.callback(None)
