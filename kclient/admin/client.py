"""The admin client: its methods return Deferreds, which may be awaited.

Methods about several names take a list, or one name, and return one dictionary, name -> result. They raise the first
error among the results; with ``raise_errors=False`` an error is the result of its name. *timeout* is in seconds,
``default.api.timeout.ms`` if None.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from kclient.admin.elections import ElectionType
from kclient.admin.quotas import EVERYONE, QuotaEntity
from kclient.arguments import Names, names_in
from kclient.config import AdminConfig
from kclient.errors import ClientClosed, KafkaError, LeaderUnavailable
from kclient.lazy import LazyModule
from kclient.net.answers import error_of, raise_or_return
from kclient.net.cluster import Cluster
from kclient.net.metadata import Broker, TopicMetadata
from kclient.net.waiting import deferring
from kclient.types import (
    OffsetAndMetadata,
    OffsetAndTimestamp,
    ProducerIdAndEpoch,
    TopicPartition,
)
from kclient.wire.errors import ErrorCode

if TYPE_CHECKING:
    from kclient.admin import (
        configs,
        elections,
        groups,
        health_check,
        log_dirs,
        quotas,
        records,
        topics,
        transactions,
    )
    from kclient.admin.configs import ConfigDescription, ConfigResource
    from kclient.admin.groups import GroupDescription, GroupListing, GroupMember
    from kclient.admin.health import Health
    from kclient.admin.log_dirs import LogDirMoves, LogDirs
    from kclient.admin.reassignment_plan import Reassignment
    from kclient.admin.topics import CreatedTopic, TopicsToCreate
    from kclient.admin.transactions import (
        OpenTransaction,
        ProducerState,
        TransactionDescription,
        TransactionListing,
    )
    from kclient.net import group_offsets, leader_epochs
    from kclient.net import offsets as net_offsets
    from kclient.net.leader_epochs import EpochEnd
else:
    # Together with the messages that they import, they are a third of the start of `kclient topic list`.
    configs = LazyModule("kclient.admin.configs")
    elections = LazyModule("kclient.admin.elections")
    groups = LazyModule("kclient.admin.groups")
    health_check = LazyModule("kclient.admin.health_check")
    log_dirs = LazyModule("kclient.admin.log_dirs")
    quotas = LazyModule("kclient.admin.quotas")
    records = LazyModule("kclient.admin.records")
    topics = LazyModule("kclient.admin.topics")
    transactions = LazyModule("kclient.admin.transactions")
    group_offsets = LazyModule("kclient.net.group_offsets")
    leader_epochs = LazyModule("kclient.net.leader_epochs")
    net_offsets = LazyModule("kclient.net.offsets")


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster: its id, the controller's broker id (-1 if none) and the live brokers by id.

    cluster = admin.describe_cluster()
    print(cluster.controller_id, sorted(cluster.brokers))
    """

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, Broker]


