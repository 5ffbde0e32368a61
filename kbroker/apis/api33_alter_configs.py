"""AlterConfigs (33): replace all dynamic settings of a topic or broker. IncrementalAlterConfigs is better.

Versions served: 0 to 2. What is not named in the request goes back to its default, as in Kafka.
kafka-configs.sh of Kafka 3.9 still changes brokers' settings this way.

Differs from Kafka: as IncrementalAlterConfigs.
"""

from __future__ import annotations

from kbroker.apis.api44_incremental_alter_configs import configured_broker
from kbroker.apis.request import RequestContext
from kbroker.common.turns import for_each
from kbroker.metadata.config_admin_manager import ConfigAdminManager
from kbroker.metadata.core.config_entries import ResourceType
from kclient.wire.errors import InvalidRequest, KafkaError
from kclient.wire.schema.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


class AlterConfigs:
    """Answers AlterConfigs."""

    def __init__(self, config_admin_manager: ConfigAdminManager, broker_id: int) -> None:
        self._config_admin_manager = config_admin_manager
        self._broker_id = broker_id

    async def __call__(
        self, context: RequestContext, request: AlterConfigsRequest
    ) -> AlterConfigsResponse:
        """Answer one result per resource."""

        async def alter(resource: AlterConfigsResource) -> AlterConfigsResourceResponse:
            return await self._alter(resource, request.validate_only)

        responses = await for_each(context.turns, request.resources, alter)
        return AlterConfigsResponse(responses=responses)

    async def _alter(
        self, resource: AlterConfigsResource, validate_only: bool
    ) -> AlterConfigsResourceResponse:
        response = AlterConfigsResourceResponse(
            0, None, resource.resource_type, resource.resource_name
        )
        try:
            values: dict[str, str] = {}
            for config in resource.configs:
                if config.value is None:
                    raise InvalidRequest(f"null is no value for {config.name[:200]!a}")
                values[config.name] = config.value
            name = resource.resource_name
            if resource.resource_type == ResourceType.TOPIC:
                await self._config_admin_manager.replace_topic(
                    name, values, validate_only=validate_only
                )
            elif resource.resource_type == ResourceType.BROKER:
                broker = configured_broker(name, self._broker_id)
                await self._config_admin_manager.replace_broker(
                    broker, values, validate_only=validate_only
                )
            else:
                raise InvalidRequest(f"resource type {resource.resource_type} has no settings here")
        except KafkaError as error:
            response.error_code, response.error_message = int(error.code), error.message
        return response
