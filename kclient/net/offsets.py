"""ListOffsets: earliest, latest, by time; each partition is requested from its leader.

v1 one offset per partition · v2 isolation level · v4 leader epochs (KIP-320) · v7 max timestamp (KIP-734)
"""

from __future__ import annotations

from collections.abc import Mapping

from kclient.errors import KafkaError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.leader_requests import Send, request_leaders, request_leaders_retrying
from kclient.types import OffsetAndTimestamp, TopicPartition
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.wire.versions import ApiKey

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
NAMED_TIMES = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}

Answers = dict[TopicPartition, OffsetAndTimestamp | KafkaError]


async def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    timeout: float,
) -> Answers:
    """Return the first offset at or after each timestamp (ms since the epoch, or one of the constants above).

    The offset is -1 if no record is that recent. Retriable errors are retried for *timeout* seconds; an error that
    remains is the result of its partition.
    """
    return await request_leaders_retrying(
        cluster,
        timestamps,
        _sender(cluster, read_committed=read_committed),
        timeout=timeout,
        what="listing offsets",
    )


async def list_offsets_once(
    cluster: Cluster, timestamps: Mapping[TopicPartition, int], *, read_committed: bool
) -> Answers:
    """Send one request to every leader at the same time; return a result or an error per partition."""
    send = _sender(cluster, read_committed=read_committed)
    return await request_leaders(cluster, timestamps, send)


def _sender(cluster: Cluster, *, read_committed: bool) -> Send[int, OffsetAndTimestamp]:
    return lambda leader, wanted: _send(cluster, leader, wanted, read_committed)


async def _send(
    cluster: Cluster, leader: int, wanted: Mapping[TopicPartition, int], read_committed: bool
) -> Answers:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for tp, timestamp in wanted.items():
        topics.setdefault(tp.topic, []).append(
            ListOffsetsPartition(
                partition_index=tp.partition,
                current_leader_epoch=cluster.metadata.leader_epoch(tp),
                timestamp=timestamp,
            )
        )
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=[ListOffsetsTopic(name=t, partitions=ps) for t, ps in topics.items()],
    )
    response = await cluster.request(leader, ApiKey.LIST_OFFSETS, request)
    answers: Answers = {}
    for topic in response.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if p.error_code:
                answers[tp] = error_of(p.error_code, tp)
            else:
                epoch = p.leader_epoch if p.leader_epoch >= 0 else None
                answers[tp] = OffsetAndTimestamp(p.offset, p.timestamp, epoch)
    return answers