class AdminClient:
    """Administers one cluster, on the reactor's thread; `kclient.blocking` is for programs with threads.

    admin = AdminClient({"bootstrap.servers": "localhost:9092"})
    await admin.create_topics({"payments": {"num_partitions": 6}})
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        reactor: Any = None,
        **keywords: Any,
    ) -> None:
        if reactor is None:
            from twisted.internet import reactor
        self.config = AdminConfig.load(config, **keywords)
        self.cluster = Cluster(reactor, self.config)

    async def __aenter__(self) -> Self:
        await self.cluster.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _time(self, timeout: float | None) -> float:
        return self.config.default_api_timeout_ms / 1000 if timeout is None else timeout

    @deferring
    async def start(self) -> Self:
        """Connect and fetch metadata; raise `BootstrapError` with each address and its cause if that fails."""
        if self.cluster.closed:
            raise ClientClosed("the admin client is closed")
        await self.cluster.start()
        return self

    @deferring
    async def close(self) -> None:
        """Close all connections."""
        await self.cluster.close()

    def metrics(self) -> dict[str, float]:
        """Return the number of open connections, and of requests since the start."""
        return self.cluster.brokers.metrics()

    # --- cluster and topics

    @deferring
    async def describe_cluster(self) -> ClusterDescription:
        """Return the cluster id, the controller and the live brokers, from fresh metadata."""
        metadata = await self.cluster.refresh()
        return ClusterDescription(metadata.cluster_id, metadata.controller_id, metadata.brokers)

    @deferring
    async def describe_health(self, *, timeout: float | None = None) -> Health:
        """Return the cluster's problems: brokers, log directories, leaders, replicas."""
        return await health_check.describe_health(self.cluster, timeout=self._time(timeout))

    @deferring
    async def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        tps: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[int, LogDirs | KafkaError]:
        """Return {path: LogDir} per broker of *brokers* (None: all), with all replicas or those of *tps*."""
        if brokers is None:
            brokers = sorted((await self.cluster.refresh()).brokers)
        answers = await log_dirs.describe_log_dirs(
            self.cluster, brokers, tps=tps, timeout=self._time(timeout)
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def alter_replica_log_dirs(
        self, moves: LogDirMoves, *, timeout: float | None = None
    ) -> dict[int, dict[TopicPartition, KafkaError | None] | KafkaError]:
        """Move replicas between the log directories of their brokers (KIP-113): {broker: {partition: path}}.

        Return the error of each replica, or of the broker. None: the move has begun; `describe_log_dirs` shows its
        progress. A replica that does not exist yet has ReplicaNotAvailable, and begins in that directory.
        """
        return await log_dirs.alter_replica_log_dirs(
            self.cluster, moves, timeout=self._time(timeout)
        )

    @deferring
    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(await self._all_topics(internal))

    @deferring
    async def describe_topics(
        self,
        names: Names | None = None,
        *,
        internal: bool = False,
        raise_errors: bool = True,
    ) -> dict[str, TopicMetadata | KafkaError]:
        """Return partitions, leaders, replicas and ISR of *names*, of all topics if None."""
        if names is None:
            return dict((await self._all_topics(internal)).items())
        wanted = names_in(names, 'describe_topics(["orders"])')
        self.cluster.want_only(wanted)
        metadata = await self.cluster.refresh()
        answers: dict[str, TopicMetadata | KafkaError] = {}
        for name in wanted:
            found = metadata.topics.get(name)
            if found is None or (found.error_code and not found.partitions):
                code = found.error_code if found else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answers[name] = error_of(code, f"topic {name!r}")
            else:
                answers[name] = found
        return raise_or_return(answers, raise_errors)

    @deferring
    async def create_topics(
        self,
        new: TopicsToCreate,
        *,
        validate_only: bool = False,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[str, CreatedTopic | KafkaError]:
        """Create topics, given as {name: {num_partitions, replication_factor, configs}}, names or NewTopics."""
        answers = await topics.create_topics(
            self.cluster, new, validate_only=validate_only, timeout=self._time(timeout)
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def delete_topics(
        self, names: Names, *, timeout: float | None = None, raise_errors: bool = True
    ) -> dict[str, KafkaError | None]:
        """Delete topics."""
        wanted = names_in(names, 'delete_topics(["orders"])')
        answers = await topics.delete_topics(self.cluster, wanted, timeout=self._time(timeout))
        return raise_or_return(answers, raise_errors)

    @deferring
    async def create_partitions(
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
        answers = await topics.create_partitions(
            self.cluster,
            totals,
            assignments,
            validate_only=validate_only,
            timeout=self._time(timeout),
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def wait_for_topics(
        self, names: Names, timeout: float | None = None
    ) -> dict[str, TopicMetadata]:
        """Wait until every partition of *names* has a leader; return the topics."""
        wanted = names_in(names, 'wait_for_topics(["orders"])')
        self.cluster.want_only(wanted)

        async def attempt() -> dict[str, TopicMetadata]:
            metadata = await self.cluster.refresh()
            for name in wanted:
                found = metadata.topics.get(name)
                if found is None or found.error_code:
                    code = found.error_code if found else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    raise error_of(code, f"topic {name!r}")
                if not found.partitions or any(p.leader < 0 for p in found.partitions.values()):
                    raise LeaderUnavailable(f"topic {name!r} has partitions without a leader")
            return {name: metadata.topics[name] for name in wanted}

        return await self.cluster.retrying(
            attempt, timeout=self._time(timeout), what=f"waiting for {', '.join(wanted)}"
        )

    async def _all_topics(self, internal: bool) -> dict[str, TopicMetadata]:
        self.cluster.want_all()
        found = (await self.cluster.refresh()).topics
        return {name: t for name, t in found.items() if internal or not t.is_internal}

    # --- leaders and replicas

    @deferring
    async def elect_leaders(
        self,
        kind: ElectionType = ElectionType.PREFERRED,
        tps: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect leaders for *tps*; None: for every partition that needs an election of this *kind*."""
        answers = await elections.elect_leaders(
            self.cluster, kind, tps, timeout=self._time(timeout)
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Start reassignments to the given replicas; None cancels a reassignment."""
        answers = await elections.alter_reassignments(
            self.cluster, targets, timeout=self._time(timeout)
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def list_partition_reassignments(
        self, tps: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the active reassignments, all or those of *tps*."""
        return await elections.list_reassignments(self.cluster, tps, timeout=self._time(timeout))

    # --- configs

    @deferring
    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Iterable[str] | None = None,
        documentation: bool = False,
        synonyms: bool = False,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[ConfigResource, ConfigDescription | KafkaError]:
        """Return {name: entry} per topic or broker; with the documentation and the synonyms of each if wanted."""
        answers = await configs.describe_configs(
            self.cluster,
            resources,
            names=names,
            documentation=documentation,
            synonyms=synonyms,
            timeout=self._time(timeout),
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, str | float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[ConfigResource, KafkaError | None]:
        """Set the named configs; None resets one to its default; others do not change."""
        answers = await configs.alter_configs(
            self.cluster, changes, validate_only=validate_only, timeout=self._time(timeout)
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def describe_client_quotas(
        self,
        matching: QuotaEntity = EVERYONE,
        *,
        strict: bool = False,
        timeout: float | None = None,
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return {name: limit} per entity like *matching*: all that have its parts, or with *strict* no others."""
        return await quotas.describe_client_quotas(
            self.cluster, matching, strict=strict, timeout=self._time(timeout)
        )

    @deferring
    async def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[QuotaEntity, KafkaError | None]:
        """Set the named limits of each entity; None removes one; others do not change (KIP-546)."""
        answers = await quotas.alter_client_quotas(
            self.cluster, changes, validate_only=validate_only, timeout=self._time(timeout)
        )
        return raise_or_return(answers, raise_errors)

    # --- offsets and records

    @deferring
    async def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int | str],
        *,
        read_committed: bool = False,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError]:
        """Return offsets by time: ms since the epoch, "earliest", "latest" or "max_timestamp"."""
        named = net_offsets.NAMED_TIMES
        for at in wanted.values():
            if isinstance(at, str) and at not in named:
                raise ValueError(f"list_offsets: {at!r} is none of {', '.join(named)}")
        timestamps = {tp: named[at] if isinstance(at, str) else at for tp, at in wanted.items()}
        answers = await net_offsets.list_offsets(
            self.cluster, timestamps, read_committed=read_committed, timeout=self._time(timeout)
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def list_epoch_ends(
        self,
        epochs: Mapping[TopicPartition, int],
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, EpochEnd | KafkaError]:
        """Return the largest leader epoch of each log up to the given one, and its end offset."""
        answers = await leader_epochs.epoch_ends(self.cluster, epochs, timeout=self._time(timeout))
        return raise_or_return(answers, raise_errors)

    @deferring
    async def delete_records(
        self,
        before: Mapping[TopicPartition, int],
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, int | KafkaError]:
        """Delete the records below an offset (-1: all); return the new log start offsets."""
        answers = await records.delete_records(self.cluster, before, timeout=self._time(timeout))
        return raise_or_return(answers, raise_errors)

    # --- groups

    @deferring
    async def list_groups(
        self, *, states: Iterable[str] = (), timeout: float | None = None
    ) -> list[GroupListing]:
        """Return the groups of all brokers, by name."""
        return await groups.list_groups(self.cluster, states=states, timeout=self._time(timeout))

    @deferring
    async def describe_groups(
        self, names: Names, *, timeout: float | None = None, raise_errors: bool = True
    ) -> dict[str, GroupDescription | KafkaError]:
        """Return state, protocol, coordinator and members of each group."""
        wanted = names_in(names, 'describe_groups(["g"])')
        answers = await groups.describe_groups(self.cluster, wanted, timeout=self._time(timeout))
        return raise_or_return(answers, raise_errors)

    @deferring
    async def delete_groups(
        self, names: Names, *, timeout: float | None = None, raise_errors: bool = True
    ) -> dict[str, KafkaError | None]:
        """Delete groups without members."""
        wanted = names_in(names, 'delete_groups(["g"])')
        answers = await groups.delete_groups(self.cluster, wanted, timeout=self._time(timeout))
        return raise_or_return(answers, raise_errors)

    @deferring
    async def remove_group_members(
        self,
        group: str,
        members: str | Iterable[str | GroupMember] | None = None,
        *,
        reason: str = "",
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[str, KafkaError | None]:
        """Remove members from *group*, which rebalances; None: all of them.

        *members* are group instance ids, or members as `describe_groups` returns them. Those that are still alive join
        again. The answers are by group instance id, or by member id where there is none; UNKNOWN_MEMBER_ID for one that
        is no member. The coordinator logs *reason* (KIP-800).

        admin.remove_group_members("billing", ["billing-7"], reason="its host is gone")
        """
        answers = await groups.remove_group_members(
            self.cluster,
            group,
            [members] if isinstance(members, str) else members,
            reason=reason,
            timeout=self._time(timeout),
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def list_group_offsets(
        self,
        group: str,
        tps: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of *group*, without partitions that have no commit."""
        return await group_offsets.committed_offsets(
            self.cluster, group, tps, timeout=self._time(timeout)
        )

    @deferring
    async def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Set the committed offsets of a group without members."""
        answers = await group_offsets.commit_offsets(
            self.cluster, group, offsets, group_offsets.Generation(), timeout=self._time(timeout)
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def delete_group_offsets(
        self,
        group: str,
        tps: Iterable[TopicPartition],
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Delete committed offsets."""
        answers = await groups.delete_group_offsets(
            self.cluster, group, tps, timeout=self._time(timeout)
        )
        return raise_or_return(answers, raise_errors)

    # --- transactions

    @deferring
    async def describe_producers(
        self,
        tps: Iterable[TopicPartition],
        *,
        broker: int | None = None,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, tuple[ProducerState, ...] | KafkaError]:
        """Return the producers in the log of each partition, with the start of an open transaction (KIP-664).

        The log is that of the leader, or the replica of *broker*.
        """
        answers = await transactions.describe_producers(
            self.cluster, tps, broker=broker, timeout=self._time(timeout)
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def describe_transactions(
        self,
        transactional_ids: Names,
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[str, TransactionDescription | KafkaError]:
        """Return state, producer and partitions of each transactional id."""
        wanted = names_in(transactional_ids, 'describe_transactions(["id"])')
        answers = await transactions.describe_transactions(
            self.cluster, wanted, timeout=self._time(timeout)
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def fence_producers(
        self,
        transactional_ids: Names,
        *,
        timeout: float | None = None,
        raise_errors: bool = True,
    ) -> dict[str, ProducerIdAndEpoch | KafkaError]:
        """Fence the producer of each transactional id, and abort its open transaction; return the new epochs."""
        wanted = names_in(transactional_ids, 'fence_producers(["id"])')
        answers = await transactions.fence_producers(
            self.cluster, wanted, timeout=self._time(timeout)
        )
        return raise_or_return(answers, raise_errors)

    @deferring
    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        open_for: float | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids of all coordinators; *open_for*: only those open for more seconds."""
        return await transactions.list_transactions(
            self.cluster,
            states=states,
            producer_ids=producer_ids,
            open_for_ms=None if open_for is None else round(open_for * 1000),
            timeout=self._time(timeout),
        )

    @deferring
    async def find_hanging_transactions(
        self,
        tps: Iterable[TopicPartition],
        *,
        older_than: float = 900,
        broker: int | None = None,
        timeout: float | None = None,
    ) -> list[OpenTransaction]:
        """Return the transactions in the logs of *tps* that no coordinator will end.

        *older_than*, in seconds, is at least the brokers' transaction.max.timeout.ms: younger transactions are ignored.
        The logs are those of the leaders, or the replicas of *broker*.
        """
        return await transactions.find_hanging_transactions(
            self.cluster,
            tps,
            older_than_ms=round(older_than * 1000),
            now_ms=int(time.time() * 1000),
            broker=broker,
            timeout=self._time(timeout),
        )

    @deferring
    async def abort_transaction(
        self,
        tp: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        coordinator_epoch: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Append an ABORT marker to *tp*: only for a hanging transaction, which no coordinator has."""
        await transactions.abort_transaction(
            self.cluster,
            tp,
            ProducerIdAndEpoch(producer_id, producer_epoch),
            coordinator_epoch=coordinator_epoch,
            timeout=self._time(timeout),
        )
