"""IncrementalAlterConfigs (44): set, delete, append to or subtract from single settings (KIP-339).

Versions served: 0 and 1. Topics, this broker (its id) and the cluster-wide dynamic defaults (empty name).
A value that cannot be used is refused before anything is written; concurrent changes do not lose each
other's writes. The levels of this broker's loggers (resource type 8, KIP-412) hold until it ends.

Differs from Kafka: client metrics (16) cannot be altered. Settings that brokers do not know may take 64 KiB per
resource. A wrong value of a broker's setting is INVALID_CONFIG, as that of a topic (Kafka: INVALID_REQUEST). A topic's
cleanup.policy cannot be empty. The numbers of threads have no bounds that depend on the present ones.
"""

from __future__ import annotations

from collections import Counter

from twisted.logger import Logger

from kbroker.apis.request import RequestContext
from kbroker.common.logger_levels import LoggerLevels
from kbroker.common.turns import for_each
from kbroker.metadata.config_admin_manager import ConfigAdminManager
from kbroker.metadata.core.config_entries import Change, ResourceType
from kbroker.metadata.core.logger_changes import checked_logger_changes
from kbroker.zk.znodes import DEFAULT_ENTITY
from kclient.wire.errors import InvalidRequest, KafkaError
from kclient.wire.schema.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

log = Logger()


class IncrementalAlterConfigs:
    """Answers IncrementalAlterConfigs."""

    def __init__(
        self,
        config_admin_manager: ConfigAdminManager,
        broker_id: int,
        logger_levels: LoggerLevels,
    ) -> None:
        self._config_admin_manager = config_admin_manager
        self._broker_id = broker_id
        self._logger_levels = logger_levels

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
            elif resource.resource_type == ResourceType.BROKER_LOGGER:
                self._alter_loggers(resource.resource_name, changes, validate_only)
            else:
                raise InvalidRequest(f"resource type {resource.resource_type} has no settings here")
        except KafkaError as error:
            response.error_code, response.error_message = int(error.code), error.message
        return response

    def _alter_loggers(self, name: str, changes: list[Change], validate_only: bool) -> None:
        if configured_broker(name, self._broker_id) == DEFAULT_ENTITY:
            raise InvalidRequest("loggers are those of one broker: its id is missing")
        checked = checked_logger_changes(changes, self._logger_levels.loggers)
        if validate_only:
            return
        for logger, level in checked.items():
            if level is None:
                self._logger_levels.unset(logger)
            else:
                self._logger_levels.set(logger, level)
            log.info(
                "the level of the logger {logger} is {its_level}",
                logger=logger,
                its_level=self._logger_levels[logger].name,
            )


def configured_broker(name: str, broker_id: int) -> str:
    """Return the znode name of the broker resource *name*; InvalidRequest for another broker's."""
    if name == "":
        return DEFAULT_ENTITY
    if name != str(broker_id):
        raise InvalidRequest(
            f"unexpected broker id: expected {broker_id}, but received {name[:40]!a}"
        )
    return name
