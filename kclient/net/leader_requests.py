"""Requests about partitions that their leaders answer, such as ListOffsets: one request per leader, at the same time.

An error of one leader, or of one partition, is the result of those partitions; the others have theirs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from twisted.internet.defer import DeferredList

from kclient.errors import KafkaError, LeaderUnavailable
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.waiting import as_deferred
from kclient.types import TopicPartition

W = TypeVar("W")
R = TypeVar("R")

Send = Callable[[int, Mapping[TopicPartition, W]], Awaitable[dict[TopicPartition, R | KafkaError]]]
"""Sends one request to a leader; returns a result or an error per partition."""


async def request_leaders(
    cluster: Cluster, wanted: Mapping[TopicPartition, W], send: Send[W, R]
) -> dict[TopicPartition, R | KafkaError]:
    """Send one request to every leader of *wanted*; return a result or an error per partition."""
    answers: dict[TopicPartition, R | KafkaError] = {}
    by_leader: dict[int, dict[TopicPartition, W]] = {}
    for tp, value in wanted.items():
        leader = cluster.metadata.leader(tp)
        if leader is None:
            answers[tp] = _no_leader(cluster, tp)
        else:
            by_leader.setdefault(leader, {})[tp] = value
    asked = [as_deferred(send(leader, of_leader)) for leader, of_leader in by_leader.items()]
    results: list[Any] = await DeferredList(asked, consumeErrors=True)
    for (succeeded, result), of_leader in zip(results, by_leader.values(), strict=True):
        if succeeded:
            absent = {tp: LeaderUnavailable(f"{tp} is missing in a response") for tp in of_leader}
            answers.update({**absent, **result})
        elif isinstance(result.value, KafkaError):
            answers.update(dict.fromkeys(of_leader, result.value))
        else:
            result.raiseException()
    return answers


async def request_leaders_retrying(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, W],
    send: Send[W, R],
    *,
    timeout: float,
    what: str,
) -> dict[TopicPartition, R | KafkaError]:
    """Request *wanted* until no error is left that is retriable, at most *timeout* seconds.

    An error that remains is the result of its partition.
    """
    answers: dict[TopicPartition, R | KafkaError] = {}
    left = dict(wanted)
    missing = sorted({tp.topic for tp in left if cluster.metadata.partition(tp) is None})
    cluster.want(missing)

    async def recorded(
        leader: int, of_leader: Mapping[TopicPartition, W]
    ) -> dict[TopicPartition, R | KafkaError]:
        """Keep the response, also if the time is over before another leader responds."""
        found = await send(leader, of_leader)
        answers.update(found)
        return found

    async def attempt() -> None:
        if missing and not all(t in cluster.metadata.topics for t in missing):
            await cluster.refresh()
        answers.update(await request_leaders(cluster, left, recorded))
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
        await cluster.retrying(attempt, timeout=timeout, what=what)
    except KafkaError as problem:
        for tp in left:
            answers.setdefault(tp, problem)
    return answers


def _no_leader(cluster: Cluster, tp: TopicPartition) -> KafkaError:
    topic = cluster.metadata.topics.get(tp.topic)
    if topic is None or topic.error_code or tp.partition not in topic.partitions:
        return error_of(topic.error_code if topic and topic.error_code else 3, tp)
    return LeaderUnavailable(f"{tp} has no leader")
