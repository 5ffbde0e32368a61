"""This broker's place in the cluster: the cluster's id, and our ephemeral znode in /brokers/ids.

Theory of operation
===================
A broker is a member of the cluster while /brokers/ids/N exists in *its own* session. It registers
once its listeners are bound, again in every new session, and again should somebody delete the
znode by hand. The znode's czxid is the broker epoch (KIP-380): it rises with every registration,
so that requests meant for an earlier incarnation can be told from ours.

Creating an ephemeral znode has three ways to meet one that exists (Kafka's CheckedEphemeral;
KAFKA-1387, KAFKA-7165):
- its owner is our session: our own create succeeded and only the answer was lost;
- it is the rest of a session of ours that the server has not buried yet: same endpoints as ours.
  We wait until it goes, no longer than a session can live;
- it belongs to another broker: two brokers have the same broker.id, and the second must not run.

With the registration goes what this life of the broker still holds of what earlier ones had (KIP-966): `History`
says it, and hears of every broker epoch before anybody else here.

Invariants
1. `broker_epoch` is the czxid of a znode owned by the current session, or None.
2. `Registered` and `Unregistered` alternate.

In: session events, watch on our znode   Out: Registered, Unregistered   Owner: the reactor's thread
"""

from __future__ import annotations

import base64
import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

from kbroker.common.gather import all_of
from kbroker.common.log_dir_integrity import LogDirIntegrity
from kbroker.zk import znodes
from kbroker.zk.errors import (
    ConnectionLoss,
    NodeExists,
    NoNode,
    PoisonZnode,
    SessionExpired,
    ZooKeeperError,
)
from kbroker.zk.interface import Connected, Expired, Lapsed, Node, Session, SessionEvent, ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kbroker.zk.znodes import BrokerInfo

log = Logger()

RETRY_DELAY = 0.2
MAX_SESSION = 60.0
"""Seconds: no session of a former self is waited for longer than this."""


class DuplicateBrokerError(Exception):
    """Another running broker has our broker.id."""


class WrongClusterError(Exception):
    """ZooKeeper does not hold our cluster any more."""


@dataclass(frozen=True, slots=True)
class Registered:
    """We are a member, with this broker epoch, in this session."""

    broker_epoch: int
    session: Session


@dataclass(frozen=True, slots=True)
class Unregistered:
    """Our session is over, or may be: others may think us dead."""


RegistrationEvent = Registered | Unregistered


class History(Protocol):
    """The log directories, as they remember the broker's lives."""

    def registering(self) -> LogDirIntegrity:
        """Return what the next registration is to say."""

    def registered(self, broker_epoch: int) -> None:
        """Remember the broker epoch that we live under from now on."""


async def ensure_paths(zk: ZooKeeper) -> None:
    """Create the persistent znodes that every cluster has, in one round trip."""
    paths: dict[str, None] = {}
    for path in znodes.PERSISTENT_PATHS:
        elements = path.split("/")[1:]
        for depth in range(1, len(elements) + 1):
            paths["/" + "/".join(elements[:depth])] = None

    def there(failure: Any) -> Any:
        return None if isinstance(failure.value, NodeExists) else failure

    await all_of([zk.create(path).addErrback(there) for path in paths])


async def obtain_cluster_id(zk: ZooKeeper) -> str:
    """Return the id in /cluster/id; the first broker of a cluster makes it up."""
    proposal = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    try:
        node = await zk.get(znodes.CLUSTER_ID)
    except NoNode:
        try:
            await zk.create(
                znodes.CLUSTER_ID, znodes.encode_cluster_id(proposal), make_parents=True
            )
        except NodeExists:
            node = await zk.get(znodes.CLUSTER_ID)
        else:
            return proposal
    return znodes.decode_cluster_id(node.data)


async def enter_cluster(zk: ZooKeeper, reconnect: Reconnect) -> str:
    """Create what every cluster has, if it is not there, and return the cluster's id; breaks are waited out.

    Raise RequestTimedOut when ZooKeeper stays away.
    """
    await reconnect.read(None, lambda: ensure_paths(zk))
    return await reconnect.read(None, lambda: obtain_cluster_id(zk))


async def generate_broker_id(zk: ZooKeeper, reserved_max: int) -> int:
    """Make up a broker.id (-1 in the configuration), above *reserved_max*, as Kafka does."""
    stat = await zk.set(znodes.BROKER_SEQUENCE, b"", -1)
    return reserved_max + stat.version


