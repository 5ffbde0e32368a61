"""What the controller knows: brokers, topics, leaders, and the state of everything, in plain tables.

Only the machine writes here. Values that leave (LeaderAndIsr, Broker, Topic) are frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from kbroker.common.endpoint import Endpoint
from kbroker.common.isr_epochs import before_void, is_void
from kbroker.common.log_dir_integrity import (
    UNKNOWN_INTEGRITY,
    BrokerEpochs,
    LogDirCondition,
    LogDirIntegrity,
)
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.states import (
    PARTITION_VALID_FROM,
    REPLICA_VALID_FROM,
    InvalidStateChangeError,
    PartitionState,
    ReplicaState,
)
from kclient.wire.interbroker import NO_LEADER


class LogEnd(NamedTuple):
    """Where the log of a replica of a leaderless partition ends, as its broker said."""

    leader_epoch: int
    """The partition's leader epoch when it said so."""
    last_epoch: int
    """That of the last record."""
    offset: int
    intact: BrokerEpochs | None = None
    """The broker epochs under which this very log was written, or lay untouched, and kept everything."""

    def keeps(self, isr_epoch: int) -> bool:
        """Say whether what it had as *granted* is still there (-1: unknown)."""
        return self.intact is not None and (isr_epoch == -1 or self.intact.covers(isr_epoch))


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker: one incarnation of one id."""

    broker_id: int
    epoch: int
    """The czxid of its /brokers/ids znode (KIP-380): another epoch is another incarnation."""
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    integrity: LogDirIntegrity = UNKNOWN_INTEGRITY
    """What its log directories vouch for."""
    is_shutting_down: bool = False
    """Set in what brokers are told of it while its controlled shutdown is under way."""

    def keeps(self, isr_epoch: int) -> bool:
        """Say whether what it had as *granted* is still there: in its life of that broker epoch (-1: unknown)."""
        if isr_epoch in (-1, self.epoch):
            return True
        return self.integrity.covers(isr_epoch)


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """A partition's state znode, with the version it was read or written at."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    """Epoch of the controller that last wrote it."""
    zk_version: int = -1
    isr_epochs: tuple[int, ...] = ()
    """The broker epochs under which the members of *isr* are in it, -1 unknown; () for none known (KIP-903)."""
    elr: tuple[tuple[int, int], ...] = ()
    """(broker, its epoch) of replicas out of the ISR that have all that is committed (KIP-966)."""
    leader_recovery_state: int = 0
    """1 after an unclean election (KIP-704)."""

    @property
    def isr_epoch_by_member(self) -> dict[int, int]:
        """The broker epoch by member of the ISR."""
        return dict(zip(self.isr, self.isr_epochs or (-1,) * len(self.isr), strict=True))


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """A partition's replicas, preferred leader first, while they change (KIP-455).

    *replicas* are all that hold the partition now: those it shall have first, in their new order, then those it had.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def origin_replicas(self) -> tuple[int, ...]:
        """The replicas before the reassignment."""
        return tuple(r for r in self.replicas if r not in self.adding)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas after it."""
        return tuple(r for r in self.replicas if r not in self.removing)

    @property
    def is_being_reassigned(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding or self.removing)

    def reassign_to(self, target: Sequence[int]) -> ReplicaAssignment:
        """Return the assignment that leads from the origin to *target*, whatever is under way now."""
        origin = self.origin_replicas
        every = tuple(dict.fromkeys((*target, *origin)))
        return ReplicaAssignment(
            every,
            tuple(r for r in every if r not in origin),
            tuple(r for r in every if r not in target),
        )


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's znode: its id and which brokers hold each partition, preferred leader first."""

    name: str
    topic_id: UUID
    assignment: Mapping[int, tuple[int, ...]]
    being_reassigned: Mapping[int, ReplicaAssignment] = field(default_factory=dict)
    """The partitions that are being reassigned, with the same replicas as above."""


