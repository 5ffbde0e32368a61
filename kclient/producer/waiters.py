"""Waiting callers: records that are not in a batch yet, and flushes that wait for their last batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred

from kclient.errors import KafkaTimeoutError
from kclient.producer.batch import ProducerBatch, Row
from kclient.wire.errors import KafkaError


class WaitingRecord:
    """A record that waits for memory or for metadata."""

    def __init__(self, topic: str, partition: int | None, row: Row, done: Any) -> None:
        self.topic = topic
        self.partition = partition
        self.row = row
        self.done = done
        self.timer: Any = None
        self._settled: list[Deferred[None]] = []

    def settled(self) -> Deferred[None]:
        """Fire when the record is in a batch or has failed."""
        waiter: Deferred[None] = Deferred()
        self._settled.append(waiter)
        return waiter

    def placed(self, batch: ProducerBatch) -> None:
        """Record that the record is now the last one of *batch*."""
        self._settle()
        batch.notify(batch.record_count - 1, self.row[1], self.done)

    def fail(self, problem: KafkaError) -> None:
        """Fail the record's Deferred: it will not be sent."""
        self._settle()
        self.done.errback(problem)

    def _settle(self) -> None:
        if self.timer is not None and self.timer.active():
            self.timer.cancel()
        settled, self._settled = self._settled, []
        for waiter in settled:
            if not waiter.called:
                waiter.callback(None)


class AllCompleted:
    """Fires when the last of some batches is done; it is a sink of each."""

    def __init__(self, unfinished: Sequence[ProducerBatch]) -> None:
        self._left = 0
        self.fired: Deferred[None] = Deferred()
        for batch in unfinished:
            self._left += 1
            batch.notify(batch.record_count - 1, 0, self)

    def callback(self, result: Any) -> None:
        """Count a batch that is done."""
        self._left -= 1
        if not self._left and not self.fired.called:
            self.fired.callback(None)

    errback = callback


class FlushTimeout(KafkaTimeoutError):
    """The timeout of a flush has passed."""

    def __init__(self) -> None:
        super().__init__("flush timed out")
