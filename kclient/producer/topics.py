"""A topic's partitions for the partitioner, computed once for each metadata."""

from __future__ import annotations

from kclient.net.metadata import ClusterMetadata
from kclient.types import TopicPartition


class TopicPartitions:
    """The partitions of one topic; *available* are those with a leader, all if none has one."""

    __slots__ = ("available", "count", "tps")

    def __init__(self, tps: dict[int, TopicPartition], available: list[int]) -> None:
        self.available = available
        self.count = len(tps)
        self.tps = tps


def topic_partitions(topic: str, metadata: ClusterMetadata) -> TopicPartitions | None:
    """Return the partitions of *topic* in *metadata*, None if it is unknown."""
    partitions = metadata.partitions(topic)
    if not partitions:
        return None
    tps = {p: TopicPartition(topic, p) for p in partitions}
    available = [p for p, tp in tps.items() if metadata.leader(tp) is not None]
    return TopicPartitions(tps, available or partitions)
