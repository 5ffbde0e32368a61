"""The largest requests of every API, made from its schema and its budget.

`_by_schema` walks the arrays of a request: for each, as many elements as the budget allows are in it, once as small as
they can be, once so large that the budget's bytes are used up. What a value has to be so that a handler does work, and
does not refuse it at once, is in `VALUES`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID

from kbroker.apis.api03_metadata import BY_ID_VERSION
from kbroker.apis.api_specs import API_SPECS
from kclient.wire import fetch, messages, produce
from kclient.wire.batches import build
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.messages import RequestHeader
from kclient.wire.primitives import write_uvarint
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.schema.create_topics import CreatableTopic, CreateTopicsRequest
from kclient.wire.schema.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kclient.wire.schema.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kclient.wire.schema.describe_groups import DescribeGroupsRequest
from kclient.wire.schema.describe_log_dirs import DescribeLogDirsRequest
from kclient.wire.schema.elect_leaders import ElectLeadersRequest
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.wire.schema.metadata import MetadataRequest, MetadataRequestTopic
from kclient.wire.schema.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from kclient.wire.structs import FIXED, Field, WireStruct, fields_of, nested_struct
from kclient.wire.versions import SERVED, ApiKey, is_flexible
from tests.kit.logs import batch_of

CORRELATION_ID = 0x5EED
OLDEST_RECORDS = 1_000_000
"""Records of the batch in partition 0 of `OLD`, and all but the last too old for what is asked."""
CLIENT = "large"
WIDE = "wide"
"""A topic that exists, of `WIDE_PARTITIONS`."""
WIDE_PARTITIONS = 1000
OLD = "old"
"""A topic that exists, with a batch of `OLDEST_RECORDS` in partition 0 and a bomb in partition 1."""
GROUP = "group"

FEW_TOPICS = 100
"""How many topics few0, few1, ... there are, and deleted-V-0, ... for a DeleteTopics of version V."""

TOPIC = 2

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
    "controller_id": 1,
    "broker_id": 1,
}
"""Values of fields by name, where the default would end the request early."""


@dataclass(frozen=True)
class Large:
    """One request."""

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
            for what, request in (*costly(api, version), *by_topic_id(api, version)):
                yield _large(api, version, what, request)


def costly(api: ApiKey, version: int) -> Iterator[tuple[str, object]]:
    """Return requests within the budget that are small, or sensible, and cost the most."""
    most = API_SPECS[api].budget.max_elements
    if api is ApiKey.METADATA:
        yield "one topic many times", MetadataRequest([MetadataRequestTopic(name=WIDE)] * most)
        yield "everything", MetadataRequest(None if version else [])
    elif api is ApiKey.LIST_OFFSETS:
        for index, what in ((0, "a million records"), (1, "a bomb")):
            wanted = ListOffsetsPartition(index, -1, OLDEST_RECORDS)
            yield what, ListOffsetsRequest(-1, 0, [ListOffsetsTopic(OLD, [wanted])])
    elif api is ApiKey.OFFSET_FETCH:
        group = OffsetFetchRequestGroup(GROUP, topics=None)
        many = [group] * most if version >= 8 else []
        yield (
            "all offsets",
            OffsetFetchRequest(GROUP, topics=None if version > 1 else [], groups=many),
        )
    elif api is ApiKey.DESCRIBE_GROUPS:
        yield "one group many times", DescribeGroupsRequest([GROUP] * most)
    elif api is ApiKey.DESCRIBE_CONFIGS:
        named = [DescribeConfigsResource(TOPIC, f"few{n}", None) for n in range(FEW_TOPICS)]
        yield "all settings", DescribeConfigsRequest(named, True, True)
    elif api is ApiKey.DESCRIBE_LOG_DIRS:
        yield "everything", DescribeLogDirsRequest(None)
    elif api is ApiKey.ELECT_LEADERS:
        yield "everything", ElectLeadersRequest(topic_partitions=None, timeout_ms=1000)
    elif api is ApiKey.CREATE_TOPICS:
        topics = [CreatableTopic(f"made-{version}-{n}", 1, 1) for n in range(FEW_TOPICS)]
        yield "so many topics", CreateTopicsRequest(topics, 20_000, validate_only=False)
    elif api is ApiKey.DELETE_TOPICS:
        names = [f"deleted-{version}-{n}" for n in range(FEW_TOPICS)]
        states = [DeleteTopicState(name) for name in names] if version >= 6 else []
        yield "so many topics", DeleteTopicsRequest([] if states else names, states, 20_000)


def by_topic_id(api: ApiKey, version: int) -> Iterator[tuple[str, object]]:
    """Return a request that names topics by ids, which no topic has."""
    ids = [UUID(int=n + 1) for n in range(API_SPECS[api].budget.max_elements)]
    if api is ApiKey.METADATA and version >= BY_ID_VERSION:
        yield "topic ids", MetadataRequest([MetadataRequestTopic(each, None) for each in ids])
    elif api is ApiKey.DELETE_TOPICS and version >= 6:
        yield "topic ids", DeleteTopicsRequest([], [DeleteTopicState(None, i) for i in ids], 1000)


def versions_that_differ(api: ApiKey) -> list[int]:
    """Return the first and the last version served; the last that is not flexible where that is another."""
    served = SERVED[api]
    plain = [v for v in range(served.min, served.max + 1) if not is_flexible(api, v)]
    return sorted({plain[-1] if plain else served.min, served.max})


def _by_schema(api: ApiKey, version: int) -> Iterator[Large]:
    cls = messages.request_class(api)
    budget = API_SPECS[api].budget
    paths = list(_arrays(cls, version))
    is_last = version == SERVED[api].max
    for path in paths:
        where = ".".join(field.name for field in path)
        most = budget.max_elements - (len([f for f in path if f.is_array]) - 1)
        small = _large(api, version, f"{most} {where}", _filled(cls, version, path, most, 0))
        if len(small.frame) > budget.max_bytes:
            fit = most * (budget.max_bytes - 1000) // len(small.frame)
            small = _large(api, version, f"{fit} {where}", _filled(cls, version, path, fit, 0))
        yield small
        above = _filled(cls, version, path, most + 1, 0)
        yield _large(api, version, f"{most + 1} {where}", above, is_above=True)
        if is_last and _has_text(cls, path):
            size = 30_000 if most < 1000 else 249
            count = min(most, (budget.max_bytes - 1000) // (size + 60))
            full = _filled(cls, version, path, count, size)
            yield _large(api, version, f"{count} long {where}", full)
    smallest = _encoded(api, version, _with_values(cls()))
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
    seen: set[str] = set()
    for field in fields_of(cls):
        if not field.versions.has(version):
            continue
        is_struct = field.type not in FIXED and field.type not in ("string", "bytes")
        # Arrays of numbers in one struct are read alike: one of them is enough.
        is_known = field.type in seen
        if field.is_array and not is_known:
            yield (*before, field)
        if field.is_array and field.type in FIXED:
            seen.add(field.type)
        if is_struct:
            yield from _arrays(nested_struct(cls, field.type), version, (*before, field))


def _has_text(cls: type[WireStruct], path: tuple[Field, ...]) -> bool:
    """Return whether the elements of the array at *path* have a string or bytes."""
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


def old_batches() -> list[bytes]:
    """The batches of topic `OLD`: one of many records, and one that decompresses to more than is allowed."""
    many = bytearray()
    for number in range(OLDEST_RECORDS):
        delta = bytearray()
        write_uvarint(delta, number << 1)
        body = b"\0" + bytes(delta) + bytes(delta) + b"\1\1\0"
        write_uvarint(many, len(body) << 1)
        many += body
    return [_compressed(bytes(many), OLDEST_RECORDS), bomb()]


@cache
def bomb() -> bytes:
    """Return a batch of 0.25 MiB that decompresses to 256 MiB."""
    return _compressed(bytes(256 << 20), 1)


def _compressed(records: bytes, count: int) -> bytes:
    return build(
        zlib.compress(records, 6, wbits=31),
        record_count=count,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=OLDEST_RECORDS,
        attributes=1,
    )


def _produces() -> Iterator[Large]:
    most = API_SPECS[ApiKey.PRODUCE].budget.max_elements
    batch = batch_of(1_700_000_000_000)
    for version in versions_that_differ(ApiKey.PRODUCE):
        for what, topics, is_above in (
            ("unknown topics", [ProduceTopic(f"n{n}", []) for n in range(most)], False),
            ("too many topics", [ProduceTopic("n", []) for n in range(most + 1)], True),
            ("unknown partitions", [_producing("n", most - 1, batch)], False),
            ("partitions", [_producing(WIDE, most - 1, batch)], False),
            ("too many partitions", [_producing(WIDE, most, batch)], True),
            ("large batches", [_producing(WIDE, 80, batch_of(1, value=bytes(1_000_000)))], False),
            ("bombs", [_producing(WIDE, 4, bomb())], False),
        ):
            for acks in (1, -1) if what in ("partitions", "large batches") else (1,):
                request = ProduceRequest(acks, 5000, topics)
                frame = b"".join(produce.encode_request(request, version, CORRELATION_ID, CLIENT))
                yield Large(ApiKey.PRODUCE, version, f"{what}, acks={acks}", frame, is_above)


def _producing(topic: str, count: int, batch: bytes) -> ProduceTopic:
    return ProduceTopic(topic, [ProducePartition(n % WIDE_PARTITIONS, batch) for n in range(count)])


def _fetches() -> Iterator[Large]:
    most = API_SPECS[ApiKey.FETCH].budget.max_elements
    for version in (11, SERVED[ApiKey.FETCH].max):
        named = version < fetch.FIRST_WITH_TOPIC_IDS
        topics = [_fetching(n, 0, named=named) for n in range(most)]
        partitions = [_fetching(0, most - 1, named=named)]
        for what, wanted, wait, epoch, is_above in (
            ("topics", topics, 100, 0, False),
            ("too many topics", [*topics, topics[0]], 0, -1, True),
            ("partitions at once", partitions, 0, -1, False),
            ("partitions that wait", partitions, 100, -1, False),
            ("partitions of a new session", partitions, 100, 0, False),
            ("too many partitions", [_fetching(0, most, named=named)], 0, -1, True),
        ):
            request = FetchRequest(wait, 1 << 30, wanted, session_epoch=epoch)
            frame = fetch.encode_request(request, version, CORRELATION_ID, CLIENT)
            yield Large(ApiKey.FETCH, version, what, frame, is_above)


def _fetching(number: int, partitions: int, *, named: bool) -> FetchTopic:
    wanted = [FetchPartition(n % WIDE_PARTITIONS, 0, 1 << 20) for n in range(partitions)]
    if named:
        return FetchTopic(f"n{number}" if not partitions else WIDE, wanted)
    return FetchTopic("", wanted, UUID(int=number + 1))