class BrokerRegistration:
    """Keeps us registered."""

    def __init__(
        self,
        reactor: Any,
        zk: ZooKeeper,
        registration: BrokerInfo,
        *,
        cluster_id: str,
        reconnect: Reconnect,
        on_fatal: Callable[[Exception], None],
        history: History | None = None,
        is_extended: bool = True,
    ) -> None:
        """Without *is_extended* (inter.broker.protocol.version) the registration has Kafka's own fields only."""
        self._is_extended = is_extended
        self._reactor = reactor
        self._zk = zk
        self._registration = registration
        self._cluster_id = cluster_id
        self._reconnect = reconnect
        self._history = history
        self._path = znodes.broker_path(registration.broker_id)
        self._on_fatal = on_fatal
        self._epoch: int | None = None
        self._wanted = False
        self._registering = False
        self._listeners: list[Callable[[RegistrationEvent], None]] = []

    @property
    def broker_epoch(self) -> int | None:
        """The czxid of our znode, None while we are not registered."""
        return self._epoch

    def on_event(self, callback: Callable[[RegistrationEvent], None]) -> None:
        """Call *callback* whenever we become a member or cease to be one."""
        self._listeners.append(callback)

    async def register(self) -> int:
        """Register for the first time and stay registered; the broker epoch, or DuplicateBrokerError.

        A connection that breaks meanwhile, or a session that ends, is waited out; RequestTimedOut when
        ZooKeeper stays away.
        """
        self._zk.on_session(self._on_session)
        self._wanted = True
        self._registering = True
        try:
            epoch = await self._reconnect.read(None, self._register)
        finally:
            self._registering = False
        self._zk.watch_data(self._path, self._on_znode)
        return epoch

    def stop(self) -> None:
        """Stay registered no longer than this session."""
        self._wanted = False

    # --- following the session ---

    def _on_session(self, event: SessionEvent) -> None:
        if isinstance(event, (Lapsed, Expired)):
            self._lost()
        elif isinstance(event, Connected) and self._wanted and self._epoch is None:
            self._register_again()

    def _on_znode(self, node: Node | None) -> None:
        if node is None and self._epoch is not None and self._wanted and self._zk.connected:
            log.warn("somebody deleted {path}: registering again", path=self._path)
            self._lost()
            self._register_again()

    def _lost(self) -> None:
        if self._epoch is not None:
            self._epoch = None
            self._emit(Unregistered())

    def _register_again(self) -> None:
        if self._registering:
            return
        self._registering = True

        async def register() -> None:
            try:
                await self._check_cluster()
                await self._register()
            except (DuplicateBrokerError, WrongClusterError) as error:
                self._on_fatal(error)
            except ZooKeeperError as error:
                if not isinstance(error, (ConnectionLoss, SessionExpired)):
                    log.error("cannot register at {path}: {why}", path=self._path, why=error)
                # Whatever it was: the next Connected event or this timer brings us back here.
                self._reactor.callLater(RETRY_DELAY, self._retry)
            finally:
                self._registering = False

        ensureDeferred(register()).addErrback(
            lambda failure: log.failure("registering failed", failure)
        )

    def _retry(self) -> None:
        if self._wanted and self._epoch is None and self._zk.connected:
            self._register_again()

    async def _check_cluster(self) -> None:
        """Refuse to join what is not our cluster: ZooKeeper was wiped, or replaced (S24)."""
        await self._zk.sync("/")
        try:
            found = znodes.decode_cluster_id((await self._zk.get(znodes.CLUSTER_ID)).data)
        except NoNode:
            found = ""
        if found != self._cluster_id:
            holds = f"the cluster {found}" if found else "no cluster at all"
            raise WrongClusterError(
                f"this broker belongs to the cluster {self._cluster_id}, but ZooKeeper now holds "
                f"{holds}: it was wiped, restored or replaced. No data was touched. Restore ZooKeeper, "
                "or correct zookeeper.connect, and start the broker again."
            )

    # --- registering ---

    async def _register(self) -> int:
        session = self._zk.session
        if session is None:
            raise SessionExpired(self._path)
        zk = self._zk.in_session(session)
        data = znodes.encode_broker(self._info())
        deadline: float | None = None
        while True:
            with contextlib.suppress(NodeExists):
                await zk.create(self._path, data, ephemeral=True)
            try:
                node = await zk.get(self._path)
            except NoNode:
                continue  # gone since
            if node.stat.ephemeral_owner == session.id:
                if node.data != data:
                    await zk.set(self._path, data, node.stat.version)
                return self._registered(node.stat.czxid, session)
            deadline = self._refuse_or_wait_until(node, session, deadline)
            await self._until_free(deadline)

    def _info(self) -> BrokerInfo:
        if self._history is None:
            return self._registration
        integrity = self._history.registering()
        if not self._is_extended:
            return self._registration
        return replace(self._registration, integrity=integrity)

    def _registered(self, czxid: int, session: Session) -> int:
        self._epoch = czxid
        if self._history is not None:
            self._history.registered(czxid)
        log.info("registered at {path} with broker epoch {epoch}", path=self._path, epoch=czxid)
        self._emit(Registered(czxid, session))
        return czxid

    def _refuse_or_wait_until(self, node: Node, session: Session, deadline: float | None) -> float:
        """Decide about a znode that is not ours: a deadline to wait until, or DuplicateBrokerError."""
        number = self._registration.broker_id
        owner = node.stat.ephemeral_owner
        try:
            theirs = znodes.decode_broker(number, node.data).endpoints
        except PoisonZnode:
            theirs = ()
        where = ", ".join(map(str, theirs)) or "an unreadable address"
        now: float = self._reactor.seconds()
        if deadline is None and theirs == self._registration.endpoints:
            wait = min(MAX_SESSION, 2 * session.timeout)
            log.warn(
                "{path} is still held by ZooKeeper session {owner:#x}, which looks like a former self "
                "of this broker: waiting up to {wait:g} s for it to expire",
                path=self._path,
                owner=owner,
                wait=wait,
            )
            return now + wait
        if deadline is not None and now < deadline:
            return deadline
        raise DuplicateBrokerError(
            f"broker.id={number} is already registered, by a broker at {where} (ZooKeeper session "
            f"{owner:#x}). Give this broker another broker.id, or stop that one. If that one is this "
            "broker itself before a crash, try again when its session has expired "
            "(zookeeper.session.timeout.ms)."
        )

    def _until_free(self, deadline: float) -> Deferred[None]:
        """Fire when our path is free, or at *deadline*."""
        free: Deferred[None] = Deferred()

        def finish() -> None:
            if not free.called:
                watch.cancel()
                free.callback(None)

        timer = self._reactor.callLater(max(0.0, deadline - self._reactor.seconds()), finish)

        def seen(node: Node | None) -> None:
            if node is None and timer.active():
                timer.cancel()
                self._reactor.callLater(0, finish)

        watch = self._zk.watch_data(self._path, seen)
        return free

    def _emit(self, event: RegistrationEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                log.failure("a listener failed on {event}", event=event)
