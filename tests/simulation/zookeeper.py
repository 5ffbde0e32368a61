"""ZooKeeper as a model: a tree of which every server has a copy, sessions that expire, connections that break.

It takes the place of kazoo's thread (`kbroker.zk.connection.Connection`): everything above it, our own session, watches
and reconnecting, is the product's. Requests are kazoo's messages; they reach the server in order, take effect at the
leader, and are answered in order, so a connection that breaks in between leaves a write with an unknown outcome.
A follower may lag, or trail by moments: it applies later what is committed, in order, and answers reads
from what it has. What holds then is what ZooKeeper promises: reads are of a prefix of history, which never goes back
within a session, whatever server it moves to; a client sees its own writes, and after a `sync` all that was
committed before; a session that begins sees all that was before it, one that goes on need not (S23).

A session expires when its server received nothing for its timeout. Pings are not simulated one by one: a client with
a working connection keeps its session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from kazoo import exceptions as kazoo_errors
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.connection import ConnectionState, Inbox
from kbroker.zk.requests import ReadMany
from tests.simulation.clock import Call, Process, Scheduler
from tests.simulation.network import Wires

ZOOKEEPER = 99
"""The ensemble's node on the network: links to it can be blocked."""

LATENCY = (0.0005, 0.006)
EPHEMERAL, SEQUENTIAL = 1, 2

Stat = tuple[int, int, int, int, int, int, int, int, int, int, int]
Change = tuple[str, str, bytes, int, int]
"""create, set or delete; path, data, owner, zxid."""


class Znode:
    """One znode."""

    __slots__ = ("children", "cversion", "czxid", "data", "mzxid", "owner", "pzxid", "version")

    def __init__(self, data: bytes, zxid: int, owner: int) -> None:
        self.data = data
        self.czxid = self.mzxid = self.pzxid = zxid
        self.version = self.cversion = 0
        self.owner = owner
        self.children: dict[str, None] = {}

    def stat(self) -> Stat:
        return (
            self.czxid, self.mzxid, 0, 0, self.version, self.cversion, 0, self.owner,
            len(self.data), len(self.children), self.pzxid,
        )  # fmt: skip


