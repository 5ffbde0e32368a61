"""OffsetDelete (47), version 0: remove committed offsets of topics that no member reads (KIP-496)."""

from kbroker.apis.request import RequestContext
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kclient.wire.errors import KafkaError
from kclient.wire.schema.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


class OffsetDelete:
    """Answers OffsetDelete."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(
        self, context: RequestContext, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse:
        """Answer when their znodes are gone."""
        wanted = [(t.name, p.partition_index) for t in request.topics for p in t.partitions]
        try:
            errors = iter(await self._coordinator.delete_offsets(request.group_id, wanted))
        except KafkaError as error:
            return OffsetDeleteResponse(error_code=error.code)
        return OffsetDeleteResponse(
            topics=[
                OffsetDeleteResponseTopic(
                    topic.name,
                    [
                        OffsetDeleteResponsePartition(p.partition_index, next(errors))
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
