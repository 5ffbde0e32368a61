"""ListOffsets: earliest, latest, by time; each partition is requested from its leader.

v1 one offset per partition · v2 isolation level · v4 leader epochs (KIP-320) · v7 max timestamp (KIP-734)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import DeferredList

from kclient.errors import KafkaError, LeaderUnavailable
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.waiting import as_deferred
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
    answers: Answers = {}
    left = dict(timestamps)
    missing = sorted({tp.topic for tp in left if cluster.metadata.partition(tp) is None})
    cluster.want(missing)

    async def attempt() -> None:
        if missing and not all(t in cluster.metadata.topics for t in missing):
            await cluster.refresh()
        answers.update(await request_leaders(cluster, left, read_committed=read_committed))
        problems = {}
        for tp in list(left):
            answer = answers[tp]
            if isinstance(answer, KafkaError) and answer.retriable:
                problems[tp] = answer
            else:
                del left[tp]
        if problems:
            raise next(iter(problems.values()))

    try:
        await cluster.retrying(attempt, timeout=timeout, what="listing offsets")
    except KafkaError as problem:
        for tp in left:
            answers.setdefault(tp, problem)
    return answers


async def request_leaders(
    cluster: Cluster, timestamps: Mapping[TopicPartition, int], *, read_committed: bool
) -> Answers:
    """Send one request to every leader at the same time; return a result or an error per partition."""
    answers: Answers = {}
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for tp, timestamp in timestamps.items():
        leader = cluster.metadata.leader(tp)
        if leader is None:
            answers[tp] = _no_leader(cluster, tp)
        else:
            by_leader.setdefault(leader, {})[tp] = timestamp
    asked = [
        as_deferred(_ask(cluster, leader, wanted, read_committed))
        for leader, wanted in by_leader.items()
    ]
    results: list[Any] = await DeferredList(asked, consumeErrors=True)
    for (succeeded, result), wanted in zip(results, by_leader.values(), strict=True):
        if succeeded:
            unheard = {tp: LeaderUnavailable(f"{tp} is missing in a response") for tp in wanted}
            answers.update({**unheard, **result})
        elif isinstance(result.value, KafkaError):
            answers.update(dict.fromkeys(wanted, result.value))
        else:
            result.raiseException()
    return answers


async def _ask(
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


def _no_leader(cluster: Cluster, tp: TopicPartition) -> KafkaError:
    topic = cluster.metadata.topics.get(tp.topic)
    if topic is None or topic.error_code or tp.partition not in topic.partitions:
        return error_of(topic.error_code if topic and topic.error_code else 3, tp)
    return LeaderUnavailable(f"{tp} has no leader")
