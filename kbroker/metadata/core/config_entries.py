"""Config resources as clients see them: entries with source and synonyms, and changes to them. Pure.

A topic's value is its own, else the broker's dynamic one, else the cluster-wide dynamic default, else the one of
server.properties, else Kafka's default. A broker's value is found likewise, without the first. The *source* of an entry
is the place of its value. Its *synonyms* (KIP-226) list every place with a value for it, the deciding one first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from kbroker.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    ConfigError,
    ConfigType,
    KafkaConfig,
    LogConfig,
    Setting,
    check_listener_changes,
    show_value,
)
from kclient.wire.errors import InvalidConfig, InvalidRequest

MAX_VALUE = 0x7FFF
"""Bytes of a value that a response can carry."""

PER_BROKER = frozenset({"listeners", "listener.security.protocol.map", "advertised.listeners"})
"""Dynamic settings that only a broker itself has, not the cluster-wide default."""

MAX_UNKNOWN = 64 * 1024
"""Characters of all settings of a broker resource that brokers do not know: every broker reads them."""


class ResourceType(IntEnum):
    """Kinds of resources that have configuration, numbered as on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigSource(IntEnum):
    """Where a value came from, numbered as on the wire."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


class ConfigOperation(IntEnum):
    """What IncrementalAlterConfigs (KIP-339) does to one entry, numbered as on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Synonym:
    """One place with a value for an entry; *value* None: secret, or unset."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting of a resource, resolved."""

    setting: Setting
    value: str | None
    source: ConfigSource
    read_only: bool
    synonyms: tuple[Synonym, ...]


@dataclass(frozen=True, slots=True)
class BrokerLayers:
    """The sources of a broker's settings, besides Kafka's defaults."""

    static: KafkaConfig
    dynamic: Mapping[str, str]
    """/config/brokers/N."""
    dynamic_default: Mapping[str, str]
    """/config/brokers/<default>."""

    def synonyms(self, name: str) -> Iterator[Synonym]:
        """Return every place with a value of setting *name*, the deciding one first; null if it may be a secret."""
        setting = BROKER_SETTINGS.get(name)
        is_secret = setting is None or setting.sensitive
        for values, source in (
            (self.dynamic, ConfigSource.DYNAMIC_BROKER),
            (self.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self.static.given, ConfigSource.STATIC_BROKER),
        ):
            if name in values:
                yield Synonym(name, None if is_secret else values[name], source)
        if setting is not None:
            yield Synonym(name, _default(setting), ConfigSource.DEFAULT)


def _default(setting: Setting) -> str | None:
    return None if setting.sensitive else show_value(setting.default)


def _attribute(name: str) -> str:
    return name.replace(".", "_")


def topic_entries(
    overrides: Mapping[str, str],
    effective: LogConfig,
    layers: BrokerLayers,
    names: Iterable[str] | None = None,
) -> list[Entry]:
    """Describe a topic, sorted by name: *overrides* are its own settings, *effective* all of them."""
    wanted = None if names is None else frozenset(names)
    return [
        _topic_entry(setting, overrides, effective, layers)
        for name, setting in sorted(TOPIC_SETTINGS.items())
        if wanted is None or name in wanted
    ]


def _topic_entry(
    setting: Setting, overrides: Mapping[str, str], effective: LogConfig, layers: BrokerLayers
) -> Entry:
    synonyms: list[Synonym] = []
    if setting.name in overrides:
        synonyms.append(Synonym(setting.name, overrides[setting.name], ConfigSource.DYNAMIC_TOPIC))
    defaults: list[Synonym] = []
    for name in setting.synonyms:
        for synonym in layers.synonyms(name):
            (defaults if synonym.source is ConfigSource.DEFAULT else synonyms).append(synonym)
    synonyms.sort(key=lambda synonym: synonym.source)  # stable: nearer names stay first
    # Kafka names the last synonym as the place of the default: log.retention.hours, 168.
    synonyms += defaults[-1:] or [Synonym(setting.name, _default(setting), ConfigSource.DEFAULT)]
    value = show_value(getattr(effective, _attribute(setting.name)))
    return Entry(setting, value, synonyms[0].source, read_only=False, synonyms=tuple(synonyms))


def broker_entries(
    effective: KafkaConfig, layers: BrokerLayers, names: Iterable[str] | None = None
) -> list[Entry]:
    """Describe this broker. The values of settings that it does not know are null: they may be secrets."""
    wanted = None if names is None else frozenset(names)
    entries = []
    for name, setting in BROKER_SETTINGS.items():
        if wanted is None or name in wanted:
            synonyms = tuple(layers.synonyms(name))
            entries.append(
                Entry(
                    setting,
                    effective.shown(name),
                    synonyms[0].source,
                    not setting.dynamic,
                    synonyms,
                )
            )
    for name in {**layers.dynamic, **layers.dynamic_default, **layers.static.given}:
        if name not in BROKER_SETTINGS and (wanted is None or name in wanted):
            entries.append(_unknown_entry(name, tuple(layers.synonyms(name))))
    return entries


