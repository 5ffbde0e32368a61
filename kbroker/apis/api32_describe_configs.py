"""DescribeConfigs (32): the settings of topics and brokers, with where each came from.

Versions served: 1 to 4. v1: sources and synonyms (KIP-226); v3: types and documentation (KIP-569).

A broker answers for itself (resource name its id) and for the cluster-wide dynamic defaults (empty name). Topics are
answered by any broker, read from ZooKeeper. Secrets are null. The loggers of a broker (resource type 8, KIP-412), the
broker's id their resource name, are answered by that broker: each with its level.

Differs from Kafka: client metrics (16) have no settings here.
"""

from __future__ import annotations

from kbroker.apis.request import RequestContext
from kbroker.common.logger_levels import LoggerLevels
from kbroker.common.turns import for_each
from kbroker.metadata.core.config_entries import (
    ConfigSource,
    Entry,
    ResourceType,
    broker_entries,
    check_value_size,
    default_broker_entries,
    topic_entries,
)
from kbroker.metadata.core.topic_rules import check_topic_name
from kbroker.metadata.dynamic_config_manager import DynamicConfigManager
from kbroker.metadata.metadata_cache import MetadataCache
from kclient.wire.errors import InvalidRequest, KafkaError, UnknownTopicOrPartition
from kclient.wire.schema.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

Made = dict[object, DescribeConfigsResourceResult]


class DescribeConfigs:
    """Answers DescribeConfigs."""

    def __init__(
        self,
        dynamic: DynamicConfigManager,
        cache: MetadataCache,
        broker_id: int,
        logger_levels: LoggerLevels,
    ) -> None:
        self._dynamic = dynamic
        self._cache = cache
        self._broker_id = broker_id
        self._logger_levels = logger_levels

    async def __call__(
        self, context: RequestContext, request: DescribeConfigsRequest
    ) -> DescribeConfigsResponse:
        """Answer one result per resource; naming one twice is the same as once."""
        resources = {(r.resource_type, r.resource_name): r for r in request.resources}
        made: Made = {}

        async def describe(resource: DescribeConfigsResource) -> DescribeConfigsResult:
            return await self._describe(resource, request, made)

        results = await for_each(context.turns, resources.values(), describe)
        return DescribeConfigsResponse(results=results)

    async def _describe(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest, made: Made
    ) -> DescribeConfigsResult:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            error_message=None,
        )
        try:
            if resource.resource_type == ResourceType.BROKER_LOGGER:
                self._check_broker(resource.resource_name)
                result.configs = self._loggers(resource.configuration_keys)
                return result
            entries = await self._entries(resource)
            for entry in entries:
                check_value_size(entry.setting.name, entry.value)
                for synonym in entry.synonyms:
                    check_value_size(synonym.name, synonym.value)
        except KafkaError as error:
            result.error_code, result.error_message = int(error.code), error.message
            return result
        result.configs = []
        for entry in entries:
            # Thousands of topics have the same settings: each is one object, however often it is answered.
            key = (entry.setting.name, entry.value, entry.synonyms)
            encoded = made.get(key)
            if encoded is None:
                encoded = made[key] = _encoded(entry, request)
            result.configs.append(encoded)
        return result

    async def _entries(self, resource: DescribeConfigsResource) -> list[Entry]:
        name, keys = resource.resource_name, resource.configuration_keys
        # An empty list of keys asks for all: that is how librdkafka and old Java clients do it.
        keys = keys or None
        layers = self._dynamic.layers
        if resource.resource_type == ResourceType.TOPIC:
            check_topic_name(name)
            if self._cache.topic(name) is None:
                raise UnknownTopicOrPartition(f"there is no topic {name}")
            overrides = await self._dynamic.read("topics", name)
            effective = self._dynamic.resolve(name, overrides)
            return topic_entries(overrides, effective, layers, keys)
        if resource.resource_type == ResourceType.BROKER:
            if name == "":
                return default_broker_entries(layers, keys)
            self._check_broker(name)
            return broker_entries(self._dynamic.broker_config, layers, keys)
        raise InvalidRequest(f"resource type {resource.resource_type} has no settings here")

    def _check_broker(self, name: str) -> None:
        if name != str(self._broker_id):
            raise InvalidRequest(
                f"broker {self._broker_id} cannot describe broker {name[:40]!a}: ask that one"
            )

    def _loggers(self, keys: list[str] | None) -> list[DescribeConfigsResourceResult]:
        wanted = frozenset(keys or ())
        return [
            DescribeConfigsResourceResult(
                name=name,
                value=level.name,
                read_only=False,
                config_source=int(ConfigSource.DYNAMIC_BROKER_LOGGER),
                is_sensitive=False,
                synonyms=[],
                documentation=None,
            )
            for name, level in self._logger_levels.loggers.items()
            if not wanted or name in wanted
        ]


def _encoded(entry: Entry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    setting = entry.setting
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=setting.sensitive,
        synonyms=[DescribeConfigsSynonym(s.name, s.value, int(s.source)) for s in entry.synonyms]
        if request.include_synonyms
        else [],
        config_type=int(setting.type),
        documentation=setting.doc if request.include_documentation else None,
    )
