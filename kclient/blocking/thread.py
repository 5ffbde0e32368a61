"""The reactor of the blocking API, in a daemon thread.

It is a separate reactor, not Twisted's global one: a program may also run Twisted itself. After a fork the child has no
such thread; its first call starts one. Clients created before the fork raise an error in the child, because their
sockets belong to the parent.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from kclient.errors import ClientClosed, KafkaTimeoutError
from kclient.net.reactors import prepare
from kclient.standard_logging import use_standard_logging

T = TypeVar("T")

CLOSE_AT_EXIT = 5.0
"""Seconds that an open producer may take for deliveries at the end of the process."""

LEAVE_AT_EXIT = 1.0
"""Seconds that an open consumer may take to leave its group at exit; short, so that Ctrl-C is prompt."""


class ClosedAtExit:
    """A client that is closed at the end of the process if the program did not close it."""

    def close_at_exit(self) -> None:
        """Close within a few seconds."""

    def forked(self) -> None:
        """Refuse every call from now on: this is the copy of the client in the child of a fork."""


class ReactorThread:
    """A reactor and its thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.reactor: Any = _new_reactor()
        use_standard_logging()
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
        """Run *call* in the reactor's thread and return at once."""
        self.reactor.callFromThread(call, *args)

    def call(self, function: Callable[[], T]) -> T:
        """Run *function*, which does not wait, in the reactor's thread; return its result."""
        return self.run(lambda: maybeDeferred(function))

    def run(self, call: Callable[[], Deferred[T]], timeout: float | None = None) -> T:
        """Run *call* in the reactor's thread; return its result or raise its error.

        The call is cancelled after *timeout* seconds (None: the call has its own timeout) or at Ctrl-C.
        """
        return self.run_with_caller(lambda _: call(), timeout)

    def run_with_caller(
        self,
        call: Callable[[CallerThread], Deferred[T]],
        timeout: float | None = None,
    ) -> T:
        """Like `run`; meanwhile the call may run functions in the caller's thread."""
        check_may_wait()
        caller = CallerThread(self)
        waiting: list[Deferred[Any]] = []

        def start() -> None:
            result = maybeDeferred(call, caller)
            waiting.append(result)
            result.addBoth(caller.finished)

        def cancel() -> None:
            for result in waiting:
                result.cancel()
            caller.left()

        self.reactor.callFromThread(start)
        try:
            outcome = caller.serve(timeout)
        except BaseException:
            self.reactor.callFromThread(cancel)
            raise
        if isinstance(outcome, Failure):
            problem = outcome.value
            assert problem is not None
            raise problem
        return outcome  # type: ignore[no-any-return]


class CallerThread:
    """The waiting caller's thread: it runs functions for the reactor's thread until the result is there."""

    def __init__(self, thread: ReactorThread) -> None:
        self._thread = thread
        self._queue: SimpleQueue[tuple[Callable[[], Any] | None, Any]] = SimpleQueue()
        self._asked: set[Deferred[Any]] = set()
        self._has_left = False

    def finished(self, result: Any) -> None:
        """Pass the result to the waiting thread. Called in the reactor's thread."""
        self._queue.put((None, result))

    def run_in_caller(self, function: Callable[[], Any]) -> Deferred[Any]:
        """Run *function* in the waiting thread; fire with its result."""
        done: Deferred[Any] = Deferred()
        if self._has_left:
            done.cancel()
            return done
        self._asked.add(done)
        done.addBoth(self._answered, done)
        self._queue.put((function, done))
        return done

    def left(self) -> None:
        """Cancel the functions that wait for the thread: an interrupt has ended its call. In the reactor's thread."""
        self._has_left = True
        for done in list(self._asked):
            done.cancel()

    def _answered(self, result: Any, done: Deferred[Any]) -> Any:
        self._asked.discard(done)
        return result

    def serve(self, timeout: float | None) -> Any:
        """Wait for the result and run functions meanwhile. Called by the waiting thread."""
        while True:
            try:
                function, what = self._queue.get(timeout=timeout)
            except Empty:
                raise KafkaTimeoutError(f"the call exceeded its timeout of {timeout:g} s") from None
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
    """Return the process's reactor thread; start it if necessary."""
    global _current
    with _starting:
        if _current is None or _current.pid != os.getpid():
            _current = ReactorThread()
        return _current


def check_may_wait() -> None:
    """Raise RuntimeError in the reactor's thread, in a callback of a delivery: there a wait would have no end."""
    if _current is not None and threading.get_ident() == _current.thread.ident:
        raise RuntimeError("a callback runs in kclient's own thread and must not wait for kclient")


def close_at_exit(client: Any) -> None:
    """Close *client* at the end of the process, unless it was garbage-collected."""
    _open.add(client)


def check_process(thread: ReactorThread) -> None:
    """Raise ClientClosed if the process has forked since *thread* was started."""
    if thread.pid != os.getpid():
        raise ClientClosed(
            f"this client was created in process {thread.pid}, before a fork; create another one in this process"
        )


def _new_reactor() -> Any:
    reactor: Any
    try:
        from twisted.internet.epollreactor import EPollReactor

        reactor = EPollReactor()
    except ImportError:  # no epoll on this platform
        from twisted.internet.selectreactor import SelectReactor

        reactor = SelectReactor()
    prepare(reactor)
    return reactor


def _forget_after_fork() -> None:
    """Drop the parent's thread, lock and clients."""
    global _current, _starting, _open
    _current = None
    _starting = threading.Lock()
    clients, _open = list(_open), weakref.WeakSet()
    for client in clients:
        client.forked()


def _close_everything() -> None:
    """Deliver the producers' records for a few seconds, then stop the reactor."""
    thread = _current
    if thread is None or thread.pid != os.getpid():
        return
    for client in list(_open):
        with suppress(Exception):  # the process ends: no caller is left to handle the error
            client.close_at_exit()
    if thread.thread.is_alive():
        thread.soon(thread.reactor.stop)
        thread.thread.join(1.0)


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_close_everything)
