"""Which groups this broker holds: partitions taken over, loaded, and let go.

Theory of operation
===================
A broker coordinates the groups of those partitions of ``__consumer_offsets`` that it leads. Told
that it leads one (`partition_led`), it syncs with ZooKeeper, makes sure that the partition's state
says the same, lists the groups that hash to it and reads their state: members are restored with a
fresh session timeout and no rebalance. Until then requests get COORDINATOR_LOAD_IN_PROGRESS.
Offsets are read when a group is first asked for them.

Leadership ends in four ways: the controller says so (`partition_lost`), a write fails because
another broker leads, our ZooKeeper session ends, or it may have ended and the followers do not
confirm that we lead (docs/design/groups-without-zookeeper.md). Each time the groups are let go at
once and all waiting requests are answered NOT_COORDINATOR. After the end of a session the
partitions that we were told to lead are taken over again, if ZooKeeper still has us as leader.

Owner: the reactor's thread.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.reactor import Clock
from kbroker.coordinator.group.core.limits import GroupLimits
from kbroker.coordinator.group.core.placement import OFFSETS_TOPIC, partition_of
from kbroker.coordinator.group.core.states import GroupState
from kbroker.coordinator.group.group_metadata import HeldGroup
from kbroker.coordinator.group.group_store import group_ids, read_states
from kbroker.coordinator.group.shard_fence import CoordinatedPartition, CoordinatorMoved, Fence
from kbroker.zk.errors import ConnectionLoss, SessionExpired
from kbroker.zk.interface import Connected, Expired, Lapsed, SessionEvent, ZooKeeper
from kbroker.zk.znodes import decode_topic, partition_state_path, topic_path
from kclient.wire.error_codes import ErrorCode

log = Logger()

MAX_GROUP_ID = 1024
"""Characters of a group id; it is part of the path of every znode of the group."""

RETRY_LOADING = 1.0
"""Seconds after which loading is tried again where it failed for a reason nobody expected."""

CUT_OFF_PATIENCE = 6.0
"""Seconds without a confirmation after which groups are let go, while the session may be over."""

LOOK_AGAIN = 1.0
"""Seconds between two looks at the confirmations meanwhile."""

GivenUp = Callable[[Collection[str], ErrorCode], None]


@dataclass(slots=True, eq=False)
class GroupsOfPartition:
    """A partition that this broker coordinates, with its groups."""

    right: CoordinatedPartition
    loaded: bool = False
    groups: dict[str, HeldGroup] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    """Groups which have znodes; those not in `groups` hold nothing but offsets."""
    loading: set[str] = field(default_factory=set)
    """Groups being read, or deleted, one by one."""


class CoordinatedGroups:
    """The groups that *broker_id* holds. *given_up* is told which ones it does not hold any more."""

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        *,
        broker_id: int,
        limits: GroupLimits,
        now_ms: Callable[[], int],
        given_up: GivenUp,
        fence: Fence,
    ) -> None:
        self.partitions: dict[int, GroupsOfPartition] = {}
        self._clock = clock
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._limits = limits
        self._now_ms = now_ms
        self._given_up = given_up
        self._fence = fence
        self._partition_count = 0
        """Partitions of ``__consumer_offsets``; 0 before anything was loaded."""
        self._told: dict[int, int] = {}
        """What we were told to lead: partition, leader epoch."""
        self._to_load: list[GroupsOfPartition] = []
        self._stopped = False
        self._cut_off = False
        """Whether the session may be over (S11)."""
        zookeeper.on_session(self._on_session)

    # --- leadership ---------------------------------------------------------------------------

    def on_leadership(
        self, topic: str, partition: int, leader_epoch: int, zk_version: int, is_leader: bool
    ) -> None:
        """Follow what the controller says about the leadership of any partition."""
        if topic != OFFSETS_TOPIC:
            return
        if is_leader:
            self.partition_led(partition, leader_epoch)
        else:
            self.partition_lost(partition)

    def partition_led(self, partition: int, leader_epoch: int) -> None:
        """Take over the groups of *partition*; once more with the same epoch changes nothing."""
        self._told[partition] = leader_epoch
        current = self.partitions.get(partition)
        if current is not None:
            if current.right.leader_epoch == leader_epoch and not current.right.given_up:
                return
            self._let_go(partition, ErrorCode.NOT_COORDINATOR)
        session = self._zookeeper.session
        if session is None or self._stopped:
            return  # once there is one
        right = CoordinatedPartition(
            self._zookeeper,
            session,
            broker_id=self._broker_id,
            partition=partition,
            leader_epoch=leader_epoch,
            moved=self._moved,
            fence=self._fence,
        )
        coordinated = self.partitions[partition] = GroupsOfPartition(right)
        self._load_soon(coordinated)

    def partition_lost(self, partition: int) -> None:
        """Let the groups of *partition* go: another broker leads, or the topic is deleted."""
        self._told.pop(partition, None)
        self._let_go(partition, ErrorCode.NOT_COORDINATOR)

    def stop(self) -> None:
        """Let everything go; the members look for the next coordinator."""
        self._stopped = True
        for partition in list(self.partitions):
            self._let_go(partition, ErrorCode.NOT_COORDINATOR)

    def _on_session(self, event: SessionEvent) -> None:
        match event:
            case Lapsed():
                self._cut_off = True
                self._let_go_unconfirmed()
            case Expired():
                self._cut_off = False
                for partition in list(self.partitions):
                    self._let_go(partition, ErrorCode.NOT_COORDINATOR)
            case Connected():
                self._cut_off = False
                for coordinated in list(self.partitions.values()):
                    coordinated.right.connection_is_back()
                for partition, leader_epoch in self._told.items():
                    self.partition_led(partition, leader_epoch)
            case _:
                pass

    def _let_go_unconfirmed(self) -> None:
        """Let the groups go that another broker may coordinate; look again as long as the session may be over."""
        if not self._cut_off or self._stopped:
            return
        since = self._clock.seconds() - CUT_OFF_PATIENCE
        for partition, coordinated in list(self.partitions.items()):
            if not coordinated.right.confirmed_since(since):
                log.warn(
                    "cut off from ZooKeeper, and not all in-sync replicas of partition {partition} follow: "
                    "another broker may coordinate its groups",
                    partition=partition,
                )
                self._let_go(partition, ErrorCode.NOT_COORDINATOR)
        self._clock.callLater(LOOK_AGAIN, self._let_go_unconfirmed)

    def _moved(self, right: CoordinatedPartition) -> None:
        """Handle ZooKeeper's word that another broker leads, or that our session is over."""
        current = self.partitions.get(right.partition)
        if current is not None and current.right is right:
            log.warn(
                "this broker does not coordinate the groups of partition {partition} any more",
                partition=right.partition,
            )
            self._let_go(right.partition, ErrorCode.NOT_COORDINATOR)

    def _let_go(self, partition: int, error: ErrorCode) -> None:
        coordinated = self.partitions.pop(partition, None)
        if coordinated is None:
            return
        coordinated.right.give_up()
        for group in coordinated.groups.values():
            group.unload(error)
        self._given_up(coordinated.groups, error)

    # --- loading ------------------------------------------------------------------------------

    def _load_soon(self, coordinated: GroupsOfPartition) -> None:
        """Load with all others that were taken over in this turn: they share one listing."""
        if not self._to_load:
            self._clock.callLater(0, self._load_all)
        self._to_load.append(coordinated)

    def _load_all(self) -> None:
        batch, self._to_load = self._to_load, []
        Deferred.fromCoroutine(self._load(batch)).addErrback(self._loading_failed, batch)

    def _loading_failed(self, failure: Any, batch: list[GroupsOfPartition]) -> None:
        log.failure("groups could not be loaded, trying again", failure=failure)
        for coordinated in batch:
            if not coordinated.right.given_up and not coordinated.loaded:
                self._clock.callLater(RETRY_LOADING, self._load_soon, coordinated)

    async def _load(self, batch: list[GroupsOfPartition]) -> None:
        while batch := [c for c in batch if not c.right.given_up and not c.loaded]:
            try:
                await self._load_connected(batch)
            except ConnectionLoss:
                try:
                    await batch[0].right.reconnected()
                except CoordinatorMoved:
                    continue
            except SessionExpired:
                return

    async def _load_connected(self, batch: list[GroupsOfPartition]) -> None:
        """Load the partitions of *batch*, which are of one session, unless they are not ours."""
        zookeeper = batch[0].right.zookeeper
        await zookeeper.sync(partition_state_path(OFFSETS_TOPIC, batch[0].right.partition))
        ours = []
        for coordinated in batch:
            if await coordinated.right.still_ours():
                ours.append(coordinated)
        if not ours:
            return
        topic = await zookeeper.get(topic_path(OFFSETS_TOPIC))
        count = self._partition_count = len(decode_topic(OFFSETS_TOPIC, topic.data).partitions)
        by_partition: dict[int, list[str]] = {}
        for group_id in await group_ids(zookeeper):
            by_partition.setdefault(partition_of(group_id, count), []).append(group_id)
        for coordinated in ours:
            names = by_partition.get(coordinated.right.partition, [])
            await self._load_partition(coordinated, names)

    async def _load_partition(self, coordinated: GroupsOfPartition, names: list[str]) -> None:
        states, problems = await read_states(coordinated.right.zookeeper, names)
        for problem in problems:
            log.error("{problem}: its members will have to rejoin", problem=problem)
        if coordinated.right.given_up:
            return
        coordinated.known.update(names)
        for group_id, (snapshot, written_ms) in states.items():
            self.hold(coordinated, group_id).restore(snapshot, written_ms)
        coordinated.loaded = True
        log.info(
            "coordinates partition {p} in leader epoch {e}: {n} groups, {m} members",
            p=coordinated.right.partition,
            e=coordinated.right.leader_epoch,
            n=len(names),
            m=sum(len(group.machine.members) for group in coordinated.groups.values()),
        )

    def hold(self, coordinated: GroupsOfPartition, group_id: str) -> HeldGroup:
        """Begin to hold a group, Empty as yet."""
        group = HeldGroup(
            self._clock, coordinated.right, group_id, self._limits, self.forget, self._now_ms
        )
        group.tree.has_root = group_id in coordinated.known
        group.offsets_known = group.offsets_read = not group.tree.has_root
        coordinated.groups[group_id] = group
        return group

    def forget(self, group: HeldGroup) -> None:
        """Stop holding a group of which there is nothing, or which has to be read again."""
        coordinated = self.partitions.get(group.partition.partition)
        if coordinated is None or coordinated.groups.get(group.group_id) is not group:
            return
        del coordinated.groups[group.group_id]
        if group.machine.state is GroupState.DEAD:
            self._given_up([group.group_id], ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.read_again(coordinated, group.group_id)

    def read_again(self, coordinated: GroupsOfPartition, group_id: str) -> None:
        """Read one group anew; until then it is being loaded."""
        coordinated.loading.add(group_id)
        reading = Deferred.fromCoroutine(self._read_again(coordinated, group_id))
        reading.addErrback(self._reading_failed, coordinated, group_id)

    async def _read_again(self, coordinated: GroupsOfPartition, group_id: str) -> None:
        while not coordinated.right.given_up:
            try:
                zookeeper = coordinated.right.zookeeper
                exists = group_id in await group_ids(zookeeper)
                states, _problems = await read_states(zookeeper, [group_id])
            except ConnectionLoss:
                await coordinated.right.reconnected()
                continue
            coordinated.loading.discard(group_id)
            if exists:
                coordinated.known.add(group_id)
            if group_id in states:
                self.hold(coordinated, group_id).restore(*states[group_id])
            return

    def _reading_failed(self, failure: Any, coordinated: GroupsOfPartition, group_id: str) -> None:
        coordinated.loading.discard(group_id)
        if not isinstance(failure.value, CoordinatorMoved | SessionExpired):
            log.failure("group {group} could not be read", failure=failure, group=group_id)

    # --- finding a group ----------------------------------------------------------------------

    def held(self, group_id: str) -> HeldGroup | None:
        """Return the group if it is held here now."""
        coordinated = self.locate(group_id)
        return (
            coordinated.groups.get(group_id) if isinstance(coordinated, GroupsOfPartition) else None
        )

    def locate(self, group_id: str) -> GroupsOfPartition | ErrorCode:
        """Return the partition of ours that *group_id* belongs to, or why there is none."""
        if not group_id or len(group_id) > MAX_GROUP_ID:
            return ErrorCode.INVALID_GROUP_ID
        count = self._partition_count
        if not count:
            loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return loading if self.partitions else ErrorCode.NOT_COORDINATOR
        coordinated = self.partitions.get(partition_of(group_id, count))
        if coordinated is None:
            return ErrorCode.NOT_COORDINATOR
        if not coordinated.loaded or group_id in coordinated.loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return coordinated

    def known_soon(self, group: HeldGroup) -> None:
        """Note that *group* is about to have znodes."""
        coordinated = self.partitions.get(group.partition.partition)
        if coordinated is not None:
            coordinated.known.add(group.group_id)
