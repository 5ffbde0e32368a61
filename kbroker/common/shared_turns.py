"""Turns of the reactor, shared by all requests that need more than one turn.

Theory of operation
===================
A large request is decoded in a turn of its own (`next`). Its handler works in slices: before every partition, topic or
group it checks whether its slice is over, and if so waits for the next turn. Waiters are resumed first in, first out.
One turn resumes as many waiters as fit in `TURN_SECONDS`: a hundred large requests take as much of a turn as one.

Invariants:
1. A turn resumes nothing after `TURN_SECONDS`, and each waiter at most once.
2. Waiters are resumed in the order in which they began to wait.

Owner: the reactor's thread
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Protocol, TypeVar

from twisted.internet.defer import Deferred

from kbroker.common.gather import all_of

T = TypeVar("T")
R = TypeVar("R")

TURN_SECONDS: Final = 0.02
"""How long one turn goes on resuming waiters."""
SLICE_SECONDS: Final = 0.01
"""How long a request works before others are resumed."""
THINGS_PER_SLICE: Final = 2000
"""And the most that it does in that time: a clock may stand still in a test."""
CLOCK_EVERY: Final = 8
"""Things done between two looks at the clock."""
AT_ONCE: Final = 64
"""Requests to ZooKeeper that one request of a client has outstanding."""


class Slice(Protocol):
    """A worker's share of a turn."""

    def is_over(self) -> bool:
        """Count one thing that is begun; return whether to wait for `next` first."""

    def next(self) -> Awaitable[None]:
        """Wait for the next share."""


class SharedTurns:
    """Resumes waiters, some in every turn of *reactor*."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self.now: Callable[[], float] = reactor.seconds
        self._waiting: deque[Deferred[None]] = deque()
        self._is_scheduled = False

    def next(self) -> Deferred[None]:
        """Fire in a later turn of the reactor."""
        waiter: Deferred[None] = Deferred(lambda cancelled: self._waiting.remove(cancelled))
        self._waiting.append(waiter)
        self._schedule()
        return waiter

    def slice(self, clock_every: int = CLOCK_EVERY) -> Slice:
        """Begin work in slices; look at the clock after so many things."""
        return _Slice(self, clock_every)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._reactor.callLater(0, self._resume)

    def _resume(self) -> None:
        self._is_scheduled = False
        waiting, end = self._waiting, self.now() + TURN_SECONDS
        try:
            for _ in range(len(waiting)):
                if not waiting:
                    break
                waiting.popleft().callback(None)
                if self.now() >= end:
                    break
        finally:
            if waiting:
                self._schedule()


class _Slice:
    """The work of one request, a slice in every turn that it gets. Several coroutines may share it."""

    __slots__ = ("_began", "_clock_every", "_count", "_over", "_turns")

    def __init__(self, turns: SharedTurns, clock_every: int) -> None:
        self._turns = turns
        self._clock_every = clock_every
        self._count = 0
        self._over = False
        self._began = turns.now()

    def is_over(self) -> bool:
        """Count one thing that is begun; return whether to wait for `next` first."""
        if self._over:
            return True
        self._count += 1
        if self._count % self._clock_every == 0:
            spent = self._turns.now() - self._began
            self._over = self._count >= THINGS_PER_SLICE or spent >= SLICE_SECONDS
        return self._over

    async def next(self) -> None:
        """Wait for the next share."""
        await self._turns.next()
        self._count = 0
        self._over = False
        self._began = self._turns.now()


class _Endless:
    """A slice that is never over: for handlers that are called without a reactor."""

    def is_over(self) -> bool:
        return False

    async def next(self) -> None:
        return


class WithoutTurns:
    """Takes the place of `SharedTurns` where there is no reactor: everything is done at once."""

    now: Callable[[], float] = staticmethod(time.monotonic)

    def next(self) -> Deferred[None]:
        """Fire now."""
        done: Deferred[None] = Deferred()
        done.callback(None)
        return done

    def slice(self, clock_every: int = CLOCK_EVERY) -> Slice:
        """Begin work that is never interrupted."""
        return _Endless()


Turns = SharedTurns | WithoutTurns


async def for_each(
    turns: Turns, things: Collection[T], work: Callable[[T], Awaitable[R]], at_once: int = AT_ONCE
) -> list[R]:
    """Do *work* for each of *things*, in slices, at most *at_once* at a time; return the results in order.

    After an error nothing more is begun, and it is raised.
    """
    todo = iter(enumerate(things))
    results: list[Any] = [None] * len(things)
    share = turns.slice()
    failed = False

    async def worker() -> None:
        nonlocal failed
        for index, thing in todo:
            if share.is_over():
                await share.next()
            if failed:
                return
            try:
                results[index] = await work(thing)
            except BaseException:
                failed = True
                raise

    await all_of(worker() for _ in range(min(at_once, len(things))))
    return results
