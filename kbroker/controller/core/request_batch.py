"""The requests to brokers that an event adds up, as effects when it has settled (Kafka's ControllerBrokerRequestBatch).

States are looked up when the requests leave, not when they are added. So a partition that one event changes three times
is sent once, in its final state.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.steps import Steps
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import Broker, ControllerContext
from kbroker.controller.core.effects import (
    Effect,
    PartitionUpdate,
    ReplicaStop,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
)
from kclient.wire.interbroker import EPOCH_DURING_DELETE, LEADER_DURING_DELETE


@dataclass(slots=True)
class ControllerBrokerRequestBatch:
    """One event's LeaderAndIsr, UpdateMetadata and StopReplica, per broker."""

    leader_and_isr: dict[int, set[TopicPartition]] = field(default_factory=dict)
    new_partitions: set[TopicPartition] = field(default_factory=set)
    """Partitions created by this event: sent with is_new."""
    metadata: set[TopicPartition] = field(default_factory=set)
    """Partitions of the UpdateMetadata to every broker."""
    full_metadata_to: set[int] = field(default_factory=set)
    """Brokers that get a full UpdateMetadata."""
    brokers_changed: bool = False
    """Whether every broker gets an UpdateMetadata, if only with the live brokers."""
    stops: dict[int, dict[TopicPartition, bool]] = field(default_factory=dict)
    """Partition -> delete, per broker."""

    def add_partition(self, context: ControllerContext, partition: TopicPartition) -> None:
        """Send *partition*'s state to its replicas, and to every broker as metadata."""
        self.add_leader_and_isr(context, partition)
        self.metadata.add(partition)

    def add_leader_and_isr(self, context: ControllerContext, partition: TopicPartition) -> None:
        """Send *partition*'s state to its replicas."""
        for replica in context.replicas(partition):
            self.leader_and_isr.setdefault(replica, set()).add(partition)

    def add_stop_replica(self, broker_id: int, partition: TopicPartition, *, delete: bool) -> None:
        """Have *broker_id* stop its replica of *partition*."""
        stops = self.stops.setdefault(broker_id, {})
        stops[partition] = stops.get(partition, False) or delete

    def take_effects(self, context: ControllerContext) -> Steps[list[Effect]]:
        """Return the effects, in Kafka's order (LeaderAndIsr, UpdateMetadata, StopReplica), and start empty again."""
        effects: list[Effect] = []
        memo: dict[TopicPartition, PartitionUpdate | None] = {}
        live = tuple(
            replace(context.brokers[b], is_shutting_down=True)
            if b in context.shutting_down
            else context.brokers[b]
            for b in sorted(context.brokers)
        )
        effects += yield from self._leaders(context, memo)
        effects += yield from self._metadata(context, memo, live)
        effects += yield from self._stops(context)
        self.leader_and_isr, self.new_partitions, self.metadata = {}, set(), set()
        self.full_metadata_to, self.brokers_changed, self.stops = set(), False, {}
        return effects

    def _leaders(
        self, context: ControllerContext, memo: dict[TopicPartition, PartitionUpdate | None]
    ) -> Steps[list[Effect]]:
        effects: list[Effect] = []
        for broker_id in sorted(self.leader_and_isr):
            if broker_id not in context.brokers:
                continue
            updates: list[PartitionUpdate] = []
            for partition in sorted(self.leader_and_isr[broker_id]):
                yield
                update = self._update(context, partition, memo)
                if update is not None and partition[0] not in context.deleting:
                    updates.append(update)
            if updates:
                leaders = {u.state.leader for u in updates}
                effects.append(
                    SendLeaderAndIsr(
                        broker_id,
                        tuple(updates),
                        tuple(context.brokers[b] for b in sorted(leaders & context.brokers.keys())),
                    )
                )
        return effects

    def _metadata(
        self,
        context: ControllerContext,
        memo: dict[TopicPartition, PartitionUpdate | None],
        live: tuple[Broker, ...],
    ) -> Steps[list[Effect]]:
        effects: list[Effect] = []
        others = tuple(sorted(context.brokers.keys() - self.full_metadata_to))
        if others and (self.metadata or self.brokers_changed):
            updates = yield from self._updates(context, sorted(self.metadata), memo)
            effects.append(SendUpdateMetadata(others, updates, live))
        newcomers = tuple(sorted(self.full_metadata_to & context.brokers.keys()))
        if newcomers:
            # Of a deletion they learn, too: a broker may have a replica that was moved away from it before.
            deleting = [p for topic in context.deleting for p in context.partitions_of(topic)]
            everything = sorted([*context.partitions(), *deleting])
            updates = yield from self._updates(context, everything, memo)
            effects.append(SendUpdateMetadata(newcomers, updates, live, full=True))
        return effects

    def _stops(self, context: ControllerContext) -> Steps[list[Effect]]:
        effects: list[Effect] = []
        for broker_id in sorted(self.stops.keys() & context.brokers.keys()):
            stops = []
            for partition, delete in sorted(self.stops[broker_id].items()):
                yield
                stops.append(ReplicaStop(partition, _stop_epoch(context, partition), delete))
            effects.append(SendStopReplica(broker_id, tuple(stops)))
        return effects

    def _updates(
        self,
        context: ControllerContext,
        partitions: list[TopicPartition],
        memo: dict[TopicPartition, PartitionUpdate | None],
    ) -> Steps[tuple[PartitionUpdate, ...]]:
        updates = []
        for partition in partitions:
            yield
            update = self._update(context, partition, memo)
            if update is not None:
                updates.append(update)
        return tuple(updates)

    def _update(
        self,
        context: ControllerContext,
        partition: TopicPartition,
        memo: dict[TopicPartition, PartitionUpdate | None],
    ) -> PartitionUpdate | None:
        """Return *partition* as it is sent; None while it has no state (or is gone)."""
        if partition not in memo:
            memo[partition] = partition_update(
                context, partition, is_new=partition in self.new_partitions
            )
        return memo[partition]


def partition_update(
    context: ControllerContext, partition: TopicPartition, *, is_new: bool = False
) -> PartitionUpdate | None:
    """Return *partition* as it is sent; None while it has no state and is not being deleted."""
    topic = context.topics.get(partition[0])
    if topic is None:
        return None
    state = context.leader_and_isr.get(partition)
    if topic.name in context.deleting:
        known = state or LeaderAndIsr(LEADER_DURING_DELETE, EPOCH_DURING_DELETE, (), 0)
        state = replace(known, leader=LEADER_DURING_DELETE, leader_epoch=EPOCH_DURING_DELETE)
    if state is None:
        return None
    assignment = context.assignment(partition)
    return PartitionUpdate(
        topic=partition[0],
        topic_id=topic.topic_id,
        partition=partition[1],
        state=state,
        replicas=context.replicas(partition),
        offline_replicas=context.offline_replicas(partition),
        adding_replicas=assignment.adding,
        removing_replicas=assignment.removing,
        is_new=is_new,
    )


def _stop_epoch(context: ControllerContext, partition: TopicPartition) -> int:
    state = context.leader_and_isr.get(partition)
    if partition[0] in context.deleting or state is None:
        return EPOCH_DURING_DELETE
    return state.leader_epoch
