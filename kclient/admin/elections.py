"""Changes of leaders and replicas at the controller: elections (KIP-183, KIP-460), reassignments (KIP-455)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from kclient.admin.reassignment_plan import Reassignment
from kclient.admin.topics import at_controller, raise_if_moved
from kclient.errors import KafkaError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.net.group_offsets import by_topic
from kclient.types import TopicPartition
from kclient.wire.schema.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kclient.wire.schema.elect_leaders import ElectLeadersRequest, TopicPartitions
from kclient.wire.schema.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from kclient.wire.versions import ApiKey


class ElectionType(IntEnum):
    """The election: the preferred replica, if it is in sync; or, for a partition without a leader, any live replica.

    An unclean leader may lack acknowledged records: they are lost.
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
    wanted = None if tps is None else [TopicPartitions(*each) for each in by_topic(tps).items()]
    request = ElectLeadersRequest(int(kind), wanted, int(timeout * 1000))

    async def ask(connection: Connection) -> Any:
        response = await connection.request(
            ApiKey.ELECT_LEADERS, None, request, timeout=timeout + 1
        )
        results = response.replica_election_results
        raise_if_moved(
            [response.error_code, *(p.error_code for t in results for p in t.partition_result)]
        )
        if response.error_code:
            raise error_of(response.error_code, "electing leaders")
        return results

    results = await at_controller(cluster, ask, timeout=timeout, what="electing leaders")
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
    topics: dict[str, ReassignableTopic] = {}
    for tp, replicas in targets.items():
        topic = topics.setdefault(tp.topic, ReassignableTopic(tp.topic))
        chosen = None if replicas is None else list(replicas)
        topic.partitions.append(ReassignablePartition(tp.partition, chosen))
    request = AlterPartitionReassignmentsRequest(int(timeout * 1000), list(topics.values()))

    async def ask(connection: Connection) -> Any:
        response = await connection.request(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, None, request, timeout=timeout + 1
        )
        codes = [p.error_code for t in response.responses for p in t.partitions]
        raise_if_moved([response.error_code, *codes])
        if response.error_code:
            raise error_of(response.error_code, "reassigning partitions", response.error_message)
        return response.responses

    responses = await at_controller(cluster, ask, timeout=timeout, what="reassigning partitions")
    return {
        (tp := TopicPartition(topic.name, p.partition_index)): _problem(tp, p)
        for topic in responses
        for p in topic.partitions
    }


async def list_reassignments(
    cluster: Cluster, tps: Iterable[TopicPartition] | None, *, timeout: float
) -> dict[TopicPartition, Reassignment]:
    """Return the active reassignments, all or those of *tps*."""
    wanted = (
        None
        if tps is None
        else [ListPartitionReassignmentsTopics(*each) for each in by_topic(tps).items()]
    )
    request = ListPartitionReassignmentsRequest(int(timeout * 1000), wanted)

    async def ask(connection: Connection) -> Any:
        response = await connection.request(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, None, request, timeout=timeout + 1
        )
        raise_if_moved([response.error_code])
        if response.error_code:
            raise error_of(response.error_code, "listing reassignments", response.error_message)
        return response.topics

    topics = await at_controller(cluster, ask, timeout=timeout, what="listing reassignments")
    return {
        TopicPartition(topic.name, p.partition_index): Reassignment(
            tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
        )
        for topic in topics
        for p in topic.partitions
    }


def _problem(tp: TopicPartition, answer: Any) -> KafkaError | None:
    return error_of(answer.error_code, tp, answer.error_message) if answer.error_code else None
