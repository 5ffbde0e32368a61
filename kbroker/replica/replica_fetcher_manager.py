"""ReplicaFetcherManager: one fetcher for each broker that leads a partition which this broker follows.

Role changes move a partition to the fetcher of its leader. A fetcher is closed when its last partition has gone.

Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.common.topic_partition import TopicPartition
from kbroker.config import KafkaConfig
from kbroker.metadata.epoch_fences import Registration
from kbroker.network.broker_connections import DialBroker
from kbroker.replica.core.replication_quota import ReplicationQuota
from kbroker.replica.fetcher_state import FetcherSettings
from kbroker.replica.partition import Partition
from kbroker.replica.replica_fetcher import ReplicaFetcher


class ReplicaFetcherManager:
    """The fetchers by leader.

    *address* gives a live broker's inter-broker listener, *quota* is the follower's side of KIP-73, *now_ms* the wall
    clock.
    """

    def __init__(
        self,
        reactor: Any,
        config: KafkaConfig,
        *,
        broker_id: int,
        registration: Registration,
        quota: ReplicationQuota,
        now_ms: Callable[[], int],
        address: Callable[[int], tuple[str, int] | None],
        dial: DialBroker,
    ) -> None:
        self._reactor = reactor
        self._broker_id = broker_id
        self._registration = registration
        self._quota = quota
        self._now_ms = now_ms
        self._address = address
        self._dial = dial
        self._settings = FetcherSettings(
            broker_id=broker_id,
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            partition_max_bytes=config.replica_fetch_max_bytes,
            max_pause=config.replica_fetch_backoff_ms / 1000,
            request_timeout=config.replica_socket_timeout_ms / 1000,
        )
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._leaders: dict[TopicPartition, int] = {}
        """The broker that each followed partition is fetched from."""
        self._stopped = False

    def stop(self) -> None:
        """Close every fetcher."""
        self._stopped = True
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._leaders.clear()

    def log_start_advanced(self, key: TopicPartition) -> None:
        """Send the new log start offset of *key* to its leader with the next fetch."""
        fetcher = self._fetchers.get(self._leaders.get(key, -1))
        if fetcher is not None:
            fetcher.log_start_advanced(key)

    def log_flushed(self, key: TopicPartition) -> None:
        """Fetch on after a sync of the log of *key*."""
        fetcher = self._fetchers.get(self._leaders.get(key, -1))
        if fetcher is not None:
            fetcher.log_flushed(key)

    def roles_changed(self, partitions: list[Partition]) -> None:
        """Fetch each of *partitions* from the leader that it has now."""
        if self._stopped:
            return
        for partition in partitions:
            self._place(partition)
        for leader in [id for id, fetcher in self._fetchers.items() if not fetcher]:
            self._fetchers.pop(leader).close()

    def _place(self, partition: Partition) -> None:
        """Fetch *partition* from the leader that it has now, and from no other broker."""
        key = partition.key
        follower_state = partition.follower_state if partition.log is not None else None
        leader = follower_state.leader if follower_state is not None else -1
        before = self._leaders.pop(key, -1)
        if before != leader and before in self._fetchers:
            self._fetchers[before].remove_partition(key)
        if leader < 0 or leader == self._broker_id:
            return
        self._leaders[key] = leader
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = ReplicaFetcher(
                self._reactor,
                leader,
                self._settings,
                address=self._address,
                registration=self._registration,
                now_ms=self._now_ms,
                throttle=self._quota,
                dial=self._dial,
            )
        fetcher.add_partition(partition)
