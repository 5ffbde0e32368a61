"""OffsetFetch (9), versions 1-9: the committed offsets of groups.

v2 null topics mean all, and a top-level error; v3 throttle time; v5 leader epochs (KIP-320); v6 flexible; v7
require_stable (KIP-447): UNSTABLE_OFFSET_COMMIT for a partition with an offset that an open transaction commits; v8
many groups in one request (KIP-709); v9 member id and epoch of the new group protocol (KIP-848), ignored.

Offset -1: there is no committed offset.

Differs from Kafka: a committed offset that cannot be decoded is UNKNOWN_SERVER_ERROR. Without an offset a client would
begin at auto.offset.reset, and skip records or read them again. Where stable offsets are required, the same error
answers for all partitions of a group with pending offsets that cannot be decoded. A plain commit on its way does not
make an offset unstable: it is one write, and the offset before it is right until then.
"""

from collections.abc import Iterable

from kbroker.apis.request import RequestContext
from kbroker.common.turns import Slice, for_each
from kbroker.coordinator.group.committed_offsets import GroupOffsets
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.pending_offsets import UnstablePartitions
from kclient.wire.errors import ErrorCode, KafkaError
from kclient.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

Wanted = list[tuple[str, list[int]]]

STABLE = UnstablePartitions()
"""No partition is unstable."""


class OffsetFetch:
    """Answers OffsetFetch."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(
        self, context: RequestContext, request: OffsetFetchRequest
    ) -> OffsetFetchResponse:
        """Answer from memory, confirmed; the first time from ZooKeeper."""
        share = context.turns.slice()
        if context.api_version >= 8:

            async def answer(group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
                return await self._group(group, request.require_stable, share)

            groups = {group.group_id: group for group in request.groups}.values()
            return OffsetFetchResponse(groups=await for_each(context.turns, groups, answer))
        response = OffsetFetchResponse()
        offsets = GroupOffsets(request.group_id)
        pending = STABLE
        error = ErrorCode.NONE
        try:
            offsets, pending = await self._offsets(request.group_id, request.require_stable)
        except KafkaError as failure:
            response.error_code = error = failure.code
        wanted = _all(offsets) if request.topics is None else _once(request.topics)
        for name, partitions in wanted:
            answers = []
            for index in partitions:
                if share.is_over():
                    await share.next()
                answers.append(
                    OffsetFetchResponsePartition(
                        index, *_fields(offsets, pending, name, index, error)
                    )
                )
            response.topics.append(OffsetFetchResponseTopic(name, answers))
        return response

    async def _offsets(
        self, group_id: str, require_stable: bool
    ) -> tuple[GroupOffsets, UnstablePartitions]:
        if require_stable:
            return await self._coordinator.offsets_and_pending(group_id)
        return await self._coordinator.offsets(group_id), STABLE

    async def _group(
        self, group: OffsetFetchRequestGroup, require_stable: bool, share: Slice
    ) -> OffsetFetchResponseGroup:
        response = OffsetFetchResponseGroup(group_id=group.group_id)
        try:
            offsets, pending = await self._offsets(group.group_id, require_stable)
        except KafkaError as failure:
            response.error_code = failure.code
            return response
        wanted = _all(offsets) if group.topics is None else _once(group.topics)
        for name, partitions in wanted:
            answers = []
            for index in partitions:
                if share.is_over():
                    await share.next()
                answers.append(
                    OffsetFetchResponsePartitions(index, *_fields(offsets, pending, name, index))
                )
            response.topics.append(OffsetFetchResponseTopics(name, answers))
        return response


def _once(topics: Iterable[OffsetFetchRequestTopic | OffsetFetchRequestTopics]) -> Wanted:
    """Return what *topics* name, each partition once, as in Kafka: each may have 4 KB of metadata in the response."""
    found: dict[str, dict[int, None]] = {}
    for topic in topics:
        found.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return [(name, list(partitions)) for name, partitions in found.items()]


def _all(offsets: GroupOffsets) -> Wanted:
    names = offsets.committed | dict.fromkeys(offsets.unreadable)
    return [(name, offsets.partitions(name)) for name in names]


def _fields(
    offsets: GroupOffsets,
    pending: UnstablePartitions,
    topic: str,
    partition: int,
    error: ErrorCode = ErrorCode.NONE,
) -> tuple[int, int, str, ErrorCode]:
    """Return offset, leader epoch, metadata and error of a partition."""
    if (topic, partition) in pending:
        return -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT
    if pending.is_unreadable:
        return -1, -1, "", ErrorCode.UNKNOWN_SERVER_ERROR
    committed = offsets.committed.get(topic, {}).get(partition)
    if committed is None:
        if partition in offsets.unreadable.get(topic, ()):
            error = error or ErrorCode.UNKNOWN_SERVER_ERROR
        return -1, -1, "", error
    return committed.offset, committed.detail.leader_epoch, committed.detail.metadata, error
