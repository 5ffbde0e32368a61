"""CreateTopics (19): make topics and wait until they are led.

Versions served: 2 to 7. v4: -1 stands for the broker's default partitions and replication factor
(KIP-464); v5: the answer carries partitions, replication factor and settings (KIP-525); v6:
THROTTLING_QUOTA_EXCEEDED (KIP-599); v7: topic id.

Answered by the controller only (NOT_CONTROLLER). A topic that is written but not led within timeout_ms is
answered REQUEST_TIMED_OUT: it exists all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from kbroker.apis.request import RequestContext
from kbroker.common.turns import for_each
from kbroker.controller.controller import KafkaController
from kbroker.metadata.admin_manager import AdminManager, CreatedTopic
from kbroker.metadata.core.config_entries import topic_entries
from kbroker.metadata.core.topic_rules import MAX_PARTITIONS
from kbroker.metadata.dynamic_config_manager import DynamicConfigManager
from kbroker.metadata.topic_placement import NewTopic
from kclient.wire.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    NotController,
    PolicyViolation,
    RequestTimedOut,
)
from kclient.wire.schema.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

MAX_WAIT_SECONDS: Final = 300.0
FIRST_STRICT: Final = 6
"""The first version with THROTTLING_QUOTA_EXCEEDED (KIP-599); clients before are throttled after the creation."""


class CreateTopics:
    """Answers CreateTopics, on the controller."""

    def __init__(
        self,
        controller: KafkaController,
        admin_manager: AdminManager,
        dynamic: DynamicConfigManager,
        monotonic: Callable[[], float],
    ) -> None:
        self._controller = controller
        self._admin_manager = admin_manager
        self._dynamic = dynamic
        self._monotonic = monotonic

    async def __call__(
        self, context: RequestContext, request: CreateTopicsRequest
    ) -> CreateTopicsResponse:
        """Answer one result per topic."""
        deadline = self._monotonic() + min(request.timeout_ms / 1000, MAX_WAIT_SECONDS)
        names: Counter[str] = Counter()
        unique: dict[str, CreatableTopic] = {}
        asked = 0
        share = context.turns.slice()
        for topic in request.topics:
            if share.is_over():
                await share.next()
            names[topic.name] += 1
            unique[topic.name] = topic
            asked += max(topic.num_partitions, len(topic.assignments), 1)

        async def create(topic: CreatableTopic) -> CreatableTopicResult:
            return await self._create(
                context, topic, names[topic.name], asked, request.validate_only, deadline
            )

        results = await for_each(context.turns, unique.values(), create)
        return CreateTopicsResponse(topics=results)

    async def _create(
        self,
        context: RequestContext,
        topic: CreatableTopic,
        times: int,
        asked: int,
        validate_only: bool,
        deadline: float,
    ) -> CreatableTopicResult:
        try:
            if not self._controller.is_active:
                raise NotController("this broker is not the controller")
            if times > 1:
                raise InvalidRequest(f"topic {topic.name[:249]!a} is in the request {times} times")
            if asked > MAX_PARTITIONS:
                raise PolicyViolation(
                    f"{asked} partitions in one request are more than the {MAX_PARTITIONS} allowed"
                )
            if context.quota is not None and not validate_only:
                # What cannot be created does not count.
                valid = await self._admin_manager.create(_new(topic), validate_only=True)
                context.mutate(len(valid.assignment), strict_since=FIRST_STRICT)
            created = await self._admin_manager.create(_new(topic), validate_only=validate_only)
            if not validate_only:
                left = deadline - self._monotonic()
                if not await self._admin_manager.until_led(
                    created.name, list(created.assignment), left
                ):
                    raise RequestTimedOut(f"topic {created.name} is created but not led yet")
        except KafkaError as error:
            return CreatableTopicResult(
                name=topic.name,
                error_code=int(error.code),
                error_message=error.message,
            )
        return self._result(created)

    def _result(self, created: CreatedTopic) -> CreatableTopicResult:
        return CreatableTopicResult(
            name=created.name,
            topic_id=created.topic_id,
            error_code=int(ErrorCode.NONE),
            error_message=None,
            num_partitions=len(created.assignment),
            replication_factor=created.replication_factor,
            configs=[
                CreatableTopicConfigs(
                    entry.setting.name,
                    entry.value,
                    entry.read_only,
                    int(entry.source),
                    entry.setting.sensitive,
                )
                for entry in topic_entries(created.overrides, created.config, self._dynamic.layers)
            ],
        )


def _new(topic: CreatableTopic) -> NewTopic:
    """Convert a topic of the request. InvalidRequest when it contradicts itself."""
    assignment: dict[int, list[int]] = {}
    for given in topic.assignments:
        if given.partition_index in assignment:
            raise InvalidRequest(f"partition {given.partition_index} is assigned twice")
        assignment[given.partition_index] = given.broker_ids
    if assignment and (topic.num_partitions != -1 or topic.replication_factor != -1):
        raise InvalidRequest(
            "both a number of partitions or replicas and an assignment are given: the numbers "
            "must be -1 then"
        )
    configs = {config.name: config.value for config in topic.configs}
    if len(configs) != len(topic.configs):
        raise InvalidRequest("a setting is given twice")
    return NewTopic(topic.name, topic.num_partitions, topic.replication_factor, assignment, configs)
