"""kafka-configs: settings of topics, brokers and loggers; quotas of users and client ids."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kclient.cli.kafka_tools import java_numbers, java_order
from kclient.cli.kafka_tools.arguments import finite
from kclient.cli.kafka_tools.java_errors import as_failed_future
from kclient.cli.kafka_tools.options import Given, Option, OptionError, not_honoured
from kclient.cli.kafka_tools.tool import (
    Failure,
    Tool,
    admin_settings,
    forbid,
    one_action,
    print_error,
    properties_in,
    run_admin,
)
from kclient.errors import KafkaError

TOPICS, CLIENTS, USERS, BROKERS, IPS, LOGGERS, METRICS = (
    "topics",
    "clients",
    "users",
    "brokers",
    "ips",
    "broker-loggers",
    "client-metrics",
)
_TYPES = (TOPICS, CLIENTS, USERS, BROKERS, IPS, LOGGERS, METRICS)
_ENTITIES = {
    "topic": TOPICS,
    "client": CLIENTS,
    "user": USERS,
    "broker": BROKERS,
    "broker-logger": LOGGERS,
}
_DEFAULTS = {"client-defaults": CLIENTS, "user-defaults": USERS, "broker-defaults": BROKERS}
_UNSUPPORTED = {
    IPS: "connection rates of IP addresses (KIP-612) are not supported by kbroker",
    METRICS: "client metrics (KIP-714) are not supported by kbroker",
}
_QUOTAS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
_SOURCES = {
    "TOPIC": "DYNAMIC_TOPIC_CONFIG",
    "BROKER": "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER": "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "STATIC_BROKER": "STATIC_BROKER_CONFIG",
    "DEFAULT": "DEFAULT_CONFIG",
    "BROKER_LOGGER": "DYNAMIC_BROKER_LOGGER_CONFIG",
}
_OUTSIDE_BRACKETS = r"(?=[^\]]*(?:\[|$))"
_NO_SCRAM = "SCRAM credentials are not supported by kbroker"

OPTIONS = (
    Option("bootstrap-server", "The brokers to connect to; required.", "server to connect to"),
    Option("command-config", "Properties file of the admin client.", "command config property file"),
    Option("alter", "Alter the settings of an entity."),
    Option("describe", "Describe the settings of entities."),
    Option("all", "Describe all settings, not only those of the entity's own."),
    Option("entity-type", f"The type: {', '.join(t for t in _TYPES if t not in _UNSUPPORTED)}.", "type"),
    Option("entity-name", "The name of an entity of the type.", "name"),
    Option("entity-default", "The default entity of the type."),
    Option("add-config", "Settings to add, k1=v1,k2=[v1,v2].", "settings"),
    Option("add-config-file", "Properties file of settings to add.", "path"),
    Option("delete-config", "Settings to remove, k1,k2.", "names", separator=","),
    Option("force", "Accepted: there are no prompts, as in Kafka."),
    Option("topic", "A topic.", "name"),
    Option("client", "A client id.", "id"),
    Option("client-defaults", "The default of all client ids."),
    Option("user", "A user.", "name"),
    Option("user-defaults", "The default of all users."),
    Option("broker", "A broker.", "id"),
    Option("broker-defaults", "The default of all brokers."),
    Option("broker-logger", "The loggers of a broker.", "id"),
    not_honoured("zookeeper", "kclient connects to brokers only; give --bootstrap-server"),
    not_honoured("zk-tls-config-file", "kclient connects to brokers only"),
    not_honoured("bootstrap-controller", "clusters with ZooKeeper have no KRaft controllers; give --bootstrap-server"),
    not_honoured("ip", _UNSUPPORTED[IPS]),
    not_honoured("ip-defaults", _UNSUPPORTED[IPS], takes="flag"),
)  # fmt: skip


class _Entities:
    """The entities of the command line: *types*, and as many *names* or fewer; "" is the default entity."""

    def __init__(self, given: Given) -> None:
        self.types = [
            *given.values("entity-type"),
            *(kind for name, kind in {**_ENTITIES, **_DEFAULTS}.items() if given.has(name)),
        ]
        names = iter(given.values("entity-name"))
        self.names = [
            next(names) if each == "entity-name" else ""
            for each in given.order
            if each in ("entity-name", "entity-default")
        ]
        self.names += [given.value(name) for name in _ENTITIES if given.has(name)]
        self.names += ["" for name in _DEFAULTS if given.has(name)]


def main(given: Given) -> int | None:
    """Check the command line and describe or alter."""
    action = one_action(
        given, ("alter", "describe"), "Command must include exactly one action: --describe, --alter"
    )
    forbid(given, "describe", "alter", "add-config", "delete-config")
    try:
        entities = _Entities(given)
        _check(given, entities)
        settings = admin_settings(given)
        if action == "alter" and len(entities.types) != len(entities.names):
            raise Failure("An entity name must be specified for every entity type")
        added = _added(given) if action == "alter" else {}
    except (Failure, OptionError) as problem:
        return print_error(problem)
    removed = [name.strip() for name in given.values("delete-config")]

    async def body(admin: Any) -> int:
        if action == "describe":
            await _describe(admin, entities, with_all=given.has("all"))
        else:
            await _alter(admin, entities, added, removed)
        return 0

    def failed(problem: BaseException) -> int:
        if isinstance(problem, KafkaError):
            print_error(f"Error while executing config command with args '{' '.join(given.words)}'")
            return print_error(as_failed_future(problem))
        return print_error(problem)

    return run_admin(TOOL.print_usage, settings, body, failed)


def _check(given: Given, entities: _Entities) -> None:
    types, names = entities.types, entities.names
    twice = [kind for n, kind in enumerate(types) if kind in types[:n]]
    if twice:
        raise Failure(f"Duplicate entity type(s) specified: {','.join(twice)}")
    if not given.has("bootstrap-server"):
        raise Failure("One of the required --bootstrap-server arguments must be specified")
    for kind in types:
        if kind not in _TYPES:
            raise Failure(
                f"Invalid entity type {kind}, the entity type must be one of {', '.join(_TYPES)} with a "
                "--bootstrap-server or --bootstrap-controller argument"
            )
    if not types:
        raise Failure("At least one entity type must be specified")
    if len(types) > 1 and set(types) != {USERS, CLIENTS}:
        raise Failure("Only 'users' and 'clients' entity types may be specified together")
    if any(map(given.has, ("entity-type", "entity-name", "entity-default"))) and any(
        map(given.has, (*_ENTITIES, *_DEFAULTS))
    ):
        raise Failure(
            "--entity-{type,name,default} should not be used in conjunction with specific entity flags"
        )
    if types[0] in _UNSUPPORTED:
        raise Failure(f"--entity-type {types[0]} is not supported: {_UNSUPPORTED[types[0]]}")
    _check_names(given, types, names)


def _check_names(given: Given, types: Sequence[str], names: Sequence[str]) -> None:
    has_name, has_default = any(names), "" in names
    if has_name and types[0] in (BROKERS, LOGGERS):
        for name in filter(None, names):
            if re.fullmatch(r"[+-]?\d+", name) is None:
                raise Failure(
                    f"The entity name for {types[0]} must be a valid integer broker id, but it is: {name}"
                )
    if given.has("describe") and types[0] == LOGGERS and not has_name:
        raise Failure(f"an entity name must be specified with --describe of {','.join(types)}")
    if given.has("alter"):
        _check_alter(given, types, has_name, has_default)


def _check_alter(given: Given, types: Sequence[str], has_name: bool, has_default: bool) -> None:
    if set(types) & {USERS, CLIENTS, BROKERS}:
        if not has_name and not has_default:
            raise Failure(
                "an entity-name or default entity must be specified with --alter of users, clients, brokers or ips"
            )
    elif not has_name:
        raise Failure(f"an entity name must be specified with --alter of {','.join(types)}")
    if given.has("add-config") and given.has("add-config-file"):
        raise Failure("Only one of --add-config or --add-config-file must be specified")
    if not any(map(given.has, ("add-config", "add-config-file", "delete-config"))):
        raise Failure(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
        )


def _added(given: Given) -> dict[str, str]:
    """Return the settings to add; a comma within brackets is part of a value."""
    found: dict[str, str] = {}
    if given.has("add-config-file"):
        found.update(properties_in(given.value("add-config-file")))
    if given.has("add-config"):
        for part in re.split(f",{_OUTSIDE_BRACKETS}", given.value("add-config")):
            pair = re.split(rf"\s*=\s*{_OUTSIDE_BRACKETS}", part)
            if len(pair) != 2:
                raise Failure(
                    "requirement failed: Invalid entity config: all configs to be added must be in the format "
                    '"key=val".'
                )
            found[pair[0].strip()] = re.sub(r"[\[\]]", "", pair[1]).strip()
    for name in found:
        if re.fullmatch(r"[a-zA-Z0-9._-]*", name) is None:
            raise Failure(f"Invalid character found for config key: {name}")
    return found


# --- alter


async def _alter(
    admin: Any, entities: _Entities, added: Mapping[str, str], removed: Sequence[str]
) -> None:
    kind, name = entities.types[0], entities.names[0]
    if kind in (USERS, CLIENTS):
        await _alter_quotas(admin, entities, added, removed)
    else:
        resource = _resource(kind, name)
        known = await _own(admin, kind, name)
        if kind == LOGGERS:
            unknown = [each for each in (*removed, *added) if each not in known]
            if unknown:
                raise Failure(f"Invalid broker logger(s): {','.join(unknown)}")
        _check_removed(removed, known)
        await admin.alter_configs({resource: {**added, **dict.fromkeys(removed)}})
    if name:
        print(f"Completed updating config for {kind[:-1]} {name}.")
    else:
        print(f"Completed updating default config for {kind} in the cluster.")


def _check_removed(removed: Iterable[str], known: Iterable[str]) -> None:
    unknown = [name for name in removed if name not in known]
    if unknown:
        raise Failure(f"Invalid config(s): {','.join(unknown)}")


async def _alter_quotas(
    admin: Any, entities: _Entities, added: Mapping[str, str], removed: Sequence[str]
) -> None:
    # The names of the collections are Scala's.
    for names, verb, listed in ((added, "added", "Set"), (removed, "deleted", "ArrayBuffer")):
        unknown = [name for name in names if name not in _QUOTAS]
        if unknown and all(name.startswith("SCRAM-") for name in unknown):
            raise Failure(f"{', '.join(unknown)}: {_NO_SCRAM}")
        if unknown and (entities.types[0] == CLIENTS or len(entities.types) == 2):
            raise Failure(
                f"Only quota configs can be {verb} for 'clients' using --bootstrap-server. Unexpected config names: "
                f"{listed}({', '.join(unknown)})"
            )
        if unknown:
            raise Failure(
                f"Only quota and SCRAM credential configs can be {verb} for 'users' using --bootstrap-server. "
                f"Unexpected config names: {listed}({', '.join(unknown)})"
            )
    entity = _quota_entity(entities)
    found = await admin.describe_client_quotas(entity, strict=True)
    _check_removed(removed, next(iter(found.values()), {}))
    changes: dict[str, float | None] = dict.fromkeys(removed)
    for name, text in added.items():
        try:
            changes[name] = finite(text)
        except ArgumentTypeError:
            raise Failure(f"Cannot parse quota configuration value for {name}: {text}") from None
    await admin.alter_client_quotas({entity: changes})


def _quota_entity(entities: _Entities) -> Any:
    """Return the entity, or the pattern of entities where a name is missing."""
    from kclient.admin.quotas import ANY_NAME, DEFAULT_NAME, QuotaEntity

    if len(entities.names) > len(entities.types):
        raise Failure("More entity names specified than entity types")
    parts: dict[str, Any] = {}
    for n, kind in enumerate(entities.types):
        name = entities.names[n] if n < len(entities.names) else None
        parts[kind] = ANY_NAME if name is None else name or DEFAULT_NAME
    return QuotaEntity(parts.get(USERS), parts.get(CLIENTS))


# --- describe


async def _describe(admin: Any, entities: _Entities, *, with_all: bool) -> None:
    kind = entities.types[0]
    if kind in (USERS, CLIENTS):
        await _describe_quotas(admin, entities)
        return
    if entities.names:
        names = entities.names[:1]
    elif kind == TOPICS:
        names = java_order.strings(await admin.describe_topics(internal=True))
    else:
        names = [*map(str, sorted((await admin.describe_cluster()).brokers)), ""]
    for name in names:
        if name:
            print(f"{'All' if with_all else 'Dynamic'} configs for {kind[:-1]} {name} are:")
        else:
            print(f"Default configs for {kind} in the cluster are:")
        found = await _own(admin, kind, name, with_all=with_all)
        for key in sorted(found):
            entry = found[key]
            synonyms = ", ".join(
                f"{_SOURCES.get(s.source.name, 'UNKNOWN')}:{s.name}={_shown(s.value)}"
                for s in entry.synonyms
            )
            print(
                f"  {key}={_shown(entry.value)} sensitive={str(entry.sensitive).lower()} synonyms={{{synonyms}}}"
            )


def _shown(value: str | None) -> str:
    return "null" if value is None else value


def _resource(kind: str, name: str) -> Any:
    from kclient.admin.configs import ConfigResource, ResourceType

    of_kind = {
        TOPICS: ResourceType.TOPIC,
        BROKERS: ResourceType.BROKER,
        LOGGERS: ResourceType.BROKER_LOGGER,
    }
    return ConfigResource(of_kind[kind], name)


async def _own(admin: Any, kind: str, name: str, *, with_all: bool = False) -> dict[str, Any]:
    """Return the settings of an entity's own, or all."""
    from kclient.admin.configs import ConfigSource

    resource = _resource(kind, name)
    found = (await admin.describe_configs([resource], synonyms=True))[resource]
    sources = {
        TOPICS: ConfigSource.TOPIC,
        BROKERS: ConfigSource.BROKER if name else ConfigSource.DYNAMIC_DEFAULT_BROKER,
        LOGGERS: ConfigSource.BROKER_LOGGER,
    }
    if with_all or kind == LOGGERS:
        return dict(found)
    return {key: entry for key, entry in found.items() if entry.source is sources[kind]}


