"""Client quotas (KIP-546): limits of users, client ids and their defaults, by any broker."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kclient.errors import KafkaError
from kclient.lazy import LazyModule
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.wire.versions import ApiKey

if TYPE_CHECKING:
    from kclient.wire.schema import alter_client_quotas as alter_wire
    from kclient.wire.schema import describe_client_quotas as describe_wire
else:
    alter_wire = LazyModule("kclient.wire.schema.alter_client_quotas")
    describe_wire = LazyModule("kclient.wire.schema.describe_client_quotas")

_EXACT, _DEFAULT, _ANY = 0, 1, 2


class QuotaName(Enum):
    """What stands for a name: the default, or in a filter any name."""

    DEFAULT = "<default>"
    ANY = "<any>"


DEFAULT_NAME: Final = QuotaName.DEFAULT
ANY_NAME: Final = QuotaName.ANY


class QuotaEntity(NamedTuple):
    """The clients of a quota: a user, a client id, or both; `DEFAULT_NAME` for those without a quota of their own."""

    user: str | QuotaName | None = None
    client_id: str | QuotaName | None = None

    def __str__(self) -> str:
        parts = (("user", self.user), ("client-id", self.client_id))
        return ", ".join(
            f"{kind} {name.value if isinstance(name, QuotaName) else repr(name)}"
            for kind, name in parts
            if name is not None
        )


EVERYONE: Final = QuotaEntity()
"""Matches every entity."""


def _parts(entity: QuotaEntity) -> list[tuple[str, str | QuotaName]]:
    parts = (("user", entity.user), ("client-id", entity.client_id))
    return [(kind, name) for kind, name in parts if name is not None]


async def describe_client_quotas(
    cluster: Cluster, matching: QuotaEntity, *, strict: bool, timeout: float
) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas of the entities like *matching*; raise KafkaError."""
    components = [
        describe_wire.ComponentData(kind, *_match(name)) for kind, name in _parts(matching)
    ]
    request = describe_wire.DescribeClientQuotasRequest(components, strict)
    response = await _send(cluster, ApiKey.DESCRIBE_CLIENT_QUOTAS, request, timeout)
    if response.error_code:
        raise error_of(response.error_code, "client quotas", response.error_message)
    return {
        _entity(entry.entity): {each.key: each.value for each in entry.values}
        for entry in response.entries or ()
    }


async def alter_client_quotas(
    cluster: Cluster,
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
    *,
    validate_only: bool,
    timeout: float,
) -> dict[QuotaEntity, KafkaError | None]:
    """Set the quotas of each entity, remove those with None; others do not change."""
    entries = [
        alter_wire.AlterClientQuotasRequestEntryData(
            [
                alter_wire.EntityData(kind, None if isinstance(name, QuotaName) else name)
                for kind, name in _parts(entity)
            ],
            [
                alter_wire.OpData(key, 0.0 if value is None else float(value), value is None)
                for key, value in values.items()
            ],
        )
        for entity, values in changes.items()
    ]
    request = alter_wire.AlterClientQuotasRequest(entries, validate_only)
    response = await _send(cluster, ApiKey.ALTER_CLIENT_QUOTAS, request, timeout)
    answers: dict[QuotaEntity, KafkaError | None] = {}
    for entry in response.entries:
        entity = _entity(entry.entity)
        code = entry.error_code
        answers[entity] = error_of(code, entity, entry.error_message) if code else None
    return answers


async def _send(cluster: Cluster, api: ApiKey, request: object, timeout: float) -> Any:
    async def attempt() -> Any:
        await cluster.start()
        connection = await cluster.any_connection()
        return await connection.request(api, None, request)

    return await cluster.retrying(attempt, timeout=timeout, what="client quotas")


def _match(name: str | QuotaName) -> tuple[int, str | None]:
    if name is DEFAULT_NAME:
        return _DEFAULT, None
    return (_ANY, None) if isinstance(name, QuotaName) else (_EXACT, name)


def _entity(parts: Any) -> QuotaEntity:
    names = {
        each.entity_type: DEFAULT_NAME if each.entity_name is None else each.entity_name
        for each in parts
    }
    return QuotaEntity(names.get("user"), names.get("client-id"))
