"""The records and topic names of MirrorMaker 2's heartbeats and checkpoints. Pure.

The formats are those of Apache Kafka's Heartbeat and Checkpoint (connect-mirror-client), version 0. A STRING is an
int16 length and UTF-8, numbers are big-endian, a value starts with an int16 version.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from kclient.types import TopicPartition
from mirrormaker.group_offsets import LogRange, Offsets, place

HEARTBEATS_TOPIC = "heartbeats"
VERSION = 0
LONGEST_STRING = 32_767
"""Bytes of a STRING."""

_PARTITION = struct.Struct(">i")
_CHECKPOINT = struct.Struct(">hqq")
_HEARTBEAT = struct.Struct(">hq")
_LENGTH = struct.Struct(">h")


def checkpoints_topic(source: str, separator: str) -> str:
    """Return the name of the topic with the checkpoints of the groups of cluster *source*."""
    return f"{source}{separator}checkpoints{separator}internal"


def is_heartbeats(topic: str, separator: str) -> bool:
    """Return whether *topic* has heartbeats, possibly mirrored over several clusters."""
    return topic == HEARTBEATS_TOPIC or topic.endswith(f"{separator}{HEARTBEATS_TOPIC}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A position of *group* in a partition of the target. *upstream* is its committed offset at the source."""

    group: str
    tp: TopicPartition
    upstream: int
    downstream: int
    metadata: str

    def is_new(self, before: Checkpoint | None) -> bool:
        """Return whether to emit it after *before*, which is of the same group and partition.

        While a group goes forward, a checkpoint does not go back: of two translations the higher one is the better one.
        """
        if before is None:
            return True
        goes_back = self.upstream >= before.upstream and self.downstream < before.downstream
        return self != before and not goes_back

    @property
    def key(self) -> bytes:
        """The key of its record."""
        return _string(self.group) + _string(self.tp.topic) + _PARTITION.pack(self.tp.partition)

    @property
    def value(self) -> bytes:
        """The value of its record; metadata that a STRING cannot hold are left out."""
        fits = len(self.metadata.encode()) <= LONGEST_STRING
        offsets = _CHECKPOINT.pack(VERSION, self.upstream, self.downstream)
        return offsets + _string(self.metadata if fits else "")


def checkpoints_of(
    group: str, source: Offsets, placed: Offsets, logs: Mapping[TopicPartition, LogRange]
) -> list[Checkpoint]:
    """Return the checkpoints of *group*, by the rule for committed offsets (`place`).

    *placed* are the offsets of *source* as offsets of the target. A group with a name that a STRING cannot hold has no
    checkpoints.
    """
    if len(group.encode()) > LONGEST_STRING:
        return []
    found = []
    for tp, committed in placed.items():
        there = place(committed, logs[tp]) if tp in logs else None
        if there is not None:
            found.append(Checkpoint(group, tp, source[tp].offset, there.offset, there.metadata))
    return found


def heartbeat(source: str, target: str, timestamp_ms: int) -> tuple[bytes, bytes]:
    """Return key and value of a heartbeat of the direction *source* -> *target*."""
    return _string(source) + _string(target), _HEARTBEAT.pack(VERSION, timestamp_ms)


def _string(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data
