"""OffsetCommit (8), versions 2-9: keep the offsets of a group.

v3 throttle time; v5 no retention time any more (offsets.retention.minutes rules); v6 leader epochs (KIP-320);
v7 group instance id (KIP-345); v8 flexible; v9 member epoch in place of the generation for the new group protocol
(KIP-848), which is not served: here it is always the generation.

Differs from Kafka: a partition that does not exist is refused like a topic that does not, and so is a negative offset.
"""

from kbroker.apis.committed_partitions import known_partitions
from kbroker.apis.request import RequestContext
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.metadata.metadata_cache import MetadataCache
from kclient.wire.errors import KafkaError
from kclient.wire.schema.offset_commit import (
    OffsetCommitRequest,
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
        topics = response.topics
        commits, answers = await known_partitions(
            request.topics,
            self._metadata,
            context.turns.slice(),
            add_topic=lambda name, found: topics.append(OffsetCommitResponseTopic(name, found)),
            answer_to=OffsetCommitResponsePartition,
        )
        try:
            errors = await self._coordinator.commit(
                request.group_id,
                commits,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
                generation_id=request.generation_id_or_member_epoch,
            )
        except KafkaError as failure:
            errors = [failure.code] * len(commits)
        for answer, error in zip(answers, errors, strict=True):
            answer.error_code = error
        return response
