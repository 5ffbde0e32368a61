"""Work on thousands of things, some in every turn of the reactor, so that everybody else is heard in between.

The work is a generator that yields where others may have their turn; `Turn` tells it when. Whoever needs it done at
once drives it by `all_at_once`, everybody else by `in_turns`.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from twisted.internet.task import deferLater

THINGS_PER_TURN: Final = 100
TURN_SECONDS: Final = 0.02
"""How much is done before others have their turn; to make a log takes 0.3 ms, or 2 on a busy disk."""

T = TypeVar("T")


class Turn:
    """How much is done in one turn of the reactor; *now* is its clock."""

    __slots__ = ("_begun", "_count", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._begun = now()
        self._count = 0

    def is_over(self) -> bool:
        """Count one more thing; say whether it is for the next turn."""
        self._count += 1
        if self._count == 1:
            return False
        return self._count > THINGS_PER_TURN or self._now() - self._begun > TURN_SECONDS


async def in_turns(reactor: Any, work: Generator[None, None, T]) -> T:
    """Run *work*, and let the reactor do everything else between its steps; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the generator's result
        await deferLater(reactor, 0)


def all_at_once(work: Generator[None, None, T]) -> T:
    """Run *work* to its end; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the generator's result
