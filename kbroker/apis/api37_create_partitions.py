"""CreatePartitions (37): give topics more partitions and wait until those are led.

Versions served: 0 to 3. Answered by the controller only (NOT_CONTROLLER). *count* is the new total. v3:
THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from kbroker.apis.api19_create_topics import MAX_WAIT_SECONDS
from kbroker.apis.request import RequestContext
from kbroker.common.turns import for_each
from kbroker.controller.controller import KafkaController
from kbroker.metadata.admin_manager import AdminManager
from kclient.wire.errors import InvalidRequest, KafkaError, NotController, RequestTimedOut
from kclient.wire.schema.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

FIRST_STRICT: Final = 3
"""The first version with THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


class CreatePartitions:
    """Answers CreatePartitions, on the controller."""

    def __init__(
        self,
        controller: KafkaController,
        admin_manager: AdminManager,
        monotonic: Callable[[], float],
    ) -> None:
        self._controller = controller
        self._admin_manager = admin_manager
        self._monotonic = monotonic

    async def __call__(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        """Answer one result per topic."""
        deadline = self._monotonic() + min(request.timeout_ms / 1000, MAX_WAIT_SECONDS)
        times: Counter[str] = Counter()
        unique: dict[str, CreatePartitionsTopic] = {}
        share = context.turns.slice()
        for topic in request.topics:
            if share.is_over():
                await share.next()
            times[topic.name] += 1
            unique[topic.name] = topic

        async def grow(topic: CreatePartitionsTopic) -> CreatePartitionsTopicResult:
            return await self._grow(
                context, topic, times[topic.name], request.validate_only, deadline
            )

        results = await for_each(context.turns, unique.values(), grow)
        return CreatePartitionsResponse(results=results)

    async def _grow(
        self,
        context: RequestContext,
        topic: CreatePartitionsTopic,
        times: int,
        validate_only: bool,
        deadline: float,
    ) -> CreatePartitionsTopicResult:
        given = None
        if topic.assignments is not None:
            given = [assignment.broker_ids for assignment in topic.assignments]
        try:
            if not self._controller.is_active:
                raise NotController("this broker is not the controller")
            if times > 1:
                raise InvalidRequest(f"topic {topic.name[:249]!a} is in the request {times} times")
            if context.quota is not None and not validate_only:
                # What cannot be added does not count.
                valid = await self._admin_manager.add_partitions(
                    topic.name, topic.count, given, validate_only=True
                )
                context.mutate(len(valid), strict_since=FIRST_STRICT)
            added = await self._admin_manager.add_partitions(
                topic.name, topic.count, given, validate_only=validate_only
            )
            left = deadline - self._monotonic()
            if not validate_only and not await self._admin_manager.until_led(
                topic.name, added, left
            ):
                raise RequestTimedOut(f"the new partitions of {topic.name} are not led yet")
        except KafkaError as error:
            return CreatePartitionsTopicResult(topic.name, int(error.code), error.message)
        return CreatePartitionsTopicResult(topic.name)
