"""Changes of leaders and replicas at the controller: elections (KIP-183, KIP-460), reassignments (KIP-455)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from kclient.errors import KafkaError
from kclient.lazy import LazyModule
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.types import TopicPartition
from kclient.wire.versions import ApiKey

if TYPE_CHECKING:
    from kclient.admin import reassignment_plan
    from kclient.admin import topics as admin_topics
    from kclient.net import group_offsets
    from kclient.wire.schema import alter_partition_reassignments as alter_wire
    from kclient.wire.schema import elect_leaders as elect_wire
    from kclient.wire.schema import list_partition_reassignments as list_wire
else:
    reassignment_plan = LazyModule("kclient.admin.reassignment_plan")
    group_offsets = LazyModule("kclient.net.group_offsets")
    admin_topics = LazyModule("kclient.admin.topics")
    alter_wire = LazyModule("kclient.wire.schema.alter_partition_reassignments")
    elect_wire = LazyModule("kclient.wire.schema.elect_leaders")
    list_wire = LazyModule("kclient.wire.schema.list_partition_reassignments")


class ElectionType(IntEnum):
    """The election: the preferred replica, if it is in sync; or, for a partition without a leader, any live replica.

    An unclean leader may lack acknowledged records: they are lost.

        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("orders", 0)], raise_errors=False)
    """

    PREFERRED = 0
    UNCLEAN = 1


async def elect_leaders(
    cluster: Cluster,
    kind: ElectionType,
    tps: Iterable[TopicPartition] | None,
    *,
    timeout: float,
) -> dict[TopicPartition, KafkaError | None]:
    """Elect leaders for *tps*; None: for every partition that needs an election."""
    wanted = (
        None
        if tps is None
        else [elect_wire.TopicPartitions(*each) for each in group_offsets.by_topic(tps).items()]
    )
    request = elect_wire.ElectLeadersRequest(int(kind), wanted, int(timeout * 1000))

    async def send(connection: Connection) -> Any:
        response = await connection.request(
            ApiKey.ELECT_LEADERS, None, request, timeout=timeout + 1
        )
        results = response.replica_election_results
        admin_topics.raise_if_moved(
            [response.error_code, *(p.error_code for t in results for p in t.partition_result)]
        )
        if response.error_code:
            raise error_of(response.error_code, "electing leaders")
        return results

    results = await admin_topics.at_controller(
        cluster, send, timeout=timeout, what="electing leaders"
    )
    return {
        (tp := TopicPartition(topic.topic, p.partition_id)): _problem(tp, p)
        for topic in results
        for p in topic.partition_result
    }


async def alter_reassignments(
    cluster: Cluster,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    *,
    timeout: float,
) -> dict[TopicPartition, KafkaError | None]:
    """Start reassignments to the given replicas; None cancels a reassignment."""
    topics: dict[str, alter_wire.ReassignableTopic] = {}
    for tp, replicas in targets.items():
        topic = topics.setdefault(tp.topic, alter_wire.ReassignableTopic(tp.topic))
        chosen = None if replicas is None else list(replicas)
        topic.partitions.append(alter_wire.ReassignablePartition(tp.partition, chosen))
    request = alter_wire.AlterPartitionReassignmentsRequest(
        int(timeout * 1000), list(topics.values())
    )

    async def send(connection: Connection) -> Any:
        response = await connection.request(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, None, request, timeout=timeout + 1
        )
        codes = [p.error_code for t in response.responses for p in t.partitions]
        admin_topics.raise_if_moved([response.error_code, *codes])
        if response.error_code:
            raise error_of(response.error_code, "reassigning partitions", response.error_message)
        return response.responses

    responses = await admin_topics.at_controller(
        cluster, send, timeout=timeout, what="reassigning partitions"
    )
    return {
        (tp := TopicPartition(topic.name, p.partition_index)): _problem(tp, p)
        for topic in responses
        for p in topic.partitions
    }


async def list_reassignments(
    cluster: Cluster, tps: Iterable[TopicPartition] | None, *, timeout: float
) -> dict[TopicPartition, reassignment_plan.Reassignment]:
    """Return the active reassignments, all or those of *tps*."""
    wanted = (
        None
        if tps is None
        else [
            list_wire.ListPartitionReassignmentsTopics(*each)
            for each in group_offsets.by_topic(tps).items()
        ]
    )
    request = list_wire.ListPartitionReassignmentsRequest(int(timeout * 1000), wanted)

    async def send(connection: Connection) -> Any:
        response = await connection.request(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, None, request, timeout=timeout + 1
        )
        admin_topics.raise_if_moved([response.error_code])
        if response.error_code:
            raise error_of(response.error_code, "listing reassignments", response.error_message)
        return response.topics

    topics = await admin_topics.at_controller(
        cluster, send, timeout=timeout, what="listing reassignments"
    )
    return {
        TopicPartition(topic.name, p.partition_index): reassignment_plan.Reassignment(
            tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
        )
        for topic in topics
        for p in topic.partitions
    }


def _problem(tp: TopicPartition, answer: Any) -> KafkaError | None:
    return error_of(answer.error_code, tp, answer.error_message) if answer.error_code else None
