"""Bounded waiting: sleep, time limits, exponential backoff, one run shared by many waiters."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, ParamSpec, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.python.failure import Failure

from kclient.wire.errors import KafkaError

T = TypeVar("T")
K = TypeVar("K")
P = ParamSpec("P")

LONGEST_S = 1e6
"""Timers beyond 11 days fire then: epoll takes a number of milliseconds below 2^31, and no infinity."""


def deferring(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Deferred[T]]:
    """Make a coroutine method return a Deferred: it starts at once and can be cancelled."""

    @functools.wraps(method)
    def started(*args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        return Deferred.fromCoroutine(method(*args, **kwargs))

    return started


def sleep(reactor: Any, seconds: float) -> Deferred[None]:
    """Fire after *seconds*; cancelling stops the timer."""
    done: Deferred[None] = Deferred(lambda _: call.cancel() if call.active() else None)
    call = reactor.callLater(min(max(0.0, seconds), LONGEST_S), done.callback, None)
    return done


def as_deferred(awaitable: Awaitable[T]) -> Deferred[T]:
    """Return *awaitable*, a coroutine or a Deferred, as a Deferred."""
    if isinstance(awaitable, Deferred):
        return awaitable
    coroutine: Coroutine[Any, Any, T] = awaitable  # type: ignore[assignment]
    return Deferred.fromCoroutine(coroutine)


async def all_of(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Await all concurrently; raise the first failure after all have ended."""
    results: list[T] = []
    for answer in await all_settled(awaitables):
        if isinstance(answer, KafkaError):
            raise answer
        results.append(answer)
    return results


async def all_settled(awaitables: Iterable[Awaitable[T]]) -> list[T | KafkaError]:
    """Await all concurrently; a KafkaError is the result of its awaitable."""
    waiting = [as_deferred(each) for each in awaitables]
    results: list[Any] = await DeferredList(waiting, consumeErrors=True)
    answers: list[T | KafkaError] = []
    for succeeded, result in results:
        if not succeeded and not isinstance(result.value, KafkaError):
            result.raiseException()
        answers.append(result if succeeded else result.value)
    return answers


async def settled_by(
    keys: Iterable[K], send: Callable[[K], Awaitable[T]]
) -> dict[K, T | KafkaError]:
    """Await what *send* returns for each of *keys*, concurrently; return the results, which may be KafkaErrors."""
    asked = list(keys)
    return dict(zip(asked, await all_settled(map(send, asked)), strict=True))


def within(
    reactor: Any, awaitable: Awaitable[T], seconds: float, late: Callable[[], BaseException]
) -> Deferred[T]:
    """Fire with the result of *awaitable*; after *seconds* cancel it and fail with late()."""
    inner = as_deferred(awaitable)
    timed_out = False

    def give_up() -> None:
        nonlocal timed_out
        timed_out = True
        inner.cancel()

    call = reactor.callLater(min(max(0.0, seconds), LONGEST_S), give_up)

    def ended(result: Any) -> Any:
        if call.active():
            call.cancel()
        if timed_out and isinstance(result, Failure) and result.check(CancelledError):
            return Failure(late())
        return result

    return inner.addBoth(ended)


def backoff(attempt: int, first: float, most: float, jitter: float = 0.0) -> float:
    """Return the wait before attempt number *attempt* (0 = the first retry), in seconds.

    It doubles from *first* to *most*; *jitter* in [-1, 1] changes it by up to a fifth (KIP-580).
    """
    return min(most, first * 2.0 ** min(attempt, 30)) * (1 + 0.2 * jitter)


class SingleFlight(Generic[T]):
    """Runs a coroutine at most once at a time; concurrent callers share the run.

    Cancelling affects only that waiter. A run without waiters continues.
    """

    def __init__(self, run: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._run = run
        self._waiters: list[Deferred[T]] = []
        self.flight: Deferred[None] | None = None
        self._stopped_by: BaseException | None = None

    def join(self) -> Deferred[T]:
        """Start a run unless one is in progress; fire with its result."""
        waiter: Deferred[T] = Deferred(lambda d: self._forget(d))
        self._waiters.append(waiter)
        if self.flight is None:
            flight = Deferred.fromCoroutine(self._run_once())
            if not flight.called:
                self.flight = flight
        return waiter

    @property
    def has_waiters(self) -> bool:
        """Whether a caller waits for the run."""
        return bool(self._waiters)

    def cancel(self, reason: BaseException) -> None:
        """Stop the run; its remaining waiters fail with *reason*."""
        if self.flight is not None:
            self._stopped_by = reason
            self.flight.cancel()

    def _forget(self, waiter: Deferred[T]) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    async def _run_once(self) -> None:
        result: Any
        try:
            result = await self._run()
        except GeneratorExit:
            raise  # The reactor is gone: no waiter will get a result.
        except BaseException as problem:
            result = Failure(self._stopped_by or problem)
        self.flight = self._stopped_by = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.called:
                continue  # the callback of an earlier waiter cancelled this one
            if isinstance(result, Failure):
                waiter.errback(result)
            else:
                waiter.callback(result)
