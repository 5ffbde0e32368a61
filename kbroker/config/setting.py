"""One setting: Kafka's name, type, default, bounds and one line of documentation.

A group of settings is a frozen dataclass; `define` makes its fields: the attribute `log_segment_bytes` is the
setting `log.segment.bytes`. So every setting is declared once, and code reads it as a typed attribute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

Value = bool | int | float | str | tuple[str, ...]
Validator = Callable[[Any], str | None]
"""Returns what is wrong with a value, or None."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigType(IntEnum):
    """Types of settings, numbered as DescribeConfigs sends them (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigError(Exception):
    """Settings that cannot be used; `problems` lists every one of them, each with its key."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


_RANGES = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.LONG: (-(2**63), LONG_MAX),
}
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_DOUBLE = re.compile(r"[+-]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Setting:
    """The definition of one setting.

    *dynamic*: may be altered while the broker runs (DescribeConfigs calls the others read-only).
    *synonyms*: broker settings a topic setting takes its value from, the nearest first.
    """

    name: str
    type: ConfigType
    default: Value | None
    doc: str
    validator: Validator | None = None
    dynamic: bool = False
    synonyms: tuple[str, ...] = ()

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type is ConfigType.PASSWORD

    @property
    def is_idle(self) -> bool:
        """Whether the setting is accepted without effect; its documentation has the reason."""
        return self.doc.startswith("Accepted, no effect")

    def parse(self, text: str) -> Value:
        """Return the value of *text*; the message of a ValueError never contains a secret."""
        value = _PARSERS.get(self.type, _integer)(text.strip(), self.type)
        if self.validator is not None and (wrong := self.validator(value)) is not None:
            raise ValueError(wrong if self.sensitive else f"{_show(text)} {wrong}")
        return value


def _show(text: str) -> str:
    """Quote *text* for an error message: escaped and short."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _integer(text: str, kind: ConfigType) -> Value:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{_show(text)} is not a whole number")
    value = int(text)
    low, high = _RANGES[kind]
    if not low <= value <= high:
        raise ValueError(f"{_show(text)} does not fit {kind.name.lower()} ({low}..{high})")
    return value


def _boolean(text: str, _kind: ConfigType) -> Value:
    folded = text.lower()
    if folded not in ("true", "false"):
        raise ValueError(f"{_show(text)} is neither true nor false")
    return folded == "true"


def _double(text: str, _kind: ConfigType) -> Value:
    if not _DOUBLE.fullmatch(text):
        raise ValueError(f"{_show(text)} is not a number")
    return float(text)


def _list(text: str, _kind: ConfigType) -> Value:
    return tuple(item.strip() for item in text.split(",")) if text else ()


def _string(text: str, _kind: ConfigType) -> Value:
    return text


_PARSERS: dict[ConfigType, Callable[[str, ConfigType], Value]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.DOUBLE: _double,
    ConfigType.LIST: _list,
    ConfigType.STRING: _string,
    ConfigType.CLASS: _string,
    ConfigType.PASSWORD: _string,
}


def show_value(value: Value | None) -> str | None:
    """Return *value* as Kafka writes it in a properties file or a DescribeConfigs answer."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def at_least(low: float) -> Validator:
    """Accept numbers from *low* upwards."""
    return lambda value: None if value >= low else f"is below the minimum {low}"


def between(low: float, high: float) -> Validator:
    """Accept numbers from *low* to *high*, both included."""
    return lambda value: None if low <= value <= high else f"is not between {low} and {high}"


def one_or_between(one: int, low: int, high: int) -> Validator:
    """Accept *one*, and numbers from *low* to *high*, both included."""
    return lambda value: (
        None
        if value == one or low <= value <= high
        else f"is neither {one} nor between {low} and {high}"
    )


def one_of(*allowed: str) -> Validator:
    """Accept exactly the strings in *allowed*."""
    return lambda value: None if value in allowed else f"is not one of {', '.join(allowed)}"


def each_of(*allowed: str) -> Validator:
    """Accept lists made of the strings in *allowed*."""

    def check(value: tuple[str, ...]) -> str | None:
        wrong = [item for item in value if item not in allowed]
        return f"may only hold {', '.join(allowed)}" if wrong else None

    return check


_REPLICA = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")


def throttled_replicas(value: tuple[str, ...]) -> str | None:
    """Accept * alone, or a list of PARTITION:BROKER."""
    if value == ("*",) or all(_REPLICA.fullmatch(item) for item in value):
        return None
    return "is neither * nor a list of PARTITION:BROKER"


def define(
    kind: ConfigType,
    default: Value | None,
    doc: str,
    validator: Validator | None = None,
    *,
    dynamic: bool = False,
    synonyms: tuple[str, ...] = (),
) -> Any:
    """Make a dataclass field that is a setting; its name is the field's with dots for underscores."""
    extra = {"setting": (kind, doc, validator, dynamic, synonyms)}
    return field(default=default, metadata=extra)


def settings_of(cls: type) -> dict[str, Setting]:
    """Return the settings that dataclass *cls* defines, by name."""
    found = {}
    for item in fields(cls):
        if "setting" in item.metadata:
            kind, doc, validator, dynamic, synonyms = item.metadata["setting"]
            default: Any = item.default
            name = item.name.replace("_", ".")
            found[name] = Setting(name, kind, default, doc, validator, dynamic, synonyms)
    return found


def attribute(name: str) -> str:
    """Return the attribute that holds setting *name*."""
    return name.replace(".", "_")


def parse_all(
    settings: Mapping[str, Setting], given: Mapping[str, str]
) -> tuple[dict[str, Value], list[str]]:
    """Parse every value of *given* that *settings* knows: (attribute -> value, problems)."""
    values: dict[str, Value] = {}
    problems = []
    for name, text in given.items():
        if (setting := settings.get(name)) is None:
            continue
        try:
            values[attribute(name)] = setting.parse(text)
        except ValueError as wrong:
            problems.append(f"{name}: {wrong}")
    return values, problems
