"""The shards of a coordinator: the partitions of its topic that this broker leads, from election to resignation.

Theory of operation
===================
A coordinator's topic is ``__consumer_offsets`` for groups, and ``__transaction_state`` for transactional ids. Each id
belongs to a partition by its hash, and the leader of the partition coordinates it. On election (`on_election`) the
broker syncs with ZooKeeper and checks that the partition's state names it as the leader. Then it lists the ids of the
partition and loads them (`_load_partition`). Until then requests get COORDINATOR_LOAD_IN_PROGRESS.

Leadership ends in four ways: the controller elects another leader (`on_resignation`). A write fails because another
broker leads. The ZooKeeper session ends. Or the session may have ended, and the followers do not confirm the leadership
(docs/design/groups-without-zookeeper.md). Each time the ids are unloaded at once, and every waiting request gets
NOT_COORDINATOR. After the end of a session the broker loads the partitions of its elections again, if ZooKeeper still
names it as their leader.

In: elections, resignations, session events   Out: loaded and unloaded shards   Owner: the reactor's thread
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.reactor import Clock
from kbroker.common.turns import WorkerTurns
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.shard_fence import LeadershipConfirmer, ShardFence
from kbroker.zk.errors import ConnectionLoss, PoisonZnode, SessionExpired
from kbroker.zk.interface import Connected, Expired, Lapsed, SessionEvent, ZooKeeper
from kbroker.zk.znodes import decode_topic, partition_state_path, topic_path
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import CoordinatorLoadInProgress, NotCoordinator

log = Logger()

RETRY_LOADING: Final = 1.0
"""Seconds before loading is retried after an unexpected failure."""

MAX_UNCONFIRMED: Final = 6.0
"""Seconds without a confirmation after which a shard is unloaded, while the session may be over."""

CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks of the confirmations meanwhile."""

IDS_PER_TURN: Final = 2000
"""Ids that are placed in one turn of the reactor."""


@dataclass(slots=True, eq=False)
class Shard:
    """One partition that this broker coordinates; its ids are in the class of the coordinator."""

    fence: ShardFence
    loaded: bool = False
    problem: str = ""
    """Why the shard could not be loaded, as it was logged."""


ShardT = TypeVar("ShardT", bound=Shard)


