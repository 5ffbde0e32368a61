"""The heartbeats of a group member: one per interval, with a shorter backoff after a retriable error.

Invariants: 1. one in flight. 2. after `stop` nothing is sent and no response has an effect.
*check* is called before each heartbeat; it may call `stop`.
Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kclient.errors import KafkaError
from kclient.net.waiting import backoff

_FIRST_AGAIN_S = 0.05


class Heartbeats:
    """Calls *send* every *interval* seconds, and *rejected* with an error that is not retriable."""

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        interval: float,
        send: Callable[[], Coroutine[Any, Any, None]],
        rejected: Callable[[BaseException], None],
        check: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._interval = interval
        self._send = send
        self._rejected = rejected
        self._check = check
        self._running = False
        self._timer: Any = None
        self._sent: Deferred[None] | None = None
        self._failures = 0

    def begin(self) -> None:
        """Send the first heartbeat after one interval."""
        self.stop()
        self._running = True
        self._failures = 0
        self._next(self._interval)

    def stop(self) -> None:
        """Send no more heartbeats."""
        self._running = False
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        sent, self._sent = self._sent, None
        if sent is not None:
            sent.cancel()

    def _next(self, seconds: float) -> None:
        self._timer = self._reactor.callLater(seconds, self._beat)

    def _beat(self) -> None:
        self._check()
        if not self._running:
            return
        sent = self._sent = Deferred.fromCoroutine(self._send())
        sent.addBoth(self._answered, sent)

    def _answered(self, result: Any, sent: Deferred[None]) -> None:
        if sent is not self._sent:
            return
        self._sent = None
        problem = getattr(result, "value", None)
        if isinstance(problem, KafkaError) and problem.retriable:
            self.log.info("heartbeat: {problem}; retrying", problem=problem)
            again = backoff(self._failures, _FIRST_AGAIN_S, self._interval)
            self._failures += 1
            self._next(min(again, self._interval))
            return
        self._failures = 0
        self._next(self._interval)
        if problem is not None:
            self._rejected(problem)
