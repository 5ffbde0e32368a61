"""Random requests, made from the schema of each API: mostly sensible ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from kclient.wire.messages import request_class
from kclient.wire.structs import FIXED, Field, WireStruct, fields_of, nested_struct
from kclient.wire.versions import SERVED, ApiKey
from tests.compat.lockstep.known import GROUP_OF_TRANSACTIONS

TOPICS = ("a", "b", "c", "d", "e", "missing", "L" * 249, "L" * 250, "bad name!", ".", "")
"""The first five exist: "c" is compacted, "b" has three partitions, "c" and "e" two."""
GROUPS = ("g1", "g2", "g3", "never-used")
TRANSACTIONAL_IDS = ("t1", "t2", "never-used")
INSTANCES = ("i1", "i2")
SETTINGS = (
    "retention.ms",
    "cleanup.policy",
    "compression.type",
    "min.insync.replicas",
    "max.message.bytes",
    "segment.bytes",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "preallocate",
    "flush.messages",
    "unclean.leader.election.enable",
    "follower.replication.throttled.replicas",
    "nonsense",
)
SETTING_VALUES = (
    "86400000",
    "1",
    "delete",
    "compact",
    "compact,delete",
    "zstd",
    "true",
    "0.7",
    "LogAppendTime",
    "-1",
    "0",
    "nonsense",
    "",
)
TOPICS_TIMEOUT_MS = 20_000
"""Milliseconds within which a slow machine creates and deletes topics."""


class Symbol(NamedTuple):
    """A value that each cluster has its own of: *kind* is topic_id, member or producer."""

    kind: str
    name: str


@dataclass(frozen=True)
class Recipe:
    """A request, or a struct in it: the values of its fields. A struct is a `Recipe`, an own value a `Symbol`."""

    cls: type[WireStruct]
    values: dict[str, Any]

    def __str__(self) -> str:
        return str({name: _shown(value) for name, value in self.values.items()})


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if isinstance(value, Recipe):
        return {name: _shown(each) for name, each in value.values.items()}
    return f"<{value.kind} {value.name}>" if isinstance(value, Symbol) else value


Draw = Callable[[Random], Any]


def _mostly(*values: Any) -> Draw:
    """Draw one of *values*, the first ones far more often."""
    return lambda rng: values[min(int(rng.expovariate(0.7)), len(values) - 1)]


def _any(*values: Any) -> Draw:
    return lambda rng: rng.choice(values)


_MEMBERS = tuple(Symbol("member", name) for name in ("0", "1", "none", "wrong"))
_PRODUCERS = tuple(Symbol("producer", name) for name in ("t1", "t2", "none", "wrong"))

BY_NAME: dict[str, Draw] = {
    "key": _mostly(*GROUPS, *TRANSACTIONAL_IDS),
    "coordinator_keys": _mostly(*GROUPS, *TRANSACTIONAL_IDS),
    "key_type": _mostly(0, 1),
    "group_id": _mostly(*GROUPS),
    "groups": _mostly(*GROUPS),
    "groups_names": _mostly(*GROUPS),
    "group_instance_id": _mostly(None, None, *INSTANCES),
    "member_id": _mostly(*_MEMBERS),
    "protocol_type": _mostly("consumer", "consumer", "connect"),
    "protocol_name": _mostly("range", "range", "other"),
    "reason": _mostly(None, "because"),
    "metadata": _mostly(b"", b"\0\1"),
    "committed_metadata": _mostly("", "m", None),
    "committed_offset": _any(0, 1, 5, 10, 50),
    "generation_id": _mostly(1, 2, -1, 0),
    "generation_id_or_member_epoch": _mostly(-1, 1, 2, 0),
    "session_timeout_ms": _mostly(60_000, 60_000, 60_000, 1, 10**8),
    "rebalance_timeout_ms": lambda _: 700,
    "retention_time_ms": _mostly(-1, 1000),
    "transactional_id": _mostly(*TRANSACTIONAL_IDS),
    "v3_and_below_transactional_id": _mostly(*TRANSACTIONAL_IDS),
    "transactional_ids": _mostly(*TRANSACTIONAL_IDS),
    "transaction_timeout_ms": _mostly(60_000, 60_000, 0, -1, (1 << 31) - 1),
    "producer_id": _mostly(*_PRODUCERS),
    "v3_and_below_producer_id": _mostly(*_PRODUCERS),
    "producer_epoch": _mostly(0, 1, -1, 5),
    "v3_and_below_producer_epoch": _mostly(0, 1, -1, 5),
    "producer_id_filters": lambda _: -1,
    "duration_filter": lambda _: -1,
    "states_filter": _mostly("Stable", "Empty", "PreparingRebalance", "stable", "nonsense"),
    "state_filters": _mostly("Ongoing", "Empty", "CompleteCommit", "nonsense"),
    "types_filter": _mostly("classic", "Classic", "consumer"),
    "timestamp": _any(-1, -2, -3, -4, -5, 0, 1000, 1005, 2000, 10**14),
    "current_leader_epoch": _mostly(-1, 0, 1),
    "leader_epoch": _mostly(0, -1, 1, 5),
    "committed_leader_epoch": _mostly(-1, 0, 1),
    "replica_id": lambda _: -1,
    "isolation_level": _mostly(0, 1),
    "offset": _any(0, 1, 5, 11, -1, 50, -2),
    "resource_type": _mostly(2, 2, 4),
    "resource_name": _any("a", "b", "c", "1", "", "missing", "2"),
    "configuration_keys": _any(*SETTINGS),
    "value": _any(*SETTING_VALUES),
    "config_operation": _any(0, 0, 0, 1, 2, 3),
    "count": _mostly(3, 2, 1, 0, -1, 10**6),
    "num_partitions": _mostly(1, 2, -1, 0),
    "replication_factor": _mostly(1, -1, 0, 2),
    "broker_ids": _mostly(1, 1, 2, -1),
    "election_type": _mostly(0, 1),
    "timeout_ms": lambda _: TOPICS_TIMEOUT_MS,
    "endpoint_type": _mostly(1, 1, 2),
}
"""Values of fields by their names."""

_PLAIN: dict[str, Draw] = {
    "bool": lambda rng: rng.random() < 0.5,
    "string": _mostly(*TOPICS),
    "bytes": _mostly(b"", b"x"),
    "uuid": lambda rng: Symbol("topic_id", rng.choice(("a", "b", "c", "missing"))),
    "float64": _mostly(1000.0, 1.0),
}
_KEYS = (
    *("name", "topic", "topic_id", "partition", "partition_index", "group_id", "transactional_id"),
    *("resource_type", "resource_name", "member_id"),
)
"""Fields that name an element of an array: Kafka's clients do not repeat any."""


