"""OffsetForLeaderEpoch: which leader epoch a log has, and where it ends (KIP-101, KIP-320)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kclient.errors import KafkaError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.leader_requests import request_leaders_retrying
from kclient.types import TopicPartition
from kclient.wire.schema.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kclient.wire.versions import ApiKey

_CONSUMER = -1


class EpochEnd(NamedTuple):
    """The largest epoch of a log that is not above the requested one, and the offset behind its last record."""

    leader_epoch: int
    """-1 if the log has no epoch up to the requested one."""
    end_offset: int


Answers = dict[TopicPartition, EpochEnd | KafkaError]


async def epoch_ends(
    cluster: Cluster, epochs: Mapping[TopicPartition, int], *, timeout: float
) -> Answers:
    """Return the end of each requested epoch, from the leaders.

    Retriable errors are retried for *timeout* seconds; an error that remains is the result of its partition.
    """
    return await request_leaders_retrying(
        cluster,
        epochs,
        lambda leader, wanted: _send(cluster, leader, wanted),
        timeout=timeout,
        what="looking leader epochs up",
    )


async def _send(cluster: Cluster, leader: int, wanted: Mapping[TopicPartition, int]) -> Answers:
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for tp, epoch in wanted.items():
        topics.setdefault(tp.topic, []).append(
            OffsetForLeaderPartition(
                partition=tp.partition,
                current_leader_epoch=cluster.metadata.leader_epoch(tp),
                leader_epoch=epoch,
            )
        )
    request = OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=[OffsetForLeaderTopic(topic=name, partitions=ps) for name, ps in topics.items()],
    )
    response = await cluster.request(leader, ApiKey.OFFSET_FOR_LEADER_EPOCH, request)
    answers: Answers = {}
    for topic in response.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.topic, p.partition)
            if p.error_code:
                answers[tp] = error_of(p.error_code, tp)
            else:
                answers[tp] = EpochEnd(p.leader_epoch, p.end_offset)
    return answers
