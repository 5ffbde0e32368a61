"""Logs the assigned topics and partitions that do not exist: polls return no records of them, and no error.

A consumer waits for them, because a topic may be created after its consumers start. Each cause is logged once, and
again if it comes back. A subscription logs its topics itself (subscription.py).

In: a metadata snapshot, the assigned partitions   Out: warnings   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted.logger import Logger

from kclient.net.answers import error_of
from kclient.net.metadata import ClusterMetadata
from kclient.types import TopicPartition
from kclient.wire.errors import ErrorCode, for_code


def why_missing(metadata: ClusterMetadata, assigned: Iterable[TopicPartition]) -> list[str]:
    """Return the reasons why *assigned* partitions have no records; none for what is not in *metadata* yet."""
    numbers: dict[str, list[int]] = {}
    for tp in sorted(assigned):
        numbers.setdefault(tp.topic, []).append(tp.partition)
    causes = []
    for name, wanted in numbers.items():
        topic = metadata.topics.get(name)
        if topic is None:
            continue
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            causes.append(
                f"topic {name!r} does not exist: this consumer has no records of it until it is created"
            )
        elif topic.error_code:
            if not for_code(topic.error_code).retriable:
                causes.append(str(error_of(topic.error_code, f"topic {name!r}")))
        elif absent := [n for n in wanted if n not in topic.partitions]:
            causes.append(
                f"topic {name!r} has no partition {', '.join(map(str, absent))}, only {len(topic.partitions)} "
                "in all: this consumer has no records of them until they are added"
            )
    return causes


class MissingPartitions:
    """Logs each cause once while it lasts."""

    log = Logger()

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def metadata_changed(
        self, metadata: ClusterMetadata, assigned: Iterable[TopicPartition]
    ) -> None:
        """Log what is missing now and was not missing before."""
        causes = why_missing(metadata, assigned)
        for cause in causes:
            if cause not in self._logged:
                self.log.warn("{cause}", cause=cause)
        self._logged = set(causes)