def draw(rng: Random, api: ApiKey) -> tuple[int, Recipe]:
    """Return a version of *api*, and a request."""
    served = SERVED[api]
    last = 3 if api is ApiKey.ADD_PARTITIONS_TO_TXN else served.max  # brokers send the later ones
    # Before JoinGroup v1 a member waits for others as long as its session.
    first = 1 if api is ApiKey.JOIN_GROUP else served.min
    version = last if rng.random() < 0.4 else rng.randint(first, last)
    recipe = _struct(rng, request_class(api), version)
    _make_sense(rng, api, version, recipe.values)
    return version, recipe


def _struct(rng: Random, cls: type[WireStruct], version: int) -> Recipe:
    values = {}
    for field in fields_of(cls):
        if field.versions.has(version) and (field.tag or 0) < 10_000:
            values[field.name] = _field(rng, cls, field, version)
    return Recipe(cls, values)


def _field(rng: Random, cls: type[WireStruct], field: Field, version: int) -> Any:
    if not field.is_array:
        return _value(rng, cls, field, version)
    if field.may_be_null(version) and rng.random() < 0.15:
        return None
    found: dict[str, Any] = {}
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        value = _value(rng, cls, field, version)
        key = value
        if isinstance(value, Recipe):
            key = [value.values[name] for name in _KEYS if name in value.values]
        found.setdefault(str(key), value)
    return list(found.values())


def _value(rng: Random, cls: type[WireStruct], field: Field, version: int) -> Any:
    if field.type not in FIXED and field.type not in ("string", "bytes"):
        return _struct(rng, nested_struct(cls, field.type), version)
    if field.name == "name" and "Config" in cls.__name__:
        return rng.choice(SETTINGS)
    if field.name == "name" and cls.__name__ == "JoinGroupRequestProtocol":
        return _mostly("range", "other")(rng)
    if "partition" in field.name and field.type == "int32" and field.name not in BY_NAME:
        return _mostly(0, 0, 1, 2, 10**6, -1)(rng)
    make = BY_NAME.get(field.name) or _PLAIN.get(field.type) or _any(0, 1, -1)
    value = make(rng)
    if value is None and not field.may_be_null(version):
        return b"" if field.type == "bytes" else ""
    return value


def _make_sense(rng: Random, api: ApiKey, version: int, values: dict[str, Any]) -> None:
    """Take out what no client sends, because each cluster answers it in its own way."""
    if api in (ApiKey.METADATA, ApiKey.DELETE_TOPICS):  # by name or by id, as the version has it
        by_id = version >= (12 if api is ApiKey.METADATA else 6) and rng.random() < 0.4
        for topic in values.get("topics") or ():
            if "topic_id" in topic.values:
                topic.values["name" if by_id else "topic_id"] = None
        if "topics" in values and values["topics"] is not None:
            values["topics"] = list({str(each): each for each in values["topics"]}.values())
    elif api is ApiKey.OFFSET_FETCH and values.get("groups"):
        groups = {each.values["group_id"]: each for each in values["groups"]}
        values["groups"] = list(groups.values())
    elif api is ApiKey.CREATE_TOPICS:  # an assignment, or numbers
        for topic in values["topics"]:
            if rng.random() < 0.7:
                topic.values["assignments"] = []
            else:
                topic.values.update({"num_partitions": -1, "replication_factor": -1})
    elif api is ApiKey.TXN_OFFSET_COMMIT:
        # Of the transaction's own producer, outside a group's generations.
        name = values["transactional_id"]
        # A group of its own: Kafka keeps an empty one after a commit that it refused.
        values["group_id"] = GROUP_OF_TRANSACTIONS
        values["producer_id"] = Symbol("producer", name if name in ("t1", "t2") else "wrong")
        if version >= 3:
            values |= {"generation_id": -1, "member_id": "", "group_instance_id": None}


def clients_apis() -> list[ApiKey]:
    """Return the APIs that this comparison sends."""
    skipped = {
        *(ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.API_VERSIONS),
        *(ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA),
        *(ApiKey.CONTROLLED_SHUTDOWN, ApiKey.WRITE_TXN_MARKERS),
        # Replicas do not move in a cluster of one broker, and paths are each cluster's own.
        *(ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.ALTER_REPLICA_LOG_DIRS),
        # Without an authorizer all are refused alike.
        *(ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.DESCRIBE_ACLS),
        # Few random entities of quotas are valid; Kafka's tools set them in test_kafka_operator_tools.
        *(ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.DESCRIBE_CLIENT_QUOTAS),
    }
    return [api for api in SERVED if api not in skipped]
