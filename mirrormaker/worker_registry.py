"""Registers a worker of a flow in the target's ZooKeeper, and follows the list of workers.

Theory of operation
===================
The znodes are ``/kmirror/<cluster id of the source>/workers/<settings>-<id>-<sequence>``, ephemeral and sequential.
The list of names is all that the assignment needs (`mirrormaker.workers`); the content is for ``kmirror status``.

A watch delivers the list after every change. Whenever the list does not have this worker, it registers: at the start,
after an expired session, and when an operator deleted its znode. A registration with an unknown outcome is read back
first. The id stays the same for a run of the process, so a worker that registers again gets the same partitions. A
second znode of the same worker changes nothing.

A worker that cannot read the topics of both clusters leaves. It deletes its znode, the others take its partitions, and
it registers again when it can.

A worker that stops ends its session, after its last append: the others take its partitions at once. A worker that was
killed is in the list until its session expires.

In: events of the session, lists   Out: znodes, calls of `changed`   Owner: the reactor's thread
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.errors import (
    CannotConnect,
    Disconnected,
    NoNode,
    SessionExpired,
    ZooKeeperError,
)
from kbroker.zk.interface import ANY_VERSION, Children, Connected, Expired, Lapsed, SessionEvent
from kbroker.zk.session_state import parse_connect
from kclient.errors import ClientError
from kclient.net.waiting import sleep
from mirrormaker.workers import (
    Member,
    Workers,
    WorkerSettings,
    WorkerState,
    members_of,
    znode_prefix,
)

CONNECT_TIMEOUT = 15.0
"""Seconds after which a start without ZooKeeper is reported; the worker continues to try."""

RETRY = 2.0
"""Seconds before a failed registration is repeated."""

PUBLISH_INTERVAL = 10.0
"""Seconds between two writes of the counts."""


class WorkerStatus(NamedTuple):
    """A registered worker and the content of its znode, or {} if that is not readable."""

    member: Member
    content: Mapping[str, Any]


def check_connect(text: str) -> None:
    """Raise ValueError unless *text* is a list of ZooKeeper servers, with a chroot or without."""
    parse_connect(text)


def workers_path(source_id: str) -> str:
    """Return the znode with the workers of all flows from the cluster *source_id*."""
    return f"/kmirror/{quote(source_id, safe='')}/workers"


class WorkerRegistry:
    """Keeps *workers* up to date. *changed* is called after every event; *report* gets (subject, event).

    *client* creates the ZooKeeper client.
    """

    def __init__(
        self,
        reactor: Any,
        settings: WorkerSettings,
        workers: Workers,
        *,
        changed: Callable[[], None],
        report: Callable[[str, str], None],
        defect: Callable[[Failure], None],
        client: Callable[..., ZooKeeperClient] | None = None,
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._workers = workers
        self._changed = changed
        self._report = report
        self._defect = defect
        self._make_client = client or ZooKeeperClient
        self._path = ""
        self._zk: ZooKeeperClient | None = None
        self._connecting: Deferred[None] | None = None
        self._registering: Deferred[None] | None = None
        self._counts: dict[str, int] = {}
        self._published_at = float("-inf")
        self._stopping = False
        self._is_away = False
        """Whether `leave` was called last, and not `come_back`."""
        self._mismatched: set[str] = set()

    def enter(self, source_id: str) -> None:
        """Connect, register, and follow the list from now on."""
        self._path = workers_path(source_id)
        self._connecting = Deferred.fromCoroutine(self._connect())
        self._connecting.addErrback(self._ended)

    async def stop(self) -> None:
        """End the session: the znode goes at once."""
        self._stopping = True
        for running in (self._connecting, self._registering):
            if running is not None:
                running.cancel()
        if self._zk is not None:
            await self._zk.stop()

    def leave(self) -> None:
        """Delete the znode, so that others take the partitions; report it once."""
        if not self._is_away:
            self._is_away = True
            self._report(
                "workers", "this worker leaves: it cannot read the topics of both clusters"
            )
        self._workers.cut_off()
        self._register_soon()

    def come_back(self) -> None:
        """Register, unless this worker is registered: after `leave`, or after a registration that failed."""
        self._is_away = False
        if self._workers.state is not WorkerState.MEMBER:
            self._register_soon()

    def publish(self, counts: Mapping[str, int]) -> None:
        """Write *counts* into the znode if they changed, at most every `PUBLISH_INTERVAL` seconds."""
        own = [each for each in self._workers.members if each.worker_id == self._workers.worker_id]
        now = self._reactor.seconds()
        if (
            self._zk is None
            or not own
            or counts == self._counts
            or now < self._published_at + PUBLISH_INTERVAL
        ):
            return
        self._counts, self._published_at = dict(counts), now
        written = self._zk.set(f"{self._path}/{own[-1].name}", self._content(), ANY_VERSION)
        written.addErrback(lambda failure: failure.trap(ZooKeeperError))

    def _content(self) -> bytes:
        found = {"version": 1, "host": socket.gethostname(), "pid": os.getpid(), **self._counts}
        return json.dumps(found, sort_keys=True).encode()

    # --- the session

    async def _connect(self) -> None:
        """Connect, and try again until a server answers."""
        connect, timeout = self._settings
        while True:
            zk = self._zk = self._make_client(self._reactor, connect, session_timeout=timeout)
            zk.on_session(self._session_changed)
            zk.watch_children(self._path, self._listed)
            try:
                await zk.start(CONNECT_TIMEOUT)
                return
            except CannotConnect:
                self._report(
                    "workers", f"no ZooKeeper server of {connect} answers; nothing is copied"
                )
            except ZooKeeperError as problem:
                self._report("workers", f"{problem}; nothing is copied")
                await sleep(self._reactor, RETRY)

    def _session_changed(self, event: SessionEvent) -> None:
        if self._stopping:
            return
        if isinstance(event, Connected):
            self._register_soon()
        elif isinstance(event, Lapsed | Expired):
            self._cut_off()

    def _cut_off(self) -> None:
        if self._workers.state is not WorkerState.MEMBER:
            return
        self._workers.cut_off()
        self._report(
            "workers",
            "the session with ZooKeeper may have expired; a partition is copied until another worker does",
        )
        self._changed()

    # --- the list

    def _listed(self, children: Children | None) -> None:
        """Handle a new list of the watch."""
        if not self._stopping and not self._take(children.names if children is not None else []):
            self._register_soon()

    def _take(self, names: list[str]) -> bool:
        """Handle a list; return whether this worker is registered."""
        before = self._workers.state, self._workers.members
        if self._is_away:
            return False
        registered = self._workers.listed(names)
        if (self._workers.state, self._workers.members) != before:
            self._changed()
        for each in self._workers.mismatched:
            if each.name not in self._mismatched:
                self._report(
                    "workers", f"{each.worker_id} has other settings and copies for itself"
                )
        self._mismatched = {each.name for each in self._workers.mismatched}
        return registered

    def _register_soon(self) -> None:
        if self._registering is None:
            registering = Deferred.fromCoroutine(self._register())
            if not registering.called:
                self._registering = registering

            def ended(result: Any) -> Any:
                self._registering = None
                return result

            registering.addBoth(ended).addErrback(self._ended)

    async def _register(self) -> None:
        """Create the znode until the list has this worker, or delete it, or the connection is lost."""
        zk = self._zk
        while zk is not None and not self._stopping:
            try:
                names = await self._names(zk)
                if self._is_away:
                    await self._delete(zk, names)
                    return
                if self._take(names):
                    return
                name = znode_prefix(self._workers.settings, self._workers.worker_id)
                path = f"{self._path}/{name}"
                await zk.create(
                    path, self._content(), ephemeral=True, sequential=True, make_parents=True
                )
            except (Disconnected, SessionExpired):
                return  # the next connection continues
            except ZooKeeperError as problem:
                self._report("workers", f"cannot register: {problem}")
                await sleep(self._reactor, RETRY)

    async def _delete(self, zk: ZooKeeperClient, names: list[str]) -> None:
        for each in members_of(names):
            if each.worker_id == self._workers.worker_id:
                await zk.delete(f"{self._path}/{each.name}")

    async def _names(self, zk: ZooKeeperClient) -> list[str]:
        try:
            return (await zk.children(self._path)).names
        except NoNode:
            return []

    def _ended(self, failure: Failure) -> None:
        """Handle the end of a coroutine by an exception: its cancellation by `stop`, or a bug."""
        if not self._stopping or failure.check(CancelledError) is None:
            self._defect(failure)


class WorkersUnreadable(ClientError):
    """The workers of a flow could not be read in ZooKeeper."""


async def read_workers(
    reactor: Any, settings: WorkerSettings, source_id: str, *, timeout: float
) -> list[WorkerStatus]:
    """Return the workers of all flows from the cluster *source_id*, oldest first. Raise WorkersUnreadable."""
    zk = ZooKeeperClient(reactor, settings.connect, session_timeout=settings.session_timeout)
    path = workers_path(source_id)
    try:
        await zk.start(timeout)
        members = members_of((await zk.children(path)).names)
        nodes = await zk.get_all([f"{path}/{each.name}" for each in members])
        return [
            WorkerStatus(member, _content(node.data))
            for member, node in zip(members, nodes, strict=True)
            if node is not None
        ]
    except NoNode:
        return []
    except ZooKeeperError as problem:
        raise WorkersUnreadable(str(problem)) from None
    finally:
        await zk.stop()


def _content(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
