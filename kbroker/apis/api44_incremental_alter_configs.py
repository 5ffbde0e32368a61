"""IncrementalAlterConfigs (44): set, delete, append to or subtract from single settings (KIP-339).

Versions served: 0 and 1. Topics, this broker (its id) and the cluster-wide dynamic defaults (empty name).
A value that cannot be used is refused before anything is written; concurrent changes do not lose each
other's writes.

Differs from Kafka: the loggers of a broker (resource type 8) and client metrics (16) cannot be altered. Settings that
brokers do not know may take 64 KiB per resource.
"""

from __future__ import annotations

from collections import Counter

from kbroker.apis.request import RequestContext
from kbroker.common.turns import for_each
from kbroker.metadata.config_admin_manager import ConfigAdminManager
from kbroker.metadata.core.config_entries import Change, ResourceType
from kbroker.zk.znodes import DEFAULT_ENTITY
from kclient.wire.errors import InvalidRequest, KafkaError
from kclient.wire.schema.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class IncrementalAlterConfigs:
    """Answers IncrementalAlterConfigs."""

    def __init__(self, config_admin_manager: ConfigAdminManager, broker_id: int) -> None:
        self._config_admin_manager = config_admin_manager
        self._broker_id = broker_id

    async def __call__(
        self, context: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        """Answer one result per resource."""
        times = Counter((r.resource_type, r.resource_name) for r in request.resources)
        unique = {(r.resource_type, r.resource_name): r for r in request.resources}

        async def alter(key: tuple[int, str]) -> AlterConfigsResourceResponse:
            return await self._alter(unique[key], times[key], request.validate_only)

        responses = await for_each(context.turns, unique, alter)
        return IncrementalAlterConfigsResponse(responses=responses)

    async def _alter(
        self, resource: AlterConfigsResource, times: int, validate_only: bool
    ) -> AlterConfigsResourceResponse:
        response = AlterConfigsResourceResponse(
            0, None, resource.resource_type, resource.resource_name
        )
        changes = [Change(c.name, c.config_operation, c.value) for c in resource.configs]
        try:
            if times > 1:
                raise InvalidRequest("each resource must appear at most once")
            if resource.resource_type == ResourceType.TOPIC:
                await self._config_admin_manager.alter_topic(
                    resource.resource_name, changes, validate_only=validate_only
                )
            elif resource.resource_type == ResourceType.BROKER:
                await self._config_admin_manager.alter_broker(
                    configured_broker(resource.resource_name, self._broker_id),
                    changes,
                    validate_only=validate_only,
                )
            else:
                raise InvalidRequest(f"resource type {resource.resource_type} has no settings here")
        except KafkaError as error:
            response.error_code, response.error_message = int(error.code), error.message
        return response


def configured_broker(name: str, broker_id: int) -> str:
    """Return the znode name of the broker resource *name*; InvalidRequest for another broker's."""
    if name == "":
        return DEFAULT_ENTITY
    if name != str(broker_id):
        raise InvalidRequest(
            f"unexpected broker id: expected {broker_id}, but received {name[:40]!a}"
        )
    return name
