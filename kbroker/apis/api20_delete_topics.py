"""DeleteTopics (20): remove topics and wait until they are gone from this broker's metadata.

Versions served: 1 to 6. v4 flexible; v5 error messages, THROTTLING_QUOTA_EXCEEDED (KIP-599);
v6 by topic id (KIP-516).

Answered by the controller only (NOT_CONTROLLER). As in Kafka "gone" means from the metadata. A replica on a broker that
is down is deleted when it comes back. Until then the name cannot be used again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final
from uuid import UUID

from kbroker.apis.api19_create_topics import MAX_WAIT_SECONDS
from kbroker.apis.request import RequestContext
from kbroker.common.turns import for_each
from kbroker.controller.controller import KafkaController
from kbroker.metadata.admin_manager import AdminManager
from kbroker.metadata.metadata_cache import MetadataCache
from kclient.wire.errors import (
    InvalidRequest,
    KafkaError,
    NotController,
    RequestTimedOut,
    UnknownTopicId,
)
from kclient.wire.schema.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

FIRST_STRICT: Final = 5
"""The first version with THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


class DeleteTopics:
    """Answers DeleteTopics, on the controller."""

    def __init__(
        self,
        controller: KafkaController,
        admin_manager: AdminManager,
        cache: MetadataCache,
        monotonic: Callable[[], float],
    ) -> None:
        self._controller = controller
        self._admin_manager = admin_manager
        self._cache = cache
        self._monotonic = monotonic

    async def __call__(
        self, context: RequestContext, request: DeleteTopicsRequest
    ) -> DeleteTopicsResponse:
        """Answer one result per topic."""
        deadline = self._monotonic() + min(request.timeout_ms / 1000, MAX_WAIT_SECONDS)
        wanted = request.topics or [DeleteTopicState(name) for name in request.topic_names]
        times = Counter((topic.name, topic.topic_id) for topic in wanted)

        async def delete(topic: tuple[str | None, UUID | None]) -> DeletableTopicResult:
            return await self._delete(context, *topic, times[topic], deadline)

        results = await for_each(context.turns, times, delete)
        return DeleteTopicsResponse(responses=results)

    async def _delete(
        self,
        context: RequestContext,
        name: str | None,
        topic_id: UUID | None,
        times: int,
        deadline: float,
    ) -> DeletableTopicResult:
        try:
            if not self._controller.is_active:
                raise NotController("this broker is not the controller")
            if times > 1:
                raise InvalidRequest("the topic is in the request more than once")
            if name is not None and topic_id is not None:
                raise InvalidRequest("a topic is named or has an id, not both")
            name = self._name(name, topic_id)
            known = self._cache.topic(name)
            if known is not None:
                context.mutate(len(known.partitions), strict_since=FIRST_STRICT)
            # The cache may be behind: the name may be of another topic already.
            await self._admin_manager.delete(name, topic_id)
            left = deadline - self._monotonic()
            gone = await self._admin_manager.until_gone(
                name, known.topic_id if known else None, left
            )
            if not gone:
                raise RequestTimedOut(f"the deletion of topic {name} has begun but takes longer")
        except KafkaError as error:
            return DeletableTopicResult(name, topic_id, int(error.code), error.message)
        return DeletableTopicResult(name, known.topic_id if known else topic_id)

    def _name(self, name: str | None, topic_id: UUID | None) -> str:
        if name is not None:
            return name
        known = self._cache.topic_by_id(topic_id) if topic_id is not None else None
        if known is None:
            raise UnknownTopicId(f"there is no topic with the id {topic_id}")
        return known.name
