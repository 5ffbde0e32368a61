"""Configs of topics and brokers: any broker describes a topic's, each broker its own (KIP-226)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from kclient.arguments import config_text
from kclient.errors import KafkaError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.wire.schema.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kclient.wire.schema.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kclient.wire.versions import ApiKey


class ResourceType(IntEnum):
    """The kinds of resources with configs.

    >>> str(ConfigResource(ResourceType.BROKER, "1"))
    "broker '1'"
    """

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigSource(IntEnum):
    """The source of a value, the most specific first.

    >>> ConfigSource.TOPIC < ConfigSource.DEFAULT
    True
    """

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6


class ConfigResource(NamedTuple):
    """A topic by name; a broker by its id as text ("" for the default of all brokers); a broker's loggers by its id.

    The configs of BROKER_LOGGER (KIP-412) are the levels of the loggers: TRACE, DEBUG, INFO, WARN, ERROR, FATAL. They
    hold until the broker ends.

        orders = ConfigResource(ResourceType.TOPIC, "orders")
        admin.alter_configs({orders: {"retention.ms": "86400000"}})
        print(admin.describe_configs([orders])[orders]["retention.ms"].value)
    """

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name!r}"


class ConfigSynonym(NamedTuple):
    """A value that a config has, or would have without those before it."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config; *value* is None if it is sensitive or unset. *synonyms* begin with the value that counts.

    >>> ConfigEntry("retention.ms", "604800000", ConfigSource.DEFAULT).is_default
    True
    """

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False
    documentation: str | None = None
    synonyms: tuple[ConfigSynonym, ...] = ()

    @property
    def is_default(self) -> bool:
        """Whether the value is the built-in default."""
        return self.source is ConfigSource.DEFAULT


ConfigDescription = dict[str, ConfigEntry]


async def describe_configs(
    cluster: Cluster,
    resources: Iterable[ConfigResource],
    *,
    names: Iterable[str] | None,
    documentation: bool,
    synonyms: bool = False,
    timeout: float,
) -> dict[ConfigResource, ConfigDescription | KafkaError]:
    """Return the configs of *resources*, or only *names* of them; with *documentation* and *synonyms* if wanted."""
    keys = None if names is None else list(names)
    answers: dict[ConfigResource, ConfigDescription | KafkaError] = {}
    for node, group in _by_broker(resources).items():
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=int(r.type), resource_name=r.name, configuration_keys=keys
                )
                for r in group
            ],
            include_synonyms=synonyms,
            include_documentation=documentation,
        )

        async def attempt(
            node: int | None = node, request: DescribeConfigsRequest = request
        ) -> Any:
            connection = await _where(cluster, node)
            return await connection.request(ApiKey.DESCRIBE_CONFIGS, None, request)

        response: Any = await cluster.retrying(attempt, timeout=timeout, what="describing configs")
        for result in response.results:
            resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
            if result.error_code:
                answers[resource] = error_of(result.error_code, resource, result.error_message)
                continue
            answers[resource] = {
                c.name: ConfigEntry(
                    c.name,
                    c.value,
                    _source(c.config_source),
                    c.read_only,
                    c.is_sensitive,
                    c.documentation or None,
                    tuple(ConfigSynonym(s.name, s.value, _source(s.source)) for s in c.synonyms),
                )
                for c in result.configs
            }
    return answers


def _check_resources(given: Iterable[object]) -> None:
    for resource in given:
        if not isinstance(resource, ConfigResource):
            raise TypeError(
                f'{resource!r} is no ConfigResource; expected ConfigResource(ResourceType.TOPIC, "orders")'
            )


async def alter_configs(
    cluster: Cluster,
    changes: Mapping[ConfigResource, Mapping[str, str | float | None]],
    *,
    validate_only: bool,
    timeout: float,
) -> dict[ConfigResource, KafkaError | None]:
    """Set the named configs, reset those with None to their default; others do not change (KIP-339)."""
    _check_resources(changes)
    answers: dict[ConfigResource, KafkaError | None] = {}
    for node, group in _by_broker(changes).items():
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=int(r.type),
                    resource_name=r.name,
                    configs=[
                        AlterableConfig(
                            name=name, config_operation=int(value is None), value=config_text(value)
                        )
                        for name, value in changes[r].items()
                    ],
                )
                for r in group
            ],
            validate_only=validate_only,
        )

        async def attempt(
            node: int | None = node, request: IncrementalAlterConfigsRequest = request
        ) -> Any:
            connection = await _where(cluster, node)
            return await connection.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, None, request)

        response: Any = await cluster.retrying(attempt, timeout=timeout, what="altering configs")
        for result in response.responses:
            resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
            answers[resource] = (
                error_of(result.error_code, resource, result.error_message)
                if result.error_code
                else None
            )
    return answers


def _by_broker(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    grouped: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        its_own = resource.type is not ResourceType.TOPIC and resource.name.isdecimal()
        grouped.setdefault(int(resource.name) if its_own else None, []).append(resource)
    return grouped


async def _where(cluster: Cluster, node: int | None) -> Connection:
    if node is not None:
        return await cluster.connection(node)
    await cluster.start()
    return await cluster.any_connection()


def _source(number: int) -> ConfigSource:
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN
