"""The blocking admin client: the methods of `kclient.admin.client`, which wait for the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from twisted.internet.defer import Deferred

from kclient.admin.client import AdminClient as Core
from kclient.admin.client import ClusterDescription
from kclient.admin.configs import ConfigDescription, ConfigResource
from kclient.admin.elections import ElectionType
from kclient.admin.groups import GroupDescription, GroupListing
from kclient.admin.health import Health
from kclient.admin.log_dirs import LogDirMoves, LogDirs
from kclient.admin.quotas import EVERYONE, QuotaEntity
from kclient.admin.reassignment_plan import Reassignment
from kclient.admin.topics import CreatedTopic, TopicsToCreate
from kclient.admin.transactions import (
    OpenTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from kclient.arguments import Names
from kclient.blocking.thread import check_process, reactor_thread
from kclient.errors import KafkaError
from kclient.net.leader_epochs import EpochEnd
from kclient.net.metadata import TopicMetadata
from kclient.types import (
    OffsetAndMetadata,
    OffsetAndTimestamp,
    ProducerIdAndEpoch,
    TopicPartition,
)

T = TypeVar("T")


class AdminClient:
    """Administers one cluster; see `kclient.admin.client.AdminClient`.

        with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
            admin.create_topics({"orders": {"num_partitions": 6, "replication_factor": 3}})

    Methods about several topics, groups or brokers return a dictionary of results. An error of one of them is raised,
    or with raise_errors=False is its result.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self._thread = reactor_thread()
        self._core = Core(config, reactor=self._thread.reactor, **keywords)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, call: Callable[[], Deferred[T]]) -> T:
        check_process(self._thread)
        return self._thread.run(call)

    def start(self) -> Self:
        """Connect and fetch metadata; raise `BootstrapError` with each address and its cause if that fails."""
        self._run(self._core.start)
        return self

    def close(self) -> None:
        """Close all connections."""
        self._run(self._core.close)

    def metrics(self) -> dict[str, float]:
        """Return the number of open connections, and of requests since the start."""
        return self._core.metrics()

    def describe_cluster(self) -> ClusterDescription:
        """Return the cluster id, the controller and the live brokers, from fresh metadata."""
        return self._run(self._core.describe_cluster)

    def describe_health(self, *, timeout: float | None = None) -> Health:
        """Return the cluster's problems: brokers, log directories, leaders, replicas."""
        return self._run(lambda: self._core.describe_health(timeout=timeout))

    def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        tps: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[int, LogDirs | KafkaError]:
        """Return {path: LogDir} per broker of *brokers* (None: all), with all replicas or those of *tps*."""
        return self._run(
            lambda: self._core.describe_log_dirs(
                brokers, tps, timeout=timeout, raise_errors=raise_errors
            )
        )

    def alter_replica_log_dirs(
        self, moves: LogDirMoves, *, timeout: float | None = None
    ) -> dict[int, dict[TopicPartition, KafkaError | None] | KafkaError]:
        """Move replicas between the log directories of their brokers (KIP-113): {broker: {partition: path}}.

        Return the error of each replica, or of the broker. None: the move has begun; `describe_log_dirs` shows its
        progress. A replica that does not exist yet has ReplicaNotAvailable, and begins in that directory.
        """
        return self._run(lambda: self._core.alter_replica_log_dirs(moves, timeout=timeout))

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._run(lambda: self._core.list_topics(internal=internal))

    def describe_topics(
        self,
        names: Names | None = None,
        *,
        internal: bool = False,
        raise_errors: bool = True,
    ) -> dict[str, TopicMetadata | KafkaError]:
        """Return partitions, leaders, replicas and ISR of *names*, of all topics if None."""
        return self._run(
            lambda: self._core.describe_topics(names, internal=internal, raise_errors=raise_errors)
        )

    def create_topics(
        self,
        new: TopicsToCreate,
        *,
        validate_only: bool = False,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[str, CreatedTopic | KafkaError]:
        """Create topics, given as {name: {num_partitions, replication_factor, configs}}, names or NewTopics."""
        return self._run(
            lambda: self._core.create_topics(
                new, validate_only=validate_only, timeout=timeout, raise_errors=raise_errors
            )
        )

    def delete_topics(
        self, names: Names, *, timeout: float | None = None, raise_errors: bool = True
    ) -> dict[str, KafkaError | None]:
        """Delete topics."""
        return self._run(
            lambda: self._core.delete_topics(names, timeout=timeout, raise_errors=raise_errors)
        )

    def create_partitions(
        self,
        totals: Mapping[str, int],
        *,
        assignments: Mapping[str, Iterable[Iterable[int]]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[str, KafkaError | None]:
        """Increase the partition counts of topics to the given totals.

        *assignments* are the brokers of each new partition of a topic; without them the controller chooses.
        """
        return self._run(
            lambda: self._core.create_partitions(
                totals,
                assignments=assignments,
                validate_only=validate_only,
                timeout=timeout,
                raise_errors=raise_errors,
            )
        )

    def wait_for_topics(
        self, names: Names, timeout: float | None = None
    ) -> dict[str, TopicMetadata]:
        """Wait until every partition of *names* has a leader; return the topics."""
        return self._run(lambda: self._core.wait_for_topics(names, timeout))

    def elect_leaders(
        self,
        kind: ElectionType = ElectionType.PREFERRED,
        tps: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect leaders for *tps*; None: for every partition that needs an election of this *kind*."""
        return self._run(
            lambda: self._core.elect_leaders(kind, tps, timeout=timeout, raise_errors=raise_errors)
        )

    def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Start reassignments to the given replicas; None cancels a reassignment."""
        return self._run(
            lambda: self._core.alter_partition_reassignments(
                targets, timeout=timeout, raise_errors=raise_errors
            )
        )

    def list_partition_reassignments(
        self, tps: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the active reassignments, all or those of *tps*."""
        return self._run(lambda: self._core.list_partition_reassignments(tps, timeout=timeout))

    def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Iterable[str] | None = None,
        documentation: bool = False,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[ConfigResource, ConfigDescription | KafkaError]:
        """Return {name: entry} per topic or broker."""
        return self._run(
            lambda: self._core.describe_configs(
                resources,
                names=names,
                documentation=documentation,
                timeout=timeout,
                raise_errors=raise_errors,
            )
        )

    def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[ConfigResource, KafkaError | None]:
        """Set the named configs; None resets one to its default; others do not change."""
        return self._run(
            lambda: self._core.alter_configs(
                changes, validate_only=validate_only, timeout=timeout, raise_errors=raise_errors
            )
        )

    def describe_client_quotas(
        self,
        matching: QuotaEntity = EVERYONE,
        *,
        strict: bool = False,
        timeout: float | None = None,
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return {name: limit} per entity like *matching*: all that have its parts, or with *strict* no others."""
        return self._run(
            lambda: self._core.describe_client_quotas(matching, strict=strict, timeout=timeout)
        )

    def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[QuotaEntity, KafkaError | None]:
        """Set the named limits of each entity; None removes one; others do not change (KIP-546)."""
        return self._run(
            lambda: self._core.alter_client_quotas(
                changes, validate_only=validate_only, timeout=timeout, raise_errors=raise_errors
            )
        )

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int | str],
        *,
        read_committed: bool = False,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError]:
        """Return offsets by time: ms since the epoch, "earliest", "latest" or "max_timestamp"."""
        return self._run(
            lambda: self._core.list_offsets(
                wanted, read_committed=read_committed, timeout=timeout, raise_errors=raise_errors
            )
        )

    def list_epoch_ends(
        self,
        epochs: Mapping[TopicPartition, int],
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, EpochEnd | KafkaError]:
        """Return the largest leader epoch of each log up to the given one, and its end offset."""
        return self._run(
            lambda: self._core.list_epoch_ends(epochs, timeout=timeout, raise_errors=raise_errors)
        )

    def delete_records(
        self,
        before: Mapping[TopicPartition, int],
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, int | KafkaError]:
        """Delete the records below an offset (-1: all); return the new log start offsets."""
        return self._run(
            lambda: self._core.delete_records(before, timeout=timeout, raise_errors=raise_errors)
        )

    def list_groups(
        self, *, states: Iterable[str] = (), timeout: float | None = None
    ) -> list[GroupListing]:
        """Return the groups of all brokers, by name."""
        return self._run(lambda: self._core.list_groups(states=states, timeout=timeout))

    def describe_groups(
        self, names: Names, *, timeout: float | None = None, raise_errors: bool = True
    ) -> dict[str, GroupDescription | KafkaError]:
        """Return state, protocol, coordinator and members of each group."""
        return self._run(
            lambda: self._core.describe_groups(names, timeout=timeout, raise_errors=raise_errors)
        )

    def delete_groups(
        self, names: Names, *, timeout: float | None = None, raise_errors: bool = True
    ) -> dict[str, KafkaError | None]:
        """Delete groups without members."""
        return self._run(
            lambda: self._core.delete_groups(names, timeout=timeout, raise_errors=raise_errors)
        )

    def list_group_offsets(
        self,
        group: str,
        tps: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of *group*, without partitions that have no commit."""
        return self._run(lambda: self._core.list_group_offsets(group, tps, timeout=timeout))

    def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Set the committed offsets of a group without members."""
        return self._run(
            lambda: self._core.alter_group_offsets(
                group, offsets, timeout=timeout, raise_errors=raise_errors
            )
        )

    def delete_group_offsets(
        self,
        group: str,
        tps: Iterable[TopicPartition],
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Delete committed offsets."""
        return self._run(
            lambda: self._core.delete_group_offsets(
                group, tps, timeout=timeout, raise_errors=raise_errors
            )
        )

    # --- transactions

    def describe_producers(
        self,
        tps: Iterable[TopicPartition],
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, tuple[ProducerState, ...] | KafkaError]:
        """Return the producers in the log of each partition, with the start of an open transaction (KIP-664)."""
        return self._run(
            lambda: self._core.describe_producers(tps, timeout=timeout, raise_errors=raise_errors)
        )

    def describe_transactions(
        self,
        transactional_ids: Names,
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[str, TransactionDescription | KafkaError]:
        """Return state, producer and partitions of each transactional id."""
        return self._run(
            lambda: self._core.describe_transactions(
                transactional_ids, timeout=timeout, raise_errors=raise_errors
            )
        )

    def fence_producers(
        self,
        transactional_ids: Names,
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[str, ProducerIdAndEpoch | KafkaError]:
        """Fence the producer of each transactional id, and abort its open transaction; return the new epochs."""
        return self._run(
            lambda: self._core.fence_producers(
                transactional_ids, timeout=timeout, raise_errors=raise_errors
            )
        )

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        open_for: float | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids of all coordinators; *open_for*: only those open for more seconds."""
        return self._run(
            lambda: self._core.list_transactions(
                states=states, producer_ids=producer_ids, open_for=open_for, timeout=timeout
            )
        )

    def find_hanging_transactions(
        self,
        tps: Iterable[TopicPartition],
        *,
        older_than: float = 900,
        timeout: float | None = None,
    ) -> list[OpenTransaction]:
        """Return the transactions in the logs of *tps* that no coordinator will end.

        *older_than*, in seconds, is at least the brokers' transaction.max.timeout.ms: younger transactions are ignored.
        """
        return self._run(
            lambda: self._core.find_hanging_transactions(
                tps, older_than=older_than, timeout=timeout
            )
        )

    def abort_transaction(
        self,
        tp: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        coordinator_epoch: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Append an ABORT marker to *tp*: only for a hanging transaction, which no coordinator has."""
        self._run(
            lambda: self._core.abort_transaction(
                tp,
                producer_id,
                producer_epoch,
                coordinator_epoch=coordinator_epoch,
                timeout=timeout,
            )
        )
