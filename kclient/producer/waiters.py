"""Waiting of callers: records that have no place yet, flushes that wait for the last batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred

from kclient.errors import KafkaTimeoutError
from kclient.producer.batch import ProducerBatch, Row
from kclient.wire.errors import KafkaError


class WaitingRecord:
    """A record waiting to be put into a batch."""

    def __init__(self, topic: str, partition: int | None, row: Row, done: Any) -> None:
        self.topic = topic
        self.partition = partition
        self.row = row
        self.done = done
        self.timer: Any = None
        self._settled: list[Deferred[None]] = []

    def settled(self) -> Deferred[None]:
        """Fire when the record is placed or failed."""
        waiter: Deferred[None] = Deferred()
        self._settled.append(waiter)
        return waiter

    def placed(self, batch: ProducerBatch) -> None:
        """Note that it is the last record of *batch* now."""
        self._settle()
        batch.notify(batch.record_count - 1, self.row[1], self.done)

    def fail(self, problem: KafkaError) -> None:
        """Tell its sender that it will not be sent."""
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
    """Fires when the last of some batches ended; a sink of each."""

    def __init__(self, unfinished: Sequence[ProducerBatch]) -> None:
        self._left = 0
        self.fired: Deferred[None] = Deferred()
        for batch in unfinished:
            self._left += 1
            batch.notify(batch.record_count - 1, 0, self)

    def callback(self, result: Any) -> None:
        """One more ended."""
        self._left -= 1
        if not self._left and not self.fired.called:
            self.fired.callback(None)

    errback = callback


class FlushTimeout(KafkaTimeoutError):
    """The caller's time for a flush is over."""

    def __init__(self) -> None:
        super().__init__("flush timed out")
