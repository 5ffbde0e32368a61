"""The commits that are accepted, but neither written nor refused.

When a topic disappears from the metadata cache its offsets are looked for. No commit for it is accepted then, but one
from before may still be on its way to ZooKeeper. No other event would have it looked for. `all_of_now` fires when all
of these have ended.

Invariants: 1. each number of `begin` is given to `end` once. 2. `all_of_now` does not wait for commits that begin after
the call: they cannot delay it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from typing import TypeVar

from twisted.internet.defer import Deferred, succeed

T = TypeVar("T")


class CommitsUnderWay:
    """The commits of one coordinator, by number, in the order of their arrival."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}
        self._next = 0
        self._waiting: deque[tuple[int, Deferred[None]]] = deque()
        """The number of the first commit that is not waited for, and what fires then."""

    def begin(self) -> int:
        """Count a commit that is accepted; return its number, for `end`."""
        number = self._next
        self._next += 1
        self._numbers[number] = None
        return number

    def end(self, number: int) -> None:
        """Handle the end of a commit: it is written, or will never be."""
        del self._numbers[number]
        if self._waiting:
            oldest = next(iter(self._numbers), self._next)
            while self._waiting and self._waiting[0][0] <= oldest:
                self._waiting.popleft()[1].callback(None)

    async def during(self, commit: Awaitable[T]) -> T:
        """Return the result of *commit*, which is under way until then."""
        number = self.begin()
        try:
            return await commit
        finally:
            self.end(number)

    def all_of_now(self) -> Deferred[None]:
        """Fire when all commits that are under way now have ended."""
        if not self._numbers:
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._waiting.append((self._next, done))
        return done
