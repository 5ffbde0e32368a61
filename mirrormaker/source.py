"""Reading the source: fetches of many partitions at once, answered as runs of whole batches.

Theory of operation
===================
Every leader is asked on two lanes. Partitions that are known to be behind go on the bulk lane, which
never waits; those that are caught up go on the tail lane as one long poll. So a quiet partition
never holds back a busy one. Each lane has one fetch in flight; an answer is cut into runs, one per
partition, that stay views of the frame they came in.

A fetch carries the leader epoch of the metadata and that of the last batch fetched, so that a leader
that lost records says so (diverging epoch, KIP-320) instead of handing out others. It also carries the
topic id that the link began with (KIP-516): leader epochs begin again at zero when a topic is deleted and
created anew, so without the id the records of the new topic would be taken for the old one's. With isolation
read_committed the broker sends everything below the last stable offset, aborted records and markers
too: the copy is the same log, and a transaction is copied once it has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred, DeferredList

from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire import batches
from kclient.wire.errors import (
    ErrorCode,
    KafkaError,
    OffsetNotAvailable,
    UnknownTopicId,
    for_code,
)
from kclient.wire.fetch import FetchPartition, FetchPartitionResponse, FetchRequest, FetchTopic
from kclient.wire.versions import ApiKey
from mirrormaker.runs import Run, read_run
from mirrormaker.words import Tail

READ_COMMITTED = 1
BULK_LANE = "mirror-bulk"
TAIL_LANE = "mirror-tail"
_HEADER_LANE = "mirror-header"
_LAST_VERSION_BY_NAME = 12


@dataclass(frozen=True, slots=True)
class Ask:
    """What is wanted of one partition; *end* is the offset that batches are left out from."""

    tp: TopicPartition
    generation: int
    offset: int
    max_bytes: int
    last_epoch: int = -1
    end: int | None = None
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came; the last batch may have been cut off. *source_end* is the last stable offset.

    *nothing_below_end* tells that the first batch there is begins at `Ask.end` or behind it.
    """

    run: Run | None
    source_end: int
    nothing_below_end: bool = False


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The source does not have the offset."""


@dataclass(frozen=True, slots=True)
class Diverged:
    """The source lost records that were fetched from it."""


Outcome = Fetched | OutOfRange | Diverged | KafkaError


async def fetch(
    cluster: Cluster,
    leader: int,
    asks: Sequence[Ask],
    *,
    lane: str,
    max_wait_ms: int,
    max_bytes: int,
) -> dict[TopicPartition, Outcome]:
    """Fetch from *leader*; every ask has its outcome. Raise KafkaError if the whole request failed."""
    connection = await cluster.connection(leader, lane)
    version = connection.version_for(ApiKey.FETCH)
    if version > _LAST_VERSION_BY_NAME and any(ask.topic_id is None for ask in asks):
        version = _LAST_VERSION_BY_NAME
    metadata = cluster.metadata
    outcomes: dict[TopicPartition, Outcome] = {}
    wanted: dict[tuple[str, UUID | None], list[FetchPartition]] = defaultdict(list)
    for ask in asks:
        if version <= _LAST_VERSION_BY_NAME and _is_another(ask, metadata.topic_id(ask.tp.topic)):
            outcomes[ask.tp] = UnknownTopicId(f"{ask.tp} is no longer of topic id {ask.topic_id}")
            continue
        wanted[ask.tp.topic, ask.topic_id].append(
            FetchPartition(
                ask.tp.partition,
                ask.offset,
                ask.max_bytes,
                current_leader_epoch=metadata.leader_epoch(ask.tp),
                last_fetched_epoch=ask.last_epoch,
            )
        )
    if not wanted:
        return outcomes
    request = FetchRequest(
        max_wait_ms,
        1,
        [FetchTopic(name, each, topic_id) for (name, topic_id), each in wanted.items()],
        max_bytes=max_bytes,
        isolation_level=READ_COMMITTED,
    )
    timeout = connection.request_timeout + max_wait_ms / 1000
    response = await connection.request(ApiKey.FETCH, version, request, timeout=timeout)
    if response.error_code:
        raise for_code(response.error_code)(f"fetch from broker {leader} at {connection.address}")
    names = {topic_id: name for name, topic_id in wanted}
    answers = {
        TopicPartition(topic.name or names.get(topic.topic_id, ""), answer.partition): answer
        for topic in response.topics
        for answer in topic.partitions
    }
    for ask in asks:
        if ask.tp not in outcomes:
            outcomes[ask.tp] = _outcome(ask, answers.get(ask.tp))
    return outcomes


def _is_another(ask: Ask, topic_id: UUID | None) -> bool:
    """Whether the topic that has the name now is not the one that *ask* is about, where both are known."""
    return None not in (ask.topic_id, topic_id) and ask.topic_id != topic_id


def _outcome(ask: Ask, answer: FetchPartitionResponse | None) -> Outcome:
    """Judge the answer for one partition."""
    if answer is None:
        return UnknownTopicId(f"the answer to a fetch of {ask.tp} does not mention it")
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return OutOfRange()
    if answer.error_code:
        return for_code(answer.error_code)(f"fetch of {ask.tp} at offset {ask.offset}")
    if answer.diverging_epoch is not None and answer.diverging_epoch.end_offset >= 0:
        return Diverged()
    data = answer.record_set
    end = answer.last_stable_offset if answer.last_stable_offset >= 0 else answer.high_watermark
    try:
        run = read_run(data, ask.offset, ask.end)
    except KafkaError as problem:
        problem.message = f"{ask.tp} at offset {ask.offset}: {problem.message}"
        return problem
    beyond = run is None and ask.end is not None and _begins_at_or_after(data, ask.end)
    return Fetched(run, end, beyond)


def _begins_at_or_after(data: memoryview, end: int) -> bool:
    return len(data) >= batches.HEADER_SIZE and batches.parse(data).base_offset >= end


async def tails(
    cluster: Cluster, ends: dict[TopicPartition, int]
) -> dict[TopicPartition, Tail | KafkaError | None]:
    """Return the header of the batch that holds the offset before each end; None if it was compacted.

    Raises nothing: what failed is that partition's answer.
    """
    found: dict[TopicPartition, Tail | KafkaError | None] = {}

    async def one(tp: TopicPartition, end: int) -> None:
        try:
            found[tp] = await _tail(cluster, tp, end)
        except KafkaError as problem:
            found[tp] = problem

    waiting: list[Deferred[None]] = [Deferred.fromCoroutine(one(*item)) for item in ends.items()]
    results: list[Any] = await DeferredList(waiting, consumeErrors=True)
    for succeeded, failure in results:
        if not succeeded:
            failure.raiseException()
    return found


async def _tail(cluster: Cluster, tp: TopicPartition, end: int) -> Tail | None:
    leader = cluster.metadata.leader(tp)
    if leader is None:
        raise for_code(ErrorCode.LEADER_NOT_AVAILABLE)(f"{tp} has no leader now")
    connection = await cluster.connection(leader, _HEADER_LANE)
    wanted = FetchPartition(tp.partition, end - 1, 1, cluster.metadata.leader_epoch(tp))
    request = FetchRequest(0, 0, [FetchTopic(tp.topic, [wanted])], max_bytes=1)
    version = min(_LAST_VERSION_BY_NAME, connection.version_for(ApiKey.FETCH))
    response = await connection.request(ApiKey.FETCH, version, request)
    code = response.error_code or response.topics[0].partitions[0].error_code
    if code == ErrorCode.OFFSET_OUT_OF_RANGE:
        code = ErrorCode.OFFSET_NOT_AVAILABLE  # it moved since it was asked for: ask again
    if code:
        raise for_code(code)(f"fetch of {tp} at offset {end - 1}")
    data = response.topics[0].partitions[0].record_set
    for info in batches.iterate(data):
        if info.next_offset >= end:
            if info.base_offset >= end:
                return None
            return Tail(info.base_offset, info.next_offset, info.crc, info.leader_epoch)
    raise OffsetNotAvailable(f"{tp} has nothing to read at offset {end - 1} yet")
