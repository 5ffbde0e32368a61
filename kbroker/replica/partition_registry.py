"""PartitionRegistry: the hosted partitions and the names of their topics.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from uuid import UUID

from kbroker.common.topic_partition import TopicPartition
from kbroker.replica.partition import Partition


class PartitionRegistry:
    """The partitions by topic and number."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        """Read-only outside: `add` and `remove` change it."""
        self.unconfirmed: dict[TopicPartition, None] = {}
        """Partitions with a role from before our last registration that no request has confirmed since."""
        self._of_topic: Counter[str] = Counter()
        """The number of hosted partitions of each topic."""
        self._topic_names: dict[UUID, str] = {}

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
        """Host nothing any more."""
        self.partitions.clear()
        self.unconfirmed.clear()
        self._of_topic.clear()
        self._topic_names.clear()
