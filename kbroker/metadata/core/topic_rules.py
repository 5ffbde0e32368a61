"""What a topic may be called and how large it may be. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kclient.wire.errors import (
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopicException,
)

MAX_NAME: Final = 249
MAX_PARTITIONS: Final = 10_000
"""Partitions of one topic, and of one CreateTopics request: a topic is one znode of at most 1 MiB."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str | None) -> str:
    """Return *name* if it is a legal topic name, else InvalidTopicException."""
    if not name:
        raise InvalidTopicException("a topic name cannot be empty")
    if name in (".", ".."):
        raise InvalidTopicException('a topic name cannot be "." or ".."')
    if len(name) > MAX_NAME:
        raise InvalidTopicException(
            f"a topic name cannot be longer than {MAX_NAME} characters, this one has {len(name)}"
        )
    if _LEGAL.fullmatch(name) is None:
        raise InvalidTopicException(
            f"topic name {name[:80]!a} has characters other than letters, digits, '.', '_' and '-'"
        )
    return name


def is_topic_name(name: str | None) -> bool:
    """Return whether *name* is a legal topic name."""
    return (
        bool(name)
        and name is not None
        and len(name) <= MAX_NAME
        and name not in (".", "..")
        and _LEGAL.fullmatch(name) is not None
    )


def check_collision(name: str, existing: Iterable[str]) -> None:
    """Refuse a name that differs from an existing one only by '.' and '_': metrics confuse them."""
    if "." not in name and "_" not in name:
        return
    folded = name.replace(".", "_")
    for other in existing:
        if other != name and other.replace(".", "_") == folded:
            raise InvalidTopicException(
                f"topic {name} collides with the existing topic {other}: '.' and '_' are one in "
                "metric names"
            )


def check_partition_count(count: int) -> None:
    """Refuse fewer than one partition, and more than one znode can hold."""
    if count <= 0:
        raise InvalidPartitions(f"the number of partitions must be larger than 0, not {count}")
    if count > MAX_PARTITIONS:
        raise InvalidPartitions(f"{count} partitions are more than the {MAX_PARTITIONS} allowed")


def check_replication_factor(factor: int, live_brokers: int) -> None:
    """Refuse a replication factor that cannot be met."""
    if factor <= 0:
        raise InvalidReplicationFactor(
            f"the replication factor must be larger than 0, not {factor}"
        )
    if factor > live_brokers:
        raise InvalidReplicationFactor(
            f"replication factor {factor} is larger than the {live_brokers} available brokers"
        )
