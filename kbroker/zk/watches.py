"""Watches that stand, built from ZooKeeper's one-shot watches.

A watch of ZooKeeper fires once, and kazoo drops all of them when the connection breaks, even if the session survives. A
standing watch is a small loop. It reads with a watch, reports a state that differs from the last report. It reads again
when the watch fires or the connection is back. At most one read is in flight; changes meanwhile cause one more. So a
callback may get several changes as one, but always gets the last state.

Owner: the reactor's thread; the connection thread calls `_fired`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from kazoo.protocol.states import EventType
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.zk.connection import Inbox
from kbroker.zk.errors import ConnectionLoss, NoNode, SessionExpired
from kbroker.zk.interface import Children, Node, Stat

State = TypeVar("State", bound=Node | Children)

log = Logger()


class ArmedReads(Protocol):
    """Reads that leave a watch behind; *fired* is called once, on the connection thread."""

    def get_armed(self, path: str, fired: Callable[[Any], None]) -> Deferred[Node]:
        """Read a znode; no watch stays if there is none."""

    def children_armed(self, path: str, fired: Callable[[Any], None]) -> Deferred[Children]:
        """List children; no watch stays if there is no such znode."""

    def exists_armed(self, path: str, fired: Callable[[Any], None]) -> Deferred[Stat | None]:
        """Read a znode's record; the watch stays in either case."""


class StandingWatch(Generic[State]):
    """One path, one callback, until cancelled."""

    def __init__(
        self,
        reads: ArmedReads,
        inbox: Inbox,
        path: str,
        callback: Callable[[State | None], None],
        forget: Callable[[StandingWatch[Any]], None],
    ) -> None:
        self.path = path
        self._reads = reads
        self._inbox = inbox
        self._callback = callback
        self._forget = forget
        self._cancelled = False
        self._reading = False
        self._read_again = False
        self._reported: object = _NOTHING

    def cancel(self) -> None:
        """Call back no more; idempotent."""
        self._cancelled = True
        self._forget(self)

    def refresh(self) -> None:
        """Read now, or once more after the read that is on its way."""
        if self._cancelled:
            return
        if self._reading:
            self._read_again = True
            return
        self._reading, self._read_again = True, False
        self._read().addCallbacks(self._have, self._failed)

    @abstractmethod
    def _read(self) -> Deferred[State]:
        """Read with a watch."""

    @staticmethod
    @abstractmethod
    def _mark(state: State) -> object:
        """Return a value that is equal for equal states."""

    def _fired(self, event: Any) -> None:
        # NONE reports a broken connection: the reconnect refreshes anyway.
        if event.type != EventType.NONE:
            self._inbox.push(self.refresh)

    def _have(self, state: State | None) -> None:
        self._reading = False
        mark = None if state is None else self._mark(state)
        if mark != self._reported and not self._cancelled:
            self._reported = mark
            try:
                self._callback(state)
            except Exception:
                log.failure("the callback of the watch on {path} failed", path=self.path)
        if self._read_again:
            self.refresh()

    def _failed(self, failure: Failure) -> None:
        if isinstance(failure.value, NoNode):
            self._reads.exists_armed(self.path, self._fired).addCallbacks(
                self._have_no_node, self._failed
            )
            return
        self._reading = False
        if not isinstance(failure.value, (ConnectionLoss, SessionExpired)):
            log.error("cannot watch {path}: {why}", path=self.path, why=failure.value)

    def _have_no_node(self, stat: Stat | None) -> None:
        if stat is None:
            self._have(None)
        else:  # made in between
            self._reading = False
            self.refresh()


class DataWatch(StandingWatch[Node]):
    """Watches the content of a znode."""

    def _read(self) -> Deferred[Node]:
        return self._reads.get_armed(self.path, self._fired)

    @staticmethod
    def _mark(state: Node) -> object:
        return (state.stat.czxid, state.stat.mzxid)


class ChildrenWatch(StandingWatch[Children]):
    """Watches the children of a znode."""

    def _read(self) -> Deferred[Children]:
        return self._reads.children_armed(self.path, self._fired)

    @staticmethod
    def _mark(state: Children) -> object:
        return (state.stat.czxid, state.stat.pzxid)


_NOTHING = object()
