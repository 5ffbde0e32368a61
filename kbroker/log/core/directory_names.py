"""Names in a log directory: ``topic-partition``, and the same on its way out.

A partition that is deleted is renamed first, to ``topic-partition.<32 hex digits>-delete``. So the topic can be created
again at once. The files are removed later. A log that moves to another log directory is copied to ``topic-partition.<32
hex digits>-future`` there (KIP-113).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from kbroker.common.topic_partition import TopicPartition

DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"
FUTURE_SUFFIX: Final = "-future"
_MAX_NAME: Final = 255
_OTHER: Final = re.compile(r"^(\S+)-(\d+)\.(\S+)-(delete|future|stray)$")
_MOVED: Final = re.compile(r"^([a-zA-Z0-9._-]{1,249})-(\d{1,10})\.([0-9a-f]{32})-(delete|future)$")
_PARTITION: Final = re.compile(r"^([a-zA-Z0-9._-]{1,249})-(\d{1,10})$")


def directory_name(topic: str, partition: int) -> str:
    """Return the name of a partition's directory."""
    return f"{topic}-{partition}"


def delete_name(topic: str, partition: int, unique: str) -> str:
    """Return the name of a partition's directory on its way out; *unique* is 32 hex digits.

    A long topic name is cut so that the file system takes the whole (KAFKA-6051).
    """
    return _unique_name(topic, partition, unique, DELETE_SUFFIX)


def stray_name(topic: str, partition: int, unique: str) -> str:
    """Return the name of a directory that belongs to no partition any more, and is kept (KAFKA-15572)."""
    return _unique_name(topic, partition, unique, STRAY_SUFFIX)


def future_name(topic: str, partition: int, unique: str) -> str | None:
    """Return the name of the copy of a log that moves; None for a topic name that leaves no room (KAFKA-4893)."""
    name = f"{topic}-{partition}.{unique}{FUTURE_SUFFIX}"
    return name if len(name) <= _MAX_NAME else None


def _unique_name(topic: str, partition: int, unique: str, kind: str) -> str:
    suffix = f"-{partition}.{unique}{kind}"
    return topic[: _MAX_NAME - len(suffix)] + suffix


def parse_directory(name: str) -> TopicPartition | None:
    """Return the partition of a directory of that name, or None when it is not a partition's."""
    if _OTHER.match(name):
        return None
    match = _PARTITION.match(name)
    if match is None or int(match.group(2)) > 2**31 - 1:
        return None
    return match.group(1), int(match.group(2))


class MovedName(NamedTuple):
    """The name of a copy, or of a log that was deleted or replaced by its copy."""

    partition: TopicPartition
    unique: str
    """32 hex digits: the same for a copy and for the log that it replaced."""
    is_future: bool


def parse_moved(name: str) -> MovedName | None:
    """Return what a directory of that name is, or None if it is neither ``-future`` nor ``-delete``."""
    match = _MOVED.match(name)
    if match is None or int(match.group(2)) > 2**31 - 1:
        return None
    topic, number, unique, kind = match.groups()
    return MovedName((topic, int(number)), unique, kind == "future")


def is_deleted(name: str) -> bool:
    """Return whether a directory of that name is a deleted partition's."""
    match = _OTHER.match(name)
    return match is not None and match.group(4) == "delete"
