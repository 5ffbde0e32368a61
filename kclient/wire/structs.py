"""The description of a struct on the wire, parsed from its WIRE lines (see `kclient.wire.codec`)."""

import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol

FIXED = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "uint16": ("H", 2),
    "uint32": ("I", 4),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
"""Types of a fixed size: their code for `struct`, and the size."""
_ANY_VERSION = 0x7FFF


class WireStruct(Protocol):
    """The requirements of the codec: a dataclass with a default for every field, and WIRE."""

    WIRE: ClassVar[tuple[str, ...]]
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Versions(NamedTuple):
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "_Versions":
        if text.endswith("+"):
            return cls(int(text[:-1]), _ANY_VERSION)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def has(self, version: int) -> bool:
        return self.first <= version <= self.last


@dataclass(frozen=True, slots=True)
class Field:
    """One line of WIRE. `type` is without the ``[]`` of arrays."""

    name: str
    type: str
    is_array: bool
    versions: _Versions
    nullable: _Versions | None
    tag: int | None

    @classmethod
    def parse(cls, line: str) -> "Field":
        """Parse a line; raise ValueError if it has fewer than three words."""
        name, type_, versions, *options = line.split()
        given = dict(option.split("=") for option in options)
        return cls(
            name,
            type_.removeprefix("[]"),
            type_.startswith("[]"),
            _Versions.parse(versions),
            _Versions.parse(given["null"]) if "null" in given else None,
            int(given["tag"]) if "tag" in given else None,
        )

    def may_be_null(self, version: int) -> bool:
        """Return whether null is allowed in *version*."""
        return self.nullable is not None and self.nullable.has(version)


@cache
def fields_of(cls: type[WireStruct]) -> tuple[Field, ...]:
    """Return the fields of *cls* in WIRE, in wire order."""
    return tuple(Field.parse(line) for line in cls.WIRE)


def nested_struct(cls: type[WireStruct], name: str) -> type[WireStruct]:
    """Return the struct that a field of *cls* names: it is in the same module."""
    found: type[WireStruct] = vars(sys.modules[cls.__module__])[name]
    return found


@cache
def least_size(cls: type[WireStruct], version: int, flexible: bool) -> int:
    """Return the smallest size of a *cls* in bytes: counts are checked against it."""
    total = 1 if flexible else 0
    for field in fields_of(cls):
        if field.tag is None and field.versions.has(version):
            if field.is_array:
                total += 1 if flexible else 4
            elif field.may_be_null(version) and field.type not in ("string", "bytes", "uuid"):
                total += 1
            else:
                total += least_size_of_type(cls, field.type, version, flexible)
    return total


def least_size_of_type(cls: type[WireStruct], type_: str, version: int, flexible: bool) -> int:
    """Return the smallest size of a value of *type_*, in a field of *cls*, in bytes."""
    if type_ in FIXED:
        return FIXED[type_][1]
    if type_ == "string":
        return 1 if flexible else 2
    if type_ == "bytes":
        return 1 if flexible else 4
    return least_size(nested_struct(cls, type_), version, flexible)
