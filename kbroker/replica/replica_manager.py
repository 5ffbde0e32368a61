"""ReplicaManager: the partitions of this broker, their logs, and what happens to all of them at once.

Theory of operation
===================
The composition root gives every dependency, and none is replaced later. The replica manager adds what belongs to it:

| part | what it does |
| --- | --- |
| `registry` | finds a `Partition` |
| `role_changes` | announces role changes to fetchers, waiting requests and the coordinators |
| `state_changes` | applies LeaderAndIsr and StopReplica of the controller to roles and logs |
| `purgatory` | delays requests until a high watermark, a log end or a fetch session changes |
| `fetch_sessions` | the incremental fetch sessions (KIP-227) |
| `log_schedule`, `isr_expiration` | timers: retention, compaction, flushes, checkpoints; followers that lag |
| `followers` | which followers' brokers are alive |

Events that concern every partition enter here: a registration, the end of a session, new settings, a failed log
directory. A failed log directory takes its partitions offline (KAFKA_STORAGE_ERROR) until the broker restarts. When the
last one fails, *fatal* is called (S15).

Owner: the reactor's thread. Loading and closing the logs run in the disk pool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.topic_partition import TopicPartition
from kbroker.config import KafkaConfig, LogConfig
from kbroker.log.log_manager import LogManager
from kbroker.log.log_moves import OnMove
from kbroker.metadata.epoch_fences import ControllerFence, Registration
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.replica.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from kbroker.replica.become_leader_or_follower import ReplicaStateChanges
from kbroker.replica.core.fetch_session import FetchSessionCache
from kbroker.replica.core.remote_replicas import FollowerLiveness
from kbroker.replica.core.replication_quota import ReplicationQuotas
from kbroker.replica.isr_expiration import IsrExpiration
from kbroker.replica.log_schedule import LogSchedule
from kbroker.replica.partition import Partition
from kbroker.replica.partition_dependencies import AlterPartition, Fetchers, PartitionDependencies
from kbroker.replica.partition_registry import PartitionRegistry
from kbroker.replica.preferred_read_replica import ReplicaSelector
from kbroker.replica.purgatory import DelayedOperationPurgatory
from kbroker.replica.role_changes import LeadershipListener, RoleChanges
from kclient.wire.errors import (
    CorruptMessage,
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)

log = Logger()

T = TypeVar("T")

MAX_FETCH_SESSION_ID = 0x7FFFFFFF

COPY_AGAIN = (
    ". To have the replica copied from the leader, stop the broker and move the partition's directory out of the log "
    "directory"
)
"""What to do about a damaged log."""


class LogDirFailures(Protocol):
    """Reports failed log directories to the controller (`LogDirFailureChannel`)."""

    def report(self) -> None:
        """Report that a log directory failed while others are left."""

    def stop(self) -> None:
        """Report nothing more."""


class NewLogManager(Protocol):
    """Makes the log manager, which reports to the replica manager."""

    def __call__(
        self,
        *,
        on_failure: Callable[[str, Exception, list[TopicPartition]], None],
        on_flush: Callable[[TopicPartition], None],
        on_move: OnMove,
    ) -> LogManager:
        """Return a log manager with these listeners."""


class ReplicaManager:
    """All partitions of this broker, which it hosts in *registry*.

    *new_log_manager* makes its log manager; *topic_config* gives a topic's settings; *fatal* is called with a cause
    when no log directory is left. *leadership_listeners* receive the partitions that this broker begins or ceases to
    lead.
    """

    def __init__(
        self,
        reactor: Any,
        config: KafkaConfig,
        *,
        broker_id: int,
        registry: PartitionRegistry,
        followers: FollowerLiveness,
        leadership_listeners: Collection[LeadershipListener],
        registration: Registration,
        controller_fence: ControllerFence,
        metadata: MetadataCache,
        new_log_manager: NewLogManager,
        disk_pool: Executor,
        quotas: ReplicationQuotas,
        alter_partition: AlterPartition,
        fetchers: Fetchers,
        log_dir_failures: LogDirFailures,
        replica_selector: ReplicaSelector | None,
        random_below: Callable[[int], int],
        topic_config: Callable[[str], LogConfig],
        now_ms: Callable[[], int],
        fatal: Callable[[str], None],
        add_partitions_to_txn_manager: AddPartitionsToTxnManager | None,
    ) -> None:
        self.reactor = reactor
        self.broker_id = broker_id
        self.registration = registration
        self.log_manager = log_manager = new_log_manager(
            on_failure=self.log_dir_failed, on_flush=self.log_flushed, on_move=self.log_moved
        )
        self.quotas = quotas
        self.now_ms = now_ms
        """The wall clock in ms: timestamps of records."""
        self.add_partitions_to_txn_manager = add_partitions_to_txn_manager
        """Asks the coordinators of transactions; None: transactional batches are refused."""
        self._metadata = metadata
        self._disk_pool = disk_pool
        self._alter_partition = alter_partition
        self._fetchers = fetchers
        self._log_dir_failures = log_dir_failures
        self._topic_config = topic_config
        self._fatal = fatal
        lag_time_max = config.replica_lag_time_max_ms / 1000
        self.followers = followers
        self.purgatory = DelayedOperationPurgatory(reactor)
        self.replica_selector = replica_selector
        """Selects the replica that a consumer reads from (replica.selector.class); None: the leader."""
        self.fetch_sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots,
            lambda: random_below(MAX_FETCH_SESSION_ID) + 1,
            self.purgatory.expire,
            notifies_followers_of_high_watermark=replica_selector is not None,
        )
        self._dependencies = PartitionDependencies(
            now=reactor.seconds,
            now_ms=now_ms,
            lag_time_max=lag_time_max,
            registration=registration,
            followers=self.followers,
            may_join_isr=metadata.may_join_isr,
            alter_partition=alter_partition,
            fetchers=fetchers,
            high_watermark_advanced=self._high_watermark_advanced,
            log_end_advanced=self._log_end_advanced,
            add_partitions_to_txn_manager=add_partitions_to_txn_manager,
        )
        self.registry = registry
        self.role_changes = RoleChanges(
            fetchers.roles_changed, self._role_changed, leadership_listeners
        )
        self.state_changes = ReplicaStateChanges(
            reactor,
            self.registry,
            self.role_changes,
            log_manager,
            registration,
            controller_fence,
            new_partition=self._new_partition,
            isr_settled=alter_partition.settled,
            registered=self.registered,
        )
        self.log_schedule = LogSchedule(
            reactor,
            config,
            log_manager,
            self.high_watermark,
            self._log_start_advanced,
            self._mark_of_movable,
        )
        self._isr_expiration = IsrExpiration(reactor, self.registry, lag_time_max)

    def _high_watermark_advanced(self, key: TopicPartition) -> None:
        purgatory = self.purgatory
        purgatory.high_watermarks.notify(key)
        for session in self.fetch_sessions.high_watermark_advanced(key):
            purgatory.sessions.notify(session)

    def _log_end_advanced(self, key: TopicPartition) -> None:
        purgatory = self.purgatory
        purgatory.log_ends.notify(key)
        for session in self.fetch_sessions.log_end_advanced(key):
            purgatory.sessions.notify(session)

    def _role_changed(self, key: TopicPartition) -> None:
        self._high_watermark_advanced(key)
        self._log_end_advanced(key)

    def _new_partition(self, key: TopicPartition) -> Partition:
        return Partition(key, self.broker_id, self._dependencies)

    # -- start and stop ------------------------------------------------------------------------

    def load(self) -> Deferred[None]:
        """Open and recover every log of the claimed directories, in the disk pool; then start the log schedule.

        Fails with KafkaStorageError when no directory is usable.
        """
        loading: Deferred[None] = self.in_pool(self.log_manager.load)
        return loading.addCallback(lambda _: self._loaded())

    def _loaded(self) -> None:
        for note in self.log_manager.notes:
            log.info("{note}", note=note)
        for (topic, number), error in sorted(self.log_manager.failed.items()):
            log.error(
                "{topic}-{number} is offline on this broker: {why}{remedy}",
                topic=topic,
                number=number,
                why=error.message,
                remedy=COPY_AGAIN if isinstance(error, CorruptMessage) else "",
            )
        log.info("{integrity}", integrity=str(self.log_manager.histories.integrity))
        self.log_schedule.start()

    def start_replication(self) -> None:
        """Start the timer that shrinks ISRs; fetchers start with their first partition."""
        self._isr_expiration.start()

    def stop_replication(self) -> None:
        """Stop fetching, writing ISRs and reporting failed log directories."""
        self._isr_expiration.stop()
        self._alter_partition.stop()
        self._log_dir_failures.stop()
        self._fetchers.stop()

    def close(self) -> Deferred[bool]:
        """Close every log cleanly, in a thread of the reactor's; fires with whether all was clean."""
        self.state_changes.close()
        self.log_schedule.stop()
        self.log_manager.stop_compaction()
        self.log_manager.stop_flushing()
        self.log_manager.moves.stop()
        high_watermarks = self.log_schedule.high_watermarks()
        self.registry.clear()

        def end_work() -> None:
            self._disk_pool.shutdown(wait=True)
            self.log_manager.end_work()

        def close(ended: Failure | None) -> Deferred[bool]:
            # The outcome of each work that was under way has been handled: it came before this turn.
            closing = self._in_threads(
                lambda: self.log_manager.close(
                    broker_epoch=self.registration.broker_epoch, high_watermarks=high_watermarks
                )
            )
            if ended is not None:
                closing.addCallback(lambda _: ended)
            return closing

        return self._in_threads(end_work).addBoth(close)

    def _in_threads(self, work: Callable[[], T]) -> Deferred[T]:
        """Run *work* in a thread of the reactor's; fires with its result."""
        done: Deferred[T] = deferToThreadPool(self.reactor, self.reactor.getThreadPool(), work)
        return done

    def in_pool(self, work: Callable[[], T]) -> Deferred[T]:
        """Run *work* in the disk pool; fires with its result."""
        done: Deferred[T] = Deferred()
        future = self._disk_pool.submit(work)

        def came_back() -> None:
            error = future.exception()
            if error is None:
                done.callback(future.result())
            else:
                done.errback(error)

        future.add_done_callback(lambda _: self.reactor.callFromThread(came_back))
        return done

    def high_watermark(self, key: TopicPartition) -> int | None:
        """Return a hosted partition's high watermark, as far as known here; None if it is not hosted."""
        partition = self.registry.partitions.get(key)
        return partition.high_watermark if partition is not None else None

    def _log_start_advanced(self, key: TopicPartition) -> None:
        partition = self.registry.partitions.get(key)
        if partition is not None:
            partition.log_start_advanced()

    def log_flushed(self, key: TopicPartition) -> None:
        """Handle the end of a sync of a log."""
        partition = self.registry.partitions.get(key)
        if partition is not None:
            partition.log_flushed()

    # -- moves to other log directories (KIP-113) ----------------------------------------------

    def alter_replica_log_dir(self, topic: str, partition: int, path: str) -> None:
        """Begin to move a replica to the log directory at *path*; a replica that has no log yet begins there.

        Raise NotLeaderOrFollower or UnknownTopicOrPartition where it has no log, KafkaStorageError, LogDirNotFound,
        InvalidTopicException.
        """
        hosted = self.registry.partitions.get((topic, partition))
        if hosted is not None and hosted.offline is not None:
            raise KafkaStorageError(f"{hosted} is offline: {hosted.offline}")
        self.log_manager.prefer(topic, partition, path)
        hosted = self.partition(topic, partition)
        if hosted.log is None:
            raise NotLeaderOrFollower(f"{hosted} has no log here")
        self.log_manager.move(topic, partition, path)

    def _mark_of_movable(self, key: TopicPartition) -> int | None:
        """Return the high watermark of a partition with a role and a log; None while its log is not to be moved."""
        partition = self.registry.partitions.get(key)
        if partition is None or partition.log is None or partition.log.topic_id is None:
            return None
        return partition.high_watermark if partition.topic_id == partition.log.topic_id else None

    def log_moved(self, key: TopicPartition, path: str, error: Exception | None) -> None:
        """Handle the end of a move: the log is in the directory at *path* now, or was not moved there by *error*."""
        topic, number = key
        if error is not None:
            log.error("{topic}-{number} is not moved to {path}: {error}",
                      topic=topic, number=number, path=path, error=error)  # fmt: skip
            return
        log.info("{topic}-{number} is in {path} now", topic=topic, number=number, path=path)
        partition = self.registry.partitions.get(key)
        if partition is not None and partition.log is not None:
            partition.log = self.log_manager.get(*key)
            partition.log_flushed()  # what the copy has on the disk may be more

    # -- look-ups ------------------------------------------------------------------------------

    def partition(self, topic: str, partition: int) -> Partition:
        """Return a hosted partition.

        Raise NotLeaderOrFollower where another broker has it, UnknownTopicOrPartition where no broker has it.
        """
        found = self.registry.partitions.get((topic, partition))
        if found is not None:
            return found
        if (topic, partition) in self.log_manager.failed:
            raise KafkaStorageError(f"{topic}-{partition} is in a log directory that failed")
        if self._metadata.partition(topic, partition) is not None:
            raise NotLeaderOrFollower(f"{topic}-{partition} has no replica on this broker")
        raise UnknownTopicOrPartition(f"{topic}-{partition}")

    # -- our registration ----------------------------------------------------------------------

    def registered(self, broker_epoch: int) -> None:
        """Record our registration. After another one every role waits for confirmation by the controller.

        The controller may have given our partitions to other brokers, and deleted topics, without a request to this
        broker. A role that it does not confirm before its full UpdateMetadata is stopped.
        """
        if self.registration.registered(broker_epoch):
            self.registry.unconfirmed = dict.fromkeys(self.registry.partitions)

    def cut_off(self) -> None:
        """Handle the possible end of our session, which ZooKeeper cannot report now (S11).

        From now on a partition is led only where no other broker can have been elected. That ends when this broker
        registers: in the same session, which had not ended, or in another one.
        """
        self.registration.is_cut_off = True
        led = [partition for partition in self.registry if partition.leader_state is not None]
        log.warn(
            "cut off from ZooKeeper for too long: of {count} partitions that this broker leads, it serves only those "
            "with in-sync replicas that all follow it",
            count=len(led),
        )
        for partition in led:
            self._high_watermark_advanced(partition.key)

    def expired(self) -> None:
        """Lead nothing any more: the session is over, and other brokers were elected, or will be.

        Only requests for the next registration are applied from now on.
        """
        self.registration.is_expired = True
        self.registration.is_cut_off = False
        changed = []
        for partition in self.registry:
            if partition.leader_state is not None:
                partition.stop()
                changed.append((partition, True))
        if changed:
            log.warn("gave up {count} partitions: the session has expired", count=len(changed))
        self.role_changes.announce(changed)

    def follower_left(self, follower: int, keys: Iterable[TopicPartition | None]) -> None:
        """Handle broker *follower* dropping these partitions from its fetches."""
        for key in keys:
            partition = self.registry.partitions.get(key) if key is not None else None
            if partition is not None and partition.leader_state is not None:
                partition.leader_state.follower_left(follower)

    # -- settings and failures -----------------------------------------------------------------

    def reconfigure(self, topics: Collection[str]) -> None:
        """Apply the changed settings of *topics* to their logs, in one pass over all logs."""
        configs = {topic: self._topic_config(topic) for topic in topics}
        promoted: set[TopicPartition] = set()
        for key in list(self.log_manager):
            config, found = configs.get(key[0]), self.log_manager.get(*key)
            if config is not None and found is not None:
                if found.config.kbroker_mirror_source_cluster_id and config.is_promoted_mirror:
                    promoted.add(key)
                found.config = config
        for key, partition in self.registry.partitions.items():
            config = configs.get(key[0])
            if config is not None and partition.leader_state is not None:
                required = min(config.min_insync_replicas, len(partition.role.replicas))
                partition.perform(partition.leader_state.set_min_insync_replicas(required))
                partition.abort_copied_transactions(is_promoted_now=key in promoted)

    def throttle(self, config: KafkaConfig) -> None:
        """Apply the broker's replication rates, and that of moves between log directories."""
        self.log_manager.moves.limit(config.replica_alter_log_dirs_io_max_bytes_per_second)
        self.quotas.limit(
            leader=config.leader_replication_throttled_rate,
            follower=config.follower_replication_throttled_rate,
        )

    def log_dir_failed(self, path: str, error: Exception, lost: list[TopicPartition]) -> None:
        """Take the partitions in a failed log directory offline (S15)."""
        log.error(
            "log directory {path} failed and is offline with {count} partitions: {error}",
            path=path, count=len(lost), error=error,
        )  # fmt: skip
        changed = []
        for key in lost:
            partition = self.registry.partitions.get(key)
            if partition is not None:
                changed.append((partition, partition.leader_state is not None))
                partition.go_offline(f"log directory {path}: {error}")
        self.role_changes.announce(changed)
        if not self.log_manager.online:
            self._fatal(f"the last log directory failed: {path}: {error}")
        else:
            self._log_dir_failures.report()