async def _describe_quotas(admin: Any, entities: _Entities) -> None:
    from kclient.admin.quotas import QuotaName

    found = await admin.describe_client_quotas(_quota_entity(entities), strict=True)

    def parts(entity: Any) -> list[tuple[str, str, str | None]]:
        names = (
            ("user", "user-principal", entity.user),
            ("client-id", "client-id", entity.client_id),
        )
        return [
            (kind, shown, None if isinstance(name, QuotaName) else name)
            for kind, shown, name in names
            if name is not None
        ]

    def hash_of(entity: Any) -> int:
        entries = (
            java_order.string_hash(kind) ^ (0 if name is None else java_order.string_hash(name))
            for kind, _, name in parts(entity)
        )
        return (31 + sum(entries)) & 0xFFFFFFFF

    for entity in java_order.hash_map_order(found, hash_of):
        entity_text = ", ".join(
            f"the default {shown}" if name is None else f"{shown} '{name}'"
            for _, shown, name in parts(entity)
        )
        limits = ", ".join(
            f"{name}={java_numbers.double(found[entity][name])}"
            for name in java_order.strings(found[entity])
        )
        print(f"Quota configs for {entity_text} are {limits}")


TOOL = Tool(
    "kafka-configs",
    "This tool helps to manipulate and describe entity config for a topic, client, user, broker, ip or client-metrics",
    OPTIONS,
    main,
    differs=(
        "--entity-type ips and client-metrics, and SCRAM-... as a name of a setting, are refused: kbroker has no "
        "connection rates of IP addresses, no client metrics and no SCRAM.",
        "--describe of users shows their quotas; Kafka's tool also asks for SCRAM credentials, and fails where the "
        "broker has none.",
        "--alter of a broker changes the named settings only (KIP-339); Kafka's tool sends all of them again.",
    ),
)
