"""The fence of one shard: only the leader of the partition of ``__consumer_offsets`` writes and answers for its groups.

The leader of the partition coordinates. ZooKeeper enforces this: every write is a multi with a `Check` on the version
of the partition's state znode, bound to the session of the election. Once another broker leads, or the session is
over, ZooKeeper executes no write of this broker.

The version also grows without a change of leader (the controller or the leader itself changes the ISR). So after a
failed check `still_leads` reads the znode again. An answer from memory leaves only after `confirm`
(`leadership_confirmer.py`).

The other fences compare numbers of requests (`kbroker.common.epoch_fences`): they need no ZooKeeper, because a request
brings its epoch with it. This one fences the broker's own writes and answers, for which only ZooKeeper or the
followers know a later epoch. So the two have no code in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.zk.errors import ConnectionLoss, NoNode, SessionExpired, ZooKeeperError
from kbroker.zk.interface import Check, Operation, Session, Stat, ZooKeeper
from kbroker.zk.znodes import decode_partition_state, partition_state_path
from kclient.wire.errors import NotCoordinator

log = Logger()


class Confirmer(Protocol):
    """Confirms fences; see `leadership_confirmer.py`."""

    def confirm(self, fence: ShardFence) -> Deferred[None]:
        """Fire once *fence* is confirmed."""

    def confirm_writable(self, fence: ShardFence) -> Deferred[None]:
        """Fire once ZooKeeper has confirmed *fence*."""

    def confirmed_at(self, fence: ShardFence) -> float:
        """Return the latest time at which *fence* certainly held."""

    def answers(self, fence: ShardFence) -> bool:
        """Return whether ZooKeeper answered its last request in time."""


class ShardFence:
    """The fence of *broker_id* for *partition*, elected in *leader_epoch* and *session*.

    *on_lost* is called when ZooKeeper has another leader; it calls `resign`.
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
        """Whether the shard is unloaded: no answer and no write for its groups."""

        self.confirmed_at = float("-inf")
        """Send time of the last check that passed; the confirmer updates it."""

        self._confirmer = confirmer
        self._broker_id = broker_id
        self._on_lost = on_lost
        self._path = partition_state_path(OFFSETS_TOPIC, partition)
        self._zk_version = -1
        self._reconnections: list[Deferred[None]] = []
        self._readers: list[Deferred[bool]] | None = None
        """The other callers of `still_leads` during a read; None without a read."""

    @property
    def check(self) -> Check:
        """The first operation of every multi."""
        return Check(self._path, self._zk_version)

    async def still_leads(self) -> bool:
        """Read the partition's state; return whether this broker still leads, and update the check.

        Errors: ConnectionLoss. Concurrent calls share one read. Without the lead, *on_lost* has been called.
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
        """Fire once no other broker can have coordinated at this call. NotCoordinator, CoordinatorNotAvailable."""
        return self._confirmer.confirm(self)

    def confirm_writable(self) -> Deferred[None]:
        """Do as `confirm`, but only by ZooKeeper: a write would succeed."""
        return self._confirmer.confirm_writable(self)

    @property
    def zookeeper_answers(self) -> bool:
        """Whether ZooKeeper answered its last request in time."""
        return self._confirmer.answers(self)

    def confirmed_since(self, since: float) -> bool:
        """Return whether a confirmation already covers *since*."""
        return not self.resigned and self._confirmer.confirmed_at(self) >= since

    def lost(self) -> None:
        """Handle another leader, or the end of the session."""
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
        """Do all *operations* or none. NotCoordinator if this broker does not coordinate any more.

        ZooKeeperError: its `index` counts *operations*, without the check.
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
                if not await self.still_leads():
                    raise NotCoordinator from error

    async def reconnected(self) -> None:
        """Wait until ZooKeeper answers again; NotCoordinator if the fence is lost before."""
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
        """Resume the callers of `reconnected`."""
        waiting, self._reconnections = self._reconnections, []
        for deferred in waiting:
            deferred.callback(None)

    def resign(self) -> None:
        """Stop answering and writing; idempotent."""
        self.resigned = True
        self.connection_is_back()
