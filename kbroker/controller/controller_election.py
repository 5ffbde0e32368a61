"""The election of the controller: the broker that holds the ephemeral /controller, and its epoch.

Theory of operation
===================
A candidate creates /controller and raises /controller_epoch in **one** multi, conditional on the version of the epoch
that it read (Kafka's registerControllerAndIncrementControllerEpoch). So two winners cannot share an epoch, and the
winner has the newest one. After a lost answer the candidate reads back: it has won if its session owns /controller and
the epoch is the one it wrote. An epoch ends when the session lapses or expires, when another broker holds /controller,
or by a resignation; decisions of an epoch end with it. A broker that finds /controller owned by its own session, and is
not controller (after a lapse in which the session survived) deletes it. It takes part in a new election, so that the
epoch rises.

In: session events, the watch on /controller   Out: elected, resigned, controller changed
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
"""Pause before the next election of a broker after a bug of its controller: the others are first."""


@dataclass(frozen=True, slots=True)
class ControllerEpoch:
    """An epoch in which this broker is the controller, and the session that won it."""

    session: Session
    number: int
    zk_version: int
    """Version of /controller_epoch: every write of the epoch is conditional on it (KAFKA-6082)."""


class ControllerElection:
    """Takes part in an election whenever there is no controller."""

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        reconnect: Reconnect,
        broker_id: int,
        *,
        now_ms: Callable[[], int],
        on_elected: Callable[[ControllerEpoch], None],
        on_resignation: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._zookeeper = zookeeper
        self._reconnect = reconnect
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._on_elected = on_elected
        self._on_deposed = on_resignation
        self._watch: Watch | None = None
        self._electing = False
        self._crashed = False
        self._stopped = False
        self.epoch: ControllerEpoch | None = None
        self.controller_id: int | None = None
        """The broker that holds /controller, as last seen; None while there is none."""

    def start(self) -> None:
        """Take part in elections from now on."""
        self._zookeeper.on_session(self._on_session)
        self._watch = self._zookeeper.watch_data(znodes.CONTROLLER, self._have_controller)

    def stop(self) -> None:
        """Resign and take part in no election any more. /controller goes with the session, or by `resign`."""
        self._stopped = True
        if self._watch is not None:
            self._watch.cancel()
        self._end_epoch("this broker is shutting down")

    def resign_and_reelect(self, reason: str) -> None:
        """End the epoch without deleting /controller, which may have another owner; take part in the next election."""
        self._end_epoch(reason)
        self._elect_later()

    async def resign(self, reason: str) -> None:
        """End the epoch and delete /controller; the next election is open to this broker, too."""
        elected = self.epoch
        self._end_epoch(reason)
        if elected is not None:
            await self._delete_controller_znode(elected.session)

    async def resign_after_crash(self, reason: str) -> None:
        """Resign, and leave the next election to the others for some seconds."""
        self._crashed = True
        self._clock.callLater(CRASH_SECONDS, self._crash_pause_over)
        await self.resign(reason)

    def _crash_pause_over(self) -> None:
        self._crashed = False
        self._maybe_elect()

    # -- session and watch -------------------------------------------------------------------

    def _on_session(self, event: SessionEvent) -> None:
        if isinstance(event, Lapsed):
            self._end_epoch("the ZooKeeper session may have expired")
        elif isinstance(event, Expired):
            self._end_epoch("the ZooKeeper session expired")
            self.controller_id = None
        elif isinstance(event, Connected) and self.epoch is None:
            # The watch reports nothing if /controller stayed ours over a lapse.
            self._maybe_elect()

    def _have_controller(self, node: Node | None) -> None:
        if node is None:
            self.controller_id = None
            if self.epoch is not None:
                self._end_epoch("/controller is gone")
            self._maybe_elect()
            return
        try:
            self.controller_id = znodes.decode_controller(node.data).broker_id
        except PoisonZnode as error:
            log.error("{error}; waiting for it to be replaced", error=error)
            self.controller_id = None
        elected = self.epoch
        if elected is not None and node.stat.ephemeral_owner != elected.session.id:
            self._end_epoch(f"broker {self.controller_id} is the controller now")
        session = self._zookeeper.session
        if self.epoch is None and session is not None and node.stat.ephemeral_owner == session.id:
            self._elect_later()  # ours without being controller: no other broker can be

    def _end_epoch(self, reason: str) -> None:
        elected, self.epoch = self.epoch, None
        if elected is None:
            return
        if self.controller_id == self._broker_id:
            self.controller_id = None
        log.info(
            "resigned as controller of epoch {epoch}: {reason}",
            epoch=elected.number,
            reason=reason,
        )
        self._on_deposed(reason)

    # -- elections ---------------------------------------------------------------------------

    def _maybe_elect(self) -> None:
        if self._electing or self._crashed or self._stopped or self.epoch is not None:
            return
        self._electing = True
        Deferred.fromCoroutine(self._elect()).addBoth(self._election_done)

    def _elect_later(self) -> None:
        if not self._stopped:
            self._clock.callLater(RETRY_SECONDS, self._maybe_elect)

    def _election_done(self, outcome: bool | Failure) -> None:
        self._electing = False
        if isinstance(outcome, Failure):
            if not isinstance(outcome.value, ConnectionLoss | SessionExpired):
                log.error("the controller election failed: {why}", why=outcome.value)
            self._elect_later()
        elif not outcome:
            self._elect_later()
        elif self.epoch is None:
            # The watch does not report a controller that won and is gone before the watch has read it.
            self._clock.callLater(RETRY_SECONDS, self._elect_without_controller)

    def _elect_without_controller(self) -> None:
        if self.controller_id is None:
            self._maybe_elect()

    async def _elect(self) -> bool:
        """Try to win; return whether there is nothing more to do until /controller changes."""
        session = self._zookeeper.session
        if session is None or not self._zookeeper.connected:
            return False
        ours = self._zookeeper.in_session(session)
        holder = await ours.exists(znodes.CONTROLLER)
        if holder is not None:
            if holder.ephemeral_owner == session.id and self.epoch is None:
                await self._delete_controller_znode(session)
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
            return True  # lost; the watch reports the winner
        except BadVersion:
            return False  # another candidate is in this election
        except ConnectionLoss:
            elected = await self._read_election_outcome(session, epoch)
            if elected is None:
                return False
            self._elected(elected)
            return True
        stat = results[1]
        if not isinstance(stat, Stat):
            raise TypeError(f"the epoch write answered {stat!r}")
        self._elected(ControllerEpoch(session, epoch, stat.version))
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

    async def _read_election_outcome(self, session: Session, epoch: int) -> ControllerEpoch | None:
        """Find out whether the multi without an answer made this broker the controller."""
        await self._reconnect.connected(session)
        ours = self._zookeeper.in_session(session)
        await ours.sync(znodes.CONTROLLER)  # the connection may be to a server that is behind (S23)
        holder = await ours.exists(znodes.CONTROLLER)
        node = await ours.get(znodes.CONTROLLER_EPOCH)
        held = holder is not None and holder.ephemeral_owner == session.id
        if held and znodes.decode_controller_epoch(node.data) == epoch:
            return ControllerEpoch(session, epoch, node.stat.version)
        return None

    def _elected(self, elected: ControllerEpoch) -> None:
        current = self._zookeeper.session
        if self._stopped or current is None or current.id != elected.session.id:
            return
        self.epoch, self.controller_id = elected, self._broker_id
        log.info("elected as controller, epoch {epoch}", epoch=elected.number)
        self._on_elected(elected)

    async def _delete_controller_znode(self, session: Session) -> None:
        """Delete /controller if *session* owns it; an error is logged only."""
        ours = self._zookeeper.in_session(session)
        try:
            holder = await ours.exists(znodes.CONTROLLER)
            if holder is not None and holder.ephemeral_owner == session.id:
                # No other session can own it at this version: a new znode would have to replace ours.
                await ours.delete(znodes.CONTROLLER, holder.version)
        except ZooKeeperError as error:
            log.info("could not free /controller: {error}", error=error)
