"""The shards of this broker: a partition of ``__consumer_offsets`` with its groups, from election to resignation.

Theory of operation
===================
A broker coordinates the groups of the partitions of ``__consumer_offsets`` that it leads. On election (`on_election`)
it syncs with ZooKeeper and checks that the partition's state names it as the leader. Then it lists the groups of the
partition and reads their state. Members are restored with a fresh session timeout and without a rebalance. Until then
requests get COORDINATOR_LOAD_IN_PROGRESS. The offsets of a group are read with its first request for them.

Leadership ends in four ways: the controller elects another leader (`on_resignation`); a write fails because another
broker leads; the ZooKeeper session ends; or the session may have ended and the followers do not confirm the leadership
(docs/design/groups-without-zookeeper.md). Each time the groups are unloaded at once, and every waiting request gets
NOT_COORDINATOR. After the end of a session the broker loads the partitions of its elections again, if ZooKeeper still
names it as their leader.

Owner: the reactor's thread.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.common.reactor import Clock
from kbroker.coordinator.group.core.limits import GroupLimits
from kbroker.coordinator.group.core.placement import partition_for
from kbroker.coordinator.group.core.states import GroupState
from kbroker.coordinator.group.group_metadata import GroupMetadata
from kbroker.coordinator.group.group_store import group_ids, read_states
from kbroker.coordinator.group.shard_fence import LeadershipConfirmer, ShardFence
from kbroker.zk.errors import ConnectionLoss, PoisonZnode, SessionExpired
from kbroker.zk.interface import Connected, Expired, Lapsed, SessionEvent, ZooKeeper
from kbroker.zk.znodes import decode_topic, partition_state_path, topic_path
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import (
    CoordinatorLoadInProgress,
    InvalidGroupId,
    KafkaError,
    NotCoordinator,
)

log = Logger()

MAX_GROUP_ID = 1024
"""Characters of a group id; it is part of the path of every znode of the group."""

RETRY_LOADING = 1.0
"""Seconds before loading is retried after an unexpected failure."""

MAX_UNCONFIRMED = 6.0
"""Seconds without a confirmation after which a shard is unloaded, while the session may be over."""

CHECK_INTERVAL = 1.0
"""Seconds between two checks of the confirmations meanwhile."""

OnUnloaded = Callable[[Collection[str], ErrorCode], None]


@dataclass(slots=True, eq=False)
class CoordinatorShard:
    """One partition that this broker coordinates: its fence and its groups."""

    fence: ShardFence
    loaded: bool = False
    groups: dict[str, GroupMetadata] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    """Groups with znodes; a group that is not in `groups` has only offsets."""
    loading: set[str] = field(default_factory=set)
    """Groups that are being read again or deleted."""
    problem: str = ""
    """Why the shard could not be loaded, as it was logged."""


class CoordinatorShards:
    """The shards of *broker_id*. *on_unloaded* is called with the groups of every unloaded shard."""

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        *,
        broker_id: int,
        limits: GroupLimits,
        now_ms: Callable[[], int],
        on_unloaded: OnUnloaded,
        confirmer: LeadershipConfirmer,
    ) -> None:
        self.partitions: dict[int, CoordinatorShard] = {}
        self._clock = clock
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._limits = limits
        self._now_ms = now_ms
        self._on_unloaded = on_unloaded
        self._confirmer = confirmer
        self._partition_count = 0
        """Partitions of ``__consumer_offsets``; 0 before anything was loaded."""
        self._led: dict[int, int] = {}
        """The elections of this broker: leader epoch by partition."""
        self._to_load: list[CoordinatorShard] = []
        self._stopped = False
        self._cut_off = False
        """Whether the session may be over (S11)."""
        zookeeper.on_session(self._on_session)

    # --- leadership ---------------------------------------------------------------------------

    def on_leadership(
        self, topic: str, partition: int, leader_epoch: int, zk_version: int, is_leader: bool
    ) -> None:
        """Handle a change of leadership of any partition."""
        if topic != OFFSETS_TOPIC:
            return
        if is_leader:
            self.on_election(partition, leader_epoch)
        else:
            self.on_resignation(partition)

    def on_election(self, partition: int, leader_epoch: int) -> None:
        """Load the groups of *partition*; a repeated call with the same epoch changes nothing."""
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
            partition=partition,
            leader_epoch=leader_epoch,
            on_lost=self._on_lost,
            confirmer=self._confirmer,
        )
        shard = self.partitions[partition] = CoordinatorShard(fence)
        self._load_soon(shard)

    def on_resignation(self, partition: int) -> None:
        """Unload the groups of *partition*: another broker leads, or the topic is deleted."""
        self._led.pop(partition, None)
        self._unload(partition, ErrorCode.NOT_COORDINATOR)

    def stop(self) -> None:
        """Unload all shards; the members find the next coordinator."""
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
                    "another broker may coordinate its groups",
                    partition=partition,
                )
                self._unload(partition, ErrorCode.NOT_COORDINATOR)
        self._clock.callLater(CHECK_INTERVAL, self._unload_unconfirmed)

    def _on_lost(self, fence: ShardFence) -> None:
        """Handle a fence that is lost: another broker leads, or the session is over."""
        current = self.partitions.get(fence.partition)
        if current is not None and current.fence is fence:
            log.warn(
                "the groups of partition {partition} are unloaded: this broker does not coordinate them any more",
                partition=fence.partition,
            )
            self._unload(fence.partition, ErrorCode.NOT_COORDINATOR)

    def _unload(self, partition: int, error: ErrorCode) -> None:
        shard = self.partitions.pop(partition, None)
        if shard is None:
            return
        shard.fence.resign()
        for group in shard.groups.values():
            group.unload(error)
        self._on_unloaded(shard.groups, error)

    # --- loading ------------------------------------------------------------------------------

    def _load_soon(self, shard: CoordinatorShard) -> None:
        """Load with all other shards of this turn: they share one listing."""
        if not self._to_load:
            self._clock.callLater(0, self._load_all)
        self._to_load.append(shard)

    def _load_all(self) -> None:
        batch, self._to_load = self._to_load, []
        Deferred.fromCoroutine(self._load(batch)).addErrback(self._loading_failed, batch)

    def _loading_failed(self, failure: Any, batch: list[CoordinatorShard]) -> None:
        log.failure("groups could not be loaded, retrying", failure=failure)
        for shard in batch:
            if not shard.fence.resigned and not shard.loaded:
                self._clock.callLater(RETRY_LOADING, self._load_soon, shard)

    def _load_later(self, shard: CoordinatorShard, problem: PoisonZnode) -> None:
        if shard.problem != str(problem):
            shard.problem = str(problem)
            log.error(
                "groups of partition {partition} wait until its state is mended: {problem}",
                partition=shard.fence.partition,
                problem=problem,
            )
        self._clock.callLater(RETRY_LOADING, self._load_again, shard)

    def _load_again(self, shard: CoordinatorShard) -> None:
        if not self._stopped and not shard.fence.resigned and not shard.loaded:
            self._load_soon(shard)

    async def _load(self, batch: list[CoordinatorShard]) -> None:
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

    async def _load_connected(self, batch: list[CoordinatorShard]) -> None:
        """Load the shards of *batch*, all of one session, that this broker still leads.

        A shard with a state that cannot be decoded leaves *batch* and is loaded later: it must not hold up the others.
        """
        zookeeper = batch[0].fence.zookeeper
        await zookeeper.sync(partition_state_path(OFFSETS_TOPIC, batch[0].fence.partition))
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
        topic = await zookeeper.get(topic_path(OFFSETS_TOPIC))
        count = self._partition_count = len(decode_topic(OFFSETS_TOPIC, topic.data).partitions)
        by_partition: dict[int, list[str]] = {}
        for group_id in await group_ids(zookeeper):
            by_partition.setdefault(partition_for(group_id, count), []).append(group_id)
        for shard in ours:
            names = by_partition.get(shard.fence.partition, [])
            await self._load_partition(shard, names)

    async def _load_partition(self, shard: CoordinatorShard, names: list[str]) -> None:
        states, problems = await read_states(shard.fence.zookeeper, names)
        _report(problems)
        if shard.fence.resigned:
            return
        shard.known.update(names)
        for group_id, (snapshot, written_ms) in states.items():
            self.add_group(shard, group_id).restore(snapshot, written_ms)
        shard.loaded = True
        log.info(
            "coordinates partition {p} in leader epoch {e}: {n} groups, {m} members",
            p=shard.fence.partition,
            e=shard.fence.leader_epoch,
            n=len(names),
            m=sum(len(group.machine.members) for group in shard.groups.values()),
        )

    def add_group(self, shard: CoordinatorShard, group_id: str) -> GroupMetadata:
        """Add an Empty group to *shard*."""
        group = GroupMetadata(
            self._clock, shard.fence, group_id, self._limits, self.remove_group, self._now_ms
        )
        group.znodes.offsets.has_root = group_id in shard.known
        group.znodes.offsets_known = group.znodes.offsets_read = not group.znodes.offsets.has_root
        shard.groups[group_id] = group
        return group

    def remove_group(self, group: GroupMetadata) -> None:
        """Remove a group without any state; a Dead one is read again."""
        shard = self.partitions.get(group.fence.partition)
        if shard is None or shard.groups.get(group.group_id) is not group:
            return
        del shard.groups[group.group_id]
        if group.machine.state is GroupState.DEAD:
            self._on_unloaded([group.group_id], ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.reload(shard, group.group_id)

    def reload(self, shard: CoordinatorShard, group_id: str) -> None:
        """Read one group again; until then it is being loaded."""
        shard.loading.add(group_id)
        reading = Deferred.fromCoroutine(self._reload(shard, group_id))
        reading.addErrback(self._reading_failed, shard, group_id)

    async def _reload(self, shard: CoordinatorShard, group_id: str) -> None:
        while not shard.fence.resigned:
            try:
                zookeeper = shard.fence.zookeeper
                exists = group_id in await group_ids(zookeeper)
                states, problems = await read_states(zookeeper, [group_id])
            except ConnectionLoss:
                await shard.fence.reconnected()
                continue
            shard.loading.discard(group_id)
            _report(problems)
            if exists:
                shard.known.add(group_id)
            if group_id in states:
                self.add_group(shard, group_id).restore(*states[group_id])
            return

    def _reading_failed(self, failure: Any, shard: CoordinatorShard, group_id: str) -> None:
        shard.loading.discard(group_id)
        if not isinstance(failure.value, NotCoordinator | SessionExpired):
            log.failure("group {group} could not be read", failure=failure, group=group_id)

    # --- look-ups -------------------------------------------------------------------------

    def group(self, group_id: str) -> GroupMetadata | None:
        """Return the group if it is loaded here now."""
        try:
            return self.locate(group_id).groups.get(group_id)
        except KafkaError:
            return None

    def locate(self, group_id: str) -> CoordinatorShard:
        """Return the shard of *group_id*. InvalidGroupId, NotCoordinator, CoordinatorLoadInProgress."""
        if not group_id or len(group_id) > MAX_GROUP_ID:
            raise InvalidGroupId
        count = self._partition_count
        if not count:
            raise CoordinatorLoadInProgress if self.partitions else NotCoordinator
        shard = self.partitions.get(partition_for(group_id, count))
        if shard is None:
            raise NotCoordinator
        if not shard.loaded or group_id in shard.loading:
            raise CoordinatorLoadInProgress
        return shard

    def add_known(self, group: GroupMetadata) -> None:
        """Record that *group* is about to have znodes."""
        shard = self.partitions.get(group.fence.partition)
        if shard is not None:
            shard.known.add(group.group_id)


def _report(problems: Iterable[str]) -> None:
    for problem in problems:
        log.error("{problem}: its members rejoin", problem=problem)
