"""The election of the controller: who holds the ephemeral /controller, at which epoch.

Theory of operation
===================
A candidate creates /controller and raises /controller_epoch in **one** multi, the epoch conditional on
the version it read (Kafka's registerControllerAndIncrementControllerEpoch): two winners cannot share
an epoch, and a winner's epoch is always the newest. The outcome of a lost answer is found by reading
back: our session owns /controller and the epoch is the one we wrote, or we did not win. A term ends
when the session lapses or expires, when another holds /controller, or by `abdicate`; what was decided
in a term dies with it. Whoever finds /controller held by his own session without a term (after a
lapse that was none) gives it up and stands again, so that the epoch rises.

In: session events, the watch on /controller   Out: elected, deposed, controller changed
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.reactor import Clock
from kbroker.zk import znodes
from kbroker.zk.errors import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    PoisonZnode,
    SessionExpired,
    ZooKeeperError,
)
from kbroker.zk.interface import (
    Connected,
    Create,
    Expired,
    Lapsed,
    Node,
    Session,
    SessionEvent,
    SetData,
    Stat,
    Watch,
    ZooKeeper,
)
from kbroker.zk.reconnect import Reconnect

log = Logger()

RETRY_SECONDS = 0.5
CRASH_SECONDS = 2.0
"""Pause before a broker whose controller failed by a bug stands again: others first."""


@dataclass(frozen=True, slots=True)
class Term:
    """One time in office."""

    session: Session
    controller_epoch: int
    epoch_zk_version: int
    """Version of /controller_epoch: every write of the term is conditional on it (KAFKA-6082)."""


class ControllerElection:
    """Stands for election whenever the office is free."""

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        reconnect: Reconnect,
        broker_id: int,
        *,
        now_ms: Callable[[], int],
        on_elected: Callable[[Term], None],
        on_deposed: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._zookeeper = zookeeper
        self._reconnect = reconnect
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._on_elected = on_elected
        self._on_deposed = on_deposed
        self._watch: Watch | None = None
        self._standing = False
        self._held = False
        self._stopped = False
        self.term: Term | None = None
        self.controller_id: int | None = None
        """Who holds /controller, as last seen; None while nobody does."""

    def start(self) -> None:
        """Stand for election now and whenever the office falls vacant."""
        self._zookeeper.on_session(self._on_session)
        self._watch = self._zookeeper.watch_data(znodes.CONTROLLER, self._have_controller)

    def stop(self) -> None:
        """Leave office and stand no more. The ephemeral goes with the session, or `abdicate`."""
        self._stopped = True
        if self._watch is not None:
            self._watch.cancel()
        self._depose("this broker is shutting down")

    def depose(self, reason: str) -> None:
        """End the term: somebody else governs, or nobody knows. Stand again when it is free."""
        self._depose(reason)
        self._stand_later()

    async def abdicate(self, reason: str) -> None:
        """End the term and free the office for anyone, ourselves included."""
        term = self.term
        self._depose(reason)
        if term is not None:
            await self._free(term.session)

    async def step_back(self, reason: str) -> None:
        """Abdicate, and let others stand first."""
        self._held = True
        self._clock.callLater(CRASH_SECONDS, self._unhold)
        await self.abdicate(reason)

    def _unhold(self) -> None:
        self._held = False
        self._stand()

    # -- what happens to us ------------------------------------------------------------------

    def _on_session(self, event: SessionEvent) -> None:
        if isinstance(event, Lapsed):
            self._depose("the ZooKeeper session may have expired")
        elif isinstance(event, Expired):
            self._depose("the ZooKeeper session expired")
            self.controller_id = None
        elif isinstance(event, Connected) and self.term is None:
            # The watch says nothing new if /controller stayed ours over a lapse.
            self._stand()

    def _have_controller(self, node: Node | None) -> None:
        if node is None:
            self.controller_id = None
            if self.term is not None:
                self._depose("/controller is gone")
            self._stand()
            return
        try:
            self.controller_id = znodes.decode_controller(node.data).broker_id
        except PoisonZnode as error:
            log.error("{error}; waiting for it to be replaced", error=error)
            self.controller_id = None
        term = self.term
        if term is not None and node.stat.ephemeral_owner != term.session.id:
            self._depose(f"broker {self.controller_id} is the controller now")
        session = self._zookeeper.session
        if self.term is None and session is not None and node.stat.ephemeral_owner == session.id:
            self._stand_later()  # ours, and we do not govern by it: nobody else can

    def _depose(self, reason: str) -> None:
        term, self.term = self.term, None
        if term is None:
            return
        if self.controller_id == self._broker_id:
            self.controller_id = None
        log.info(
            "resigned as controller of epoch {epoch}: {reason}",
            epoch=term.controller_epoch,
            reason=reason,
        )
        self._on_deposed(reason)

    # -- standing ----------------------------------------------------------------------------

    def _stand(self) -> None:
        if self._standing or self._held or self._stopped or self.term is not None:
            return
        self._standing = True
        Deferred.fromCoroutine(self._stand_once()).addBoth(self._stood)

    def _stand_later(self) -> None:
        if not self._stopped:
            self._clock.callLater(RETRY_SECONDS, self._stand)

    def _stood(self, outcome: bool | Failure) -> None:
        self._standing = False
        if isinstance(outcome, Failure):
            if not isinstance(outcome.value, ConnectionLoss | SessionExpired):
                log.error("the controller election failed: {why}", why=outcome.value)
            self._stand_later()
        elif not outcome:
            self._stand_later()

    async def _stand_once(self) -> bool:
        """Try to win; True if there is nothing more to do until /controller changes."""
        session = self._zookeeper.session
        if session is None or not self._zookeeper.connected:
            return False
        ours = self._zookeeper.in_session(session)
        holder = await ours.exists(znodes.CONTROLLER)
        if holder is not None:
            if holder.ephemeral_owner == session.id and self.term is None:
                await self._free(session)
                return False
            return True
        epoch, version = await self._read_epoch(ours)
        epoch += 1
        try:
            results = await ours.multi(
                [
                    Create(znodes.CONTROLLER, self._registration(), ephemeral=True),
                    SetData(
                        znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch), version
                    ),
                ]
            )
        except NodeExists:
            return True  # lost; the watch tells to whom
        except BadVersion:
            return False  # somebody else is standing too
        except ConnectionLoss:
            term = await self._look_back(session, epoch)
            if term is None:
                return False
            self._elected(term)
            return True
        stat = results[1]
        if not isinstance(stat, Stat):
            raise TypeError(f"the epoch write answered {stat!r}")
        self._elected(Term(session, epoch, stat.version))
        return True

    def _registration(self) -> bytes:
        return znodes.encode_controller(
            znodes.ControllerRegistration(self._broker_id, self._now_ms())
        )

    async def _read_epoch(self, ours: ZooKeeper) -> tuple[int, int]:
        try:
            node = await ours.get(znodes.CONTROLLER_EPOCH)
        except NoNode:
            with suppress(NodeExists):
                await ours.create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0))
            node = await ours.get(znodes.CONTROLLER_EPOCH)
        return znodes.decode_controller_epoch(node.data), node.stat.version

    async def _look_back(self, session: Session, epoch: int) -> Term | None:
        """Find out whether the multi whose answer was lost made us controller."""
        await self._reconnect.connected(session)
        ours = self._zookeeper.in_session(session)
        await ours.sync(znodes.CONTROLLER)  # the connection may be to a server that is behind (S23)
        holder = await ours.exists(znodes.CONTROLLER)
        node = await ours.get(znodes.CONTROLLER_EPOCH)
        held = holder is not None and holder.ephemeral_owner == session.id
        if held and znodes.decode_controller_epoch(node.data) == epoch:
            return Term(session, epoch, node.stat.version)
        return None

    def _elected(self, term: Term) -> None:
        current = self._zookeeper.session
        if self._stopped or current is None or current.id != term.session.id:
            return
        self.term, self.controller_id = term, self._broker_id
        log.info("elected as controller, epoch {epoch}", epoch=term.controller_epoch)
        self._on_elected(term)

    async def _free(self, session: Session) -> None:
        """Delete /controller if *session* owns it; failing is no harm."""
        ours = self._zookeeper.in_session(session)
        try:
            holder = await ours.exists(znodes.CONTROLLER)
            if holder is not None and holder.ephemeral_owner == session.id:
                # No other can own it at this version: a new node would have to replace ours.
                await ours.delete(znodes.CONTROLLER, holder.version)
        except ZooKeeperError as error:
            log.info("could not free /controller: {error}", error=error)
