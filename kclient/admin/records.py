"""DeleteRecords: moves log start offsets forward, at the partitions' leaders (KIP-107)."""

from __future__ import annotations

from collections.abc import Mapping

from kclient.errors import KafkaError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.leader_requests import request_leaders_retrying
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

    Retriable errors are retried for *timeout* seconds; an error that remains is the result of its partition.
    """
    return await request_leaders_retrying(
        cluster,
        before,
        lambda leader, wanted: _send(cluster, leader, wanted, timeout),
        timeout=timeout,
        what="deleting records",
    )


async def _send(
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
