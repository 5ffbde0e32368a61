"""OffsetCommit (8), versions 2-9: keep the offsets of a group.

v3 throttle time; v5 no retention time any more (offsets.retention.minutes rules); v6 leader epochs (KIP-320);
v7 group instance id (KIP-345); v8 flexible; v9 member epoch in place of the generation for the new group protocol
(KIP-848), which is not served: here it is always the generation.

Differs from Kafka: a partition that does not exist is refused like a topic that does not, and so is a negative offset.
"""

from kbroker.apis.request import RequestContext
from kbroker.coordinator.group.core.commits import OffsetCommit as Commit
from kbroker.coordinator.group.core.records import CommitDetail
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.metadata.metadata_cache import MetadataCache
from kclient.wire.errors import ErrorCode, KafkaError
from kclient.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


class OffsetCommit:
    """Answers OffsetCommit. *metadata* knows which partitions exist."""

    def __init__(self, coordinator: GroupCoordinator, metadata: MetadataCache) -> None:
        self._coordinator = coordinator
        self._metadata = metadata

    async def __call__(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> OffsetCommitResponse:
        """Answer when the offsets are in ZooKeeper."""
        response = OffsetCommitResponse()
        wanted: list[tuple[str, int, Commit]] = []
        answers: list[OffsetCommitResponsePartition] = []
        share = context.turns.slice()
        for topic in request.topics:
            answered = OffsetCommitResponseTopic(name=topic.name)
            response.topics.append(answered)
            known = self._metadata.topic(topic.name)
            for asked in topic.partitions:
                if share.is_over():
                    await share.next()
                answer = OffsetCommitResponsePartition(partition_index=asked.partition_index)
                answered.partitions.append(answer)
                if known is None or asked.partition_index not in known.partitions:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif asked.committed_offset < 0:
                    answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                else:
                    wanted.append((topic.name, asked.partition_index, _commit(asked)))
                    answers.append(answer)
        try:
            errors = await self._coordinator.commit(
                request.group_id,
                wanted,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
                generation_id=request.generation_id_or_member_epoch,
            )
        except KafkaError as failure:
            errors = [failure.code] * len(wanted)
        for answer, error in zip(answers, errors, strict=True):
            answer.error_code = error
        return response


def _commit(asked: OffsetCommitRequestPartition) -> Commit:
    detail = CommitDetail(asked.committed_leader_epoch, asked.committed_metadata or "")
    return Commit(asked.committed_offset, detail)
