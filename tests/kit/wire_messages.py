"""Random messages of every kind of the wire, made from the WIRE lines of its dataclass."""

import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING
from dataclasses import fields as dataclass_fields
from functools import cache
from random import Random
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from kclient.wire.codec import write_message
from kclient.wire.messages import request_class, response_class
from kclient.wire.schema.consumer_protocol_assignment import ConsumerProtocolAssignment
from kclient.wire.schema.consumer_protocol_subscription import ConsumerProtocolSubscription
from kclient.wire.structs import Field, WireStruct, fields_of, nested_struct
from kclient.wire.versions import SUPPORTED, ApiKey, is_flexible

HAND_WRITTEN = (ApiKey.PRODUCE, ApiKey.FETCH)
INTER_BROKER = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
)
APIS = tuple(api for api in SUPPORTED if api not in HAND_WRITTEN)

MESSAGES = {
    **{(api, "request"): request_class(api) for api in APIS},
    **{(api, "response"): response_class(api) for api in APIS},
}
CONSUMER_PROTOCOL = (ConsumerProtocolSubscription, ConsumerProtocolAssignment)

Maker = Callable[[Random], Any]
"""Makes a value from random numbers."""
Plain = Callable[[Field], Maker]
"""Returns the maker of the values of one field that is no struct."""

SEEDS = st.integers(0, (1 << 64) - 1)
"""What the messages of an example are made from. A strategy for every field takes 20 times as long."""

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TEXTS = ("", "a", "topic-1", "größe", "日本", "𝄞", "\0", "a/b\n", "x" * 130)
_PLANES = (0x80, 0x800, 0xD800, 0x110000)
"""Ends of the characters that UTF-8 has in one byte, in two, in three before the surrogates, and of all."""
_FLOATS = (0.0, -0.0, 1.0, 7.5, 5e-324, 1.7976931348623157e308, math.inf, -math.inf)


def _whole(rng: Random, low: int, high: int) -> int:
    """An end of the range, a number of any length, or any number."""
    match rng.randrange(3):
        case 0:
            return rng.choice([low, high, 0, 1, max(low, -1)])
        case 1:
            number = rng.getrandbits(rng.randrange(1, high.bit_length() + 1))
            return -number if low < 0 and rng.random() < 0.5 else number
    return rng.randint(low, high)


def _text(rng: Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(_TEXTS)
    points = (rng.randrange(rng.choice(_PLANES)) for _ in range(rng.randrange(21)))
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


def _bytes(rng: Random) -> bytes:
    return rng.randbytes(rng.randrange(21)) if rng.random() < 0.8 else b"y" * 300


def _uuid(rng: Random) -> UUID | None:
    return UUID(int=rng.getrandbits(128) or 1) if rng.random() < 0.7 else None


def _float(rng: Random) -> float:
    return rng.choice(_FLOATS) if rng.random() < 0.5 else rng.uniform(-1e9, 1e9)


def _plain(field: Field) -> Maker:
    if field.type in _BITS:
        end = 1 << _BITS[field.type] - 1
        return lambda rng: _whole(rng, -end, end - 1)
    return {
        "bool": lambda rng: rng.random() < 0.5,
        "uint16": lambda rng: _whole(rng, 0, (1 << 16) - 1),
        "uint32": lambda rng: _whole(rng, 0, (1 << 32) - 1),
        "float64": _float,
        "uuid": _uuid,
        "string": _text,
        "bytes": _bytes,
    }[field.type]


def tame(field: Field) -> Maker:
    """Values that kio, with its enums, timedeltas and datetimes, can hold too."""
    if field.name.endswith("error_code"):
        return lambda rng: rng.randint(0, 100)
    if field.name.endswith("_ms"):
        return lambda rng: _whole(rng, 0, (1 << 31) - 1)
    return _plain(field)


OURS = 10_000
"""Tags from here on are not Kafka's."""


def _sent(field: Field, version: int, ours: bool) -> bool:
    return field.versions.has(version) and (ours or (field.tag or 0) < OURS)


def _several(one: Maker) -> Maker:
    return lambda rng: [one(rng) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]


def _or_null(one: Maker) -> Maker:
    return lambda rng: None if rng.random() < 0.25 else one(rng)


@cache
def structs(
    cls: type[WireStruct], version: int, plain: Plain = _plain, *, ours: bool = True
) -> Maker:
    """Instances of *cls* with values in the fields that *version* has; lists stay short."""
    wanted = {}
    for field in fields_of(cls):
        if not _sent(field, version, ours):
            continue
        try:
            one = structs(nested_struct(cls, field.type), version, plain, ours=ours)
        except KeyError:
            one = plain(field)
        if field.is_array:
            one = _several(one)
        if field.may_be_null(version):
            one = _or_null(one)
        wanted[field.name] = one
    return lambda rng: cls(**{name: make(rng) for name, make in wanted.items()})


def supported_messages(
    api: ApiKey, direction: str, seed: int, plain: Plain = _plain, *, ours: bool = True
) -> Iterator[tuple[int, Any]]:
    """Some messages of one API and direction as (version, message), in any supported versions."""
    rng, versions = Random(seed), versions_of(api)
    for _ in range(6):
        version = rng.choice(versions)
        yield version, structs(MESSAGES[api, direction], version, plain, ours=ours)(rng)


def everything_set(cls: type[WireStruct], version: int, *, ours: bool = True) -> Any:
    """One instance of *cls* with something other than the default in every field of *version*."""
    values = {}
    samples = {
        "bool": True, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "uint16": 5, "uint32": 6,
        "float64": 7.5, "uuid": None, "string": "s", "bytes": b"b",
    }  # fmt: skip
    for field in fields_of(cls):
        if _sent(field, version, ours):
            if field.type in samples:
                one = samples[field.type]
            else:
                one = everything_set(nested_struct(cls, field.type), version, ours=ours)
            values[field.name] = [one] if field.is_array else one
    return cls(**values)


def body(api: ApiKey, direction: str, version: int, message: object) -> bytes:
    """Return the bytes of a message without its header."""
    out = bytearray()
    write_message(MESSAGES[api, direction], version, is_flexible(api, version), out, message)
    return bytes(out)


def versions_of(api: ApiKey) -> range:
    """All supported versions of *api*."""
    return range(SUPPORTED[api].min, SUPPORTED[api].max + 1)


def defaults_of(cls: type[Any]) -> dict[str, Any]:
    """The default of every field of *cls*."""
    return {
        f.name: f.default if f.default_factory is MISSING else f.default_factory()
        for f in dataclass_fields(cls)
    }