def _unknown_entry(name: str, synonyms: tuple[Synonym, ...]) -> Entry:
    setting = Setting(name, ConfigType.PASSWORD, None, "Unknown to this broker: no effect.")
    return Entry(setting, None, synonyms[0].source, read_only=False, synonyms=synonyms)


def default_broker_entries(layers: BrokerLayers, names: Iterable[str] | None = None) -> list[Entry]:
    """Describe the cluster-wide dynamic defaults: only what is set."""
    wanted = None if names is None else frozenset(names)
    entries = []
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    for name, value in layers.dynamic_default.items():
        if wanted is not None and name not in wanted:
            continue
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            entries.append(_unknown_entry(name, (Synonym(name, None, source),)))
            continue
        shown = None if setting.sensitive else value
        entries.append(Entry(setting, shown, source, False, (Synonym(name, shown, source),)))
    return entries


_TO_UNKNOWN = {
    "topic": (ConfigOperation.DELETE,),
    "broker": (ConfigOperation.DELETE, ConfigOperation.SET),
}
"""What may be done to a setting that brokers do not know, by kind of resource: a broker's are stored, as in Kafka."""


@dataclass(frozen=True, slots=True)
class Change:
    """One operation on one entry."""

    name: str
    operation: int
    value: str | None


def changed_topic(
    overrides: Mapping[str, str], changes: Iterable[Change], defaults: LogConfig
) -> dict[str, str]:
    """Apply *changes* to a topic's own settings. InvalidConfig, InvalidRequest.

    What is wrong already, and is not touched, does not stand in the way.
    """

    def current(name: str) -> str:
        if name in overrides:
            return overrides[name]
        return show_value(getattr(defaults, _attribute(name))) or ""

    asked = list(changes)
    result = _changed(overrides, asked, TOPIC_SETTINGS, current, "topic")
    checked = {c.name: result[c.name] for c in asked if c.name in result}
    untouched = {name: value for name, value in result.items() if name not in checked}
    usable, _ = usable_topic_config(untouched, defaults)
    check_topic_config({**usable, **checked}, defaults)
    return result


def check_topic_config(overrides: Mapping[str, str], defaults: LogConfig) -> LogConfig:
    """Resolve a topic's settings; InvalidConfig lists all problems."""
    try:
        return defaults.overridden(overrides)
    except ConfigError as error:
        raise InvalidConfig("; ".join(error.problems)) from None


def usable_topic_config(
    overrides: Mapping[str, str], defaults: LogConfig
) -> tuple[dict[str, str], list[str]]:
    """Leave out what cannot be used: (usable overrides, problems). For what ZooKeeper holds already."""
    try:
        defaults.overridden(overrides)
    except ConfigError:
        return _as_far_as_usable(overrides, defaults.overridden)
    return dict(overrides), []


def _as_far_as_usable(
    values: Mapping[str, str], build: Callable[[Mapping[str, str]], object]
) -> tuple[dict[str, str], list[str]]:
    """Leave out each value that *build* does not take beside the usable ones, in any order: (usable, problems)."""
    usable: dict[str, str] = {}
    left = dict(values)
    while True:
        problems: list[str] = []
        refused: dict[str, str] = {}
        for name, value in left.items():
            try:
                build({**usable, name: value})
            except ConfigError as error:
                problems += error.problems
                refused[name] = value
            else:
                usable[name] = value
        if len(refused) < len(left):
            left = refused  # one may need another that came after it: listeners and their protocols
            continue
        # Those of listeners may go only together: where one takes another one's place, and what is advertised.
        listeners = {name: value for name, value in refused.items() if name in PER_BROKER}
        if not listeners:
            return usable, problems
        try:
            build({**usable, **listeners})
        except ConfigError:
            return usable, problems
        usable |= listeners
        left = {name: value for name, value in refused.items() if name not in listeners}


def effective_broker_config(
    static: KafkaConfig, values: Mapping[str, str]
) -> tuple[KafkaConfig, list[str]]:
    """Return *static* with the dynamic *values*, without those that do not go with the others, and the problems."""
    try:
        return static.with_values(values), []
    except ConfigError:
        known = {name: value for name, value in values.items() if name in BROKER_SETTINGS}
        unknown = {name: value for name, value in values.items() if name not in known}
        usable, problems = _as_far_as_usable(known, static.with_values)
        return static.with_values({**unknown, **usable}), problems


