"""PartitionRegistry: the hosted partitions, the names of their topics, and announcements of role changes.

`announce` runs after a change, when the state is consistent.

In: added and removed partitions   Out: calls of the receivers   Owner: the reactor's thread
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias
from uuid import UUID

from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.replica.partition import Partition

log = Logger()

Changed: TypeAlias = list[tuple[Partition, bool]]
"""Partitions with a changed role, and whether each was led from here before."""


class LeadershipListener(Protocol):
    """Receives the partitions that this broker begins or ceases to lead; the same epoch may be announced again."""

    def __call__(
        self, topic: str, partition: int, leader_epoch: int, zk_version: int, is_leader: bool, /
    ) -> None:
        """Handle one change."""


class PartitionRegistry:
    """The partitions by topic and number, and the receivers of role changes.

    *wake* completes requests that wait for a partition. *roles_changed* receives the partitions with a changed role or
    leader.
    """

    def __init__(
        self,
        wake: Callable[[TopicPartition], None],
        roles_changed: Callable[[list[Partition]], None],
    ) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        """Read-only outside: `add` and `remove` change it."""
        self.unconfirmed: dict[TopicPartition, None] = {}
        """Partitions with a role from before our last registration that no request has confirmed since."""
        self._wake = wake
        self._of_topic: Counter[str] = Counter()
        """The number of hosted partitions of each topic."""
        self._topic_names: dict[UUID, str] = {}
        self._roles_changed = roles_changed
        self.leadership_listener: LeadershipListener | None = None
        """Receives the partitions that this broker begins or ceases to lead."""

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions.values())

    def __len__(self) -> int:
        return len(self.partitions)

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of a hosted topic."""
        return self._topic_names.get(topic_id)

    def hosts_topic(self, topic: str) -> bool:
        """Return whether a partition of *topic* is hosted."""
        return topic in self._of_topic

    def add(self, partition: Partition) -> None:
        """Host *partition*; its topic id may be known now."""
        topic, _ = partition.key
        if partition.key not in self.partitions:
            self.partitions[partition.key] = partition
            self._of_topic[topic] += 1
        if partition.topic_id is not None:
            self._topic_names[partition.topic_id] = topic

    def remove(self, partition: Partition) -> None:
        """Host *partition* no longer."""
        topic, _ = partition.key
        del self.partitions[partition.key]
        self.unconfirmed.pop(partition.key, None)
        self._of_topic[topic] -= 1
        if not self._of_topic[topic]:
            del self._of_topic[topic]
            if partition.topic_id is not None:
                self._topic_names.pop(partition.topic_id, None)

    def clear(self) -> None:
        """Host nothing any more; nothing is announced."""
        self.partitions.clear()
        self.unconfirmed.clear()
        self._of_topic.clear()
        self._topic_names.clear()

    def announce(self, changed: Changed) -> None:
        """Announce role changes to fetchers, waiting requests and the leadership listener, in this order."""
        if not changed:
            return
        self._roles_changed([partition for partition, _ in changed])
        for partition, was_leader in changed:
            self._wake(partition.key)
            is_leader = partition.leader_state is not None
            listener = self.leadership_listener
            if listener is None or not (is_leader or was_leader):
                continue
            role = partition.role
            try:
                listener(*partition.key, role.leader_epoch, role.partition_epoch, is_leader)
            except Exception:
                log.failure(
                    "the leadership listener failed for {partition}", partition=repr(partition)
                )
