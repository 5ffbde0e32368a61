"""What a stored Avro value of a logical type means: a text for people, and a value that shows what is read alike.

Scale 2 and scale 3 make two decimals of the same bytes, and milliseconds and microseconds two moments of the same
number. `reading` differs for such a pair, and is equal for two that mean the same.

In: a stored value, the schema of its logical type.  Out: texts, comparable values.  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

LOGICAL = "kaudit.logicalType"
"""The attribute that keeps a logical type. Under its own name fastavro would convert the value."""

Schema: TypeAlias = Mapping[str, Any] | None
"""The schema of a value with a logical type; None for a value without one."""

_UNITS = {"millis": 1000, "micros": 1_000_000, "nanos": 1_000_000_000}
_MOST_SCALE = 100
"""Digits behind the point of a decimal that are written out."""


def name_of(schema: Schema) -> str | None:
    """Return the name of the logical type."""
    return None if schema is None else str(schema[LOGICAL])


def reading(value: Any, schema: Schema) -> Hashable:
    """Return what *value* is read as: equal for two values that mean the same."""
    name = name_of(schema)
    if name is None or name == "uuid":  # A UUID is the text that is stored.
        return None
    kind, _, unit = name.rpartition("-")
    try:
        if name == "decimal" and schema is not None and isinstance(value, bytes):
            return name, _decimal(value, schema)
        if unit in _UNITS and isinstance(value, (int, float)):
            return kind, Fraction(value) / _UNITS[unit]
    except (ArithmeticError, ValueError, TypeError):
        pass
    return name


def meaning(value: Any, schema: Schema) -> str | None:
    """Return *value* for people; None if it has no logical type, or one without a form of its own."""
    name = name_of(schema)
    try:
        if name == "decimal" and schema is not None and isinstance(value, bytes):
            number = _decimal(value, schema)
            return f"{number:f}" if 0 <= int(schema.get("scale", 0)) <= _MOST_SCALE else str(number)
        if name == "date" and isinstance(value, int):
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        if name is not None and "timestamp-" in name and isinstance(value, int):
            seconds, rest = divmod(value, _UNITS[name.rpartition("-")[2]])
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
            digits = {1000: 3, 1_000_000: 6}.get(_UNITS[name.rpartition("-")[2]], 9)
            zone = "" if name.startswith("local-") else "Z"
            return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:0{digits}d}{zone}"
    except (ArithmeticError, ValueError, KeyError, TypeError):
        return None
    return None


def _decimal(value: bytes, schema: Mapping[str, Any]) -> Decimal:
    unscaled = Decimal(int.from_bytes(value, "big", signed=True)).as_tuple()
    # Decimal.scaleb would round to 28 digits.
    return Decimal((unscaled.sign, unscaled.digits, -int(schema.get("scale", 0))))
