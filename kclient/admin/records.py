"""DeleteRecords: moves log start offsets forward, at the partitions' leaders (KIP-107)."""

from __future__ import annotations

from collections.abc import Mapping

from kclient.errors import KafkaError, LeaderUnavailable
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kclient.wire.versions import ApiKey

Answers = dict[TopicPartition, int | KafkaError]


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], *, timeout: float
) -> Answers:
    """Delete the records below each offset (-1: up to the high watermark); return the log start offsets.

    Partitions with a new leader are retried within *timeout* seconds.
    """
    answers: Answers = {}
    left = dict(before)
    cluster.want({tp.topic for tp in left})

    async def attempt() -> None:
        if any(cluster.metadata.partition(tp) is None for tp in left):
            await cluster.refresh()
        retriable: KafkaError | None = None
        for leader, wanted in _by_leader(cluster, left).items():
            for tp, answer in (await _ask(cluster, leader, wanted, timeout)).items():
                answers[tp] = answer
                if isinstance(answer, KafkaError) and answer.retriable:
                    retriable = answer
                else:
                    del left[tp]
        if retriable is not None or left:
            raise retriable or LeaderUnavailable(f"{next(iter(left))} has no leader")

    try:
        await cluster.retrying(attempt, timeout=timeout, what="deleting records")
    except KafkaError as problem:
        for tp in left:
            answers.setdefault(tp, problem)
    return answers


def _by_leader(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> dict[int, dict[TopicPartition, int]]:
    grouped: dict[int, dict[TopicPartition, int]] = {}
    for tp, offset in before.items():
        leader = cluster.metadata.leader(tp)
        if leader is not None:
            grouped.setdefault(leader, {})[tp] = offset
    return grouped


async def _ask(
    cluster: Cluster, leader: int, wanted: Mapping[TopicPartition, int], timeout: float
) -> Answers:
    topics: dict[str, list[DeleteRecordsPartition]] = {}
    for tp, offset in wanted.items():
        topics.setdefault(tp.topic, []).append(DeleteRecordsPartition(tp.partition, offset))
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=t, partitions=ps) for t, ps in topics.items()],
        timeout_ms=int(timeout * 1000),
    )
    response = await cluster.request(leader, ApiKey.DELETE_RECORDS, request, timeout=timeout + 1)
    answers: Answers = {}
    for topic in response.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            answers[tp] = error_of(p.error_code, tp) if p.error_code else p.low_watermark
    return answers
