"""Requests to a group's coordinator, and a group's committed offsets, for consumers and admin clients.

OffsetFetch v1-9 (v8 several groups, KIP-709), OffsetCommit v2-9. A coordinator that has moved or does not answer is
dropped from the cache and found again within the caller's timeout.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.net.coordinators import KeyType
from kclient.types import OffsetAndMetadata, TopicPartition
from kclient.wire.errors import ErrorCode, KafkaError
from kclient.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kclient.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kclient.wire.versions import ApiKey

T = TypeVar("T")

_COORDINATOR_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_SEND_AGAIN = (
    *_COORDINATOR_MOVED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
)


Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]


@dataclass(frozen=True, slots=True)
class Generation:
    """A member's generation, as in Kafka's AbstractCoordinator; the defaults are those of a client outside of any."""

    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


async def request_coordinator(
    cluster: Cluster,
    group: str,
    send: Callable[[Connection], Awaitable[T]],
    *,
    kind: KeyType = KeyType.GROUP,
    channel: str = "",
) -> T:
    """Await send(connection to the coordinator of *group*) once; a broker that no longer coordinates is forgotten.

    *group* is a transactional id if *kind* is.
    """
    connection = await cluster.coordinator(group, kind, channel)
    try:
        return await send(connection)
    except KafkaError as problem:
        if problem.code in _COORDINATOR_MOVED or problem.needs_metadata or connection.closed:
            cluster.coordinators.forget(group, kind)
        raise


async def retry_coordinator(
    cluster: Cluster,
    group: str,
    send: Callable[[Connection], Awaitable[T]],
    *,
    timeout: float,
    what: str,
    kind: KeyType = KeyType.GROUP,
    channel: str = "",
    retries: int | None = None,
) -> T:
    """Like `request_coordinator`, repeated while the error is retriable, at most *timeout* seconds."""

    async def attempt() -> T:
        return await request_coordinator(cluster, group, send, kind=kind, channel=channel)

    return await cluster.retrying(attempt, timeout=timeout, what=what, retries=retries)


def raise_if_coordinator_moved(code: int, group: str) -> None:
    """Raise the errors after which the client retries, possibly at another coordinator."""
    if code in _SEND_AGAIN:
        raise error_of(code, f"group {group!r}")


async def committed_offsets(
    cluster: Cluster,
    group: str,
    tps: Iterable[TopicPartition] | None,
    *,
    timeout: float,
    require_stable: bool = False,
    retries: int | None = None,
    channel: str = "",
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the committed offsets of *group* for *tps* (None: for all), without partitions that have no commit.

    *require_stable* waits while a transaction with offsets of these partitions is open (KIP-447).
    """
    request = _fetch_request(group, None if tps is None else by_topic(sorted(tps)), require_stable)

    async def send(connection: Connection) -> dict[TopicPartition, OffsetAndMetadata]:
        version = connection.version_for(ApiKey.OFFSET_FETCH)
        response = await connection.request(ApiKey.OFFSET_FETCH, version, request)
        answer: Any = response.groups[0] if version >= 8 else response
        if answer.error_code:
            raise error_of(answer.error_code, f"offsets of group {group!r}")
        found = {}
        for topic in answer.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                if p.error_code:
                    raise error_of(p.error_code, f"offset of group {group!r} in {tp}")
                if p.committed_offset >= 0:
                    epoch = p.committed_leader_epoch
                    found[tp] = OffsetAndMetadata(
                        p.committed_offset, p.metadata or "", epoch if epoch >= 0 else None
                    )
        return found

    return await retry_coordinator(
        cluster,
        group,
        send,
        timeout=timeout,
        what=f"offsets of group {group!r}",
        channel=channel,
        retries=retries,
    )


async def commit_offsets(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
    member: Generation,
    *,
    timeout: float,
    retries: int | None = None,
    channel: str = "",
) -> dict[TopicPartition, KafkaError | None]:
    """Commit *offsets* for *group* as *member*; return each partition's error, None for committed ones.

    IllegalGeneration, UnknownMemberId and RebalanceInProgress mean that the group is in another generation: nothing was
    written, and the same commit cannot succeed later.
    """
    if not offsets:
        return {}
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for tp, given in sorted(offsets.items()):
        wanted = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
        topics.setdefault(tp.topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=wanted.offset,
                committed_leader_epoch=-1 if wanted.leader_epoch is None else wanted.leader_epoch,
                committed_metadata=wanted.metadata,
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=[OffsetCommitRequestTopic(name=t, partitions=ps) for t, ps in topics.items()],
    )

    async def send(connection: Connection) -> dict[TopicPartition, KafkaError | None]:
        response = await connection.request(ApiKey.OFFSET_COMMIT, None, request)
        return partition_answers(response.topics, group)

    return await retry_coordinator(
        cluster,
        group,
        send,
        timeout=timeout,
        what=f"commit of group {group!r}",
        channel=channel,
        retries=retries,
    )


def partition_answers(topics: Iterable[Any], group: str) -> dict[TopicPartition, KafkaError | None]:
    """Return the error of each partition in a response, None for successes."""
    answers: dict[TopicPartition, KafkaError | None] = {}
    for topic in topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            raise_if_coordinator_moved(p.error_code, group)
            code = p.error_code
            answers[tp] = error_of(code, f"group {group!r}, {tp}") if code else None
    return answers


def offsets_to_commit(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return *offsets* as OffsetAndMetadata; raise TypeError for other shapes, ValueError for a negative offset."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f'{offsets!r} is no dict; expected {{TopicPartition("orders", 0): offset}}')
    chosen = {
        TopicPartition(*tp): given
        if isinstance(given, OffsetAndMetadata)
        else OffsetAndMetadata(given)
        for tp, given in offsets.items()
    }
    for tp, wanted in chosen.items():
        if not isinstance(wanted.offset, int):
            raise TypeError(f"{tp}: {wanted.offset!r} is no offset; it must be an int")
        if wanted.offset < 0:
            raise ValueError(f"{tp}: offset {wanted.offset} is negative and cannot be committed")
    return chosen


def by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partitions of each topic."""
    topics: dict[str, list[int]] = {}
    for tp in tps:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return topics


def _fetch_request(
    group: str, topics: Mapping[str, list[int]] | None, require_stable: bool
) -> OffsetFetchRequest:
    """Fill in both forms, for one group and for several; the version selects one."""
    one = None if topics is None else [OffsetFetchRequestTopic(*t) for t in topics.items()]
    many = None if topics is None else [OffsetFetchRequestTopics(*t) for t in topics.items()]
    return OffsetFetchRequest(
        group_id=group,
        topics=one,
        groups=[OffsetFetchRequestGroup(group_id=group, topics=many)],
        require_stable=require_stable,
    )
