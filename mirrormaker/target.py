"""Writes to the target: conditional appends of many partitions per request, several requests in flight.

Every leader at the target must support the conditional append (`kclient.wire.produce`), which prevents duplicates and
reordering. A broker without it would ignore the condition and append unconditionally. So the mirror checks every
connection before the first append and writes to no cluster without the feature.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
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
from mirrormaker.link_state import Append

CHANNEL = "mirror"
ALL_IN_SYNC = -1


class UnsupportedTarget(UnsupportedVersion):
    """The target's brokers do not support the conditional append."""

    hint = (
        "the target of a mirror must be a kbroker cluster; Apache Kafka would append without the "
        "condition, and a restart of the mirror would duplicate records there. "
        "target.offsets=renumber copies to Apache Kafka, at other offsets"
    )


@dataclass(frozen=True, slots=True)
class Appended:
    """The leader and all in-sync replicas have appended the run."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The leader's log ends at *log_end* or with another batch than expected; nothing was appended."""

    log_end: int


Outcome = Appended | Rejected | KafkaError


def check_target(connection: Connection) -> None:
    """Raise `UnsupportedTarget` unless the broker supports the conditional append."""
    if CONDITIONAL_APPEND not in connection.features:
        raise UnsupportedTarget(
            f"the broker at {connection.address} does not serve {CONDITIONAL_APPEND}"
        )
    if connection.version_for(ApiKey.PRODUCE) < FIRST_FLEXIBLE:
        raise UnsupportedTarget(
            f"the broker at {connection.address} does not serve Produce v{FIRST_FLEXIBLE}"
        )


async def check_targets(
    cluster: Cluster,
    leaders: Iterable[int],
    check: Callable[[Connection], None] = check_target,
) -> None:
    """Check every broker of *leaders*; raise the KafkaError of the first that cannot be used."""
    for leader in leaders:
        check(await cluster.connection(leader, CHANNEL))


async def append(
    connection: Connection,
    appends: Sequence[tuple[TopicPartition, Append]],
    *,
    timeout_ms: int,
) -> dict[TopicPartition, Outcome]:
    """Send *appends* (target partitions, one run each) in one request; return an outcome per partition.

    Raise KafkaError without a response: then the runs may or may not have been appended.
    """
    topics: dict[str, list[ProducePartition]] = defaultdict(list)
    for tp, each in appends:
        topics[tp.topic].append(
            ProducePartition(
                tp.partition,
                each.run.data,
                each.expected_log_end,
                each.previous_crc,
                each.topics,
            )
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
    """Return the outcome of one partition."""
    if answer is None:
        return UnknownTopicOrPartition(f"the response to an append to {tp} does not contain it")
    if answer.log_end_offset >= 0:
        return Rejected(answer.log_end_offset)
    if answer.error_code:
        detail = f": {answer.error_message}" if answer.error_message else ""
        return for_code(answer.error_code)(f"append to {tp} at {append.expected_log_end}{detail}")
    if answer.base_offset != append.run.base_offset:
        return UnsupportedTarget(
            f"{tp}: records with offset {append.run.base_offset} were appended at {answer.base_offset}"
        )
    return Appended()
