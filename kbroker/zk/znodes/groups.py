"""Znodes of consumer groups: the classic consumer tree."""

from __future__ import annotations

from kbroker.zk.znodes.fields import decode_number
from kbroker.zk.znodes.names import CONSUMERS, checked_topic, escape


def group_path(group: str) -> str:
    """Return /consumers/G."""
    return f"{CONSUMERS}/{escape(group)}"


def group_state_path(group: str) -> str:
    """Return /consumers/G/state: generation, members and assignment; content by `coordinator.group.core.records`."""
    return f"{group_path(group)}/state"


def group_members_path(group: str) -> str:
    """Return /consumers/G/ids."""
    return f"{group_path(group)}/ids"


def group_member_path(group: str, member: str) -> str:
    """Return /consumers/G/ids/M (ephemeral)."""
    return f"{group_members_path(group)}/{escape(member)}"


def group_owners_path(group: str) -> str:
    """Return /consumers/G/owners."""
    return f"{group_path(group)}/owners"


def group_owner_path(group: str, topic: str, partition: int) -> str:
    """Return /consumers/G/owners/T/P: the member that owns the partition."""
    return f"{group_owners_path(group)}/{checked_topic(topic)}/{partition:d}"


def group_offsets_path(group: str) -> str:
    """Return /consumers/G/offsets."""
    return f"{group_path(group)}/offsets"


def group_topic_offsets_path(group: str, topic: str) -> str:
    """Return /consumers/G/offsets/T."""
    return f"{group_offsets_path(group)}/{checked_topic(topic)}"


def group_offset_path(group: str, topic: str, partition: int) -> str:
    """Return /consumers/G/offsets/T/P: the committed offset as decimal text."""
    return f"{group_topic_offsets_path(group, topic)}/{partition:d}"


def encode_offset(offset: int) -> bytes:
    """Write a committed offset."""
    return str(offset).encode()


def decode_offset(path: str, data: bytes) -> int:
    """Read a committed offset."""
    return decode_number(path, data, low=-1, high=2**63 - 1)
