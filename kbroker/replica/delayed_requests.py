"""Requests that wait for a partition: the purgatory with timers, woken once per turn of the reactor.

Whoever changed a partition calls `wake`; those who wait for it are looked at later in the same turn, after the answers
that caused it have left. So many appends of one turn wake a long poll once, and nobody is called from inside
the change (T9). Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.topic_partition import TopicPartition
from kbroker.network.service import HeldResponse
from kbroker.replica.core.purgatory import DelayedOperation, Purgatory

log = Logger()

T = TypeVar("T")


class DelayedRequests:
    """Long polls and acks=all produces that are not answered yet."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._purgatory: Purgatory[TopicPartition] = Purgatory(
            lambda error: log.error("completing a waiting request failed: {error!r}", error=error)
        )
        self._woken: dict[TopicPartition, None] = {}
        self._listeners: list[Callable[[TopicPartition], None]] = []

    def __len__(self) -> int:
        return len(self._purgatory)

    def on_wake(self, callback: Callable[[TopicPartition], None]) -> None:
        """Have *callback* called with every key that something happened to, at once."""
        self._listeners.append(callback)

    def wake(self, key: TopicPartition) -> None:
        """Have those who wait for *key* looked at, later in this turn of the reactor."""
        for heard in self._listeners:
            heard(key)
        if not self._purgatory.watched(key):
            return
        if not self._woken:
            self._reactor.callLater(0, self._wake_now)
        self._woken[key] = None

    def _wake_now(self) -> None:
        woken, self._woken = self._woken, {}
        self._purgatory.happened(*woken)

    def wait(
        self,
        keys: Iterable[TopicPartition],
        seconds: float,
        attempt: Callable[[], T | None],
        expired: Callable[[], T],
        *,
        held: bool = False,
    ) -> Deferred[T]:
        """Fire with what *attempt* returns after an event at *keys*, once that is not None.

        Or with what *expired* returns, after *seconds*. An error of either is the Deferred's. Cancel it
        to stop waiting. One that is only *held* back expires when the next request of its connection is there.
        """

        def try_complete() -> bool:
            try:
                result = attempt()
            except Exception:
                finish(Failure())
                return True
            if result is not None:
                finish(result)
            return result is not None

        def time_over() -> None:
            if waiting.done:
                return
            self._purgatory.remove(waiting)
            try:
                finish(expired())
            except Exception:
                finish(Failure())

        def finish(result: Any) -> None:
            if timer.active():
                timer.cancel()
            if not answer.called:
                answer.callback(result)

        def cancelled(_: Any) -> None:
            self._purgatory.remove(waiting)
            if timer.active():
                timer.cancel()

        answer: Deferred[T] = HeldResponse(cancelled, time_over) if held else Deferred(cancelled)
        waiting: DelayedOperation[TopicPartition] = DelayedOperation(keys, try_complete)
        timer = self._reactor.callLater(max(seconds, 0), time_over)
        self._purgatory.add(waiting)
        return answer
