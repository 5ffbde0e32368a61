"""OffsetDelete (47), version 0: remove committed offsets of topics that no member reads (KIP-496).

A group without members goes with its last offset. Those of deleted topics go by themselves.
"""

from kbroker.apis.request import RequestContext
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.metadata.metadata_cache import MetadataCache
from kclient.wire.errors import ErrorCode, KafkaError
from kclient.wire.schema.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


class OffsetDelete:
    """Answers OffsetDelete."""

    def __init__(self, coordinator: GroupCoordinator, metadata: MetadataCache) -> None:
        self._coordinator = coordinator
        self._metadata = metadata

    async def __call__(
        self, context: RequestContext, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse:
        """Answer when their znodes are gone."""
        named = dict.fromkeys(
            (t.name, p.partition_index) for t in request.topics for p in t.partitions
        )
        wanted = [each for each in named if self._metadata.partition(*each) is not None]
        try:
            deleted = await self._coordinator.delete_offsets(request.group_id, wanted)
        except KafkaError as error:
            return OffsetDeleteResponse(error_code=error.code)
        errors = dict(zip(wanted, deleted, strict=True))
        return OffsetDeleteResponse(
            topics=[
                OffsetDeleteResponseTopic(
                    topic.name,
                    [
                        OffsetDeleteResponsePartition(
                            p.partition_index,
                            errors.get(
                                (topic.name, p.partition_index),
                                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            ),
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
