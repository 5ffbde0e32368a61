"""ZooKeeper as a model: a tree of which every server has a copy, watches, and sessions that expire.

Requests are kazoo's messages. They take effect at the leader, in the order in which `tests.simulation.zk_connection`
delivers them. A follower may lag, or trail by moments: it applies later what is committed, in order, and answers reads
from what it has. What holds then is what ZooKeeper promises: reads are of a prefix of history, which never goes back
within a session, whatever server it moves to; a client sees its own writes, and after a `sync` all that was
committed before; a session that begins sees all that was before it, one that goes on need not (S23).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from kazoo import exceptions as kazoo_errors
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from kbroker.zk.requests import ReadMany
from tests.simulation.clock import EPOCH, Call, Scheduler
from tests.simulation.network import Network

ZOOKEEPER = 99
"""The ensemble's node on the network: links to it can be blocked."""

EPHEMERAL, SEQUENTIAL = 1, 2

Stat = tuple[int, int, int, int, int, int, int, int, int, int, int]
Change = tuple[str, str, bytes, int, int]
"""create, set or delete; path, data, owner, zxid."""


class Znode:
    """One znode."""

    __slots__ = (
        "children", "ctime", "cversion", "czxid", "data", "mtime", "mzxid", "owner", "pzxid", "version",
    )  # fmt: skip

    def __init__(self, data: bytes, zxid: int, owner: int, now_ms: int = 0) -> None:
        self.data = data
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = now_ms
        self.version = self.cversion = 0
        self.owner = owner
        self.children: dict[str, None] = {}

    def stat(self) -> Stat:
        return (
            self.czxid, self.mzxid, self.ctime, self.mtime, self.version, self.cversion, 0, self.owner,
            len(self.data), len(self.children), self.pzxid,
        )  # fmt: skip


class Connection(Protocol):
    """A client's connection, as the servers know it."""

    def notify(self, fired: Callable[[Any], None], event: Any) -> None:
        """Deliver a watch event."""

    def broken(self) -> None:
        """Handle the end of the session, or a server that closes the connection."""


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
        self._data_watches: dict[str, dict[Callable[[Any], None], Connection]] = {}
        self._child_watches: dict[str, dict[Callable[[Any], None], Connection]] = {}

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

    def _now_ms(self) -> int:
        """Return what its clock shows when it applies a change; a server that is behind is later than others."""
        return int((EPOCH + self._ensemble.scheduler.now) * 1000)

    def _apply(self, change: Change) -> None:
        kind, path, data, owner, zxid = change
        self.applied = zxid
        tree = self.tree
        if kind == "set":
            node = tree[path]
            node.data, node.mzxid, node.version = data, zxid, node.version + 1
            node.mtime = self._now_ms()
            self._fire(self._data_watches, path, EventType.CHANGED)
            return
        parent_path, _, name = path.rpartition("/")
        parent_path = parent_path or "/"
        parent = tree[parent_path]
        parent.cversion += 1
        parent.pzxid = zxid
        if kind == "create":
            tree[path] = Znode(data, zxid, owner, self._now_ms())
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

    def forget(self, connection: Connection) -> None:
        for watches in (self._data_watches, self._child_watches):
            for path in list(watches):
                watches[path] = {f: c for f, c in watches[path].items() if c is not connection}

    def read(self, message: Any, connection: Connection) -> Any:
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
        self.connection: Connection | None = None
        self.ephemerals: dict[str, None] = {}
        self.expiry: Call | None = None


class Ensemble:
    """The leader (server 0), which is up to date by definition, and two followers that may lag."""

    def __init__(self, scheduler: Scheduler, rng: Random, network: Network) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.network = network
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