class Server:
    """One server's copy of the tree, and the watches left there."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self.tree: dict[str, Znode] = {"/": Znode(b"", 0, 0)}
        self.applied = 0
        """The last zxid of what is applied here."""
        self._behind: deque[Change] = deque()
        """What is committed and not applied here yet."""
        self.lags = False
        self.trails = 0.0
        """Seconds that a transaction takes at most to arrive."""
        self._due = 0.0
        self._data_watches: dict[str, dict[Callable[[Any], None], ZkConnection]] = {}
        self._child_watches: dict[str, dict[Callable[[Any], None], ZkConnection]] = {}

    def take(self, change: Change) -> None:
        if not (self.lags or self.trails or self._behind):
            self._apply(change)
            return
        self._behind.append(change)
        if self.trails and not self.lags:
            ensemble = self._ensemble
            scheduler = ensemble.scheduler
            self._due = max(
                self._due, scheduler.now + ensemble.rng.choice((0.0, 1.0)) * self.trails
            )
            scheduler.at(self._due, self._arrives, change[-1])

    def _arrives(self, zxid: int) -> None:
        if not self.lags:
            self.catch_up(zxid)

    def catch_up(self, zxid: int | None = None) -> None:
        """Apply what is committed, up to *zxid* or all of it; the changes of one transaction go together."""
        behind = self._behind
        while behind and (zxid is None or behind[0][-1] <= zxid):
            self._apply(behind.popleft())

    def _apply(self, change: Change) -> None:
        kind, path, data, owner, zxid = change
        self.applied = zxid
        tree = self.tree
        if kind == "set":
            node = tree[path]
            node.data, node.mzxid, node.version = data, zxid, node.version + 1
            self._fire(self._data_watches, path, EventType.CHANGED)
            return
        parent_path, _, name = path.rpartition("/")
        parent_path = parent_path or "/"
        parent = tree[parent_path]
        parent.cversion += 1
        parent.pzxid = zxid
        if kind == "create":
            tree[path] = Znode(data, zxid, owner)
            parent.children[name] = None
            self._fire(self._data_watches, path, EventType.CREATED)
        else:
            del tree[path]
            del parent.children[name]
            self._fire(self._data_watches, path, EventType.DELETED)
            self._fire(self._child_watches, path, EventType.DELETED)
        self._fire(self._child_watches, parent_path, EventType.CHILD)

    def _fire(self, watches: dict[str, Any], path: str, event: Any) -> None:
        for fired, connection in watches.pop(path, {}).items():
            connection.notify(fired, WatchedEvent(event, KeeperState.CONNECTED, path))

    def forget(self, connection: ZkConnection) -> None:
        for watches in (self._data_watches, self._child_watches):
            for path in list(watches):
                watches[path] = {f: c for f, c in watches[path].items() if c is not connection}

    def read(self, message: Any, connection: ZkConnection) -> Any:
        if isinstance(message, ReadMany):
            return tuple(self.read(wire.GetData(path, None), connection) for path in message.paths)
        node = self.tree.get(message.path)
        watch = message.watcher
        if isinstance(message, wire.GetChildren2):
            if node is None:
                return kazoo_errors.NoNodeError()
            if watch is not None:
                self._child_watches.setdefault(message.path, {})[watch] = connection
            return list(node.children), node.stat()
        exists = isinstance(message, wire.Exists)
        if node is None and not exists:
            return kazoo_errors.NoNodeError()
        if watch is not None:
            self._data_watches.setdefault(message.path, {})[watch] = connection
        if exists:
            return None if node is None else node.stat()
        assert node is not None
        return node.data, node.stat()


class ZkSession:
    """One session, as the leader knows it."""

    def __init__(self, number: int, timeout: float) -> None:
        self.number = number
        self.timeout = timeout
        self.connection: ZkConnection | None = None
        self.ephemerals: dict[str, None] = {}
        self.expiry: Call | None = None


class Ensemble:
    """The leader (server 0), which is up to date by definition, and two followers that may lag."""

    def __init__(self, scheduler: Scheduler, rng: Random, wires: Wires) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.wires = wires
        self.servers = [Server(self) for _ in range(3)]
        self.zxid = 0
        self.sessions: dict[int, ZkSession] = {}
        self.up = True
        self.up_at = 0.0
        self.on_commit: list[Callable[[Change], None]] = []
        self.writer: int | None = None
        """The node that sent the write which is being done."""
        self._next_session = 0x1000
        self._sequences: dict[str, int] = {}

    @property
    def tree(self) -> dict[str, Znode]:
        """The truth."""
        return self.servers[0].tree

    def put(self, path: str, data: bytes = b"") -> None:
        """Create a znode by hand, with its parents."""
        elements = path.split("/")[1:]
        for depth in range(1, len(elements)):
            parent = "/" + "/".join(elements[:depth])
            if parent not in self.tree:
                self._commit(("create", parent, b"", 0, self._next_zxid()))
        self._commit(("create", path, data, 0, self._next_zxid()))

    def _next_zxid(self) -> int:
        self.zxid += 1
        return self.zxid

    def _commit(self, change: Change) -> None:
        for server in self.servers:
            server.take(change)
        for observe in self.on_commit:
            observe(change)

    # -- writes

    def write(self, message: Any, session: ZkSession) -> Any:
        """Do a write at the leader; return kazoo's result or exception."""
        zxid = self._next_zxid()
        if not isinstance(message, wire.Transaction):
            planned = _Plan(self, session, zxid)
            result = planned.do(message)
            if not isinstance(result, Exception):
                planned.commit()
            return result
        planned = _Plan(self, session, zxid)
        results: list[Any] = []
        for position, operation in enumerate(message.operations):
            result = planned.do(operation)
            if isinstance(result, Exception):
                rest = len(message.operations) - position - 1
                return [
                    *[kazoo_errors.RolledBackError() for _ in results],
                    result,
                    *[kazoo_errors.RuntimeInconsistency() for _ in range(rest)],
                ]
            results.append(result)
        planned.commit()
        return results

    # -- sessions

    def begin(self, timeout: float) -> ZkSession:
        self._next_session += 1
        session = self.sessions[self._next_session] = ZkSession(self._next_session, timeout)
        self._next_zxid()
        return session

    def end(self, session: ZkSession) -> None:
        """Close a session, by its owner or because it expired: its ephemerals go at once."""
        if self.sessions.pop(session.number, None) is None:
            return
        if session.expiry is not None and session.expiry.active():
            session.expiry.cancel()
        zxid = self._next_zxid()
        for path in list(session.ephemerals):
            if path in self.tree:
                self._commit(("delete", path, b"", 0, zxid))
        if session.connection is not None:
            session.connection.broken()

    def begin_expiry(self, session: ZkSession, since: float) -> None:
        """Let a session expire that was silent since then."""
        if session.expiry is None or not session.expiry.active():
            session.expiry = self.scheduler.at(since + session.timeout, self.end, session)

    def cancel_expiry(self, session: ZkSession) -> None:
        if session.expiry is not None and session.expiry.active():
            session.expiry.cancel()

    # -- faults

    def remove(self, path: str) -> None:
        """Have an operator delete a znode that has no children."""
        node = self.tree.get(path)
        if node is not None:
            session = self.sessions.get(node.owner)
            if session is not None:
                session.ephemerals.pop(path)
            self._commit(("delete", path, b"", node.owner, self._next_zxid()))

    def stop(self) -> None:
        """Lose the quorum: no client is served, no session ends."""
        self.up = False
        for session in list(self.sessions.values()):
            self.cancel_expiry(session)
            if session.connection is not None:
                session.connection.broken()
                self.cancel_expiry(session)

    def start(self) -> None:
        """Serve again; every session has all its time from now on."""
        self.up, self.up_at = True, self.scheduler.now
        for session in list(self.sessions.values()):
            if session.connection is None:
                self.begin_expiry(session, self.scheduler.now)

    def lag(self, follower: int, on: bool) -> None:
        """Let a follower apply nothing for a while but what it must."""
        server = self.servers[follower]
        server.lags = on
        if not on:
            server.catch_up()

    def trail(self, seconds: float) -> None:
        """Let every follower be behind by up to *seconds*."""
        for server in self.servers[1:]:
            server.trails = seconds
            if not seconds and not server.lags:
                server.catch_up()


