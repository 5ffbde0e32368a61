"""Asks the leaders of partitions whether they accept producers, or the appends of a mirror only.

A topic with the mark of a mirror is read-only for producers. Each broker applies the mark when it reads it. To learn
whether a leader has, this module sends it a conditional append that cannot be accepted: behind an offset that no log
reaches. A leader without the mark answers POLICY_VIOLATION, one with the mark answers with its log end offset. No
producer's record is appended to that log after this answer, as long as the leader stays. Nothing is appended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kclient.errors import KafkaError, KafkaTimeoutError
from kclient.net.cluster import Cluster
from kclient.net.waiting import all_settled, sleep
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import LeaderNotAvailable, PolicyViolation, for_code
from kclient.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceTopic,
)
from kclient.wire.versions import ApiKey
from mirrormaker.target import check_target

_CHANNEL = "mirror-fence"
_NO_LOG_END = 2**62 - 1
_NO_CRC = 1  # an empty log accepts a first batch at any offset only with CRC 0
_LEADER = 1
_PAUSE = 0.05
"""Seconds between two rounds of requests."""

Answer = int | KafkaError
"""The log end offset of a leader that has the mark, or why there is none."""


class FenceTimeout(KafkaTimeoutError):
    """Some leaders did not reject producers, or mirrors, in time."""

    def __init__(
        self, text: str, found: Mapping[TopicPartition, Answer], writable: Sequence[TopicPartition]
    ) -> None:
        super().__init__(text)
        self.found = found
        """The answers of the leaders that did."""
        self.writable = writable
        """The other partitions of which a leader accepted producers, when one could last be asked."""


async def until_read_only(
    cluster: Cluster, tps: Iterable[TopicPartition], *, timeout: float
) -> dict[TopicPartition, int]:
    """Wait until every leader rejects producers; return the log end offset of each partition from then on.

    Raise `FenceTimeout` after *timeout* seconds, UnsupportedTarget for a broker without conditional appends.
    """
    found = await _until(cluster, tps, timeout, read_only=True)
    return {tp: answer for tp, answer in found.items() if isinstance(answer, int)}


async def until_writable(
    cluster: Cluster, tps: Iterable[TopicPartition], *, timeout: float
) -> None:
    """Wait until every leader rejects mirrors. Raise KafkaTimeoutError after *timeout* seconds."""
    await _until(cluster, tps, timeout, read_only=False)


async def _until(
    cluster: Cluster, tps: Iterable[TopicPartition], timeout: float, *, read_only: bool
) -> dict[TopicPartition, Answer]:
    left = list(tps)
    found: dict[TopicPartition, Answer] = {}
    writable: set[TopicPartition] = set()
    give_up_at = cluster.reactor.seconds() + timeout
    while True:
        answers = await _answers(cluster, left)
        writable |= {tp for tp, answer in answers.items() if isinstance(answer, PolicyViolation)}
        for tp, answer in answers.items():
            if isinstance(answer, int if read_only else PolicyViolation):
                found[tp] = answer
            elif isinstance(answer, KafkaError) and not _may_pass(answer):
                raise answer
        left = [tp for tp in left if tp not in found]
        if not left:
            return found
        if cluster.reactor.seconds() >= give_up_at:
            wanted = "rejects producers" if read_only else "accepts producers"
            seen = answers[left[0]]
            detail = f"its log ends at {seen}" if isinstance(seen, int) else seen
            raise FenceTimeout(
                f"{len(left)} partitions, {left[0]} among them: no leader {wanted} after {timeout:g} s: {detail}",
                found,
                [tp for tp in left if tp in writable],
            )
        cluster.update_soon()
        await sleep(cluster.reactor, _PAUSE)


def _may_pass(problem: KafkaError) -> bool:
    return problem.retriable or isinstance(problem, PolicyViolation)


async def _answers(cluster: Cluster, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Answer]:
    """Send one request to the leader of each partition, to all leaders at the same time."""
    by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
    found: dict[TopicPartition, Answer] = {}
    for tp in tps:
        leader = cluster.metadata.leader(tp)
        if leader is None:
            found[tp] = LeaderNotAvailable(f"{tp} has no leader")
        else:
            by_leader[leader].append(tp)
    settled = await all_settled(_send(cluster, leader, each) for leader, each in by_leader.items())
    for each, result in zip(by_leader.values(), settled, strict=True):
        found |= dict.fromkeys(each, result) if isinstance(result, KafkaError) else result
    return found


async def _send(
    cluster: Cluster, leader: int, tps: list[TopicPartition]
) -> dict[TopicPartition, Answer]:
    connection = await cluster.connection(leader, _CHANNEL)
    check_target(connection)
    topics: dict[str, list[ProducePartition]] = defaultdict(list)
    for tp in tps:
        topics[tp.topic].append(ProducePartition(tp.partition, b"", _NO_LOG_END, _NO_CRC))
    request = ProduceRequest(
        _LEADER, 0, [ProduceTopic(name, partitions) for name, partitions in topics.items()]
    )
    response: Any = await connection.request(ApiKey.PRODUCE, None, request)
    answers = {
        TopicPartition(topic.name, answer.index): _answer(topic.name, answer)
        for topic in response.topics
        for answer in topic.partitions
    }
    missing = LeaderNotAvailable("the response does not contain the partition")
    return {tp: answers.get(tp, missing) for tp in tps}


def _answer(topic: str, answer: ProducePartitionResponse) -> Answer:
    if answer.log_end_offset >= 0:
        return answer.log_end_offset
    code = answer.error_code or ErrorCode.UNKNOWN_SERVER_ERROR
    detail = f": {answer.error_message}" if answer.error_message else ""
    return for_code(code)(f"{topic}-{answer.index}{detail}")
