"""Waiting for many things at once."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, gatherResults
from twisted.python.failure import Failure

T = TypeVar("T")


async def all_of(coroutines: Iterable[Awaitable[T]]) -> list[T]:
    """Run *coroutines* at once and return their results; the first error is raised as it is."""
    deferreds = [Deferred.fromCoroutine(_awaiting(c)) for c in coroutines]
    gathered = gatherResults(deferreds, consumeErrors=True)

    def first_error(failure: object) -> object:
        return getattr(getattr(failure, "value", None), "subFailure", failure)

    gathered.addErrback(first_error)
    return list(await gathered)


def outcomes_of(deferreds: Sequence[Deferred[T]]) -> Deferred[list[T | BaseException]]:
    """Fire with the result or the error of each, in order, once all are there. Never fails."""
    outcomes: list[Any] = [None] * len(deferreds)
    left = len(deferreds)
    done: Deferred[list[T | BaseException]] = Deferred()

    def have(result: Any, index: int) -> None:
        nonlocal left
        outcomes[index] = result.value if isinstance(result, Failure) else result
        left -= 1
        if not left:
            done.callback(outcomes)

    for index, deferred in enumerate(deferreds):
        deferred.addBoth(have, index)
    if not deferreds:
        done.callback(outcomes)
    return done


async def _awaiting(awaitable: Awaitable[T]) -> T:
    return await awaitable
