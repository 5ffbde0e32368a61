"""OffsetFetch (9), versions 1-9: the committed offsets of groups.

v2 null topics mean all, and a top-level error; v3 throttle time; v5 leader epochs (KIP-320); v6 flexible; v7
require_stable (KIP-447: nothing is ever pending here before there are transactions); v8 many groups in one request
(KIP-709); v9 member id and epoch of the new group protocol (KIP-848), ignored.

Offset -1: there is no committed offset.

Differs from Kafka: a committed offset that cannot be decoded is UNKNOWN_SERVER_ERROR. Without an offset a client would
begin at auto.offset.reset, and skip records or read them again.
"""

from kbroker.apis.request import RequestContext
from kbroker.common.turns import Slice, for_each
from kbroker.coordinator.group.committed_offsets import GroupOffsets
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kclient.wire.errors import ErrorCode, KafkaError
from kclient.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

Wanted = list[tuple[str, list[int]]]


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
                return await self._group(group, share)

            groups = {group.group_id: group for group in request.groups}.values()
            return OffsetFetchResponse(groups=await for_each(context.turns, groups, answer))
        response = OffsetFetchResponse()
        offsets = GroupOffsets(request.group_id)
        error = ErrorCode.NONE
        try:
            offsets = await self._coordinator.offsets(request.group_id)
        except KafkaError as failure:
            response.error_code = error = failure.code
        wanted: Wanted = _all(offsets)
        if request.topics is not None:
            wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
        for name, partitions in wanted:
            answers = []
            for index in partitions:
                if share.is_over():
                    await share.next()
                answers.append(
                    OffsetFetchResponsePartition(index, *_fields(offsets, name, index, error))
                )
            response.topics.append(OffsetFetchResponseTopic(name, answers))
        return response

    async def _group(
        self, group: OffsetFetchRequestGroup, share: Slice
    ) -> OffsetFetchResponseGroup:
        response = OffsetFetchResponseGroup(group_id=group.group_id)
        try:
            offsets = await self._coordinator.offsets(group.group_id)
        except KafkaError as failure:
            response.error_code = failure.code
            return response
        wanted: Wanted = _all(offsets)
        if group.topics is not None:
            wanted = [(topic.name, topic.partition_indexes) for topic in group.topics]
        for name, partitions in wanted:
            answers = []
            for index in partitions:
                if share.is_over():
                    await share.next()
                answers.append(OffsetFetchResponsePartitions(index, *_fields(offsets, name, index)))
            response.topics.append(OffsetFetchResponseTopics(name, answers))
        return response


def _all(offsets: GroupOffsets) -> Wanted:
    names = offsets.committed | dict.fromkeys(offsets.unreadable)
    return [(name, offsets.partitions(name)) for name in names]


def _fields(
    offsets: GroupOffsets, topic: str, partition: int, error: ErrorCode = ErrorCode.NONE
) -> tuple[int, int, str, ErrorCode]:
    """Return offset, leader epoch, metadata and error of a partition."""
    committed = offsets.committed.get(topic, {}).get(partition)
    if committed is None:
        if partition in offsets.unreadable.get(topic, ()):
            error = error or ErrorCode.UNKNOWN_SERVER_ERROR
        return -1, -1, "", error
    return committed.offset, committed.detail.leader_epoch, committed.detail.metadata, error
