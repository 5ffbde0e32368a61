"""Preferred leader election: which brokers lead too few of their partitions, and the state that changes it.

The first of a partition's replicas is its preferred leader; assignment spreads those evenly. After a failover others
lead, and a broker that came back leads nothing. Every leader.imbalance.check.interval.seconds the share of a broker's
preferred partitions that it does not lead is compared with leader.imbalance.per.broker.percentage. Above it leadership
goes back, each partition only to a replica that is alive and in the ISR (KAFKA-9866: never to a lagging one).
Partitions that are being reassigned are left out until that is completed. Their first replica is a new one, or one that
becomes leader then anyway. (Kafka leaves out everything while anything is being reassigned, which in a large cluster is
always.)

Pure: reads the controller's tables, changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.steps import Steps
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import ControllerContext


def imbalanced_partitions(
    context: ControllerContext, percentage: int
) -> Steps[list[TopicPartition]]:
    """Return the partitions to elect, of brokers that do not lead more than *percentage* of theirs."""
    owned: dict[int, int] = defaultdict(int)
    elsewhere: dict[int, list[TopicPartition]] = defaultdict(list)
    for partition in context.partitions():
        yield
        if partition in context.being_reassigned:
            continue
        preferred = context.replicas(partition)[0]
        owned[preferred] += 1
        state = context.leader_and_isr.get(partition)
        if state is not None and state.leader != preferred:
            elsewhere[preferred].append(partition)
    return [
        partition
        for broker_id, partitions in sorted(elsewhere.items())
        if broker_id in context.brokers and 100 * len(partitions) > percentage * owned[broker_id]
        for partition in partitions
    ]


def elect_preferred(context: ControllerContext, partition: TopicPartition) -> LeaderAndIsr | None:
    """Return the state in which the preferred replica leads; None if it does, or cannot."""
    current = context.leader_and_isr.get(partition)
    replicas = context.replicas(partition)
    if current is None or not replicas or partition[0] in context.deleting:
        return None
    preferred = replicas[0]
    if (
        current.leader == preferred
        or preferred not in current.isr
        or preferred in context.shutting_down
        or not context.is_online(preferred, partition)
        or not context.holds(preferred, partition, current.isr_epoch_by_member[preferred])
    ):
        return None
    return replace(
        current,
        leader=preferred,
        leader_epoch=current.leader_epoch + 1,
        controller_epoch=context.controller_epoch,
    )
