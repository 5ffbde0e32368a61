"""One process's connection to the simulated ZooKeeper: latency, answers that are lost, silence.

It takes the place of kazoo's thread (`kbroker.zk.connection.Connection`): everything above it, our own session, watches
and reconnecting, is the product's. Requests reach the server in order and are answered in order, so a connection that
breaks in between leaves a write with an unknown outcome.

A session expires when its server received nothing for its timeout. Pings are not simulated one by one: a client with
a working connection keeps its session.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from kazoo import exceptions as kazoo_errors
from kazoo.protocol import serialization as wire

from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.connection import ConnectionState, Inbox
from kbroker.zk.requests import ReadMany
from tests.simulation.clock import Process
from tests.simulation.zookeeper import ZOOKEEPER, Ensemble, ZkSession

LATENCY = (0.0005, 0.006)
READS = (wire.GetData, wire.Exists, wire.GetChildren2, ReadMany)


class ZkConnection:
    """What `SessionState` takes for kazoo's thread: one process's way to the ensemble."""

    def __init__(self, ensemble: Ensemble, process: Process, node: int, **given: Any) -> None:
        self.ensemble = ensemble
        self._process = process
        self._node = node
        self._inbox: Inbox = given["inbox"]
        self._listener: Any = given["listener"]
        self._timeout: float = given["session_timeout"]
        self._identity: tuple[int, bytes] = given["resume"] or (0, b"")
        self._server = ensemble.servers[0]
        self._seen = 0
        self.live = False
        self._stopped = False
        self._generation = 0
        """Which of its connections this is: what belongs to an earlier one is lost."""
        self._up_last = self._down_last = 0.0
        self._stuck: list[tuple[Any, Any]] = []
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._outstanding: dict[Any, None] = {}
        self.lose_next_reply = False
        self._received_at = process.seconds()
        self._reachable_at = 0.0

    # -- the reactor's side

    def open(self) -> None:
        self._process.callLater(self._rng.uniform(*LATENCY), self._connect)

    def enqueue(self, message: Any, request: Any) -> None:
        if request.session_id != self._identity[0]:
            request.set_exception(kazoo_errors.SessionExpiredError())
        elif self.live:
            self._outstanding[request] = None
            self._send(message, request)

    def end_session(self) -> None:
        self._stopped = True
        if self.live:
            self._send(wire.CloseInstance, None)
        else:
            self._process.callLater(0, self._ended)

    def close(self) -> None:
        pass

    # -- connecting

    @property
    def _rng(self) -> Random:
        return self.ensemble.rng

    @property
    def session(self) -> ZkSession | None:
        return self.ensemble.sessions.get(self._identity[0])

    @property
    def knows_at(self) -> float:
        """When the client learns at the latest that its session is over: by its own clock, or from a server."""
        if self._cut_off():
            return self._received_at + self._timeout
        return max(self._reachable_at, self.ensemble.up_at)

    def _cut_off(self) -> bool:
        network = self.ensemble.network
        return (
            not self.ensemble.up
            or network.blocked(self._node, ZOOKEEPER)
            or network.blocked(ZOOKEEPER, self._node)
        )

    def _connect(self) -> None:
        if self._stopped:
            self._ended()
            return
        if self.live:
            return  # it was lost twice before it was connected again; another attempt would drop what is under way now
        if self._cut_off():
            self._process.callLater(self._rng.uniform(0.05, 0.5), self._connect)
            return
        number = self._identity[0]
        session = self.ensemble.sessions.get(number)
        if number and session is None:
            self._state(connected=False, expired=True)
            self._identity = (0, b"")
            self._process.callLater(self._rng.uniform(*LATENCY), self._connect)
            return
        is_new = session is None
        if session is None:
            session = self.ensemble.begin(self._timeout)
        self.ensemble.cancel_expiry(session)
        if session.connection is not None and session.connection is not self:
            session.connection.broken()
            self.ensemble.cancel_expiry(session)
        session.connection = self
        self._server = self._rng.choice(self.ensemble.servers)
        # The beginning of a session is a transaction itself; and a client refuses a server that knows less.
        self._server.catch_up(None if is_new else self._seen)
        self._identity = (session.number, b"secret")
        self._generation += 1
        self._up_last = self._down_last = self.ensemble.scheduler.now
        self._reply(self._connected, self._generation)

    def _connected(self, generation: int) -> None:
        if generation == self._generation:
            self.live = True
            self._state(connected=True, expired=False)

    def _state(self, *, connected: bool, expired: bool) -> None:
        number, password = self._identity
        self._received_at = (
            max(self._received_at, self._process.seconds()) if connected else self._received_at
        )
        state = ConnectionState(
            connected=connected,
            expired=expired,
            session_id=number,
            password=password,
            timeout=self._timeout,
            received_at=self._received_at,
        )
        self._inbox.push(self._listener.connection_state, self, state)

    def _ended(self) -> None:
        self.live = False
        self._inbox.push(self._listener.connection_ended, self, None)

    # -- what is sent and answered

    def _latency(self) -> float:
        low, high = LATENCY
        return low + (high - low) * self.ensemble.rng.random()

    def _send(self, message: Any, request: Any) -> None:
        if self.ensemble.network.blocked(self._node, ZOOKEEPER):
            self._stuck.append((message, request))
            return
        scheduler = self.ensemble.scheduler
        self._up_last = max(self._up_last, scheduler.now + self._latency())
        scheduler.at(self._up_last, self._at_server, self._generation, message, request)

    def _at_server(self, generation: int, message: Any, request: Any) -> None:
        session = self.session
        if generation != self._generation or session is None or not self.ensemble.up:
            return
        if message is wire.CloseInstance:
            session.connection = None
            self.ensemble.end(session)
            self._reply(self._closed, generation)
            return
        if isinstance(message, READS):
            result = self._server.read(message, self)
        elif isinstance(message, wire.Sync):
            self._server.catch_up()  # what was committed until now; more than that is no harm
            result = message.path
        else:
            self.ensemble.writer = self._node
            result = self.ensemble.write(message, session)
            self.ensemble.writer = None
            self._server.catch_up()
            if self.lose_next_reply:
                self.lose_next_reply = False
                self.broken()
                return
        self._reply(self._answered, generation, request, result, self._server.applied)

    def notify(self, fired: Callable[[Any], None], event: Any) -> None:
        """Deliver a watch event, in order with the answers."""
        self._reply(self._fired, self._generation, fired, event)

    def _reply(self, function: Callable[..., None], *args: Any) -> None:
        scheduler = self.ensemble.scheduler
        self._down_last = max(self._down_last, scheduler.now + self._latency())
        self._process.arrives(self._down_last, self._arrived, function, args)

    def _arrived(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        if args[0] != self._generation:
            return
        if self.ensemble.network.blocked(ZOOKEEPER, self._node):
            self._held.append((function, args))
            return
        function(*args)

    def _answered(self, _generation: int, request: Any, result: Any, zxid: int) -> None:
        self._outstanding.pop(request, None)
        self._seen = max(self._seen, zxid)
        if isinstance(result, Exception):
            request.set_exception(result)
        else:
            request.set(result)

    def _fired(self, _generation: int, fired: Callable[[Any], None], event: Any) -> None:
        fired(event)

    def _closed(self, _generation: int) -> None:
        self._generation += 1
        self._ended()

    # -- faults

    def broken(self) -> None:
        """Break the connection; what is under way is lost. The client notices, if it can."""
        self._generation += 1
        self._server.forget(self)
        self._stuck.clear()
        now = self.ensemble.scheduler.now
        session = self.session
        if session is not None and session.connection is self:
            session.connection = None
            if self.ensemble.up:
                self.ensemble.begin_expiry(session, now)
        self._process.arrives(now, self._lost, self._generation)

    def _lost(self, generation: int) -> None:
        if generation != self._generation:
            return
        was_live, self.live = self.live, False
        if self._stopped:
            self._ended()
            return
        if was_live:
            self._received_at = self._process.seconds()
            self._fail_outstanding()
        self._process.callLater(self._rng.uniform(0.02, 0.3), self._connect)

    def _fail_outstanding(self) -> None:
        """Have the client notice the loss: each request without an answer has an unknown outcome."""
        self._state(connected=False, expired=False)
        outstanding, self._outstanding = self._outstanding, {}
        for request in outstanding:
            request.set_exception(kazoo_errors.ConnectionLoss())

    def unreachable(self) -> None:
        """Let the link be blocked from now on: both sides notice after a timeout."""
        session = self.session
        if session is None or session.connection is not self:
            return
        timeout = session.timeout
        now = self.ensemble.scheduler.now
        last = now - self._rng.uniform(0, timeout / 3)
        self._received_at = max(last, 0.0)
        self.ensemble.begin_expiry(session, last)
        self._process.callLater(
            max(last + 2 * timeout / 3 - now, 0), self._silence, self._generation
        )

    def _silence(self, generation: int) -> None:
        if generation != self._generation or not self._cut_off():
            return
        self._generation += 1
        self._server.forget(self)
        self._stuck.clear()
        session = self.session
        if session is not None and session.connection is self:
            session.connection = None
        self.live = False
        self._fail_outstanding()
        self._process.callLater(self._rng.uniform(0.02, 0.3), self._connect)

    def reachable(self) -> None:
        """Let what was stuck pass, if the connection outlived the silence."""
        self._reachable_at = self.ensemble.scheduler.now
        session = self.session
        if session is None or session.connection is not self:
            return
        self.ensemble.cancel_expiry(session)
        stuck, self._stuck = self._stuck, []
        for message, request in stuck:
            self._send(message, request)
        held, self._held = self._held, []
        for function, args in held:
            self._reply(function, *args)

    def process_died(self) -> None:
        """Receive nothing from the client any more (kill -9: the kernel closes the connection)."""
        session = self.session
        self._generation += 1
        self._server.forget(self)
        if session is not None and session.connection is self:
            session.connection = None
            last = self.ensemble.scheduler.now - self._rng.uniform(0, session.timeout / 3)
            self.ensemble.begin_expiry(session, last)

    def process_paused(self) -> None:
        session = self.session
        if session is not None and session.connection is self:
            last = self.ensemble.scheduler.now - self._rng.uniform(0, session.timeout / 3)
            self.ensemble.begin_expiry(session, last)

    def process_resumed(self) -> None:
        session = self.session
        if session is not None and session.connection is self and not self._cut_off():
            self.ensemble.cancel_expiry(session)


def client_of(
    ensemble: Ensemble,
    process: Process,
    node: int,
    connections: list[ZkConnection],
    connect: str = "zookeeper:2181",
    session_timeout: float = 6.0,
) -> ZooKeeperClient:
    """Return the ZooKeeper client of *process* on machine *node*; each of its connections is added to *connections*."""

    def connection(_hosts: str, **given: Any) -> ZkConnection:
        made = ZkConnection(ensemble, process, node, **given)
        connections.append(made)
        return made

    return ZooKeeperClient(
        process,
        connect,
        session_timeout=session_timeout,
        connection=connection,
        now=process.seconds,
    )
