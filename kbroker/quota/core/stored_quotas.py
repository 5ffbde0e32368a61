"""Client quotas as ZooKeeper and the wire have them: settings of entities, checked, and chosen by a filter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kbroker.quota.core.entities import (
    DEFAULT,
    QUOTA_SETTINGS,
    WHOLE_NUMBERS,
    EntityName,
    QuotaEntity,
    QuotaKind,
)
from kclient.wire.errors import InvalidRequest, UnsupportedVersion

Settings = Mapping[str, str]
USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
EPSILON: Final = 1e-6
"""How far a double may be from the whole number that it stands for."""


class MatchType(IntEnum):
    """How a component of a filter matches, numbered as on the wire."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class QuotaOperation:
    """Set a quota to *value*, or remove it (None)."""

    key: str
    value: float | None


@dataclass(frozen=True, slots=True)
class Component:
    """The entities of a filter's component: *name*, or all of that type (None)."""

    name: EntityName | None


def quota_limits(
    stored: Mapping[QuotaEntity, Settings],
) -> tuple[dict[QuotaKind, dict[QuotaEntity, float]], list[str]]:
    """Return the limits of each kind, and what is wrong with settings that cannot be used."""
    limits: dict[QuotaKind, dict[QuotaEntity, float]] = {kind: {} for kind in QuotaKind}
    problems = []
    for entity, settings in stored.items():
        for kind in QuotaKind:
            text = settings.get(kind.value)
            if text is None:
                continue
            value = _number(text)
            if value is None:
                problems.append(f"{kind.value}={text[:40]!a} of {shown(entity)}")
            else:
                limits[kind][entity] = value
    return limits, problems


def quota_values(settings: Settings) -> dict[str, float]:
    """Return the quotas among the settings of an entity; those that are no numbers are left out."""
    return {
        name: value
        for name, text in settings.items()
        if name in QUOTA_SETTINGS and (value := _number(text)) is not None
    }


def _number(text: str) -> float | None:
    """Return a quota's limit; None if it cannot be one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None


def altered(settings: Settings, operations: Iterable[QuotaOperation]) -> dict[str, str]:
    """Return *settings* after *operations*. InvalidRequest for an unknown name or a value that cannot be a limit."""
    after = dict(settings)
    for operation in operations:
        if operation.value is None:
            after.pop(operation.key, None)
        else:
            after[operation.key] = _text(operation.key, operation.value)
    return after


def _text(key: str, value: float) -> str:
    if key not in QUOTA_SETTINGS:
        names = ", ".join(sorted(QUOTA_SETTINGS))
        raise InvalidRequest(f"invalid configuration key {key[:40]!a}: quotas are {names}")
    if not (value > 0 and math.isfinite(value)):
        raise InvalidRequest(f"{key} must be a number above 0, not {value}; remove it for no limit")
    if key not in WHOLE_NUMBERS:
        return str(float(value))
    whole = int(value + EPSILON)
    if abs(whole - value) > EPSILON or not 0 < whole < 2**63:
        raise InvalidRequest(f"{key} must be a LONG value, not {value}")
    return str(whole)


def entity_of(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity of (type, name) pairs; name None: the default. InvalidRequest, UnsupportedVersion."""
    names: dict[str, EntityName] = {}
    for entity_type, name in parts:
        _check_type(entity_type, names)
        if name == "":
            raise InvalidRequest(f"the {entity_type} has an empty name")
        names[entity_type] = DEFAULT if name is None else name
    if not names:
        raise InvalidRequest("the entity has neither user nor client-id")
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID))


def components_of(parts: Iterable[tuple[str, int, str | None]]) -> dict[str, Component]:
    """Return the components of a filter, by type, of (type, match type, name). InvalidRequest, UnsupportedVersion."""
    components: dict[str, Component] = {}
    for entity_type, match_type, name in parts:
        _check_type(entity_type, components, is_filter=True)
        if match_type == MatchType.EXACT and name is not None:
            components[entity_type] = Component(name)
        elif match_type == MatchType.DEFAULT and name is None:
            components[entity_type] = Component(DEFAULT)
        elif match_type == MatchType.ANY and name is None:
            components[entity_type] = Component(None)
        else:
            raise InvalidRequest(f"match type {match_type} does not go with the name {name!a:.40}")
    if IP in components and len(components) > 1:
        raise InvalidRequest("an ip cannot be combined with a user or client-id")
    return components


def _check_type(entity_type: str, known: Mapping[str, object], *, is_filter: bool = False) -> None:
    if entity_type in known:
        raise InvalidRequest(f"{entity_type} is given twice")
    if entity_type == "":
        raise InvalidRequest("an entity type is empty")
    if entity_type == IP and not is_filter:
        raise InvalidRequest(
            "connection rates by ip are not supported; set max.connections.per.ip.overrides or"
            " max.connection.creation.rate of the brokers"
        )
    if entity_type not in (USER, CLIENT_ID, IP):
        raise UnsupportedVersion(f"entity type {entity_type[:40]!a} is not supported")


def chosen(
    stored: Mapping[QuotaEntity, Settings], components: Mapping[str, Component], *, is_strict: bool
) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas of the entities that match; *is_strict*: they have no other parts than the components."""
    if IP in components:
        return {}
    user, client_id = components.get(USER), components.get(CLIENT_ID)
    return {
        entity: values
        for entity, settings in stored.items()
        if _matches(user, entity.user, is_strict)
        and _matches(client_id, entity.client_id, is_strict)
        and (values := quota_values(settings))
    }


def _matches(component: Component | None, name: EntityName | None, is_strict: bool) -> bool:
    if component is None:
        return name is None or not is_strict
    return name is not None if component.name is None else name == component.name


def shown(entity: QuotaEntity) -> str:
    """Return an entity for a log line or an error."""
    parts = [
        f"{kind} {'<default>' if name is DEFAULT else ascii(name)[:100]}"
        for kind, name in ((USER, entity.user), (CLIENT_ID, entity.client_id))
        if name is not None
    ]
    return ", ".join(parts)
