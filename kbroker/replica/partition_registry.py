"""The partitions that this broker hosts, what their topics are called, and who hears of their roles.

Whoever waits for a partition and whoever listens is told by `tell`, once what changed is consistent (T9).

In: partitions that come and go   Out: calls of the listeners   Owner: the reactor's thread
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
"""Partitions whose role changed, and whether each was led from here before."""


class LeadershipListener(Protocol):
    """Hears that leadership of a partition came or went; once more with the same epoch is possible."""

    def __call__(
        self, topic: str, partition: int, leader_epoch: int, zk_version: int, is_leader: bool, /
    ) -> None:
        """Take note."""


class PartitionRegistry:
    """The partitions by topic and number, and the receivers of role changes.

    *wake* completes requests that wait for a partition. *roles_changed* receives the partitions whose role or leader
    changed. *on_leadership* receives those that this broker begins or ceases to lead.
    """

    def __init__(
        self,
        wake: Callable[[TopicPartition], None],
        roles_changed: Callable[[list[Partition]], None],
        on_leadership: LeadershipListener,
    ) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        """To be looked up in; who changes it calls `add` and `remove`."""
        self.unconfirmed: dict[TopicPartition, None] = {}
        """Those whose roles are of before our last registration, and were not confirmed since."""
        self._wake = wake
        self._of_topic: Counter[str] = Counter()
        """How many partitions of a topic are hosted."""
        self._topic_names: dict[UUID, str] = {}
        self._roles_changed = roles_changed
        self._on_leadership = on_leadership

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions.values())

    def __len__(self) -> int:
        return len(self.partitions)

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of a hosted topic."""
        return self._topic_names.get(topic_id)

    def hosts_topic(self, topic: str) -> bool:
        """Say whether a partition of *topic* is hosted."""
        return topic in self._of_topic

    def add(self, partition: Partition) -> None:
        """Host *partition*, whose topic's id may have become known."""
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
        """Host nothing any more; nobody is told."""
        self.partitions.clear()
        self.unconfirmed.clear()
        self._of_topic.clear()
        self._topic_names.clear()

    def announce(self, changed: Changed) -> None:
        """Announce role changes to fetchers, waiting requests and the leadership listener, in this order (T9)."""
        if not changed:
            return
        self._roles_changed([partition for partition, _ in changed])
        for partition, was_leader in changed:
            self._wake(partition.key)
            is_leader = partition.leader_state is not None
            if not is_leader and not was_leader:
                continue
            role = partition.role
            try:
                self._on_leadership(
                    *partition.key, role.leader_epoch, role.partition_epoch, is_leader
                )
            except Exception:
                log.failure(
                    "the leadership listener failed for {partition}", partition=repr(partition)
                )
