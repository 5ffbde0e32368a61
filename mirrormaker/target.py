"""Writing the target: conditional appends of many partitions in one request, several in flight.

Whoever leads a partition at the target must know the conditional append (kclient.wire.produce), by
which nothing is ever appended twice or out of order. A broker that does not would ignore the
condition and append blindly, so every connection is asked before its first append, and the mirror
refuses to write to such a cluster at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.types import TopicPartition
from kclient.wire.errors import (
    KafkaError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
    for_code,
)
from kclient.wire.produce import (
    CONDITIONAL_APPEND,
    FIRST_FLEXIBLE,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceTopic,
)
from kclient.wire.versions import ApiKey
from mirrormaker.words import Append

LANE = "mirror"
ALL_IN_SYNC = -1


class ForeignTarget(UnsupportedVersion):
    """The target's brokers do not know the conditional append."""

    hint = (
        "the target of a mirror must be a kbroker cluster; Apache Kafka would append without the "
        "condition, and a restart of the mirror would duplicate records there"
    )


@dataclass(frozen=True, slots=True)
class Appended:
    """The leader, and with it all in-sync replicas, has the run."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The leader's log ends at *log_end*, not where it was expected; nothing was appended."""

    log_end: int


Outcome = Appended | Refused | KafkaError


def check_target(connection: Connection) -> None:
    """Raise `ForeignTarget` unless the broker knows the conditional append."""
    if CONDITIONAL_APPEND not in connection.features:
        raise ForeignTarget(
            f"the broker at {connection.address} does not serve {CONDITIONAL_APPEND}"
        )
    if connection.version_for(ApiKey.PRODUCE) < FIRST_FLEXIBLE:
        raise ForeignTarget(
            f"the broker at {connection.address} serves no Produce v{FIRST_FLEXIBLE}"
        )


async def check_targets(cluster: Cluster, leaders: Iterable[int]) -> None:
    """Check every broker of *leaders*; KafkaError of the first that cannot be used."""
    for leader in leaders:
        check_target(await cluster.connection(leader, LANE))


async def append(
    connection: Connection,
    appends: Sequence[tuple[TopicPartition, Append]],
    *,
    timeout_ms: int,
) -> dict[TopicPartition, Outcome]:
    """Send *appends* (target partitions, one run each) in one request; every one has its outcome.

    Raise KafkaError when no answer came: the runs may or may not have been appended.
    """
    topics: dict[str, list[ProducePartition]] = defaultdict(list)
    for tp, each in appends:
        topics[tp.topic].append(
            ProducePartition(tp.partition, each.run.data, each.expected_log_end, each.previous_crc)
        )
    request = ProduceRequest(
        ALL_IN_SYNC,
        timeout_ms,
        [ProduceTopic(name, partitions) for name, partitions in topics.items()],
    )
    response = await connection.request(
        ApiKey.PRODUCE, None, request, timeout=timeout_ms / 1000 + 5
    )
    answers = {
        TopicPartition(topic.name, answer.index): answer
        for topic in response.topics
        for answer in topic.partitions
    }
    return {tp: _outcome(tp, each, answers.get(tp)) for tp, each in appends}


def _outcome(
    tp: TopicPartition, append: Append, answer: ProducePartitionResponse | None
) -> Outcome:
    """Judge the answer for one partition."""
    if answer is None:
        return UnknownTopicOrPartition(f"the answer to an append to {tp} does not mention it")
    if answer.log_end_offset >= 0:
        return Refused(answer.log_end_offset)
    if answer.error_code:
        detail = f": {answer.error_message}" if answer.error_message else ""
        return for_code(answer.error_code)(f"append to {tp} at {append.expected_log_end}{detail}")
    if answer.base_offset != append.run.base_offset:
        return ForeignTarget(
            f"{tp}: records of offset {append.run.base_offset} were appended at {answer.base_offset}"
        )
    return Appended()
