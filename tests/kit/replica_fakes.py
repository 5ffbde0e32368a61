"""Dependencies of a replica manager without ZooKeeper and without other brokers."""

from __future__ import annotations

from typing import Any

from kbroker.common.topic_partition import TopicPartition
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.replica.core.leader_state import WriteIsr


class RecordedIsrWrites:
    """ISR writes that never end: no ZooKeeper is here."""

    def __init__(self) -> None:
        self.submitted: list[WriteIsr] = []

    def submit(self, _partition: Any, write: WriteIsr) -> None:
        """Note *write*."""
        self.submitted.append(write)

    async def settled(self, _key: TopicPartition) -> None:
        """Nothing reaches a ZooKeeper."""

    def stop(self) -> None:
        """Nothing is running."""


class NoFetchers:
    """Fetchers of a broker that is alone; *roles* are the partitions with a changed role."""

    def __init__(self) -> None:
        self.roles: list[TopicPartition] = []

    def roles_changed(self, partitions: list[Any]) -> None:
        """Note the partitions."""
        self.roles += [partition.key for partition in partitions]

    def log_start_advanced(self, _key: TopicPartition) -> None:
        """Nothing is fetched."""

    def log_flushed(self, _key: TopicPartition) -> None:
        """Nothing is fetched."""

    def stop(self) -> None:
        """Nothing is running."""


class NoReports:
    """Reports of failed log directories, to no controller."""

    def report(self) -> None:
        """Report nothing."""

    def stop(self) -> None:
        """Nothing is running."""


class CacheOfOneBroker(MetadataCache):
    """A metadata cache without other brokers: a test's followers may join the ISR all the same."""

    def may_join_isr(self, _broker_id: int, _broker_epoch: int) -> bool:
        """Return True."""
        return True