def usable_broker_config(
    values: Mapping[str, str], *, is_default: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Leave out dynamic broker settings that cannot be used: (usable, problems); *is_default*: cluster-wide ones.

    Settings that brokers do not know stay, without effect, as in Kafka: other software may read them.
    """
    usable: dict[str, str] = {}
    problems: list[str] = []
    for name, value in values.items():
        setting = BROKER_SETTINGS.get(name)
        if setting is not None and not setting.dynamic:
            problems.append(f"{name}: not a dynamic broker setting")
            continue
        if is_default and name in PER_BROKER:
            problems.append(f"{name}: not a cluster-wide setting")
            continue
        try:
            if setting is not None:
                setting.parse(value)
        except ValueError as error:
            problems.append(f"{name}: {error}")
        else:
            usable[name] = value
    return usable, problems


def changed_broker(
    overrides: Mapping[str, str],
    changes: Iterable[Change],
    effective: KafkaConfig,
    *,
    is_default: bool = False,
) -> dict[str, str]:
    """Apply *changes* to the dynamic settings of a broker, or of all. InvalidConfig, InvalidRequest.

    As in Kafka, settings that brokers do not know are stored, without effect.
    """
    asked = list(changes)
    fixed = sorted(
        c.name for c in asked if c.name in BROKER_SETTINGS and not BROKER_SETTINGS[c.name].dynamic
    )
    if fixed:
        raise InvalidRequest(
            f"Cannot update these configs dynamically: {', '.join(fixed)}",
            hint="set them in server.properties and restart the broker",
        )

    own = sorted(change.name for change in asked if change.name in PER_BROKER)
    if own and is_default:
        raise InvalidRequest(
            f"Cannot update these configs at default cluster level: {', '.join(own)}",
            hint="name a broker",
        )

    def current(name: str) -> str:
        return overrides[name] if name in overrides else effective.shown(name) or ""

    result = _changed(overrides, asked, BROKER_SETTINGS, current, "broker")
    problems = []
    for change in asked:
        setting = BROKER_SETTINGS.get(change.name)
        if setting is not None and change.name in result:
            try:
                setting.parse(result[change.name])
            except ValueError as error:
                problems.append(f"{change.name}: {error}")
    unknown = sum(len(k) + len(v) for k, v in result.items() if k not in BROKER_SETTINGS)
    if unknown > MAX_UNKNOWN:
        problems.append(
            f"{unknown} characters of settings that brokers do not know, the limit is {MAX_UNKNOWN}"
        )
    if not problems:
        asked_values = {
            change.name: result[change.name] for change in asked if change.name in result
        }
        try:
            problems = check_listener_changes(effective, effective.with_values(asked_values))
        except ConfigError as error:  # they do not go with others
            problems = error.problems
    if problems:
        raise InvalidConfig("; ".join(problems))
    return result


def check_remaining(
    layers: BrokerLayers,
    before: Mapping[str, str],
    after: Mapping[str, str],
    *,
    is_default: bool = False,
) -> None:
    """Raise InvalidConfig if settings that go together in *before* do not in *after*, where others were deleted.

    *before* and *after* are the dynamic settings of the broker with *layers*, or those of all with *is_default*.
    """

    def problems(values: Mapping[str, str]) -> dict[str, str]:
        usable = usable_broker_config(values, is_default=is_default)[0]
        own, default = (layers.dynamic, usable) if is_default else (usable, layers.dynamic_default)
        found = effective_broker_config(layers.static, {**default, **own})[1]
        return {problem.partition(":")[0]: problem for problem in found}

    known = problems(before)
    new = [problem for name, problem in problems(after).items() if name not in known]
    if new:
        raise InvalidConfig("; ".join(new), hint="delete or alter both in one request")


def _changed(
    overrides: Mapping[str, str],
    changes: list[Change],
    settings: Mapping[str, Setting],
    current: Callable[[str], str],
    kind: str,
) -> dict[str, str]:
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise InvalidRequest(f"a setting is changed twice: {sorted(names)[:20]}")
    allowed = _TO_UNKNOWN[kind]
    result = dict(overrides)
    for change in changes:
        setting = settings.get(change.name)
        # DELETE of an unknown name is no error: MirrorMaker 2 deletes settings of its source.
        if setting is None and change.operation not in allowed:
            raise InvalidConfig(f"{change.name[:200]!r}: unknown {kind} setting")
        _apply(result, setting, change, current)
        check_value_size(change.name, result.get(change.name))
    return result


def check_value_size(name: str, value: str | None) -> None:
    """Raise InvalidConfig for a value that DescribeConfigs could not answer, as lists that were appended to."""
    if value is None or 4 * len(value) <= MAX_VALUE:
        return
    size = len(value.encode())
    if size > MAX_VALUE:
        raise InvalidConfig(f"{name}: a value of {size} bytes, the limit is {MAX_VALUE}")


def _apply(
    result: dict[str, str],
    setting: Setting | None,
    change: Change,
    current: Callable[[str], str],
) -> None:
    name = change.name
    if change.operation == ConfigOperation.DELETE:
        result.pop(name, None)
        return
    if change.value is None:
        raise InvalidRequest(f"{name}: null is no value; delete the setting instead")
    if change.operation == ConfigOperation.SET:
        result[name] = change.value
        return
    if change.operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise InvalidRequest(f"{name}: there is no operation {change.operation}")
    if setting is None or setting.type is not ConfigType.LIST:
        raise InvalidConfig(f"{name}: is not a list, nothing can be appended or subtracted")
    items = [item for item in current(name).split(",") if item]
    named = [item.strip() for item in change.value.split(",") if item.strip()]
    if change.operation == ConfigOperation.APPEND:
        there = set(items)
        items += [item for item in named if item not in there]
    else:
        unwanted = set(named)
        items = [item for item in items if item not in unwanted]
    result[name] = ",".join(items)
