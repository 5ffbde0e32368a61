"""Replication on this broker: a fetcher per broker that we follow, the ISR of what we lead.

Hears of roles from `ReplicaManager` and gives every followed partition to the fetcher of its leader; looks for
followers that lag, every half of replica.lag.time.max.ms. After a pause of our own (SIGSTOP, a stalled machine)
nobody is taken out of the ISR before the fetches that waited meanwhile could be read.

Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.config import BrokerConfig
from kbroker.network.broker_connections import DialBroker
from kbroker.replica.alter_partition_manager import AlterPartitionManager
from kbroker.replica.fetcher_state import FetcherSettings
from kbroker.replica.log_dir_failure_channel import LogDirFailureChannel
from kbroker.replica.partition import Partition
from kbroker.replica.replica_fetcher import ReplicaFetcher
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.zk.interface import ZooKeeper
from kbroker.zk.reconnect import Reconnect

log = Logger()


class ReplicaFetcherManager:
    """What makes replicas follow, and leaders keep their ISR.

    *address* gives where a live broker's inter-broker listener is.
    """

    def __init__(
        self,
        reactor: Any,
        config: BrokerConfig,
        replica_manager: ReplicaManager,
        zookeeper: ZooKeeper,
        reconnect: Reconnect,
        *,
        address: Callable[[int], tuple[str, int] | None],
        dial: DialBroker,
    ) -> None:
        self._reactor = reactor
        self._replica_manager = replica_manager
        self._address = address
        self._dial = dial
        self._settings = FetcherSettings(
            broker_id=replica_manager.broker_id,
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            partition_max_bytes=config.replica_fetch_max_bytes,
            max_pause=config.replica_fetch_backoff_ms / 1000,
            request_timeout=config.replica_socket_timeout_ms / 1000,
        )
        self._look_every = max(config.replica_lag_time_max_ms / 2000, 0.05)
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._sources: dict[TopicPartition, int] = {}
        """Whom each followed partition is fetched from."""
        self._writer = AlterPartitionManager(reactor, zookeeper, reconnect)
        self._directory_news = LogDirFailureChannel(reactor, zookeeper, replica_manager.broker_id)
        self._timer: Any = None
        self._look_at = 0.0
        self._stopped = False

    def start(self) -> None:
        """Begin to hear of roles."""
        self._replica_manager.dependencies.write_isr = self._writer.write
        self._replica_manager.dependencies.directory_failed = self._directory_news.tell
        self._replica_manager.dependencies.log_start_moved = self._log_start_moved
        self._replica_manager.dependencies.log_flushed = self._log_flushed
        self._replica_manager.registry.on_roles(self._roles_changed)
        self._plan_look()

    def stop(self) -> None:
        """Follow nobody, write nothing."""
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._writer.stop()
        self._directory_news.stop()
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._sources.clear()

    def _plan_look(self) -> None:
        self._look_at = self._reactor.seconds() + self._look_every
        self._timer = self._reactor.callLater(self._look_every, self._look)

    def _look(self) -> None:
        late = self._reactor.seconds() - self._look_at
        self._plan_look()
        if late > self._look_every / 2:
            log.warn("was stopped for {s:.1f} s; followers are given time to be heard", s=late)
            return
        for partition in list(self._replica_manager.registry):
            try:
                partition.look_at_followers()
            except Exception:
                log.failure("looking at the followers of {p} failed", p=repr(partition))

    def _log_start_moved(self, key: TopicPartition) -> None:
        fetcher = self._fetchers.get(self._sources.get(key, -1))
        if fetcher is not None:
            fetcher.ask_again(key)

    def _log_flushed(self, key: TopicPartition) -> None:
        fetcher = self._fetchers.get(self._sources.get(key, -1))
        if fetcher is not None:
            fetcher.log_flushed(key)

    def _roles_changed(self, partitions: list[Partition]) -> None:
        if self._stopped:
            return
        for partition in partitions:
            self._place(partition)
        for leader in [id for id, fetcher in self._fetchers.items() if not fetcher]:
            self._fetchers.pop(leader).close()

    def _place(self, partition: Partition) -> None:
        """Have *partition* fetched from the leader it has now, and from nobody else."""
        key = partition.key
        follower_state = partition.follower_state if partition.log is not None else None
        leader = follower_state.leader if follower_state is not None else -1
        before = self._sources.pop(key, -1)
        if before != leader and before in self._fetchers:
            self._fetchers[before].unfollow(key)
        if leader < 0 or leader == self._replica_manager.broker_id:
            return
        self._sources[key] = leader
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = ReplicaFetcher(
                self._reactor,
                leader,
                self._settings,
                address=self._address,
                broker_epoch=lambda: self._replica_manager.registration.epoch_to_join_by,
                now_ms=self._replica_manager.now_ms,
                throttle=self._replica_manager.quotas.as_follower,
                dial=self._dial,
            )
        fetcher.follow(partition)
