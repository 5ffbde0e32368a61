"""Work on thousands of things, some in every turn of the reactor, so that the reactor serves requests in between.

Theory of operation
===================
*One piece of work* is a generator. It yields where other work may run; `Turn` counts and decides when.
`common.steps.at_once` drives it without a break, `in_turns` lets the reactor run at every yield. Work without a clock
yields after every thing; `WorkerTurns` counts these, across all work that one worker does in sequence.

*Requests* share turns (`SharedTurns`), since any number of them may be large. A large request is decoded in a turn of
its own (`next`). Its handler works in slices. Before every partition, topic or group it checks whether its slice is
over. If so, it waits for the next turn. Waiters are resumed first in, first out. One turn resumes as many waiters as
fit in `TURN_SECONDS`: a hundred large requests take as much of a turn as one.

Invariants of `SharedTurns`:
1. A turn resumes nothing after `TURN_SECONDS`, and each waiter at most once.
2. Waiters are resumed in the order in which they began to wait.

Owner: the reactor's thread
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator
from typing import Any, Final, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from kbroker.common.gather import all_of

THINGS_PER_TURN: Final = 100
TURN_SECONDS: Final = 0.02
"""Limits of one turn: things, and seconds. Creating a log takes 0.3 ms, or 2 ms on a busy disk."""

SLICE_SECONDS: Final = 0.01
"""How long a request works before others are resumed."""
THINGS_PER_SLICE: Final = 2000
"""And the most that it does in that time: a clock may stand still in a test."""
CLOCK_EVERY: Final = 8
"""Things done between two looks at the clock."""
AT_ONCE: Final = 64
"""Requests to ZooKeeper that one request of a client has outstanding."""

T = TypeVar("T")
R = TypeVar("R")


class Turn:
    """How much is done in one turn of the reactor; *now* is its clock."""

    __slots__ = ("_begun", "_count", "_now", "_things")

    def __init__(self, now: Callable[[], float], things: int = THINGS_PER_TURN) -> None:
        self._now = now
        self._things = things
        self._begun = now()
        self._count = 0

    def is_over(self) -> bool:
        """Count one more thing; return whether it is for the next turn."""
        self._count += 1
        if self._count == 1:
            return False
        return self._is_full()

    def add(self, things: int) -> bool:
        """Count *things* that were done; return whether the turn is full."""
        self._count += things
        return self._is_full()

    def _is_full(self) -> bool:
        return self._count > self._things or self._now() - self._begun > TURN_SECONDS


class WorkerTurns:
    """The turns of one worker: at most *things* in each, and a turn ends only when it is full."""

    __slots__ = ("_reactor", "_things", "_turn")

    def __init__(self, reactor: Any, things: int) -> None:
        self._reactor = reactor
        self._things = things
        self._turn = Turn(reactor.seconds, things)

    async def done(self, things: int = 1) -> None:
        """Count *things* that were done; wait for the next turn if it was enough for this one."""
        if self._turn.add(things):
            await self._next()

    async def through(self, work: Generator[None, None, T]) -> T:
        """Run *work*, which yields after every thing; return its result."""
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the generator's result
            if self._turn.add(1):
                await self._next()

    async def _next(self) -> None:
        await deferLater(self._reactor, 0)
        self._turn = Turn(self._reactor.seconds, self._things)


async def in_turns(reactor: Any, work: Generator[None, None, T]) -> T:
    """Run *work*, one turn of the reactor per step; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the generator's result
        await deferLater(reactor, 0)


# -- turns that requests share ----------------------------------------------------------------------


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
    if not things:
        return []
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
