"""Controlled shutdowns: a broker that leads nothing any more leaves when the other brokers know the new leaders.

A broker that leads nothing any more is answered when every other broker that can be reached has acknowledged the new
leaders: until then clients and followers still turn to it. It waits `leave_seconds` at most.

Owner: the reactor's thread
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from kbroker.common.reactor import Clock
from kbroker.controller.channel_manager import ControllerChannelManager
from kbroker.controller.controller_events import Remaining
from kbroker.controller.core import effects as fx
from kbroker.controller.core.state_machine import ControllerStateMachine
from kclient.wire.errors import BrokerNotAvailable, NotController, StaleBrokerEpoch


class ControlledShutdowns:
    """The controlled shutdowns of one controller epoch that wait for acknowledgements."""

    def __init__(
        self,
        clock: Clock,
        leave_seconds: float,
        machine: ControllerStateMachine,
        channels: ControllerChannelManager,
    ) -> None:
        self._clock = clock
        self._leave_seconds = leave_seconds
        self._machine = machine
        self._channels = channels
        self._leaving: list[Deferred[Remaining]] = []
        channels.on_response(self.complete_acknowledged)

    def answer(self, request: Deferred[Remaining], effect: fx.AnswerControlledShutdown) -> None:
        """Answer *request*, or have it wait until the other brokers have acknowledged the new leaders."""
        match effect.outcome:
            case fx.ShutdownOutcome.STALE_BROKER_EPOCH:
                request.errback(StaleBrokerEpoch("the broker has registered again since"))
            case fx.ShutdownOutcome.BROKER_NOT_AVAILABLE:
                request.errback(BrokerNotAvailable("the broker is not registered"))
            case _ if effect.remaining:
                request.callback(effect.remaining)
            case _:
                self._leaving.append(request)
                self._clock.callLater(self._leave_seconds, self._leave, request)

    def complete_acknowledged(self) -> None:
        """Answer the brokers that wait if every other broker has acknowledged every request."""
        if self._leaving and self._channels.is_drained(self._machine.context.shutting_down):
            for request in list(self._leaving):
                self._leave(request)

    def close(self, reason: str) -> None:
        """Answer NotController: the broker asks the next controller."""
        leaving, self._leaving = self._leaving, []
        for request in leaving:
            request.errback(NotController(reason))

    def _leave(self, request: Deferred[Remaining]) -> None:
        if request in self._leaving:
            self._leaving.remove(request)
            request.callback(())
