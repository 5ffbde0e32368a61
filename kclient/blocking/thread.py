"""The reactor of the blocking face, in a daemon thread of its own.

It is a reactor made for this and nobody's global one: a program may run Twisted itself beside it.
After a fork the child has no such thread; its first call starts a new one, and clients made before
the fork refuse to work there, for their sockets are the parent's.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from kclient.errors import ClientClosed, KafkaTimeoutError

T = TypeVar("T")

CLOSE_AT_EXIT = 5.0
"""Seconds that a producer left open may take to deliver at the end of the process."""

LEAVE_AT_EXIT = 1.0
"""Seconds that a consumer left open may take to leave its group: Ctrl-C is to be prompt."""


class ClosedAtExit:
    """What is closed at the end of the process if nobody did before."""

    def close_at_exit(self) -> None:
        """Close within a few seconds."""


class ReactorThread:
    """A reactor and the thread it runs in."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.reactor: Any = _new_reactor()
        started = threading.Event()
        self.reactor.callWhenRunning(started.set)
        self.thread = threading.Thread(
            target=self.reactor.run,
            kwargs={"installSignalHandlers": False},
            name="kclient-reactor",
            daemon=True,
        )
        self.thread.start()
        started.wait()

    def soon(self, call: Callable[..., Any], *args: Any) -> None:
        """Run *call* on the reactor's thread, without waiting for it."""
        self.reactor.callFromThread(call, *args)

    def call(self, function: Callable[[], T]) -> T:
        """Run *function*, which does not wait, on the reactor's thread; return its result."""
        return self.run(lambda: maybeDeferred(function))

    def run(self, call: Callable[[], Deferred[T]], timeout: float | None = None) -> T:
        """Run *call* on the reactor's thread, wait for its result and return (or raise) it.

        After *timeout* seconds (None: as long as the call bounds itself) or at Ctrl-C the call is
        cancelled.
        """
        return self.run_with_caller(lambda _: call(), timeout)

    def run_with_caller(
        self,
        call: Callable[[CallerThread], Deferred[T]],
        timeout: float | None = None,
    ) -> T:
        """Like `run`; meanwhile the call may have functions run here, in the caller's thread."""
        if threading.get_ident() == self.thread.ident:
            raise RuntimeError("the blocking API was called on its own reactor's thread")
        errands = CallerThread(self)
        waiting: list[Deferred[Any]] = []

        def start() -> None:
            result = maybeDeferred(call, errands)
            waiting.append(result)
            result.addBoth(errands.finished)

        def cancel() -> None:
            for result in waiting:
                result.cancel()

        self.reactor.callFromThread(start)
        try:
            outcome = errands.serve(timeout)
        except BaseException:
            self.reactor.callFromThread(cancel)
            raise
        if isinstance(outcome, Failure):
            problem = outcome.value
            assert problem is not None
            raise problem
        return outcome  # type: ignore[no-any-return]


class CallerThread:
    """What the waiting thread does for the reactor: run functions, until the result is there."""

    def __init__(self, thread: ReactorThread) -> None:
        self._thread = thread
        self._queue: SimpleQueue[tuple[Callable[[], Any] | None, Any]] = SimpleQueue()

    def finished(self, result: Any) -> None:
        """Give the result to the waiting thread. Called on the reactor's thread."""
        self._queue.put((None, result))

    def run_in_caller(self, function: Callable[[], Any]) -> Deferred[Any]:
        """Have *function* run by the waiting thread; fire with its result."""
        done: Deferred[Any] = Deferred()
        self._queue.put((function, done))
        return done

    def serve(self, timeout: float | None) -> Any:
        """Wait for the result, running errands meanwhile. Called by the waiting thread."""
        while True:
            try:
                function, what = self._queue.get(timeout=timeout)
            except Empty:
                raise KafkaTimeoutError(f"the call took more than {timeout:g} s") from None
            if function is None:
                return what
            try:
                result = function()
            except Exception as problem:
                self._thread.soon(what.errback, problem)
            else:
                self._thread.soon(what.callback, result)


_current: ReactorThread | None = None
_starting = threading.Lock()
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def reactor_thread() -> ReactorThread:
    """Return the process's reactor thread, started if it is not there."""
    global _current
    with _starting:
        if _current is None or _current.pid != os.getpid():
            _current = ReactorThread()
        return _current


def close_at_exit(client: Any) -> None:
    """Close *client* at the end of the process, unless it is gone by then."""
    _open.add(client)


def check_process(thread: ReactorThread) -> None:
    """Raise if the process has forked since *thread* was started."""
    if thread.pid != os.getpid():
        raise ClientClosed(
            f"this client was made in process {thread.pid}, before a fork; make one of its own here"
        )


def _new_reactor() -> Any:
    reactor: Any
    try:
        from twisted.internet.epollreactor import EPollReactor

        reactor = EPollReactor()
    except ImportError:  # no epoll here
        from twisted.internet.selectreactor import SelectReactor

        reactor = SelectReactor()
    # Twisted's own clock is the wall's, which people and virtual machines set.
    reactor.seconds = time.monotonic
    # Name look-ups run in the reactor's pool; as daemons they cannot hold up the end of the process.
    reactor.getThreadPool().threadFactory = partial(threading.Thread, daemon=True)
    return reactor


def _forget_after_fork() -> None:
    """Drop what belongs to the parent process."""
    global _current, _starting, _open
    _current = None
    _starting = threading.Lock()
    _open = weakref.WeakSet()


def _close_everything() -> None:
    """Let what producers still hold reach the brokers, for a few seconds, then stop."""
    thread = _current
    if thread is None or thread.pid != os.getpid():
        return
    for client in list(_open):
        with suppress(Exception):  # the process ends: nobody is left to tell
            client.close_at_exit()
    if thread.thread.is_alive():
        thread.soon(thread.reactor.stop)
        thread.thread.join(1.0)


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_close_everything)