@dataclass(slots=True)
class ControllerContext:
    """The controller's tables. Keys of `leader_and_isr` are always partitions of `topics`."""

    controller_epoch: int
    brokers: dict[int, Broker] = field(default_factory=dict)
    """Live brokers, those that are shutting down included."""
    shutting_down: set[int] = field(default_factory=set)
    topics: dict[str, Topic] = field(default_factory=dict)
    leader_and_isr: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    partition_states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    replica_states: dict[tuple[TopicPartition, int], ReplicaState] = field(default_factory=dict)
    replicas_on_offline_dirs: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Replicas whose log directory failed, by (live) broker."""
    incomplete: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Replicas that said that they lack records they should have, by (live) broker."""
    log_ends: dict[int, dict[TopicPartition, LogEnd]] = field(default_factory=dict)
    """Where logs of leaderless partitions end, and what they kept, by (live) broker: those it found when it started."""
    deleting: set[str] = field(default_factory=set)
    being_reassigned: set[TopicPartition] = field(default_factory=set)
    """The partitions that are being reassigned."""

    def __post_init__(self) -> None:
        for topic in self.topics.values():
            self.being_reassigned.update((topic.name, index) for index in topic.being_reassigned)

    # -- queries -----------------------------------------------------------------------------

    def replicas(self, partition: TopicPartition) -> tuple[int, ...]:
        """Return the assigned replicas, preferred leader first; () for an unknown partition."""
        topic = self.topics.get(partition[0])
        return topic.assignment.get(partition[1], ()) if topic is not None else ()

    def assignment(self, partition: TopicPartition) -> ReplicaAssignment:
        """Return the assigned replicas and how they change; KeyError for an unknown partition."""
        topic = self.topics[partition[0]]
        return topic.being_reassigned.get(partition[1]) or ReplicaAssignment(
            topic.assignment[partition[1]]
        )

    def is_online(self, broker_id: int, partition: TopicPartition) -> bool:
        """Say whether the replica's broker is alive and its log directory has not failed."""
        return broker_id in self.brokers and partition not in self.replicas_on_offline_dirs.get(
            broker_id, ()
        )

    def epoch_of(self, broker_id: int) -> int:
        """Return the broker epoch of a live broker, -1 of any other."""
        broker = self.brokers.get(broker_id)
        return broker.epoch if broker is not None else -1

    def holds(self, broker_id: int, partition: TopicPartition, isr_epoch: int) -> bool:
        """Say whether a live replica still has all that it had when it was in sync as *granted*."""
        broker = self.brokers.get(broker_id)
        if broker is None or partition in self.incomplete.get(broker_id, ()):
            return False
        end = self.log_ends.get(broker_id, {}).get(partition)
        if is_void(isr_epoch):
            # The log was not there, or not whole. The broker has been restarted, and found it whole again.
            return (
                before_void(isr_epoch) >= 0
                and end is not None
                and end.keeps(before_void(isr_epoch))
            )
        if isr_epoch == broker.epoch or (end is not None and end.keeps(isr_epoch)):
            return True
        return broker.integrity.condition is not LogDirCondition.PARTIAL and broker.keeps(isr_epoch)

    def is_empty(self, broker_id: int, partition: TopicPartition) -> bool:
        """Say whether a live replica is known to have lost its log as a whole."""
        broker = self.brokers.get(broker_id)
        lost = partition in self.incomplete.get(broker_id, ())
        return lost or (broker is not None and broker.integrity.condition is LogDirCondition.NEW)

    def end_after_power_loss(self, broker_id: int, partition: TopicPartition) -> LogEnd | None:
        """Return where the log of a live replica ends whose machine went down; None for others, or while unknown."""
        broker = self.brokers.get(broker_id)
        if broker is None or broker.integrity.condition is not LogDirCondition.POWER_LOSS:
            return None
        return self.log_ends.get(broker_id, {}).get(partition)

    def offline_replicas(self, partition: TopicPartition) -> tuple[int, ...]:
        """Return the assigned replicas of *partition* that are not online."""
        return tuple(r for r in self.replicas(partition) if not self.is_online(r, partition))

    def partitions(self) -> Iterator[TopicPartition]:
        """Iterate over the partitions of all topics that are not being deleted."""
        for topic in self.topics.values():
            if topic.name not in self.deleting:
                for index in topic.assignment:
                    yield topic.name, index

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Every partition of *topic*, in order."""
        return [(topic, index) for index in sorted(self.topics[topic].assignment)]

    def partitions_on(self, broker_ids: Iterable[int]) -> list[TopicPartition]:
        """Partitions (of topics that stay) with a replica on any of *broker_ids*."""
        wanted = frozenset(broker_ids)
        return [p for p in self.partitions() if not wanted.isdisjoint(self.replicas(p))]

    # -- moves -------------------------------------------------------------------------------

    def assign(self, assignments: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        """Give known partitions other replicas, as their topics' znodes say now."""
        changes: dict[str, dict[int, ReplicaAssignment]] = {}
        for (name, index), assignment in assignments.items():
            changes.setdefault(name, {})[index] = assignment
        for name, change in changes.items():
            topic = self.topics[name]
            replicas = {**topic.assignment, **{p: a.replicas for p, a in change.items()}}
            moving = {
                p: a
                for p, a in {**topic.being_reassigned, **change}.items()
                if a.is_being_reassigned
            }
            self.topics[name] = replace(topic, assignment=replicas, being_reassigned=moving)
            self.being_reassigned.difference_update((name, index) for index in change)
            self.being_reassigned.update((name, index) for index in change if index in moving)

    def move_partition(self, partition: TopicPartition, state: PartitionState) -> None:
        """Enter *state*; InvalidStateChangeError when the table forbids it."""
        now = self.partition_states.get(partition, PartitionState.NON_EXISTENT)
        if now not in PARTITION_VALID_FROM[state]:
            raise InvalidStateChangeError(f"partition {partition}: {now.value} -> {state.value}")
        if state is PartitionState.NON_EXISTENT:
            del self.partition_states[partition]
        else:
            self.partition_states[partition] = state

    def move_replica(self, partition: TopicPartition, replica: int, state: ReplicaState) -> None:
        """Enter *state*; InvalidStateChangeError when the table forbids it."""
        key = (partition, replica)
        now = self.replica_states.get(key, ReplicaState.NON_EXISTENT)
        if now not in REPLICA_VALID_FROM[state]:
            raise InvalidStateChangeError(
                f"replica {replica} of {partition}: {now.value} -> {state.value}"
            )
        if state is ReplicaState.NON_EXISTENT:
            del self.replica_states[key]
        else:
            self.replica_states[key] = state

    def load(self, partition: TopicPartition, state: LeaderAndIsr | None) -> None:
        """Take in a partition of a known topic, and its state if it has one."""
        self.move_partition(partition, PartitionState.NEW)
        for replica in self.replicas(partition):
            self.move_replica(partition, replica, ReplicaState.NEW)
        if state is not None:
            self.leader_and_isr[partition] = state
            self.update_states(partition)

    def update_states(self, partition: TopicPartition) -> None:
        """Bring the state tables in line with what is known of *partition* and of who lives."""
        state = self.leader_and_isr.get(partition)
        if state is None:
            return
        led = state.leader != NO_LEADER and self.is_online(state.leader, partition)
        self.move_partition(partition, PartitionState.ONLINE if led else PartitionState.OFFLINE)
        for replica in self.replicas(partition):
            online = self.is_online(replica, partition)
            self.move_replica(
                partition, replica, ReplicaState.ONLINE if online else ReplicaState.OFFLINE
            )

    def remove_topic(self, name: str) -> None:
        """Drop every trace of topic *name* (its znodes are gone)."""
        topic = self.topics.pop(name, None)
        self.deleting.discard(name)
        if topic is None:
            return
        for index, replicas in topic.assignment.items():
            partition = (name, index)
            self.being_reassigned.discard(partition)
            self.leader_and_isr.pop(partition, None)
            self.partition_states.pop(partition, None)
            for replica in replicas:
                self.replica_states.pop((partition, replica), None)
                self.replicas_on_offline_dirs.get(replica, set()).discard(partition)
                self.incomplete.get(replica, set()).discard(partition)
