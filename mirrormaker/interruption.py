"""A command that a signal ends: its coroutine is cancelled, and what must not be left half done runs to its end.

Cancelling raises CancelledError where the coroutine waits. What undoes a step, or closes the clients, waits in
`uninterrupted`: the signal may come while it runs.

In: SIGINT, SIGTERM   Out: CancelledError in the coroutine   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from kclient.net.waiting import as_deferred

T = TypeVar("T")


async def uninterrupted(awaitable: Awaitable[T]) -> T:
    """Await *awaitable* to its end, also if the caller is cancelled meanwhile. The cancellation has no other effect."""
    results: list[Any] = []
    waiters: list[Deferred[None]] = []

    def end(result: Any) -> None:
        results.append(result)
        for waiter in waiters:
            if not waiter.called:  # that of a cancelled wait is
                waiter.callback(None)

    as_deferred(awaitable).addBoth(end)
    while not results:
        waiters.append(Deferred())
        try:
            await waiters[-1]
        except CancelledError:
            continue
    (result,) = results
    if isinstance(result, Failure):
        result.raiseException()
    found: T = result
    return found
