"""The largest requests of every API, made from its schema and its budget.

`shapes` walks the arrays of a request: for each, as many elements as the budget allows are in it, once as small as they
can be, once so large that the budget's bytes are used up. What a value has to be so that a handler does work, and
does not refuse it at once, is in `VALUES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kbroker.apis.budgets import BUDGETS
from kclient.wire import fetch, messages, produce
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.messages import RequestHeader
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.structs import FIXED, Field, WireStruct, fields_of, nested_struct
from kclient.wire.versions import SERVED, ApiKey, is_flexible
from tests.kit.logs import batch_of

CORRELATION_ID = 0x5EED
CLIENT = "large"
WIDE = "wide"
"""A topic that exists, of `WIDE_PARTITIONS`."""
WIDE_PARTITIONS = 1000
GROUP = "group"

TOPIC, BROKER = 2, 4

VALUES: dict[str, Any] = {
    "resource_type": TOPIC,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "protocol_type": "consumer",
    "timeout_ms": 1000,
    "timestamp": 1,
    "group_id": GROUP,
    "config_operation": 0,
    "client_software_name": "large",
    "client_software_version": "1",
    "endpoint_type": 1,
    "num_partitions": 1,
    "replication_factor": 3,  # of one broker: refused for every topic
    "count": 3,
    "validate_only": True,
}
"""Values of fields by name, where the default would end the request early."""


@dataclass(frozen=True)
class Large:
    """One request, and what the test says about it."""

    api: ApiKey
    version: int
    what: str
    frame: bytes
    is_above: bool = False
    """Whether it is above the budget."""

    def __str__(self) -> str:
        return f"{self.api.name} v{self.version}, {self.what}"


def largest(api: ApiKey) -> Iterator[Large]:
    """Return the largest requests of *api*, and those just above its budget."""
    if api is ApiKey.PRODUCE:
        yield from _produces()
    elif api is ApiKey.FETCH:
        yield from _fetches()
    else:
        for version in versions_that_differ(api):
            yield from _by_schema(api, version)


def versions_that_differ(api: ApiKey) -> list[int]:
    """Return the first and the last version served; the last that is not flexible where that is another."""
    spoken = SERVED[api]
    plain = [v for v in range(spoken.min, spoken.max + 1) if not is_flexible(api, v)]
    return sorted({plain[-1] if plain else spoken.min, spoken.max})


def _by_schema(api: ApiKey, version: int) -> Iterator[Large]:
    cls = messages.request_class(api)
    budget = BUDGETS[api]
    paths = list(_arrays(cls, version))
    for path in paths:
        where = ".".join(field.name for field in path)
        most = budget.max_elements - (len([f for f in path if f.is_array]) - 1)
        small = _filled(cls, version, path, most, 0)
        yield _large(api, version, f"{most} {where}", small)
        size = 30_000 if most < 1000 else 250
        count = min(most, (budget.max_bytes - 1000) // (size + 60))
        if _has_text(cls, path):
            yield _large(
                api, version, f"{count} long {where}", _filled(cls, version, path, count, size)
            )
        above = _filled(cls, version, path, most + 1, 0)
        yield _large(api, version, f"{most + 1} {where}", above, is_above=True)
    smallest = _encoded(api, version, _with_values(cls()))
    if not paths:
        yield Large(api, version, "nothing to fill", smallest)
    padded = smallest + bytes(budget.max_bytes - len(smallest))
    yield Large(api, version, f"{budget.max_bytes} bytes", padded)
    yield Large(api, version, f"{budget.max_bytes + 1} bytes", padded + b"\0", is_above=True)
    if is_flexible(api, version):
        tags = _tags(budget.max_elements + 1)
        yield Large(api, version, "too many tagged fields", smallest[:-1] + tags, is_above=True)
        header = messages.encode_request_header(RequestHeader(api, version, CORRELATION_ID, CLIENT))
        body = smallest[len(header) :]
        frame = bytes(header[:-1]) + _tags(65) + body
        yield Large(api, version, "too many tagged fields in the header", frame, is_above=True)


def _large(
    api: ApiKey, version: int, what: str, request: object, *, is_above: bool = False
) -> Large:
    return Large(api, version, what, _encoded(api, version, request), is_above)


def _encoded(api: ApiKey, version: int, request: object) -> bytes:
    return messages.encode_request(RequestHeader(api, version, CORRELATION_ID, CLIENT), request)


def _tags(count: int) -> bytes:
    """A tagged-field section of so many empty fields, all unknown."""
    from kclient.wire.primitives import write_uvarint

    out = bytearray()
    write_uvarint(out, count)
    for tag in range(count):
        write_uvarint(out, 1000 + tag)
        out.append(0)
    return bytes(out)


def _arrays(
    cls: type[WireStruct], version: int, before: tuple[Field, ...] = ()
) -> Iterator[tuple[Field, ...]]:
    """Return the way to every array of a struct in *version*."""
    for field in fields_of(cls):
        if not field.versions.has(version):
            continue
        is_struct = field.type not in FIXED and field.type not in ("string", "bytes")
        if field.is_array:
            yield (*before, field)
        if is_struct:
            yield from _arrays(nested_struct(cls, field.type), version, (*before, field))


def _has_text(cls: type[WireStruct], path: tuple[Field, ...]) -> bool:
    """Say whether the elements of the array at *path* have a string or bytes."""
    for field in path:
        if field.type in FIXED:
            return False
        if field.type in ("string", "bytes"):
            return True
        cls = nested_struct(cls, field.type)
    return any(field.type in ("string", "bytes") and not field.is_array for field in fields_of(cls))


def _filled(
    cls: type[WireStruct], version: int, path: tuple[Field, ...], count: int, size: int
) -> Any:
    """Return a request with *count* elements in the array at *path*, of *size* characters each."""
    request = holder = _with_values(cls())
    for field in path[:-1]:
        inner = _with_values(nested_struct(cls, field.type)())
        _name(inner, nested_struct(cls, field.type), WIDE)
        setattr(holder, field.name, [inner] if field.is_array else inner)
        holder, cls = inner, nested_struct(cls, field.type)
    last = path[-1]
    setattr(holder, last.name, [_element(cls, last, version, n, size) for n in range(count)])
    return request


def _element(cls: type[WireStruct], field: Field, version: int, number: int, size: int) -> Any:
    text = f"n{number}".ljust(size, "x")
    if field.type == "string":
        return text
    if field.type == "bytes":
        return text.encode()
    if field.type == "uuid":
        return UUID(int=number + 1)
    if field.type in FIXED:
        return number % WIDE_PARTITIONS if FIXED[field.type][1] > 1 else 0
    struct = nested_struct(cls, field.type)
    made = _with_values(struct())
    _name(made, struct, text)
    for each in fields_of(struct):
        if each.name.startswith("partition") and each.type == "int32" and not each.is_array:
            setattr(made, each.name, number % WIDE_PARTITIONS)
    return made


def _name(made: Any, struct: type[WireStruct], text: str) -> None:
    """Give *made* a name: its first text."""
    for each in fields_of(struct):
        if each.is_array or each.type not in ("string", "bytes"):
            continue
        setattr(made, each.name, text if each.type == "string" else text.encode())
        return


def _with_values(made: Any) -> Any:
    for name, value in VALUES.items():
        if hasattr(made, name):
            setattr(made, name, value)
    return made


# -- Produce and Fetch, which have no schema --------------------------------------------------


def _produces() -> Iterator[Large]:
    most = BUDGETS[ApiKey.PRODUCE].max_elements
    batch = batch_of(1_700_000_000_000)
    for version in versions_that_differ(ApiKey.PRODUCE):
        for what, topics, is_above in (
            ("unknown topics", [ProduceTopic(f"n{n}", []) for n in range(most)], False),
            ("too many topics", [ProduceTopic("n", []) for n in range(most + 1)], True),
            ("unknown partitions", [_producing("n", most - 1, batch)], False),
            ("partitions", [_producing(WIDE, most - 1, batch)], False),
            ("too many partitions", [_producing(WIDE, most, batch)], True),
            ("large batches", [_producing(WIDE, 80, batch_of(1, value=bytes(1_000_000)))], False),
        ):
            for acks in (1, -1) if what in ("partitions", "large batches") else (1,):
                request = ProduceRequest(acks, 5000, topics)
                frame = b"".join(produce.encode_request(request, version, CORRELATION_ID, CLIENT))
                yield Large(ApiKey.PRODUCE, version, f"{what}, acks={acks}", frame, is_above)


def _producing(topic: str, count: int, batch: bytes) -> ProduceTopic:
    return ProduceTopic(topic, [ProducePartition(n % WIDE_PARTITIONS, batch) for n in range(count)])


def _fetches() -> Iterator[Large]:
    most = BUDGETS[ApiKey.FETCH].max_elements
    for version in sorted({11, 12, *versions_that_differ(ApiKey.FETCH)}):
        named = version < fetch.FIRST_WITH_TOPIC_IDS
        for what, topics, is_above in (
            ("topics", [_fetching(n, 0, named=named) for n in range(most)], False),
            ("too many topics", [_fetching(0, 0, named=named)] * (most + 1), True),
            ("partitions", [_fetching(0, most - 1, named=named)], False),
            ("too many partitions", [_fetching(0, most, named=named)], True),
        ):
            for wait, epoch in ((0, -1), (300, -1), (300, 0)):
                request = FetchRequest(wait, 1 << 30, topics, session_epoch=epoch)
                frame = fetch.encode_request(request, version, CORRELATION_ID, CLIENT)
                what_now = f"{what}, {wait} ms, session epoch {epoch}"
                yield Large(ApiKey.FETCH, version, what_now, frame, is_above)


def _fetching(number: int, partitions: int, *, named: bool) -> FetchTopic:
    wanted = [FetchPartition(n % WIDE_PARTITIONS, 0, 1 << 20) for n in range(partitions)]
    if named:
        return FetchTopic(f"n{number}" if not partitions else WIDE, wanted)
    return FetchTopic("", wanted, UUID(int=number + 1))
