"""Hypothesis strategies for every message of the wire, made from the WIRE lines of its dataclass."""

from collections.abc import Callable
from dataclasses import MISSING
from dataclasses import fields as dataclass_fields
from functools import cache
from typing import Any

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

Strategy = st.SearchStrategy[Any]
Plain = Callable[[Field], Strategy]
"""Returns the strategy for the values of one field that is no struct."""

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TEXT = st.one_of(
    st.sampled_from(["", "a", "topic-1", "größe", "日本", "𝄞", "\0", "a/b\n", "x" * 130]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
_BYTES = st.one_of(st.binary(max_size=20), st.just(b"y" * 300))


def _numbers(bits: int) -> Strategy:
    edges = [0, 1, -1, -(1 << bits - 1), (1 << bits - 1) - 1]
    return st.one_of(st.sampled_from(edges), st.integers(-(1 << bits - 1), (1 << bits - 1) - 1))


def _plain(field: Field) -> Strategy:
    if field.type in _BITS:
        return _numbers(_BITS[field.type])
    return {
        "bool": st.booleans(),
        "uint16": st.integers(0, 65535),
        "uint32": st.integers(0, (1 << 32) - 1),
        "float64": st.floats(allow_nan=False),
        "uuid": st.one_of(st.none(), st.uuids()),
        "string": _TEXT,
        "bytes": _BYTES,
    }[field.type]


def tame(field: Field) -> Strategy:
    """Values that kio, with its enums, timedeltas and datetimes, can hold too."""
    if field.name.endswith("error_code"):
        return st.integers(0, 100)
    if field.name.endswith("_ms"):
        return st.integers(0, 2**31 - 1)
    return _plain(field)


OURS = 10_000
"""Tags from here on are not Kafka's."""


def _sent(field: Field, version: int, ours: bool) -> bool:
    return field.versions.has(version) and (ours or (field.tag or 0) < OURS)


@cache
def structs(
    cls: type[WireStruct], version: int, plain: Plain = _plain, *, ours: bool = True
) -> Strategy:
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
            one = st.lists(one, max_size=3)
        if field.may_be_null(version):
            one = st.one_of(st.none(), one)
        wanted[field.name] = one
    return st.builds(cls, **wanted)


@cache
def supported_message(
    api: ApiKey, direction: str, plain: Plain = _plain, *, ours: bool = True
) -> Strategy:
    """(version, message) of one API and direction, in any supported version."""
    cls = MESSAGES[api, direction]
    return st.one_of(
        [
            st.tuples(st.just(version), structs(cls, version, plain, ours=ours))
            for version in versions_of(api)
        ]
    )


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
