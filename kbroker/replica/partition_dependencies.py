"""What a `Partition` needs of its broker: mandatory, and fixed when the replica manager is made.

Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kbroker.common.topic_partition import TopicPartition
from kbroker.metadata.epoch_fences import Registration
from kbroker.replica.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from kbroker.replica.core.leader_state import WriteIsr
from kbroker.replica.core.remote_replicas import FollowerLiveness


class AlterPartition(Protocol):
    """Writes ISR changes into ZooKeeper (`AlterPartitionManager`)."""

    def submit(self, partition: Any, write: WriteIsr, /) -> None:
        """Begin *write* for a `Partition`; its leader state receives the outcome."""

    async def settled(self, key: TopicPartition, /) -> None:
        """Wait until no write of a partition's state znode can still be applied."""

    def stop(self) -> None:
        """Begin no further write."""


class Fetchers(Protocol):
    """Fetch what this broker follows (`ReplicaFetcherManager`)."""

    def roles_changed(self, partitions: list[Any], /) -> None:
        """Fetch each `Partition` from the leader that it has now."""

    def log_start_advanced(self, key: TopicPartition, /) -> None:
        """Send the new log start offset to the leader with the next fetch."""

    def log_flushed(self, key: TopicPartition, /) -> None:
        """Fetch on after a sync."""

    def stop(self) -> None:
        """Close every fetcher."""


@dataclass(frozen=True, slots=True)
class PartitionDependencies:
    """The clock, the session's state, the followers' liveness, and the receivers of a partition's events.

    Receivers are called when the partition's state is consistent.
    """

    now: Callable[[], float]
    """Seconds, monotonic."""
    now_ms: Callable[[], int]
    """The wall clock, in ms."""
    lag_time_max: float
    """replica.lag.time.max.ms in seconds."""
    registration: Registration
    followers: FollowerLiveness
    may_join_isr: Callable[[int, int], bool]
    """(broker id, broker epoch of its fetch) -> whether that registration is alive and stays (KIP-903)."""
    alter_partition: AlterPartition
    fetchers: Fetchers
    high_watermark_advanced: Callable[[TopicPartition], None]
    """Also called when the role or the log start offset changed: reads by consumers may complete."""
    log_end_advanced: Callable[[TopicPartition], None]
    """Fetches by followers may complete. Consumers see nothing new before the high watermark advances."""
    add_partitions_to_txn_manager: AddPartitionsToTxnManager | None
    """Asks the coordinators of transactions; None: transactional batches are refused."""
