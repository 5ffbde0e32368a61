"""Reads the source: fetches of many partitions per request, returned as runs of whole batches.

Theory of operation
===================
The mirror has two connections (channels) per leader. Partitions that lag are fetched on the bulk channel, which never
waits. Partitions that are caught up are fetched on the tail channel in one long poll. So an idle partition never
delays a busy one. The long poll is a fetch session (`mirrormaker.tail_session`), if the leader supports topic ids
there. Each channel has one fetch in flight. A response is split into one run per partition; runs are views
of the response's frame.

A fetch carries the leader epoch of the metadata and that of the last fetched batch. So a leader that lost records
answers with a diverging epoch (KIP-320) instead of other records. A fetch also carries the topic id of the link
(KIP-516). A topic that is deleted and created again starts with leader epoch 0. Without the id the mirror would copy
the new topic's records into the old topic's copy. With isolation read_committed the broker sends all batches below the
last stable offset, with aborted records and control records. So the copy is the same log, and a transaction is copied
after its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred, DeferredList

from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.net.fetch_session import FetchRequestData
from kclient.types import TopicPartition
from kclient.wire import batches
from kclient.wire.errors import (
    ErrorCode,
    KafkaError,
    OffsetNotAvailable,
    UnknownTopicId,
    for_code,
)
from kclient.wire.fetch import (
    INITIAL_SESSION_EPOCH,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchTopic,
)
from kclient.wire.versions import ApiKey
from mirrormaker.link_state import LastBatch, PartitionFetch
from mirrormaker.runs import Run, read_run
from mirrormaker.tail_session import SESSION_ERRORS, TailSession

READ_COMMITTED = 1
BULK_CHANNEL = "mirror-bulk"
TAIL_CHANNEL = "mirror-tail"
_HEADER_CHANNEL = "mirror-header"
_LAST_VERSION_BY_NAME = 12


@dataclass(frozen=True, slots=True)
class Fetched:
    """The fetched batches, without a truncated last one. *source_end* is the last stable offset of the source.

    *nothing_below_end* is True if the first batch begins at or above `PartitionFetch.end`.
    """

    run: Run | None
    source_end: int
    high_watermark: int
    nothing_below_end: bool = False


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The leader answered OFFSET_OUT_OF_RANGE."""


@dataclass(frozen=True, slots=True)
class Diverged:
    """The leader answered with a diverging epoch: it lost fetched records."""


Outcome = Fetched | OutOfRange | Diverged | KafkaError


async def fetch(
    cluster: Cluster,
    leader: int,
    fetches: Sequence[PartitionFetch],
    *,
    channel: str,
    max_wait_ms: int,
    max_bytes: int,
) -> dict[TopicPartition, Outcome]:
    """Fetch from *leader*; return an outcome per partition. Raise KafkaError if the whole request failed."""
    connection = await cluster.connection(leader, channel)
    version = connection.version_for(ApiKey.FETCH)
    if version > _LAST_VERSION_BY_NAME and any(wanted.topic_id is None for wanted in fetches):
        version = _LAST_VERSION_BY_NAME
    metadata = cluster.metadata
    outcomes: dict[TopicPartition, Outcome] = {}
    by_topic: dict[tuple[str, UUID | None], list[FetchPartition]] = defaultdict(list)
    for wanted in fetches:
        if version <= _LAST_VERSION_BY_NAME and _is_another(
            wanted, metadata.topic_id(wanted.tp.topic)
        ):
            outcomes[wanted.tp] = UnknownTopicId(
                f"{wanted.tp} is no longer of topic id {wanted.topic_id}"
            )
            continue
        by_topic[wanted.tp.topic, wanted.topic_id].append(
            FetchPartition(
                wanted.tp.partition,
                wanted.offset,
                wanted.max_bytes,
                current_leader_epoch=metadata.leader_epoch(wanted.tp),
                last_fetched_epoch=wanted.last_epoch,
            )
        )
    if not by_topic:
        return outcomes
    request = FetchRequest(
        max_wait_ms,
        1,
        [FetchTopic(name, each, topic_id) for (name, topic_id), each in by_topic.items()],
        max_bytes=max_bytes,
        isolation_level=READ_COMMITTED,
    )
    timeout = connection.request_timeout + max_wait_ms / 1000
    response = await connection.request(ApiKey.FETCH, version, request, timeout=timeout)
    if response.error_code:
        raise for_code(response.error_code)(f"fetch from broker {leader} at {connection.address}")
    names = {topic_id: name for name, topic_id in by_topic}
    answers = {
        TopicPartition(topic.name or names.get(topic.topic_id, ""), answer.partition): answer
        for topic in response.topics
        for answer in topic.partitions
    }
    for wanted in fetches:
        if wanted.tp not in outcomes:
            outcomes[wanted.tp] = _outcome(wanted, answers.get(wanted.tp))
    return outcomes


def supports_sessions(connection: Connection) -> bool:
    """Return whether the broker can be fetched from in a `TailSession`: it supports topic ids in Fetch."""
    return connection.version_for(ApiKey.FETCH) > _LAST_VERSION_BY_NAME


