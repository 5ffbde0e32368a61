"""The new leader of a partition: the tagged fields that KIP-951 added to Produce and Fetch responses."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from kclient.wire.fields import (
    read_count,
    read_nullable_string,
    read_string,
    skip_tags,
    string,
    uvarint,
)

_LEADER = struct.Struct(">iiB")
_I32 = struct.Struct(">i")
_SMALLEST_NODE = 11


@dataclass(slots=True)
class LeaderIdAndEpoch:
    """The leader that the answering broker knows; -1 if it knows none."""

    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(slots=True)
class NodeEndpoint:
    """The address of a leader in the same response, which saves a Metadata request."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def encode_leader(leader: LeaderIdAndEpoch) -> bytes:
    """Return the content of a current_leader field."""
    return _LEADER.pack(leader.leader_id, leader.leader_epoch, 0)


def decode_leader(data: memoryview) -> LeaderIdAndEpoch:
    """Decode the content of a current_leader field."""
    leader_id, leader_epoch, _ = _LEADER.unpack_from(data, 0)
    return LeaderIdAndEpoch(leader_id, leader_epoch)


def encode_endpoints(nodes: Sequence[NodeEndpoint]) -> bytes:
    """Return the content of a node_endpoints field."""
    parts = [uvarint(len(nodes) + 1)]
    for node in nodes:
        parts += (
            _I32.pack(node.node_id),
            string(node.host, True),
            _I32.pack(node.port),
            string(node.rack, True),
            b"\x00",
        )
    return b"".join(parts)


def decode_endpoints(data: memoryview) -> tuple[NodeEndpoint, ...]:
    """Decode the content of a node_endpoints field."""
    number, pos = read_count(data, 0, True, _SMALLEST_NODE)
    nodes = []
    for _ in range(number):
        (node_id,) = _I32.unpack_from(data, pos)
        host, pos = read_string(data, pos + 4, True)
        (port,) = _I32.unpack_from(data, pos)
        rack, pos = read_nullable_string(data, pos + 4, True)
        pos = skip_tags(data, pos)
        nodes.append(NodeEndpoint(node_id, host, port, rack))
    return tuple(nodes)
