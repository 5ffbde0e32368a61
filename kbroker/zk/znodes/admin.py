"""Znodes of dynamic configuration, admin requests and notifications."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbroker.common.topic_partition import TopicPartition
from kbroker.zk.errors import UnsafeName
from kbroker.zk.znodes.fields import Fields, decode_json, encode_json
from kbroker.zk.znodes.names import (
    CONFIG,
    DELETE_TOPICS,
    PRODUCER_ID_BLOCK,
    REASSIGN_PARTITIONS,
    checked_topic,
    escape,
    unescape,
)

DEFAULT_ENTITY = "<default>"
CLIENTS = "clients"
USERS = "users"


def config_path(entity_type: str, entity_name: str) -> str:
    """Return /config/TYPE/NAME: types topics, brokers, clients, users, ips."""
    if entity_type not in ("topics", "brokers", "clients", "users", "ips"):
        raise UnsafeName(f"no such kind of configuration: {entity_type!r:.80}")
    if entity_name == DEFAULT_ENTITY:
        return f"{CONFIG}/{entity_type}/{DEFAULT_ENTITY}"
    name = checked_topic(entity_name) if entity_type == "topics" else escape(entity_name)
    return f"{CONFIG}/{entity_type}/{name}"


def quota_element(name: str) -> str:
    """Return the path element of a user or client id that has quotas, as Kafka's Sanitizer writes it."""
    return escape(name).replace("~", "%7E")


def quota_path(user: str | None, client_id: str | None) -> str:
    """Return the znode of quotas: /config/users/U, /config/users/U/clients/C or /config/clients/C, of elements."""
    if user is None:
        return f"{CONFIG}/{CLIENTS}/{client_id}"
    path = f"{CONFIG}/{USERS}/{user}"
    return path if client_id is None else f"{path}/{CLIENTS}/{client_id}"


def encode_quota_change(path: str) -> bytes:
    """Write a notification that the quotas at *path* changed, version 2."""
    return encode_json({"version": 2, "entity_path": path.removeprefix(f"{CONFIG}/")})


def encode_config(config: Mapping[str, str]) -> bytes:
    """Write version 1."""
    return encode_json({"version": 1, "config": dict(config)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """Read the settings; an empty znode has none."""
    return decode_json(path, data).object_or_empty("config").strings() if data else {}


def encode_config_change(entity_type: str, entity_name: str) -> bytes:
    """Write a notification of a change (sequential znodes under /config/changes), version 2."""
    path = config_path(entity_type, entity_name).removeprefix(f"{CONFIG}/")
    return encode_json({"version": 2, "entity_path": path})


def decode_config_change(path: str, data: bytes) -> tuple[str, str]:
    """Read which (entity type, entity name) changed."""
    fields = decode_json(path, data)
    entity_type, _, name = fields.text("entity_path").partition("/")
    if not entity_type or not name:
        raise fields.poison('field "entity_path" is not TYPE/NAME')
    return entity_type, unescape(name)


def delete_topic_path(topic: str) -> str:
    """Return /admin/delete_topics/T (empty): requests the deletion of the topic by the controller."""
    return f"{DELETE_TOPICS}/{checked_topic(topic)}"


def encode_reassignment(moves: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """Write /admin/reassign_partitions."""
    return _encode_partitions(
        {"topic": topic, "partition": partition, "replicas": list(replicas)}
        for (topic, partition), replicas in moves.items()
    )


def decode_reassignment(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """Read /admin/reassign_partitions."""
    fields = decode_json(REASSIGN_PARTITIONS, data)
    return {_topic_partition(f): f.integers("replicas") for f in fields.objects("partitions")}


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Write /admin/preferred_replica_election or one /isr_change_notification/isr_change_."""
    return _encode_partitions({"topic": t, "partition": p} for t, p in partitions)


def decode_partitions(path: str, data: bytes) -> list[TopicPartition]:
    """Read the set of partitions that a notification names."""
    return [_topic_partition(f) for f in decode_json(path, data).objects("partitions")]


def _encode_partitions(items: Iterable[Mapping[str, Any]]) -> bytes:
    return encode_json({"version": 1, "partitions": list(items)})


def _topic_partition(fields: Fields) -> TopicPartition:
    return fields.text("topic"), fields.integer("partition", low=0)


def encode_log_dir_event(broker_id: int) -> bytes:
    """Write a notification that a log directory of the broker failed (event 1)."""
    return encode_json({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(path: str, data: bytes) -> int:
    """Read which broker lost a log directory."""
    return decode_json(path, data).integer("broker", low=0)


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """A block of producer ids of one broker; both ends belong to it."""

    broker_id: int
    first: int
    last: int


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    """Write /latest_producer_id_block."""
    return encode_json(
        {
            "version": 1,
            "broker": block.broker_id,
            "block_start": str(block.first),
            "block_end": str(block.last),
        }
    )


def decode_producer_id_block(data: bytes) -> ProducerIdBlock:
    """Read /latest_producer_id_block."""
    fields = decode_json(PRODUCER_ID_BLOCK, data)
    first, last = fields.decimal("block_start"), fields.decimal("block_end")
    if not 0 <= first <= last:
        raise fields.poison(f"the block {first}..{last} is empty or negative")
    return ProducerIdBlock(fields.integer("broker", low=-1), first, last)
