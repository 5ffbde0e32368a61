"""The controller's one event queue (Kafka's ControllerEventManager).

Theory of operation
===================
Watches, requests, timers and brokers' responses `put` events. One worker (`process_events`) takes them in order and
processes each to its end, ZooKeeper reads and writes included, before it takes the next one. Where Kafka's
ControllerEventThread blocks, the worker awaits. An event of many partitions is spread over turns of the reactor.

`close` ends the queue in the middle of an event if need be: requests are answered with NOT_CONTROLLER, other events are
dropped. docs/design/controller-events.md has the kinds of events, the order guarantee, and the end of an epoch.

Work with an outcome that no event waits for runs beside the queue (`run`). An error of such work ends the epoch.

Invariants: 1. one event is processed at a time, in the order of `put`; 2. an event of `LatestOnly` waits at most once;
3. every request is answered.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from typing import Any, get_args

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kbroker.common.reactor import Clock
from kbroker.common.turns import WorkerTurns
from kbroker.controller.controller_events import ControllerEvent, LatestOnly, Request, TopicChange
from kclient.wire.errors import NotController

_REPLACING = frozenset((*get_args(LatestOnly), TopicChange))
_REQUESTS = get_args(Request)


class ControllerEventManager:
    """The queue of one controller epoch. *on_failure* ends the epoch; it is not called after `close`."""

    def __init__(
        self, clock: Clock, partitions_per_turn: int, on_failure: Callable[[Failure], None]
    ) -> None:
        self._clock = clock
        self._partitions_per_turn = partitions_per_turn
        self._on_failure = on_failure
        self._waiting: dict[object, ControllerEvent] = {}
        """In order. The key is the type for events that replace each other, else a number."""
        self._numbers = count()
        self._in_process: ControllerEvent | None = None
        self._wakeup: Deferred[None] | None = None
        """Fires when an idle worker has something to do."""
        self.is_closed = False
        """Whether this broker has resigned from the epoch."""
        self._closed_because = ""

    def put(self, event: ControllerEvent) -> None:
        """Enqueue *event*; a request is answered at once if the queue is closed."""
        if self.is_closed:
            _preempt(event, self._closed_because)
            return
        kind = type(event)
        place: object = kind if kind in _REPLACING else next(self._numbers)
        earlier = self._waiting.get(place)
        if isinstance(event, TopicChange) and isinstance(earlier, TopicChange):
            event = event.after(earlier)
        self._waiting[place] = event
        self._wake_up()

    def close(self, reason: str) -> None:
        """Process nothing any more; answer all requests with NotController. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._closed_because = reason
        waiting, self._waiting = list(self._waiting.values()), {}
        for event in waiting if self._in_process is None else (self._in_process, *waiting):
            _preempt(event, reason)
        self._wake_up()

    async def process_events(
        self, process: Callable[[ControllerEvent, WorkerTurns], Awaitable[None]]
    ) -> None:
        """Have *process* handle event after event until the queue is closed. Its errors end the worker."""
        while not self.is_closed:
            if not self._waiting:
                self._wakeup = Deferred()
                await self._wakeup
            turns = WorkerTurns(self._clock, self._partitions_per_turn)
            while self._waiting:
                event = self._in_process = self._waiting.pop(next(iter(self._waiting)))
                await process(event, turns)
                self._in_process = None  # after an error it stays: `close` answers it

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* beside the queue; an error ends the epoch."""
        Deferred.fromCoroutine(work).addErrback(self.failed)

    def failed(self, failure: Failure) -> None:
        """End the epoch because of an error; nothing to do if it has ended."""
        if not self.is_closed:
            self._on_failure(failure)

    def _wake_up(self) -> None:
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            wakeup.callback(None)


def _preempt(event: ControllerEvent, reason: str) -> None:
    if isinstance(event, _REQUESTS) and not event.answer.called:
        event.answer.errback(NotController(reason))
