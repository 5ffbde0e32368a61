"""The shards of the group coordinator: a partition of ``__consumer_offsets`` with its groups.

Leadership, loading and unloading are those of `kbroker.coordinator.shards`. Members are restored with a fresh session
timeout and without a rebalance. The offsets of a group are read with its first request for them; those that are pending
in transactions are loaded with the shard.

Owner: the reactor's thread.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.common.reactor import Clock
from kbroker.common.turns import WorkerTurns
from kbroker.coordinator.group.core.limits import GroupLimits
from kbroker.coordinator.group.core.states import GroupState
from kbroker.coordinator.group.group_metadata import GroupMetadata
from kbroker.coordinator.group.group_store import group_ids, read_states
from kbroker.coordinator.group.pending_offsets import (
    ShardPendingOffsets,
    list_pending,
    read_pending,
)
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.shard_fence import LeadershipConfirmer, ShardFence
from kbroker.coordinator.shards import IDS_PER_TURN, Shard, Shards
from kbroker.zk.errors import ConnectionLoss, SessionExpired
from kbroker.zk.interface import ZooKeeper
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

OnUnloaded = Callable[[Collection[str], ErrorCode], None]


@dataclass(slots=True, eq=False)
class CoordinatorShard(Shard):
    """One partition that this broker coordinates: its fence and its groups."""

    groups: dict[str, GroupMetadata] = field(default_factory=dict)
    known: dict[str, None] = field(default_factory=dict)
    """Groups with znodes, in one order in every process; a group that is not in `groups` has only offsets."""
    loading: set[str] = field(default_factory=set)
    """Groups that are being read again or deleted."""
    pending: ShardPendingOffsets = field(default_factory=ShardPendingOffsets)
    """The offsets that are committed in open transactions."""


class CoordinatorShards(Shards[CoordinatorShard]):
    """The shards of *broker_id*. *on_unloaded* is called with the groups of every unloaded shard."""

    TOPIC = OFFSETS_TOPIC
    IDS = "groups"

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
        super().__init__(clock, zookeeper, broker_id=broker_id, confirmer=confirmer)
        self._limits = limits
        self._now_ms = now_ms
        self.on_loaded: Callable[[], None] = lambda: None
        """Called when a shard has been loaded."""
        self._on_unloaded = on_unloaded
        self._listings = 0
        self._pending: tuple[int, dict[int, list[tuple[int, str]]]] = (0, {})
        """The newest listing: its number, and the producer ids and groups with pending offsets by partition."""

    def _new_shard(self, fence: ShardFence) -> CoordinatorShard:
        return CoordinatorShard(fence)

    def _unload_ids(self, shard: CoordinatorShard, error: ErrorCode) -> None:
        for group in shard.groups.values():
            group.unload(error)
        self._on_unloaded(shard.groups, error)

    # --- loading ------------------------------------------------------------------------------

    async def _list_ids(self, zookeeper: ZooKeeper) -> list[str]:
        await self._list_pending(zookeeper)
        return await group_ids(zookeeper)

    async def _list_pending(self, zookeeper: ZooKeeper) -> None:
        """List the pending offsets of all partitions, once for the shards that are loaded together."""
        self._listings += 1
        number = self._listings
        pending, problems = await list_pending(zookeeper)
        for text in problems:
            log.error("{problem}: it is ignored", problem=text)
        found: dict[int, list[tuple[int, str]]] = {}
        turns = WorkerTurns(self._clock, IDS_PER_TURN)
        for producer_id, group_id in pending:
            partition = partition_for(group_id, self._partition_count)
            found.setdefault(partition, []).append((producer_id, group_id))
            await turns.done()
        # An older listing must not replace this one: it may be from before the election of these shards.
        self._pending = max(self._pending, (number, found), key=itemgetter(0))

    async def _load_partition(self, shard: CoordinatorShard, ids: list[str]) -> None:
        states, problems = await read_states(shard.fence.zookeeper, ids)
        _report(problems)
        pending = self._pending[1].get(shard.fence.partition, [])
        shard.pending, problems = await read_pending(shard.fence.zookeeper, pending)
        for text in problems:
            log.error(
                "{problem}: OffsetFetch that requires stable offsets answers UNKNOWN_SERVER_ERROR for the group, and "
                "the transaction of the producer waits until the znode is repaired",
                problem=text,
            )
        if shard.fence.resigned:
            return
        shard.known.update(dict.fromkeys(ids))
        for group_id, (snapshot, written_ms) in states.items():
            self.add_group(shard, group_id).restore(snapshot, written_ms)
        shard.loaded = True
        log.info(
            "coordinates partition {p} in leader epoch {e}: {n} groups, {m} members",
            p=shard.fence.partition,
            e=shard.fence.leader_epoch,
            n=len(ids),
            m=sum(len(group.machine.members) for group in shard.groups.values()),
        )
        self.on_loaded()

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
                shard.known[group_id] = None
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
        shard = self._shard_of(group_id)
        if group_id in shard.loading:
            raise CoordinatorLoadInProgress
        return shard

    def add_known(self, group: GroupMetadata) -> None:
        """Record that *group* is about to have znodes."""
        shard = self.partitions.get(group.fence.partition)
        if shard is not None:
            shard.known[group.group_id] = None


def _report(problems: Iterable[str]) -> None:
    for problem in problems:
        log.error("{problem}: its members rejoin", problem=problem)
