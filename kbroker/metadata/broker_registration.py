"""The broker's registration: the cluster's id, and the broker's ephemeral znode in /brokers/ids.

Theory of operation
===================
A broker is registered while /brokers/ids/N exists in *its own* session. It registers once its listeners are bound,
again in every new session, and again if the znode is deleted by hand. Altered endpoints (`advertise`) are written into
the znode of the registration. The znode's czxid is the broker epoch (KIP-380).
It rises with every registration: requests for an earlier registration can be rejected.

The create of an ephemeral znode meets an existing one in three cases (Kafka's CheckedEphemeral; KAFKA-1387,
KAFKA-7165):
- its owner is the broker's session: the create succeeded and only its answer was lost;
- it belongs to a previous session of this broker that the server has not expired yet: it has the same endpoints. The
  broker waits until it goes, no longer than a session can last;
- it belongs to another broker: two brokers have the same broker.id, and the second must not run.

The registration also holds what the log directories vouch for (KIP-966). `History` returns it, and gets every broker
epoch before the listeners of events. If the answer to a create is lost and its session ends, that broker epoch stays
unknown here. The controller may have elected this broker under it, so `History` gets a lower bound first.

Invariants
1. `broker_epoch` is the czxid of a znode owned by the current session, or None.
2. `Registered` and `Unregistered` alternate.

In: session events, watch on the broker's znode   Out: Registered, Unregistered   Owner: the reactor's thread
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

from kbroker.common.endpoint import Endpoint
from kbroker.common.gather import all_of
from kbroker.common.log_dir_integrity import LogDirIntegrity
from kbroker.zk import znodes
from kbroker.zk.errors import (
    BadVersion,
    ConnectionLoss,
    Disconnected,
    NodeExists,
    NoNode,
    PoisonZnode,
    SessionExpired,
    ZooKeeperError,
)
from kbroker.zk.interface import Connected, Expired, Lapsed, Node, Session, SessionEvent, ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kbroker.zk.znodes import BrokerInfo
from kclient.wire.uuids import encode_uuid

log = Logger()

RETRY_DELAY = 0.2
MAX_SESSION = 60.0
"""Seconds: the longest wait for the expiry of a previous session."""


class DuplicateBrokerError(Exception):
    """Another running broker has this broker.id."""


class WrongClusterError(Exception):
    """ZooKeeper does not hold the cluster of this broker any more."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The broker is registered, with this broker epoch, in this session."""

    broker_epoch: int
    session: Session


@dataclass(frozen=True, slots=True)
class Unregistered:
    """The session is over, or may be: the controller may count this broker as dead."""


RegistrationEvent = Registered | Unregistered


class History(Protocol):
    """The history of the log directories: which registrations of the broker wrote them."""

    def registering(self, after: int) -> LogDirIntegrity:
        """Return the part of the next registration that the log directories determine.

        Its broker epoch is above *after*, if the previous registration is not still there.
        """

    def registered(self, broker_epoch: int) -> None:
        """Record the broker epoch of the registration."""

    def refused(self) -> None:
        """Record that the attempt has no broker epoch: the znode was certainly not created."""


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
    """Return the id in /cluster/id; the first broker of a cluster generates it."""
    proposal = encode_uuid(uuid.uuid4())
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
    """Generate a broker.id (-1 in the configuration) above *reserved_max*, as Kafka does."""
    stat = await zk.set(znodes.BROKER_SEQUENCE, b"", -1)
    return reserved_max + stat.version