async def fetch_tail(
    cluster: Cluster,
    connection: Connection,
    session: TailSession,
    *,
    max_wait_ms: int,
    max_bytes: int,
) -> list[tuple[PartitionFetch, Outcome]]:
    """Send the next fetch of *session*; return an outcome per partition with a change. Raise KafkaError.

    After an error the caller has to call `TailSession.lost`.
    """
    asked = session.request()
    request = FetchRequest(
        max_wait_ms,
        1,
        asked.topics,
        max_bytes=max_bytes,
        isolation_level=READ_COMMITTED,
        session_id=asked.session_id,
        session_epoch=asked.session_epoch,
        forgotten=asked.forgotten,
    )
    timeout = connection.request_timeout + max_wait_ms / 1000
    response = await connection.request(ApiKey.FETCH, None, request, timeout=timeout)
    answers = session.answered(response, cluster.reactor.seconds())
    if response.error_code in SESSION_ERRORS and asked.session_epoch != INITIAL_SESSION_EPOCH:
        return []  # the leader forgot the session: the next fetch is full
    if response.error_code:
        raise for_code(response.error_code)(f"fetch at {connection.address}")
    return [(fetch, _outcome(fetch, answer)) for fetch, answer in answers]


async def close_session(connection: Connection, asked: FetchRequestData, *, timeout: float) -> None:
    """Send *asked*, the request that closes a session (KIP-227). Raise KafkaError without a response in time."""
    request = FetchRequest(
        0, 0, asked.topics, session_id=asked.session_id, session_epoch=asked.session_epoch
    )
    await connection.request(ApiKey.FETCH, None, request, timeout=timeout)


def _is_another(wanted: PartitionFetch, topic_id: UUID | None) -> bool:
    """Return whether *topic_id* is another topic than that of *wanted*; False if either is unknown."""
    return None not in (wanted.topic_id, topic_id) and wanted.topic_id != topic_id


def _outcome(wanted: PartitionFetch, answer: FetchPartitionResponse | None) -> Outcome:
    """Return the outcome of one partition."""
    if answer is None:
        return UnknownTopicId(f"the response to a fetch of {wanted.tp} does not contain it")
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return OutOfRange()
    if answer.error_code:
        return for_code(answer.error_code)(f"fetch of {wanted.tp} at offset {wanted.offset}")
    if answer.diverging_epoch is not None and answer.diverging_epoch.end_offset >= 0:
        return Diverged()
    data = answer.record_set
    end = answer.last_stable_offset if answer.last_stable_offset >= 0 else answer.high_watermark
    try:
        run = read_run(data, wanted.offset, wanted.end)
    except KafkaError as problem:
        problem.message = f"{wanted.tp} at offset {wanted.offset}: {problem.message}"
        return problem
    if run is not None and answer.aborted_transactions:
        run = replace(run, aborted=answer.aborted_transactions)
    beyond = run is None and wanted.end is not None and _begins_at_or_after(data, wanted.end)
    return Fetched(run, end, answer.high_watermark, beyond)


def _begins_at_or_after(data: memoryview, end: int) -> bool:
    return len(data) >= batches.HEADER_SIZE and batches.parse(data).base_offset >= end


async def last_batches(
    cluster: Cluster, ends: dict[TopicPartition, int]
) -> dict[TopicPartition, LastBatch | KafkaError | None]:
    """Return the header of the batch that holds the offset before each end; None if it was compacted.

    A KafkaError is the result of its partition and is not raised.
    """
    found: dict[TopicPartition, LastBatch | KafkaError | None] = {}

    async def one(tp: TopicPartition, end: int) -> None:
        try:
            found[tp] = await _last_batch(cluster, tp, end)
        except KafkaError as problem:
            found[tp] = problem

    waiting: list[Deferred[None]] = [Deferred.fromCoroutine(one(*item)) for item in ends.items()]
    results: list[Any] = await DeferredList(waiting, consumeErrors=True)
    for succeeded, failure in results:
        if not succeeded:
            failure.raiseException()
    return found


async def _last_batch(cluster: Cluster, tp: TopicPartition, end: int) -> LastBatch | None:
    leader = cluster.metadata.leader(tp)
    if leader is None:
        raise for_code(ErrorCode.LEADER_NOT_AVAILABLE)(f"{tp} has no leader")
    connection = await cluster.connection(leader, _HEADER_CHANNEL)
    wanted = FetchPartition(tp.partition, end - 1, 1, cluster.metadata.leader_epoch(tp))
    request = FetchRequest(0, 0, [FetchTopic(tp.topic, [wanted])], max_bytes=1)
    version = min(_LAST_VERSION_BY_NAME, connection.version_for(ApiKey.FETCH))
    response = await connection.request(ApiKey.FETCH, version, request)
    code = response.error_code or response.topics[0].partitions[0].error_code
    if code == ErrorCode.OFFSET_OUT_OF_RANGE:
        # The log end moved after it was read: the link retries.
        code = ErrorCode.OFFSET_NOT_AVAILABLE
    if code:
        raise for_code(code)(f"fetch of {tp} at offset {end - 1}")
    data = response.topics[0].partitions[0].record_set
    for info in batches.iterate(data):
        if info.next_offset >= end:
            if info.base_offset >= end:
                return None
            return LastBatch(info.base_offset, info.next_offset, info.crc, info.leader_epoch)
    raise OffsetNotAvailable(f"{tp} has no batch to fetch at offset {end - 1} yet")
