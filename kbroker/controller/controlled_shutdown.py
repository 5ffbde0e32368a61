"""Controlled shutdowns that wait for acknowledgements: the next step of one, or its answer.

The state machine moves some partitions in each step. The next step is enqueued when every broker that can be reached
has acknowledged the LeaderAndIsr requests of the step before. So the old leader of a partition and the new one change
their roles within one step (docs/design/controlled-shutdown.md). If a broker does not acknowledge within
`STEP_SECONDS`, all partitions that are left are moved at once.

A broker that leads nothing any more is answered when every other broker that can be reached has acknowledged the new
leaders. Until then clients and followers still turn to it. It waits `leave_seconds` at most.

Owner: the reactor's thread
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from twisted.internet.defer import Deferred

from kbroker.common.reactor import Clock
from kbroker.controller.channel_manager import OpenChannels
from kbroker.controller.controller_events import ControlledShutdown, Remaining
from kbroker.controller.core import effects as fx
from kbroker.controller.core.state_machine import ControllerStateMachine
from kbroker.controller.event_manager import ControllerEventManager
from kclient.wire.errors import BrokerNotAvailable, NotController, StaleBrokerEpoch

STEP_SECONDS: Final = 1.0
"""How long a step waits for the brokers to acknowledge the one before."""


class ControlledShutdowns:
    """The controlled shutdowns of one controller epoch that wait for acknowledgements."""

    def __init__(
        self,
        clock: Clock,
        leave_seconds: float,
        queue: ControllerEventManager,
        machine: ControllerStateMachine,
        channels: OpenChannels,
    ) -> None:
        self._clock = clock
        self._leave_seconds = leave_seconds
        self._queue = queue
        self._machine = machine
        self._channels = channels
        self._moving: list[ControlledShutdown] = []
        """The next steps."""
        self._leaving: list[Deferred[Remaining]] = []

    def step_taken(self, next_step: ControlledShutdown) -> None:
        """Enqueue *next_step* when the brokers have acknowledged the LeaderAndIsr requests of the one before."""
        self._moving.append(next_step)
        self._clock.callLater(STEP_SECONDS, self._stop_waiting, next_step)

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
        """Enqueue the next steps, and answer the brokers that wait, if the acknowledgements have arrived."""
        if self._moving and self._channels.leaders_acknowledged:
            moving, self._moving = self._moving, []
            for next_step in moving:
                self._queue.put(next_step)
        if self._leaving and self._channels.is_drained(self._machine.context.shutting_down):
            for request in list(self._leaving):
                self._leave(request)

    def close(self, reason: str) -> None:
        """Answer NotController: the broker asks the next controller."""
        leaving = [*(step.answer for step in self._moving), *self._leaving]
        self._moving, self._leaving = [], []
        for request in leaving:
            if not request.called:  # the queue has answered the event in process
                request.errback(NotController(reason))

    def _stop_waiting(self, next_step: ControlledShutdown) -> None:
        if next_step in self._moving:
            self._moving.remove(next_step)
            self._queue.put(replace(next_step, left=()))

    def _leave(self, request: Deferred[Remaining]) -> None:
        if request in self._leaving:
            self._leaving.remove(request)
            request.callback(())
