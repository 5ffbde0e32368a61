"""The controller's tables: brokers, topics, leaders and ISRs, and the states of partitions and replicas.

Only the state machine writes here. Values that leave (LeaderAndIsr, Broker, Topic) are frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from kbroker.common.endpoint import Endpoint
from kbroker.common.isr_epochs import before_void, is_void
from kbroker.common.leader_and_isr import LeaderAndIsr
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
    """Where the log of a replica of a leaderless partition ends, as its broker reported."""

    leader_epoch: int
    """The partition's leader epoch at the time of the report."""
    last_epoch: int
    """That of the last record."""
    offset: int
    intact: BrokerEpochs | None = None
    """The broker epochs under which this very log was written, or lay untouched, and kept everything."""

    def keeps(self, isr_epoch: int) -> bool:
        """Return whether the log still has all that it had in the ISR under *isr_epoch* (-1: unknown)."""
        return self.intact is not None and (isr_epoch == -1 or self.intact.covers(isr_epoch))


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker: one registration of one id."""

    broker_id: int
    epoch: int
    """The czxid of its /brokers/ids znode (KIP-380): each registration has its own."""
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    integrity: LogDirIntegrity = UNKNOWN_INTEGRITY
    """What its log directories vouch for."""
    is_shutting_down: bool = False
    """Set in UpdateMetadata while its controlled shutdown is under way."""

    def keeps(self, isr_epoch: int) -> bool:
        """Return whether it still has all that it had under the broker epoch *isr_epoch* (-1: unknown)."""
        if isr_epoch in (-1, self.epoch):
            return True
        return self.integrity.covers(isr_epoch)


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """A partition's replicas, preferred leader first, and how a reassignment changes them (KIP-455).

    *replicas* are all that hold the partition now: the target replicas first, in their new order, then the original
    ones.
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
        """Return the assignment of a reassignment from the original replicas to *target*."""
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
    """Replicas on a log directory that failed, by (live) broker."""
    incomplete: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Replicas that were reported to lack records they should have, by (live) broker."""
    log_ends: dict[int, dict[TopicPartition, LogEnd]] = field(default_factory=dict)
    """Log ends of leaderless partitions, by (live) broker: of the logs that it found when it started."""
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
        """Return whether the replica's broker is alive and its log directory has not failed."""
        return broker_id in self.brokers and partition not in self.replicas_on_offline_dirs.get(
            broker_id, ()
        )

    def epoch_of(self, broker_id: int) -> int:
        """Return the broker epoch of a live broker, -1 of any other."""
        broker = self.brokers.get(broker_id)
        return broker.epoch if broker is not None else -1

    def holds(self, broker_id: int, partition: TopicPartition, isr_epoch: int) -> bool:
        """Return whether a live replica still has all that it had when it was in sync under *isr_epoch*."""
        broker = self.brokers.get(broker_id)
        if broker is None or partition in self.incomplete.get(broker_id, ()):
            return False
        end = self.log_ends.get(broker_id, {}).get(partition)
        if is_void(isr_epoch):
            # The log was missing or incomplete. The broker has been restarted since, and found it complete.
            return (
                before_void(isr_epoch) >= 0
                and end is not None
                and end.keeps(before_void(isr_epoch))
            )
        if isr_epoch == broker.epoch or (end is not None and end.keeps(isr_epoch)):
            return True
        return broker.integrity.condition is not LogDirCondition.PARTIAL and broker.keeps(isr_epoch)

    def is_empty(self, broker_id: int, partition: TopicPartition) -> bool:
        """Return whether a live replica is known to have lost its whole log."""
        broker = self.brokers.get(broker_id)
        lost = partition in self.incomplete.get(broker_id, ())
        return lost or (broker is not None and broker.integrity.condition is LogDirCondition.NEW)

    def end_after_power_loss(self, broker_id: int, partition: TopicPartition) -> LogEnd | None:
        """Return the log end of a live replica after a power loss of its machine; None for others, or while unknown."""
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
        """Give known partitions the replicas that their topics' znodes have now."""
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
        """Add a partition of a known topic, with its state if it has one."""
        self.move_partition(partition, PartitionState.NEW)
        for replica in self.replicas(partition):
            self.move_replica(partition, replica, ReplicaState.NEW)
        if state is not None:
            self.leader_and_isr[partition] = state
            self.update_states(partition)

    def update_states(self, partition: TopicPartition) -> None:
        """Update the states of *partition* and its replicas by its leader and the live brokers."""
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
        """Remove topic *name* from every table (its znodes are gone)."""
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
