"""Waiting for many things at once."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from inspect import iscoroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")


async def all_of(coroutines: Iterable[Awaitable[T]]) -> list[T]:
    """Run *coroutines* at once and return their results; the first error is raised as it is."""
    under_way = [Deferred.fromCoroutine(c if iscoroutine(c) else _awaiting(c)) for c in coroutines]
    results: list[Any] = [None] * len(under_way)
    if not under_way:
        return results
    left = len(under_way)

    def cancel(_gathered: object) -> None:
        for each in under_way:
            each.cancel()

    gathered: Deferred[None] = Deferred(cancel)

    def have(result: T, index: int) -> None:
        nonlocal left
        results[index] = result
        left -= 1
        if not left:
            gathered.callback(None)

    def failed(failure: Failure) -> None:
        if not gathered.called:
            gathered.errback(failure)

    for index, each in enumerate(under_way):
        each.addCallbacks(have, failed, callbackArgs=(index,))
    await gathered
    return results


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
