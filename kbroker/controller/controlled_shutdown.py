"""Brokers that ask the controller whether they may go: they wait for the machine, then for the others to know.

A broker that handed everything over is answered when everybody else who listens has heard who leads now: until then it
serves better than nobody. Who does not hear in time holds nobody up (`leave_seconds`).

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred

from kbroker.common.reactor import Clock
from kbroker.controller.core import effects as fx
from kbroker.controller.core import events
from kclient.wire.errors import BrokerNotAvailable, NotController, StaleBrokerEpoch

Remaining = tuple[tuple[str, int], ...]
"""Partitions that a broker still leads, because nobody else can."""


class ControlledShutdowns:
    """The shutdowns asked of one term. *feed* takes events; *is_heard* says whether all has been told."""

    def __init__(
        self,
        clock: Clock,
        leave_seconds: float,
        feed: Callable[[events.Event], None],
        is_heard: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._leave_seconds = leave_seconds
        self._feed = feed
        self._is_heard = is_heard
        self._asked: dict[int, Deferred[Remaining]] = {}
        self._last = 0
        self._leaving: list[Deferred[Remaining]] = []
        """Answers to brokers that may go once everybody has heard who leads now."""

    def ask(self, broker_id: int, broker_epoch: int) -> Deferred[Remaining]:
        """Ask the machine; answered by AnswerControlledShutdown."""
        self._last += 1
        answer = self._asked[self._last] = Deferred()
        self._feed(events.ControlledShutdownRequested(self._last, broker_id, broker_epoch))
        return answer

    def answer(self, effect: fx.AnswerControlledShutdown) -> None:
        """Tell who asked, or keep it waiting until the others have heard."""
        answer = self._asked.pop(effect.request_id, None)
        if answer is None:
            return
        match effect.verdict:
            case fx.ShutdownOutcome.STALE_BROKER_EPOCH:
                answer.errback(StaleBrokerEpoch("the broker has registered again since"))
            case fx.ShutdownOutcome.BROKER_NOT_AVAILABLE:
                answer.errback(BrokerNotAvailable("the broker is not registered"))
            case _ if effect.remaining:
                answer.callback(effect.remaining)
            case _:
                self._leaving.append(answer)
                self._clock.callLater(self._leave_seconds, self._leave, answer)

    def let_leave(self) -> None:
        """Answer the brokers that leave if there is nothing more to be said to anybody else who listens."""
        if self._leaving and self._is_heard():
            for answer in list(self._leaving):
                self._leave(answer)

    def close(self, reason: str) -> None:
        """Have whoever waits ask the next controller."""
        asked, self._asked = self._asked, {}
        leaving, self._leaving = self._leaving, []
        for deferred in [*asked.values(), *leaving]:
            deferred.errback(NotController(reason))

    def _leave(self, answer: Deferred[Remaining]) -> None:
        if answer in self._leaving:
            self._leaving.remove(answer)
            answer.callback(())
