"""The state of the broker's ZooKeeper session: it connects, reconnects, and opens a new session after an expiry.

Theory of operation
===================
`start` connects within a bounded time and creates the chroot if it is missing. After that the session keeps itself
up until `stop`: it reconnects, and it opens a new session when the old one has expired.

ZooKeeper cannot notify a client without a connection that its session expired. So the client runs its own
monotonic clock from `Suspended` on. The clock starts at the last byte received and uses the *negotiated* timeout. At
its end, less a margin, `Lapsed` is emitted. The connection thread pings only while the reactor ticks: the session of a
stalled broker ends (S36). A connection thread that ends unexpectedly is replaced. The new one resumes the session.

Invariants
1. A write is executed in the session it was tagged with or not at all (see connection.py).
2. Every Deferred fires: at the latest when the connection it was waiting on is lost.
3. After every (re)connect all standing watches are read again before `Connected` is emitted,
   and callbacks never run while a request is being made.
4. No request is ever repeated.

In: requests, the connection's state changes   Out: Deferreds, session events   Owner: the reactor's thread
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.protocol import serialization as wire
from twisted.internet.defer import Deferred, fail, inlineCallbacks, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.reactor import Reactor
from kbroker.zk import errors, requests
from kbroker.zk.connection import Connection, ConnectionState, Inbox
from kbroker.zk.interface import (
    Children,
    Connected,
    Create,
    Expired,
    Lapsed,
    Node,
    Session,
    SessionEvent,
    Stat,
    Suspended,
    Watch,
)
from kbroker.zk.watches import ChildrenWatch, DataWatch, StandingWatch

log = Logger()

LAPSE_MARGIN = 0.1
"""Part of the session timeout by which the client assumes the expiry earlier than the server."""

STALLED = 0.5
"""Part of the session timeout after which a reactor without a tick counts as stalled (S36)."""

RESTART_DELAY = 0.5
"""Seconds before a connection thread that failed is replaced."""


_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?")
_LAST_PORT = 65_535


def parse_connect(text: str) -> tuple[str, str]:
    """Split a `zookeeper.connect` into hosts and chroot ("" or "/name"); ValueError if malformed."""
    listed, slash, chroot = text.partition("/")
    chroot = (slash + chroot.strip()).rstrip("/")
    servers = [each.strip() for each in listed.split(",")]
    for server in servers:
        match = _SERVER.fullmatch(server)
        if match is None:
            raise ValueError(
                f"{text!r:.200} is not a list of ZooKeeper servers: expected host:port,host:port/chroot"
            )
        if match[2] and not 0 < int(match[2]) <= _LAST_PORT:
            raise ValueError(f"{text!r:.200}: {match[2]} is not a port (1 to {_LAST_PORT})")
    if "//" in chroot or not re.fullmatch(r"(/[^/\0\s]+)*", chroot):
        raise ValueError(f"the chroot {chroot!r:.200} is not a path")
    return ",".join(servers), chroot


class SessionState:
    """One client's session with the ensemble of *connect*; at most one connection at a time."""

    def __init__(
        self,
        reactor: Reactor,
        connect: str,
        *,
        session_timeout: float = 18.0,
        connection: Callable[..., Connection] = Connection,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hosts, self.chroot = parse_connect(connect)
        self._reactor = reactor
        self._make_connection = connection
        self._now = now
        self._session_timeout = session_timeout
        self._inbox = Inbox(reactor)
        self._connection: Connection | None = None
        self._session: Session | None = None
        self._password = b""
        self._connected = False
        self._lapsed = False
        self._stopping = False
        self._chroot_made = not self.chroot
        self._lapse_timer: Any = None
        self._tick_timer: Any = None
        self._ticked_at = self._now()
        self._starting: Deferred[Session] | None = None
        self._ended: Deferred[None] | None = None
        self._listeners: list[Callable[[SessionEvent], None]] = []
        self._outstanding: dict[requests.PendingRequest, None] = {}
        self._watches: dict[StandingWatch[Any], None] = {}
        self.reads_one_by_one = False
        """Whether a server is older than 3.6: it has no multiRead."""
        self.results = requests.results_without(self.chroot)
        """The converter of a multi's results."""

    # --- start and stop ---

    def start(self, timeout: float) -> Deferred[Session]:
        """Connect within *timeout* seconds, or fail with CannotConnect."""
        started: Deferred[Session] = Deferred()
        self._starting = started
        self._tick()
        self._open(None)
        timer = self._reactor.callLater(timeout, self._start_failed, timeout)

        def settled(result: Any) -> Any:
            if timer.active():
                timer.cancel()
            return result

        return started.addBoth(settled)

    def _start_failed(self, timeout: float) -> None:
        started, self._starting = self._starting, None
        if started is not None:
            self._close()
            started.errback(
                errors.CannotConnect(
                    reason=f"no ZooKeeper server of zookeeper.connect={self.hosts} answered within "
                    f"{timeout:g} s (zookeeper.connection.timeout.ms). Is ZooKeeper running there, "
                    "and reachable from here? Try: echo srvr | nc "
                    + self.hosts.split(",")[0].replace(":", " ")
                )
            )

    def stop(self, timeout: float = 5.0) -> Deferred[None]:
        """End the session (its ephemeral znodes go at once); bounded, and never fails."""
        if self._connection is None or self._stopping:
            return succeed(None)
        ended: Deferred[None] = Deferred()
        self._ended = ended
        was_connected = self._connected
        self._close()
        # Without a connection no server answers.
        timer = self._reactor.callLater(
            timeout if was_connected else min(timeout, 0.5), self._connection_gone
        )

        def settled(result: None) -> None:
            if timer.active():
                timer.cancel()

        return ended.addCallback(settled)

    def _open(self, resume: tuple[int, bytes] | None, last_zxid: int = 0) -> None:
        self._connection = self._make_connection(
            self.hosts,
            session_timeout=self._session_timeout,
            resume=resume,
            logger=quiet_logger(),
            inbox=self._inbox,
            listener=self,
            is_stalled=self._is_stalled,
            last_zxid=last_zxid,
        )
        self._connection.open()

    def _tick(self) -> None:
        """Record that the reactor runs; the connection thread reads it."""
        self._ticked_at = self._now()
        self._tick_timer = self._reactor.callLater(self._session_timeout / 8, self._tick)

    def _is_stalled(self) -> bool:
        """Return whether the reactor is stalled. Called by the connection thread."""
        return self._now() - self._ticked_at > STALLED * self._session_timeout

    def _close(self) -> None:
        self._stopping = True
        self._connected = False
        self._stop_lapse_timer()
        if self._tick_timer is not None and self._tick_timer.active():
            self._tick_timer.cancel()
        if self._connection is not None:
            self._connection.end_session()
        # They may have been sent, and applied.
        self._fail_outstanding(errors.ConnectionLoss)

    def _connection_gone(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended.callback(None)

    # --- events of the connection ---

    def connection_state(self, connection: Connection, state: ConnectionState) -> None:
        """Follow kazoo's state; called through the Inbox."""
        if connection is not self._connection or self._stopping:
            return
        if state.connected:
            self._password = state.password
            self._on_connected(Session(state.session_id, state.timeout))
        elif state.expired:
            self._on_expired()
        else:
            self._on_suspended(state.received_at)

    def connection_ended(self, connection: Connection, error: BaseException | None) -> None:
        """Replace a connection thread that ended unexpectedly."""
        connection.close()
        if connection is not self._connection:
            return
        if self._stopping:
            self._connection_gone()
            return
        log.error("the ZooKeeper connection broke down, starting another: {why}", why=error or "")
        self._on_suspended(self._now())
        resume = (self._session.id, self._password) if self._session else None
        last_zxid = connection.last_zxid if resume else 0
        self._reactor.callLater(RESTART_DELAY, self._reopen, resume, last_zxid)

    def _reopen(self, resume: tuple[int, bytes] | None, last_zxid: int) -> None:
        if not self._stopping:
            self._open(resume, last_zxid)

    def _on_connected(self, session: Session) -> None:
        self._stop_lapse_timer()
        before = self._session
        is_new = before is None or before.id != session.id
        if is_new and before is not None:
            self._on_expired()
        self._session, self._connected, self._lapsed = session, True, False
        if self._chroot_made:
            self._emit_connected(session, is_new)
        else:
            self._make_chroot().addCallbacks(
                lambda _: self._emit_connected(session, is_new), self._chroot_failed
            )

    def _emit_connected(self, session: Session, is_new: bool) -> None:
        if session is not self._session or not self._connected:
            return  # lost again while the chroot was made
        log.info(
            "ZooKeeper session {id:#x} {what}, timeout {timeout:g} s",
            id=session.id,
            what="established" if is_new else "continues",
            timeout=session.timeout,
        )
        for watch in list(self._watches):
            watch.refresh()
        self._emit(Connected(session, is_new))
        started, self._starting = self._starting, None
        if started is not None:
            started.callback(session)

    @inlineCallbacks
    def _make_chroot(self) -> Any:
        """Create the chroot; its own path lies outside of it."""
        path = ""
        for element in self.chroot.split("/")[1:]:
            path += f"/{element}"
            message = requests.message_of(Create(path), "")
            try:
                yield self.send(message, (path,), requests.to_none)
            except errors.NodeExists:
                continue
        self._chroot_made = True

    def _chroot_failed(self, failure: Failure) -> None:
        if isinstance(failure.value, (errors.ConnectionLoss, errors.SessionExpired)):
            return  # the next connection tries again
        log.error("cannot create the chroot of zookeeper.connect: {why}", why=failure.value)
        started, self._starting = self._starting, None
        if started is not None:
            self._close()
            started.errback(failure)

    def _on_suspended(self, received_at: float) -> None:
        if not self._connected or self._session is None:
            return
        self._connected = False
        self._fail_outstanding(errors.ConnectionLoss)
        log.warn("ZooKeeper session {id:#x} suspended", id=self._session.id)
        margin = LAPSE_MARGIN * self._session.timeout
        left = received_at + self._session.timeout - margin - self._now()
        self._lapse_timer = self._reactor.callLater(max(left, 0.0), self._on_lapsed)
        self._emit(Suspended(self._session))

    def _on_lapsed(self) -> None:
        self._lapse_timer = None
        if self._session is not None and not self._connected and not self._stopping:
            self._lapsed = True
            log.warn("ZooKeeper session {id:#x} may have expired by now", id=self._session.id)
            self._emit(Lapsed(self._session))

    def _on_expired(self) -> None:
        self._stop_lapse_timer()
        session, self._session = self._session, None
        self._connected = self._lapsed = False
        self._fail_outstanding(errors.SessionExpired)
        if session is not None:
            log.warn("ZooKeeper session {id:#x} expired", id=session.id)
            self._emit(Expired(session))

    def _stop_lapse_timer(self) -> None:
        timer, self._lapse_timer = self._lapse_timer, None
        if timer is not None and timer.active():
            timer.cancel()

    def _fail_outstanding(self, kind: type[errors.ZooKeeperError]) -> None:
        for request in list(self._outstanding):
            request.fail(kind)

    def _emit(self, event: SessionEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                log.failure("a listener failed on {event}", event=event)

    # --- look-ups ---

    @property
    def session(self) -> Session | None:
        """The session while connected or suspended within its time; None otherwise."""
        return None if self._lapsed else self._session

    @property
    def connected(self) -> bool:
        """Whether requests can be sent now.

        False from the moment the connection is gone, even before its event is handled. Otherwise a caller that
        retries at once would starve that event.
        """
        connection = self._connection
        return self._connected and connection is not None and connection.live

    @property
    def credentials(self) -> tuple[int, bytes] | None:
        """Id and password of the session: another connection can resume it with them."""
        return None if self._session is None else (self._session.id, self._password)

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        """Call *callback* on every session event, from now on."""
        self._listeners.append(callback)

    # --- watches; the reads are for `StandingWatch` ---

    def watch_data(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        """Watch the content of a znode."""
        return self._watch(DataWatch(self, self._inbox, path, callback, self._remove_watch))

    def watch_children(self, path: str, callback: Callable[[Children | None], None]) -> Watch:
        """Watch the children of a znode."""
        return self._watch(ChildrenWatch(self, self._inbox, path, callback, self._remove_watch))

    def _watch(self, watch: StandingWatch[Any]) -> Watch:
        self._watches[watch] = None
        if self._connected:
            watch.refresh()
        return watch

    def _remove_watch(self, watch: StandingWatch[Any]) -> None:
        self._watches.pop(watch, None)

    def get_armed(self, path: str, fired: Callable[[Any], None]) -> Deferred[Node]:
        """Read a znode and leave a one-shot watch."""
        return self.send(wire.GetData(self.chroot + path, fired), (path,), requests.to_node)

    def exists_armed(self, path: str, fired: Callable[[Any], None]) -> Deferred[Stat | None]:
        """Read a znode's record and leave a one-shot watch."""
        message = wire.Exists(self.chroot + path, fired)
        return self.send(message, (path,), requests.to_stat_or_none)

    def children_armed(self, path: str, fired: Callable[[Any], None]) -> Deferred[Children]:
        """List children and leave a one-shot watch."""
        message = wire.GetChildren2(requests.inside(self.chroot, path), fired)
        return self.send(message, (path,), requests.to_children)

    # --- requests ---

    def send(
        self,
        message: Any,
        paths: Sequence[str],
        convert: Callable[[Any], Any],
        session_id: int | None = None,
    ) -> Deferred[Any]:
        """Send a request in the current session, or in *session_id* and no other.

        Errors: Disconnected, SessionExpired; ConnectionLoss after it was sent.
        """
        session, connection = self._session, self._connection
        if session_id is not None and (session is None or session.id != session_id):
            return fail(errors.SessionExpired(paths[0]))
        if session is None or connection is None or not self._connected or not connection.live:
            return fail(errors.Disconnected(paths[0]))
        request = requests.PendingRequest(
            session.id, paths, convert, self._inbox, self._outstanding
        )
        connection.enqueue(message, request)
        return request.deferred


def quiet_logger() -> logging.Logger:
    """Give kazoo a logger that prints nothing: the broker logs what matters."""
    logger = logging.getLogger("kazoo")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        logger.setLevel(logging.CRITICAL)
    return logger
