"""The event loop of a client of the asyncio API, and the Twisted reactor that runs on it.

Theory of operation
===================
Twisted has one global reactor per process, for ever. asyncio has a loop per `asyncio.run`, and per thread. So each loop
gets a reactor of its own, which is not the global one, when a client is created on it. The reactor is removed from the
loop when its last client is closed. If a client is left open, it is removed when a client is created on another loop
after the end of this one. If Twisted's global reactor runs on the loop already, that one is used.

Without a loop, in a coroutine on Twisted's reactor, the clients use that reactor, and results are Deferreds.

Invariants: 1. a client is used on its own loop only; elsewhere its calls raise RuntimeError, they do not wait for ever.
2. a closed loop keeps no file descriptors of a reactor.
Owner: the thread of the loop; the table of reactors has a lock.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.defer import Deferred
from twisted.python.threadable import isInIOThread

from kclient.errors import IllegalStateError
from kclient.net.reactors import prepare
from kclient.standard_logging import use_standard_logging

T = TypeVar("T")


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine main() on Twisted's reactor until it ends; return its result or raise its error.

    Call it once per process, from the main thread: a reactor cannot be started twice. For asyncio use `asyncio.run`.
    """
    from twisted.internet import reactor

    outcome: list[Any] = []

    def start() -> None:
        done = Deferred.fromCoroutine(main())
        done.addBoth(outcome.append)
        done.addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(start)
    reactor.run()
    if not outcome:
        raise KeyboardInterrupt
    result = outcome[0]
    if hasattr(result, "raiseException"):
        result.raiseException()
    return result  # type: ignore[no-any-return]


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running asyncio loop, None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class ClientLoop:
    """The event loop of one client, and its reactor. *reactor* replaces the loop's own."""

    def __init__(self, client: str, reactor: Any = None) -> None:
        use_standard_logging()
        self._client = client
        self.loop = running_loop()
        self._shared: _LoopReactor | None = None
        self._listener: asyncio.Future[Any] | None = None
        """The task of the last listener that was a coroutine."""
        if reactor is None and self.loop is not None:
            reactor = _global_reactor_on(self.loop)
            if reactor is None:
                self._shared = _reactor_on(self.loop)
                reactor = self._shared.reactor
        elif reactor is None:
            reactor = _running_twisted_reactor()
            if reactor is None:
                raise RuntimeError(
                    f"no event loop is running: create the {client} inside of a coroutine"
                )
        self.reactor = reactor

    def check(self) -> None:
        """Raise RuntimeError if the caller does not run on the client's loop."""
        if running_loop() is not self.loop:
            raise RuntimeError(
                f"this {self._client} belongs to another event loop: create one in each, and close it there"
            )

    async def wait(self, result: Deferred[T]) -> T:
        """Await a result of the client's core; if the task is cancelled, so is the call."""
        if self.loop is None:
            return await result
        return await result.asFuture(self.loop)

    async def call_back(self, callback: Callable[[], Any]) -> Any:
        """Call a listener's method for the client's core; await its result if it is awaitable."""
        result = callback()
        if isinstance(result, Deferred):
            return await result
        if not hasattr(result, "__await__"):
            return result
        if self.loop is None:
            return await result
        self._listener = asyncio.ensure_future(result, loop=self.loop)
        return await Deferred.fromFuture(self._listener)

    def check_may_poll(self) -> None:
        """Raise IllegalStateError in a listener of this client: records come when the listener has ended."""
        if self._listener is not None and asyncio.current_task() is self._listener:
            raise IllegalStateError("there are no records in a rebalance callback, only after it")

    def leave(self) -> None:
        """Record that the client is closed."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.clients -= 1
            if not shared.clients:
                _remove(shared)


@dataclass(eq=False)
class _LoopReactor:
    """The reactor of a loop, with its number of open clients."""

    loop: asyncio.AbstractEventLoop
    reactor: Any
    clients: int = 0


_reactors: list[_LoopReactor] = []
_lock = threading.Lock()


def _reactor_on(loop: asyncio.AbstractEventLoop) -> _LoopReactor:
    with _lock:
        for each in [each for each in _reactors if each.loop.is_closed()]:
            _reactors.remove(each)
            _release(each)
        found = next((each for each in _reactors if each.loop is loop), None)
        if found is None:
            found = _LoopReactor(loop, _new_reactor(loop))
            _reactors.append(found)
        found.clients += 1
    return found


def _remove(shared: _LoopReactor) -> None:
    with _lock:
        if shared in _reactors:
            _reactors.remove(shared)
            _release(shared)


def _new_reactor(loop: asyncio.AbstractEventLoop) -> Any:
    reactor: Any = AsyncioSelectorReactor(loop)
    prepare(reactor)
    reactor.startRunning(installSignalHandlers=False)
    return reactor


def _release(shared: _LoopReactor) -> None:
    """Take a reactor off its loop, and close the pipes by which other threads wake it."""
    reactor = shared.reactor
    if not shared.loop.is_closed():
        # What is due: calls that the close has ended.
        while any(call.getTime() <= reactor.seconds() for call in reactor.getDelayedCalls()):
            reactor.runUntilCurrent()
    for call in reactor.getDelayedCalls():
        call.cancel()
    for reader in list(reactor._internalReaders):
        if not shared.loop.is_closed():
            with suppress(Exception):
                reactor.removeReader(reader)
        with suppress(OSError):
            reader.connectionLost(None)
    if reactor.threadpool is not None:
        reactor.threadpool.adjustPoolsize(0, 0)


def _global_reactor_on(loop: asyncio.AbstractEventLoop) -> Any:
    """Return Twisted's global reactor if it runs on *loop*."""
    reactor: Any = sys.modules.get("twisted.internet.reactor")
    on_loop = isinstance(reactor, AsyncioSelectorReactor) and reactor._asyncioEventloop is loop
    return reactor if on_loop and reactor.running else None


def _running_twisted_reactor() -> Any:
    """Return Twisted's global reactor if the caller runs on it."""
    reactor: Any = sys.modules.get("twisted.internet.reactor")
    return reactor if reactor is not None and reactor.running and isInIOThread() else None
