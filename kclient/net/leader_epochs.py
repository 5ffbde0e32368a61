"""OffsetForLeaderEpoch: which leader epoch a log has, and where it ends (KIP-101, KIP-320)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from twisted.internet.defer import DeferredList

from kclient.errors import KafkaError, LeaderUnavailable
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.waiting import as_deferred
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
    answers: Answers = {}
    left = dict(epochs)
    missing = sorted({tp.topic for tp in left if cluster.metadata.partition(tp) is None})
    cluster.want(missing)

    async def attempt() -> None:
        if any(cluster.metadata.leader(tp) is None for tp in left):
            await cluster.refresh()
        answers.update(await _request_leaders(cluster, left))
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
        await cluster.retrying(attempt, timeout=timeout, what="looking leader epochs up")
    except KafkaError as problem:
        for tp in left:
            answers.setdefault(tp, problem)
    return answers


async def _request_leaders(cluster: Cluster, epochs: Mapping[TopicPartition, int]) -> Answers:
    answers: Answers = {}
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for tp, epoch in epochs.items():
        leader = cluster.metadata.leader(tp)
        if leader is None:
            answers[tp] = LeaderUnavailable(f"{tp} has no leader")
        else:
            by_leader.setdefault(leader, {})[tp] = epoch
    asked = [as_deferred(_ask(cluster, leader, wanted)) for leader, wanted in by_leader.items()]
    results: list[Any] = await DeferredList(asked, consumeErrors=True)
    for (succeeded, result), wanted in zip(results, by_leader.values(), strict=True):
        if succeeded:
            absent = {tp: LeaderUnavailable(f"{tp} is missing in a response") for tp in wanted}
            answers.update({**absent, **result})
        elif isinstance(result.value, KafkaError):
            answers.update(dict.fromkeys(wanted, result.value))
        else:
            result.raiseException()
    return answers


async def _ask(cluster: Cluster, leader: int, wanted: Mapping[TopicPartition, int]) -> Answers:
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
