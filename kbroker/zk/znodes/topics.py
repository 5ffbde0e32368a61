"""Znodes of topics and partitions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.zk.errors import PoisonZnode
from kbroker.zk.interface import Stat
from kbroker.zk.znodes.fields import Fields, decode_json, encode_json
from kbroker.zk.znodes.names import TOPICS, checked_topic
from kclient.wire.interbroker import LEADER_DURING_DELETE
from kclient.wire.uuids import decode_uuid, encode_uuid


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """The replicas of one partition, preferred leader first; *adding* and *removing* while moving."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """The content of /brokers/topics/T. *topic_id* is None for topics made before Kafka 2.8."""

    topic_id: uuid.UUID | None
    partitions: Mapping[int, ReplicaAssignment]


def topic_path(topic: str) -> str:
    """Return /brokers/topics/T."""
    return f"{TOPICS}/{checked_topic(topic)}"


def encode_topic(topic: TopicAssignment) -> bytes:
    """Write version 3."""

    def moving(name: str) -> dict[str, list[int]]:
        replicas = {p: getattr(a, name) for p, a in topic.partitions.items()}
        return {str(p): list(r) for p, r in replicas.items() if r}

    value: dict[str, Any] = {
        "removing_replicas": moving("removing"),
        "partitions": {str(p): list(a.replicas) for p, a in topic.partitions.items()},
    }
    if topic.topic_id is not None:
        value["topic_id"] = encode_uuid(topic.topic_id)
    value |= {"adding_replicas": moving("adding"), "version": 3}
    return encode_json(value)


def decode_topic(topic: str, data: bytes) -> TopicAssignment:
    """Read versions 1 to 3."""
    path = topic_path(topic)
    fields = decode_json(path, data)
    partitions = fields.object_or_empty("partitions")
    adding = fields.object_or_empty("adding_replicas")
    removing = fields.object_or_empty("removing_replicas")
    assignment = {}
    alike: dict[
        tuple[int, ...], ReplicaAssignment
    ] = {}  # thousands of partitions have few lists of replicas
    for name in partitions.values:
        if not name.isdecimal() or len(name) > 9:
            raise fields.poison(f"{name!r:.80} is not a partition number")
        replicas = partitions.integers(name)
        plain = alike.get(replicas)
        if plain is None:
            if len(set(replicas)) != len(replicas) or not replicas:
                raise fields.poison(f"partition {name} has the replicas {list(replicas)}")
            plain = alike[replicas] = ReplicaAssignment(replicas)
        if name in adding.values or name in removing.values:
            plain = ReplicaAssignment(
                replicas,
                adding.integers(name) if adding.has(name) else (),
                removing.integers(name) if removing.has(name) else (),
            )
        assignment[int(name)] = plain
    if not fields.has("topic_id"):
        return TopicAssignment(None, assignment)
    try:
        return TopicAssignment(decode_uuid(fields.text("topic_id")), assignment)
    except ValueError as error:
        raise PoisonZnode(path, str(error)) from error


def partitions_path(topic: str) -> str:
    """Return /brokers/topics/T/partitions."""
    return f"{topic_path(topic)}/partitions"


def partition_path(topic: str, partition: int) -> str:
    """Return /brokers/topics/T/partitions/P."""
    return f"{topic_path(topic)}/partitions/{partition:d}"


def partition_state_path(topic: str, partition: int) -> str:
    """Return /brokers/topics/T/partitions/P/state."""
    return f"{topic_path(topic)}/partitions/{partition:d}/state"


def encode_partition_state(state: LeaderAndIsr) -> bytes:
    """Write version 1."""
    value: dict[str, Any] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
    if state.leader_recovery_state:
        value["leader_recovery_state"] = state.leader_recovery_state
    if state.isr_epochs:
        value["isr_epochs"] = list(state.isr_epochs)
    if state.elr:
        value["elr"] = {str(broker): epoch for broker, epoch in state.elr}
    return encode_json(value)


def decode_partition_state(topic: str, partition: int, data: bytes, stat: Stat) -> LeaderAndIsr:
    """Read a partition's state with the version it was read at."""
    fields = decode_json(partition_state_path(topic, partition), data)
    name = "leader_recovery_state"
    isr = fields.integers("isr")
    return LeaderAndIsr(
        leader=fields.integer("leader", low=LEADER_DURING_DELETE),
        leader_epoch=fields.integer("leader_epoch", low=0),
        isr=isr,
        controller_epoch=fields.integer("controller_epoch", low=0),
        zk_version=stat.version,
        leader_recovery_state=fields.integer(name, low=0, high=1) if fields.has(name) else 0,
        isr_epochs=_isr_epochs(fields, len(isr)),
        elr=_eligible(fields),
    )


def _isr_epochs(fields: Fields, members: int) -> tuple[int, ...]:
    """Read the epochs of an ISR of so many *members*; an ISR that was edited by hand has none."""
    if not fields.has("isr_epochs"):
        return ()
    epochs = tuple(fields.long("isr_epochs", item) for item in fields.items("isr_epochs"))
    return epochs if len(epochs) == members else ()


def _eligible(fields: Fields) -> tuple[tuple[int, int], ...]:
    found = fields.object_or_empty("elr")
    if not all(name.isdecimal() for name in found.values):
        raise fields.poison('field "elr" is not an object of broker ids')
    return tuple(
        sorted((int(name), found.long(name, epoch)) for name, epoch in found.values.items())
    )
