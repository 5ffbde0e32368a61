"""Work on thousands of things, some in every turn of the reactor, so that the reactor serves requests in between.

The work is a generator. It yields where other work may run; `Turn` counts and decides when. `common.steps.at_once`
drives it without a break, `in_turns` lets the reactor run at every yield. Work without a clock yields after every
thing; `WorkerTurns` counts these, across all work that one worker does in sequence.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from twisted.internet.task import deferLater

THINGS_PER_TURN: Final = 100
TURN_SECONDS: Final = 0.02
"""Limits of one turn: things, and seconds. Creating a log takes 0.3 ms, or 2 ms on a busy disk."""

T = TypeVar("T")


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
