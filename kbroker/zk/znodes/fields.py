"""JSON in znodes: written as Kafka does, read field by field, poison named by its path (S25)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kbroker.zk.errors import PoisonZnode

INT32_MAX = 2**31 - 1

_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
# `json.dumps` makes one for every call that wants anything else than its defaults.


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Write a JSON object as Kafka does: compact, UTF-8."""
    return _ENCODER.encode(value).encode()


class Fields:
    """A JSON object being read from a znode; every ill-typed field raises PoisonZnode."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    def poison(self, reason: str) -> PoisonZnode:
        """Make the error that names this znode."""
        return PoisonZnode(self.path, reason)

    def has(self, name: str) -> bool:
        """Return whether the field exists and is not null."""
        return self.values.get(name) is not None

    def _get(self, name: str) -> Any:
        if name not in self.values:
            raise self.poison(f'field "{name}" is missing')
        return self.values[name]

    def integer(self, name: str, *, low: int = -INT32_MAX - 1, high: int = INT32_MAX) -> int:
        """Read a number within [low, high]."""
        return self._integer(name, self._get(name), low, high)

    def _integer(self, name: str, value: Any, low: int, high: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.poison(f'field "{name}" is {value!r:.80}, not a number in {low}..{high}')
        return value

    def long(self, name: str, value: Any) -> int:
        """Check *value*, found in field *name*, to be a 64-bit number (a broker epoch)."""
        return self._integer(name, value, -(2**63), 2**63 - 1)

    def decimal(self, name: str) -> int:
        """Read a 64-bit number kept as a string of digits (Kafka's timestamps, id blocks)."""
        value = self._get(name)
        try:
            number = int(value) if isinstance(value, (str, int)) else None
        except ValueError:
            number = None
        if number is None or not -(2**63) <= number < 2**63:
            raise self.poison(f'field "{name}" is {value!r:.80}, not a number in a string')
        return number

    def text(self, name: str) -> str:
        """Read a string."""
        value = self._get(name)
        if not isinstance(value, str):
            raise self.poison(f'field "{name}" is {value!r:.80}, not a string')
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Read a list of non-negative numbers (broker ids)."""
        items = self.items(name)
        for item in items:  # thousands of lists: a call for each number would take most of the time
            if type(item) is not int or not 0 <= item <= INT32_MAX:
                return tuple(self._integer(name, item, 0, INT32_MAX) for item in items)
        return tuple(items)

    def items(self, name: str) -> list[Any]:
        """Read a list."""
        value = self._get(name)
        if not isinstance(value, list):
            raise self.poison(f'field "{name}" is {value!r:.80}, not a list')
        return value

    def object(self, name: str) -> Fields:
        """Read an object."""
        value = self._get(name)
        if not isinstance(value, dict):
            raise self.poison(f'field "{name}" is {value!r:.80}, not an object')
        return Fields(self.path, value)

    def object_or_empty(self, name: str) -> Fields:
        """Read an object; a missing or null one is empty."""
        return self.object(name) if self.has(name) else Fields(self.path, {})

    def objects(self, name: str) -> list[Fields]:
        """Read a list of objects."""
        items = self.items(name)
        if not all(isinstance(item, dict) for item in items):
            raise self.poison(f'field "{name}" must hold objects only')
        return [Fields(self.path, item) for item in items]

    def strings(self) -> dict[str, str]:
        """Read the whole object as a map of strings."""
        return {name: self.text(name) for name in self.values}


def decode_json(path: str, data: bytes) -> Fields:
    """Parse a znode that holds one JSON object."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PoisonZnode(path, f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise PoisonZnode(path, f"not a JSON object but {type(value).__name__}")
    return Fields(path, value)


def decode_number(path: str, data: bytes, *, low: int, high: int) -> int:
    """Read a znode that holds one decimal number within [low, high]."""
    text = data.decode("ascii", "replace").strip()
    if re.fullmatch(r"-?\d{1,19}", text) is None or not low <= int(text) <= high:
        raise PoisonZnode(path, f"{text!r:.80} is not a number in {low}..{high}")
    return int(text)