class BrokerRegistration:
    """Keeps the broker registered."""

    def __init__(
        self,
        reactor: Any,
        zk: ZooKeeper,
        registration: BrokerInfo,
        *,
        cluster_id: str,
        reconnect: Reconnect,
        on_event: Callable[[RegistrationEvent], None],
        on_fatal: Callable[[Exception], None],
        history: History,
        is_extended: bool,
    ) -> None:
        """*on_event* receives every `Registered` and `Unregistered`.

        Without *is_extended* (inter.broker.protocol.version) the registration has Kafka's own fields only.
        """
        self._is_extended = is_extended
        self._reactor = reactor
        self._zk = zk
        self._registration = registration
        self._cluster_id = cluster_id
        self._reconnect = reconnect
        self._history = history
        self._path = znodes.broker_path(registration.broker_id)
        self._on_event = on_event
        self._on_fatal = on_fatal
        self._epoch: int | None = None
        self._wanted = False
        self._registering = False

    @property
    def broker_epoch(self) -> int | None:
        """The czxid of the broker's znode, None while it is not registered."""
        return self._epoch

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

    # --- altered endpoints ---

    def advertise(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Register *endpoints* from now on: in the znode that is there, and in later ones."""
        if endpoints == self._registration.endpoints:
            return
        self._registration = replace(self._registration, endpoints=endpoints)
        log.info("advertised listeners are {all} now", all=", ".join(map(str, endpoints)))
        self._write_endpoints()

    def _write_endpoints(self) -> None:
        if self._epoch is None or not self._wanted:
            return  # the next registration writes them

        async def write() -> None:
            try:
                await self._write_endpoints_of(self._epoch)
            except (ConnectionLoss, BadVersion):
                self._reactor.callLater(RETRY_DELAY, self._write_endpoints)
            except (NoNode, SessionExpired):
                pass  # the next registration has them

        ensureDeferred(write()).addErrback(
            lambda failure: log.failure("altering the registration failed", failure)
        )

    async def _write_endpoints_of(self, epoch: int | None) -> None:
        """Write the endpoints into the znode if it is still the registration with this *epoch*."""
        node = await self._zk.get(self._path)
        if node.stat.czxid != epoch:
            return
        there = znodes.decode_broker(self._registration.broker_id, node.data)
        altered = replace(there, endpoints=self._registration.endpoints)
        if altered != there:
            await self._zk.set(self._path, znodes.encode_broker(altered), node.stat.version)

    # --- following the session ---

    def _on_session(self, event: SessionEvent) -> None:
        if isinstance(event, (Lapsed, Expired)):
            self._lost()
        elif isinstance(event, Connected) and self._wanted and self._epoch is None:
            self._register_again()

    def _on_znode(self, node: Node | None) -> None:
        if node is None and self._epoch is not None and self._wanted and self._zk.connected:
            log.warn("{path} was deleted: registering again", path=self._path)
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
                # In every case the next Connected event or this timer tries again.
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
        """Raise WrongClusterError if ZooKeeper was wiped, or replaced (S24)."""
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
        deadline: float | None = None
        while True:
            # Each registration so far has changed the children, so its epoch is not above their pzxid. The next one is.
            await zk.sync(znodes.BROKER_IDS)
            brokers = await zk.exists(znodes.BROKER_IDS)
            info = self._info(-1 if brokers is None else brokers.pzxid)
            data = znodes.encode_broker(info)
            node = await self._create(zk, data)
            if node is not None and node.stat.ephemeral_owner == session.id:
                if node.data != data:
                    await zk.set(self._path, data, node.stat.version)
                epoch = self._registered(node.stat.czxid, session)
                if info.endpoints != self._registration.endpoints:  # altered meanwhile
                    self._write_endpoints()
                return epoch
            if node is not None:
                deadline = self._refuse_or_wait_until(node, session, deadline)
                await self._until_free(deadline)

    async def _create(self, zk: ZooKeeper, data: bytes) -> Node | None:
        """Create the broker's znode if there is none, and return what is there then; None: it is gone since."""
        try:
            await zk.create(self._path, data, ephemeral=True)
        except (NodeExists, Disconnected, SessionExpired) as error:
            self._history.refused()
            if not isinstance(error, NodeExists):
                raise
        try:
            return await zk.get(self._path)
        except NoNode:
            return None

    def _info(self, after: int) -> BrokerInfo:
        integrity = self._history.registering(after)
        if not self._is_extended:
            return self._registration
        return replace(self._registration, integrity=integrity)

    def _registered(self, czxid: int, session: Session) -> int:
        self._epoch = czxid
        self._history.registered(czxid)
        log.info("registered at {path} with broker epoch {epoch}", path=self._path, epoch=czxid)
        self._emit(Registered(czxid, session))
        return czxid

    def _refuse_or_wait_until(self, node: Node, session: Session, deadline: float | None) -> float:
        """Decide about the znode of another session: return a deadline to wait for, or raise DuplicateBrokerError."""
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
                "{path} is still held by ZooKeeper session {owner:#x}, with the endpoints "
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
        """Fire when the broker's path is free, or at *deadline*."""
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
        try:
            self._on_event(event)
        except Exception:
            log.failure("the listener failed on {event}", event=event)
