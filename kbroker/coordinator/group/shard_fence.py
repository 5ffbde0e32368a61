"""The right to coordinate the groups of one partition of ``__consumer_offsets``.

The leader of the partition coordinates. What it may write is decided by ZooKeeper alone: every
write is a multi with a `Check` on the version of the partition's state znode, bound to the session
in which the partition was taken over. Once another broker leads, or the session is over, nothing
we send is executed.

The version also grows without a change of leader (a controller or the leader itself changes the
ISR), so a failed check is looked into: `still_ours` reads the znode again. An answer from memory leaves only
after `confirm` (`leadership_confirmer.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.coordinator.group.core.placement import OFFSETS_TOPIC
from kbroker.zk.errors import ConnectionLoss, NoNode, SessionExpired, ZooKeeperError
from kbroker.zk.interface import Check, Operation, Session, Stat, ZooKeeper
from kbroker.zk.znodes import decode_partition_state, partition_state_path
from kclient.wire.errors import NotCoordinator

log = Logger()


class Confirmer(Protocol):
    """Confirms a right; see `leadership_confirmer.py`."""

    def confirm(self, fence: ShardFence) -> Deferred[None]:
        """Fire with NONE once *right* is confirmed."""

    def confirm_writable(self, fence: ShardFence) -> Deferred[None]:
        """Fire with NONE once ZooKeeper confirmed *right*."""

    def confirmed_at(self, fence: ShardFence) -> float:
        """Return the latest time at which *right* certainly held."""

    def answers(self, fence: ShardFence) -> bool:
        """Return whether ZooKeeper answers, as far as known."""


class ShardFence:
    """One partition taken over by *broker_id* in *leader_epoch* and *session*.

    *moved* is called when ZooKeeper turns out to be of another mind; it shall give this up.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        session: Session,
        *,
        broker_id: int,
        partition: int,
        leader_epoch: int,
        on_lost: Callable[[ShardFence], None],
        confirmer: Confirmer,
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.session = session
        self.zookeeper = zookeeper.in_session(session)
        self.resigned = False
        """Nothing is answered or written for these groups any more."""

        self.confirmed_at = float("-inf")
        """When the last check was sent that ZooKeeper let pass; the fence keeps it."""

        self._confirmer = confirmer
        self._broker_id = broker_id
        self._on_lost = on_lost
        self._path = partition_state_path(OFFSETS_TOPIC, partition)
        self._zk_version = -1
        self._reconnections: list[Deferred[None]] = []
        self._readers: list[Deferred[bool]] | None = None
        """While the state is being read: who else wants to know."""

    @property
    def check(self) -> Check:
        """The condition to put first into every multi."""
        return Check(self._path, self._zk_version)

    async def still_ours(self) -> bool:
        """Read the partition's state; True, and the check follows it, if we still lead.

        Errors: ConnectionLoss. Concurrent calls share one read. If not, *moved* has been called.
        """
        if self._readers is not None:
            waiting: Deferred[bool] = Deferred()
            self._readers.append(waiting)
            return await waiting
        self._readers = []
        try:
            ours = await self._read()
        except ZooKeeperError as error:
            for waiting in self._others_reading():
                waiting.errback(error)
            raise
        if not ours:
            self.lost()
        for waiting in self._others_reading():
            waiting.callback(ours)
        return ours

    def confirm(self) -> Deferred[None]:
        """Fire with NONE if no other broker coordinates yet, else with what a client is to be answered."""
        return self._confirmer.confirm(self)

    def confirm_writable(self) -> Deferred[None]:
        """Fire with NONE if ZooKeeper answers and no other broker coordinates yet."""
        return self._confirmer.confirm_writable(self)

    @property
    def zookeeper_answers(self) -> bool:
        """Whether ZooKeeper answers, as far as known: without it nothing can be read or written."""
        return self._confirmer.answers(self)

    def confirmed_since(self, since: float) -> bool:
        """Return whether it is known already that no other broker coordinated at *since*."""
        return not self.resigned and self._confirmer.confirmed_at(self) >= since

    def lost(self) -> None:
        """Handle that another broker leads, or that the session is over."""
        if not self.resigned:
            self._on_lost(self)

    def _others_reading(self) -> list[Deferred[bool]]:
        waiting, self._readers = self._readers or [], None
        return waiting

    async def _read(self) -> bool:
        try:
            node = await self.zookeeper.get(self._path)
        except (NoNode, SessionExpired):
            return False
        state = decode_partition_state(OFFSETS_TOPIC, self.partition, node.data, node.stat)
        if (state.leader, state.leader_epoch) != (self._broker_id, self.leader_epoch):
            return False
        self._zk_version = state.zk_version
        return not self.resigned

    async def write(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """Do all *operations* or none, if we still coordinate; else CoordinatorMoved.

        Errors of ZooKeeper are as if the check were not there: `index` counts *operations*.
        """
        while True:
            if self.resigned:
                raise NotCoordinator
            try:
                results = await self.zookeeper.multi([self.check, *operations])
                return results[1:]
            except SessionExpired as error:
                self.lost()
                raise NotCoordinator from error
            except ZooKeeperError as error:
                if error.index != 0:
                    error.index = error.index - 1 if error.index is not None else None
                    raise
                if not await self.still_ours():
                    raise NotCoordinator from error

    async def reconnected(self) -> None:
        """Wait until ZooKeeper answers again; CoordinatorMoved if that comes too late."""
        while not self.resigned:
            try:
                await self.zookeeper.sync(self._path)
                return
            except SessionExpired as error:
                self.lost()
                raise NotCoordinator from error
            except ConnectionLoss:
                again: Deferred[None] = Deferred()
                self._reconnections.append(again)
                await again
        raise NotCoordinator

    def connection_is_back(self) -> None:
        """Let go on whoever waits in `reconnected`."""
        waiting, self._reconnections = self._reconnections, []
        for deferred in waiting:
            deferred.callback(None)

    def resign(self) -> None:
        """Stop coordinating; idempotent."""
        self.resigned = True
        self.connection_is_back()