class _Plan:
    """A transaction under way: checked against the leader's tree with its own changes on top."""

    def __init__(self, ensemble: Ensemble, session: ZkSession, zxid: int) -> None:
        self._ensemble = ensemble
        self._session = session
        self._zxid = zxid
        self._changes: list[Change] = []
        self._nodes: dict[str, tuple[int, int, int] | None] = {}
        """version, number of children, owner as they will be; None: gone."""

    def _look(self, path: str) -> tuple[int, int, int] | None:
        if path in self._nodes:
            return self._nodes[path]
        node = self._ensemble.tree.get(path)
        return None if node is None else (node.version, len(node.children), node.owner)

    def do(self, message: Any) -> Any:
        path = message.path
        if isinstance(message, wire.Create):
            return self._create(path, message)
        found = self._look(path)
        if found is None:
            return kazoo_errors.NoNodeError()
        version, children, owner = found
        if message.version not in (-1, version):
            return kazoo_errors.BadVersionError()
        if isinstance(message, wire.CheckVersion):
            return True
        if isinstance(message, wire.Delete):
            if children:
                return kazoo_errors.NotEmptyError()
            self._nodes[path] = None
            self._count(path, -1)
            self._changes.append(("delete", path, b"", owner, self._zxid))
            return True
        self._nodes[path] = (version + 1, children, owner)
        self._changes.append(("set", path, bytes(message.data), 0, self._zxid))
        node = self._ensemble.tree.get(path)
        stat = Znode(message.data, self._zxid, owner) if node is None else node
        return (
            stat.czxid, self._zxid, 0, 0, version + 1, stat.cversion, 0, owner,
            len(message.data), children, stat.pzxid,
        )  # fmt: skip

    def _create(self, path: str, message: Any) -> Any:
        parent_path = path.rpartition("/")[0] or "/"
        parent = self._look(parent_path)
        if parent is None:
            return kazoo_errors.NoNodeError()
        if parent[2]:
            return kazoo_errors.NoChildrenForEphemeralsError()
        if message.flags & SEQUENTIAL:
            sequences = self._ensemble._sequences
            number = sequences[parent_path] = sequences.get(parent_path, -1) + 1
            path = f"{path}{number:010d}"
        if self._look(path) is not None:
            return kazoo_errors.NodeExistsError()
        owner = self._session.number if message.flags & EPHEMERAL else 0
        self._nodes[path] = (0, 0, owner)
        self._count(path, 1)
        self._changes.append(("create", path, bytes(message.data), owner, self._zxid))
        return path

    def _count(self, path: str, change: int) -> None:
        parent_path = path.rpartition("/")[0] or "/"
        parent = self._look(parent_path)
        assert parent is not None
        self._nodes[parent_path] = (parent[0], parent[1] + change, parent[2])

    def commit(self) -> None:
        ensemble = self._ensemble
        for change in self._changes:
            kind, path, _, owner, _ = change
            if owner:
                session = ensemble.sessions.get(owner)
                if session is not None:
                    if kind == "create":
                        session.ephemerals[path] = None
                    else:
                        session.ephemerals.pop(path, None)
            ensemble._commit(change)


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
        """When the client knows at the latest that its session is over: by its own clock, or because it can ask."""
        if self._cut_off():
            return self._received_at + self._timeout
        return max(self._reachable_at, self.ensemble.up_at)

    def _cut_off(self) -> bool:
        wires = self.ensemble.wires
        return (
            not self.ensemble.up
            or wires.blocked(self._node, ZOOKEEPER)
            or wires.blocked(ZOOKEEPER, self._node)
        )

    def _connect(self) -> None:
        if self._stopped:
            self._ended()
            return
        if self.live:
            return  # it was lost twice before it was made again; another attempt would drop what is under way now
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
        if self.ensemble.wires.blocked(self._node, ZOOKEEPER):
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
        reads = isinstance(message, wire.GetData | wire.Exists | wire.GetChildren2 | ReadMany)
        if reads:
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
        if self.ensemble.wires.blocked(ZOOKEEPER, self._node):
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
            self._state(connected=False, expired=False)
            outstanding, self._outstanding = self._outstanding, {}
            for request in outstanding:
                request.set_exception(kazoo_errors.ConnectionLoss())
        self._process.callLater(self._rng.uniform(0.02, 0.3), self._connect)

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
        received_at = self._received_at
        self._generation += 1
        self._server.forget(self)
        self._stuck.clear()
        session = self.session
        if session is not None and session.connection is self:
            session.connection = None
        self.live = False
        self._received_at = received_at
        self._state(connected=False, expired=False)
        outstanding, self._outstanding = self._outstanding, {}
        for request in outstanding:
            request.set_exception(kazoo_errors.ConnectionLoss())
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
