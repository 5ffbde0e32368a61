"""Waiting for a connection to ZooKeeper, and reads that survive short breaks.

A request that fails with ConnectionLoss leaves the state of the session open. A component that may retry waits here
until the same session is connected; if the session is over, the wait fails with SessionExpired. A component that may
use any session (an admin request of a client) waits for a bounded time. Then it fails with the retriable
RequestTimedOut (S22).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from twisted.internet.defer import Deferred, fail, succeed

from kbroker.common.reactor import Clock
from kbroker.zk.errors import ConnectionLoss, SessionExpired
from kbroker.zk.interface import Connected, Expired, Session, SessionEvent, ZooKeeper
from kclient.wire.errors import RequestTimedOut

T = TypeVar("T")

CONNECT_TIMEOUT: Final = 5.0
PAUSE_SECONDS: Final = 0.02
"""Between a lost connection and the next attempt."""


class Reconnect:
    """Resumes its waiters when ZooKeeper is connected (again)."""

    def __init__(self, zookeeper: ZooKeeper, clock: Clock) -> None:
        self._zookeeper = zookeeper
        self._clock = clock
        self._waiting: dict[Deferred[None], Session | None] = {}
        zookeeper.on_session(self._on_session)

    def connected(self, session: Session | None = None) -> Deferred[None]:
        """Fire once connected in *session*; SessionExpired if that is over.

        With None: in any session, or RequestTimedOut after `CONNECT_TIMEOUT`.
        """
        current = self._zookeeper.session
        if self._zookeeper.connected:
            if session is None or (current is not None and current.id == session.id):
                return succeed(None)
            return fail(SessionExpired())
        waiting: Deferred[None] = Deferred()
        self._waiting[waiting] = session
        if session is None:
            self._clock.callLater(CONNECT_TIMEOUT, self._time_out, waiting)
        return waiting

    def _time_out(self, waiting: Deferred[None]) -> None:
        self._waiting.pop(waiting, None)
        if not waiting.called:
            waiting.errback(
                RequestTimedOut("this broker is cut off from ZooKeeper", hint="try again")
            )

    async def read(self, session: Session | None, request: Callable[[], Awaitable[T]]) -> T:
        """Make *request*, which only reads, until it is answered."""
        while True:
            try:
                return await request()
            except ConnectionLoss:
                # Never at once: the event of the loss may still be queued, and the client seem connected.
                # Without a turn of the reactor that event would never be handled.
                await self._pause()
                await self.connected(session)
            except SessionExpired:
                if session is not None:
                    raise
                await self._pause()
                await self.connected()

    def _pause(self) -> Deferred[None]:
        paused: Deferred[None] = Deferred()
        self._clock.callLater(PAUSE_SECONDS, paused.callback, None)
        return paused

    def _on_session(self, event: SessionEvent) -> None:
        if not isinstance(event, Connected | Expired):
            return
        waiting, self._waiting = self._waiting, {}
        for deferred, session in waiting.items():
            if deferred.called:
                continue
            if isinstance(event, Connected) and session in (None, event.session):
                deferred.callback(None)
            elif session is None:
                self._waiting[deferred] = session
            elif session.id != event.session.id or isinstance(event, Expired):
                deferred.errback(SessionExpired())
            else:
                deferred.callback(None)