class Shards(ABC, Generic[ShardT]):
    """The shards of *broker_id* for one topic."""

    TOPIC: ClassVar[str]
    IDS: ClassVar[str]
    """What belongs to a partition, for log lines: "groups"."""

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        *,
        broker_id: int,
        confirmer: LeadershipConfirmer,
    ) -> None:
        self.partitions: dict[int, ShardT] = {}
        self._clock = clock
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._confirmer = confirmer
        self._partition_count = 0
        """Partitions of the topic; 0 before anything was loaded."""
        self._led: dict[int, int] = {}
        """The elections of this broker: leader epoch by partition."""
        self._to_load: list[ShardT] = []
        self._stopped = False
        self._cut_off = False
        """Whether the session may be over (S11)."""
        zookeeper.on_session(self._on_session)

    # --- what the coordinator adds --------------------------------------------------------------

    @abstractmethod
    def _new_shard(self, fence: ShardFence) -> ShardT:
        """Return a shard without ids."""

    @abstractmethod
    async def _list_ids(self, zookeeper: ZooKeeper) -> list[str]:
        """List the ids of all partitions. ConnectionLoss, SessionExpired."""

    @abstractmethod
    async def _load_partition(self, shard: ShardT, ids: list[str]) -> None:
        """Load *ids*, which belong to *shard*. ConnectionLoss, SessionExpired.

        Sets `loaded`, unless the fence has resigned meanwhile.
        """

    @abstractmethod
    def _unload_ids(self, shard: ShardT, error: ErrorCode) -> None:
        """Unload the ids of *shard*, with a fence that has resigned: every waiting request gets *error*."""

    # --- leadership ---------------------------------------------------------------------------

    def on_leadership(
        self, topic: str, partition: int, leader_epoch: int, zk_version: int, is_leader: bool
    ) -> None:
        """Handle a change of leadership of any partition."""
        if topic != self.TOPIC:
            return
        if is_leader:
            self.on_election(partition, leader_epoch)
        else:
            self.on_resignation(partition)

    def on_election(self, partition: int, leader_epoch: int) -> None:
        """Load the ids of *partition*; a repeated call with the same epoch changes nothing."""
        self._led[partition] = leader_epoch
        current = self.partitions.get(partition)
        if current is not None:
            if current.fence.leader_epoch == leader_epoch and not current.fence.resigned:
                return
            self._unload(partition, ErrorCode.NOT_COORDINATOR)
        session = self._zookeeper.session
        if session is None or self._stopped:
            return  # loaded when a session is connected
        fence = ShardFence(
            self._zookeeper,
            session,
            broker_id=self._broker_id,
            topic=self.TOPIC,
            partition=partition,
            leader_epoch=leader_epoch,
            on_lost=self._on_lost,
            confirmer=self._confirmer,
        )
        shard = self.partitions[partition] = self._new_shard(fence)
        self._load_soon(shard)

    def on_resignation(self, partition: int) -> None:
        """Unload the ids of *partition*: another broker leads, or the topic is deleted."""
        self._led.pop(partition, None)
        self._unload(partition, ErrorCode.NOT_COORDINATOR)

    def stop(self) -> None:
        """Unload all shards; the clients find the next coordinator."""
        self._stopped = True
        for partition in list(self.partitions):
            self._unload(partition, ErrorCode.NOT_COORDINATOR)

    def _on_session(self, event: SessionEvent) -> None:
        match event:
            case Lapsed():
                self._cut_off = True
                self._unload_unconfirmed()
            case Expired():
                self._cut_off = False
                for partition in list(self.partitions):
                    self._unload(partition, ErrorCode.NOT_COORDINATOR)
            case Connected():
                self._cut_off = False
                for shard in list(self.partitions.values()):
                    shard.fence.connection_is_back()
                for partition, leader_epoch in self._led.items():
                    self.on_election(partition, leader_epoch)
            case _:
                pass

    def _unload_unconfirmed(self) -> None:
        """Unload the shards that another broker may coordinate; repeat while the session may be over."""
        if not self._cut_off or self._stopped:
            return
        since = self._clock.seconds() - MAX_UNCONFIRMED
        for partition, shard in list(self.partitions.items()):
            if not shard.fence.confirmed_since(since):
                log.warn(
                    "cut off from ZooKeeper, and not all in-sync replicas of partition {partition} follow: "
                    "another broker may coordinate its {ids}",
                    partition=partition,
                    ids=self.IDS,
                )
                self._unload(partition, ErrorCode.NOT_COORDINATOR)
        self._clock.callLater(CHECK_INTERVAL, self._unload_unconfirmed)

    def _on_lost(self, fence: ShardFence) -> None:
        """Handle a fence that is lost: another broker leads, or the session is over."""
        current = self.partitions.get(fence.partition)
        if current is not None and current.fence is fence:
            log.warn(
                "the {ids} of partition {partition} are unloaded: this broker does not coordinate them any more",
                ids=self.IDS,
                partition=fence.partition,
            )
            self._unload(fence.partition, ErrorCode.NOT_COORDINATOR)

    def _unload(self, partition: int, error: ErrorCode) -> None:
        shard = self.partitions.pop(partition, None)
        if shard is None:
            return
        shard.fence.resign()
        self._unload_ids(shard, error)

    # --- loading ------------------------------------------------------------------------------

    def _load_soon(self, shard: ShardT) -> None:
        """Load with all other shards of this turn: they share one listing."""
        if not self._to_load:
            self._clock.callLater(0, self._load_all)
        self._to_load.append(shard)

    def _load_all(self) -> None:
        batch, self._to_load = self._to_load, []
        Deferred.fromCoroutine(self._load(batch)).addErrback(self._loading_failed, batch)

    def _loading_failed(self, failure: Any, batch: list[ShardT]) -> None:
        log.failure("{ids} could not be loaded, retrying", failure=failure, ids=self.IDS)
        for shard in batch:
            if not shard.fence.resigned and not shard.loaded:
                self._clock.callLater(RETRY_LOADING, self._load_soon, shard)

    def _load_later(self, shard: ShardT, problem: PoisonZnode) -> None:
        if shard.problem != str(problem):
            shard.problem = str(problem)
            log.error(
                "{ids} of partition {partition} are unavailable until its znode is repaired: {problem}",
                ids=self.IDS,
                partition=shard.fence.partition,
                problem=problem,
            )
        self._clock.callLater(RETRY_LOADING, self._load_again, shard)

    def _load_again(self, shard: ShardT) -> None:
        if not self._stopped and not shard.fence.resigned and not shard.loaded:
            self._load_soon(shard)

    async def _load(self, batch: list[ShardT]) -> None:
        while batch := [c for c in batch if not c.fence.resigned and not c.loaded]:
            try:
                await self._load_connected(batch)
            except ConnectionLoss:
                try:
                    await batch[0].fence.reconnected()
                except NotCoordinator:
                    continue
            except SessionExpired:
                return

    async def _load_connected(self, batch: list[ShardT]) -> None:
        """Load the shards of *batch*, all of one session, that this broker still leads.

        A shard with a state that cannot be decoded leaves *batch* and is loaded later: it must not hold up the others.
        """
        zookeeper = batch[0].fence.zookeeper
        await zookeeper.sync(partition_state_path(self.TOPIC, batch[0].fence.partition))
        ours = []
        for shard in list(batch):
            try:
                if await shard.fence.still_leads():
                    ours.append(shard)
            except PoisonZnode as problem:
                batch.remove(shard)
                self._load_later(shard, problem)
        if not ours:
            return
        topic = await zookeeper.get(topic_path(self.TOPIC))
        count = self._partition_count = len(decode_topic(self.TOPIC, topic.data).partitions)
        by_partition: dict[int, list[str]] = {}
        turns = WorkerTurns(self._clock, IDS_PER_TURN)
        for name in await self._list_ids(zookeeper):
            by_partition.setdefault(partition_for(name, count), []).append(name)
            await turns.done()
        for shard in ours:
            await self._load_partition(shard, by_partition.get(shard.fence.partition, []))

    # --- look-ups -------------------------------------------------------------------------------

    def _shard_of(self, name: str) -> ShardT:
        """Return the loaded shard of an id. NotCoordinator, CoordinatorLoadInProgress."""
        count = self._partition_count
        if not count:
            raise CoordinatorLoadInProgress if self.partitions else NotCoordinator
        shard = self.partitions.get(partition_for(name, count))
        if shard is None:
            raise NotCoordinator
        if not shard.loaded:
            raise CoordinatorLoadInProgress
        return shard
