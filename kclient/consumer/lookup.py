"""Offset lookups of a consumer: log start, log end, and offsets by time, without a change of position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kclient.config import ConsumerConfig
from kclient.errors import KafkaError
from kclient.net.cluster import Cluster
from kclient.net.offsets import LATEST, list_offsets
from kclient.types import OffsetAndTimestamp, TopicPartition


class OffsetLookup:
    """Requests offsets from the leaders with the consumer's isolation level; raises the first partition's error."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        self._cluster = cluster
        self._config = config

    async def at(
        self, timestamps: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the first offset at or after each timestamp (ms, EARLIEST, LATEST), -1 if there is none."""
        answers = await list_offsets(
            self._cluster,
            {TopicPartition(*tp): at for tp, at in timestamps.items()},
            read_committed=self._config.read_committed,
            timeout=timeout,
        )
        found = {}
        for tp, answer in answers.items():
            if isinstance(answer, KafkaError):
                raise answer
            found[tp] = answer
        return found

    async def edge(
        self, partitions: Iterable[TopicPartition], which: int, timeout: float
    ) -> dict[TopicPartition, int]:
        """Return the offset at *which* end (EARLIEST, LATEST) of each of *partitions*."""
        answers = await self.at(dict.fromkeys(partitions, which), timeout)
        return {tp: found.offset for tp, found in answers.items()}

    async def at_or_end(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout: float
    ) -> dict[TopicPartition, int]:
        """Return the first offset at or after *timestamp*, the log end if no record is that recent."""
        answers = await self.at(dict.fromkeys(partitions, timestamp), timeout)
        offsets = {tp: found.offset for tp, found in answers.items()}
        late = [tp for tp, offset in offsets.items() if offset < 0]
        return {**offsets, **await self.edge(late, LATEST, timeout)} if late else offsets
