"""Stage 3 of a broker: all of its parts are made, and its logs are loaded. No client can reach it yet.

`bootstrap` makes the parts in the order in which they need each other. The coordinators need the partitions that this
broker hosts, and the replica manager gives them each change of leadership. So the registry of partitions is made before
both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from twisted.logger import Logger

from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
from kbroker.app.configured import CannotContinueError
from kbroker.app.identified import IdentifiedBroker
from kbroker.app.undo import Undo
from kbroker.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.config import KafkaConfig
from kbroker.controller.controller import KafkaController
from kbroker.controller.settings import ControllerSettings
from kbroker.coordinator.group.core.limits import GroupLimits
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.offset_expiry import OffsetExpiry
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.transaction.producer_id_manager import ProducerIdManager, first_producer_id
from kbroker.coordinator.transaction.stored_transactions import stored_transactions
from kbroker.coordinator.transaction.transaction_coordinator import (
    TransactionCoordinator,
    TransactionLimits,
)
from kbroker.log.log_cleaner import Compaction
from kbroker.log.log_manager import LogManager
from kbroker.metadata.admin_manager import AdminManager, random_topic_id
from kbroker.metadata.config_admin_manager import ConfigAdminManager
from kbroker.metadata.dynamic_config_manager import DynamicConfigManager
from kbroker.metadata.epoch_fences import ControllerFence, Registration
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.metadata.registered_addresses import RegisteredAddresses
from kbroker.network.broker_connections import BrokerConnections
from kbroker.network.broker_dial import BrokerDial
from kbroker.quota.client_quota_admin import ClientQuotaAdmin
from kbroker.quota.client_quota_config import ClientQuotaConfig
from kbroker.quota.client_quota_manager import ClientQuotaManager
from kbroker.replica.add_partitions_to_txn_manager import (
    AddPartitionsToTxnManager,
    coordinator_lookup,
)
from kbroker.replica.alter_partition_manager import AlterPartitionManager
from kbroker.replica.compaction_log_lines import CompactionLogLines
from kbroker.replica.core.remote_replicas import FollowerLiveness
from kbroker.replica.core.replication_quota import ReplicationQuotas
from kbroker.replica.hanging_transactions import HangingTransactions
from kbroker.replica.leadership_evidence import LeadershipEvidence, follower_liveness
from kbroker.replica.log_dir_failure_channel import LogDirFailureChannel
from kbroker.replica.partition_registry import PartitionRegistry
from kbroker.replica.preferred_read_replica import replica_selector
from kbroker.replica.replica_fetcher_manager import ReplicaFetcherManager
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.replica.role_changes import LeadershipListener
from kbroker.security.core.broker_proof import BrokerProofs
from kbroker.security.inter_broker_secret import InterBrokerSecret
from kbroker.zk.interface import Expired, Lapsed, SessionEvent
from kclient.errors import Address
from kclient.net.dial import resolve

log = Logger(namespace="kbroker.broker")

MAX_CLEANER_THREADS = 64
"""Threads that wait for cleaner processes and write what they send. A thread starts when a round needs it."""


@dataclass(frozen=True, slots=True)
class BootstrappedBroker:
    """The parts of a broker."""

    identified: IdentifiedBroker
    authorizer: InterBrokerAuthorizer
    dynamic_config: DynamicConfigManager
    config_admin_manager: ConfigAdminManager
    client_quotas: ClientQuotaManager
    quota_admin: ClientQuotaAdmin
    metadata: MetadataCache
    admin_manager: AdminManager
    shutdown_connections: BrokerConnections
    """Not those of the controller. Requests on a connection are handled one after the other, and the controller's own
    broker must become a follower while its ControlledShutdown is processed."""
    controller: KafkaController
    log_manager: LogManager
    replica_manager: ReplicaManager
    groups: GroupCoordinator
    producer_ids: ProducerIdManager
    transactions: TransactionCoordinator


async def bootstrap(broker: IdentifiedBroker, undo: Undo) -> BootstrappedBroker:
    """Make all parts, read what they need from ZooKeeper, and load the logs."""
    configured, zookeeper, reconnect = broker.configured, broker.zookeeper, broker.reconnect
    reactor, config, world = configured.reactor, configured.config, configured.world
    new_topic_id = partial(random_topic_id, world.new_uuid)
    dynamic_config = DynamicConfigManager(
        zookeeper, reconnect, config, broker_id=broker.broker_id, now_ms=world.now_ms
    )
    await dynamic_config.start()
    undo.add(dynamic_config.stop)
    dial, authorizer = await _authenticate_brokers(broker, undo)
    fence = ControllerFence()
    metadata = MetadataCache(broker.cluster_id, fence)

    def broker_connections() -> BrokerConnections:
        connections = BrokerConnections(
            broker_id=broker.broker_id,
            request_timeout=config.controller_socket_timeout_ms / 1000,
            dial=dial,
        )
        undo.add(connections.close)
        return connections

    registry, followers = PartitionRegistry(), follower_liveness(config)
    leadership = LeadershipEvidence(registry, followers, reactor.seconds)
    groups = _coordinate_groups(broker, leadership)
    producer_ids = ProducerIdManager(
        zookeeper, broker.broker_id, first=first_producer_id(broker.cluster_id)
    )
    transactions = _coordinate_transactions(
        broker, leadership, metadata, producer_ids, broker_connections()
    )
    replica_manager = _make_replica_manager(
        broker,
        registry,
        followers,
        (groups.on_leadership, transactions.on_leadership),
        dynamic_config,
        metadata,
        fence,
        dial,
        _add_partitions_to_txn_manager(broker, dynamic_config, metadata, dial, undo),
        undo,
    )
    _expire_offsets(broker, groups, metadata, undo)
    stored = partial(stored_transactions, reactor, zookeeper)
    hanging = HangingTransactions(reactor, registry, stored)
    hanging.start()
    undo.add(hanging.stop)
    bootstrapped = BootstrappedBroker(
        identified=broker,
        authorizer=authorizer,
        dynamic_config=dynamic_config,
        config_admin_manager=ConfigAdminManager(
            zookeeper,
            reconnect,
            lambda: dynamic_config.broker_config,
            lambda: dynamic_config.layers,
        ),
        client_quotas=await _client_quotas(broker, dynamic_config),
        quota_admin=ClientQuotaAdmin(zookeeper, reconnect),
        metadata=metadata,
        admin_manager=AdminManager(
            reactor,
            zookeeper,
            reconnect,
            metadata,
            lambda: dynamic_config.broker_config,
            new_topic_id=new_topic_id,
            random_below=world.random_below,
        ),
        shutdown_connections=broker_connections(),
        controller=KafkaController(
            reactor,
            zookeeper,
            _controller_settings(broker.broker_id, config, dynamic_config),
            broker_connections(),
            now_ms=world.now_ms,
            new_topic_id=new_topic_id,
            reconnect=reconnect,
        ),
        log_manager=replica_manager.log_manager,
        replica_manager=replica_manager,
        groups=groups,
        producer_ids=producer_ids,
        transactions=transactions,
    )
    await dynamic_config.load_all_topics()
    await replica_manager.load()
    undo.add_last(partial(_close_logs, replica_manager))
    return bootstrapped


async def _client_quotas(
    broker: IdentifiedBroker, dynamic_config: DynamicConfigManager
) -> ClientQuotaManager:
    """Read the client quotas, and keep them up to date."""
    configured = broker.configured
    manager = ClientQuotaManager(configured.config, configured.reactor.seconds, perf_counter)
    quota_config = ClientQuotaConfig(broker.zookeeper, broker.reconnect, manager)
    dynamic_config.on_quota_change(quota_config.changed)
    await quota_config.start()
    return manager


async def _close_logs(replica_manager: ReplicaManager) -> None:
    if not await replica_manager.close():
        log.warn("not every log was closed cleanly; the next start will recover them")


# -- authentication between brokers -----------------------------------------------------------------------


async def _authenticate_brokers(
    broker: IdentifiedBroker, undo: Undo
) -> tuple[BrokerDial, InterBrokerAuthorizer]:
    """Read the secret that broker proofs are made with (docs/design/inter-broker-trust.md)."""
    reactor, config = broker.configured.reactor, broker.configured.config
    world = broker.configured.world
    proofs = BrokerProofs(broker.cluster_id, broker.broker_id)
    secret = InterBrokerSecret(
        broker.zookeeper, broker.reconnect, proofs, random_bytes=world.random_bytes
    )
    await secret.start()
    undo.add(secret.stop)
    authorizer = InterBrokerAuthorizer(
        proofs,
        config.broker_listeners,
        reactor.seconds,
        None
        if config.kbroker_inter_broker_proof_required
        else await _registered_addresses(broker, undo),
    )
    return BrokerDial(reactor, world.dial, proofs), authorizer


async def _registered_addresses(
    broker: IdentifiedBroker, undo: Undo
) -> Callable[[str], Collection[int]]:
    """Return the function from an address to the brokers registered at it."""
    log.warn(
        "kbroker.inter.broker.proof.required=false: every program on a broker's host may act as that broker"
    )
    reactor = broker.configured.reactor
    addresses = RegisteredAddresses(
        broker.zookeeper,
        broker.reconnect,
        broker.configured.config.inter_broker_listener,
        lambda host: resolve(reactor, Address(host, 0)),
    )
    await addresses.start()
    undo.add(addresses.stop)
    return addresses.brokers_at


# -- replicas, groups, controller ------------------------------------------------------------------


def _make_replica_manager(
    broker: IdentifiedBroker,
    registry: PartitionRegistry,
    followers: FollowerLiveness,
    leadership_listeners: Collection[LeadershipListener],
    dynamic_config: DynamicConfigManager,
    metadata: MetadataCache,
    fence: ControllerFence,
    dial: BrokerDial,
    add_partitions_to_txn_manager: AddPartitionsToTxnManager,
    undo: Undo,
) -> ReplicaManager:
    """Make the log manager and the replica manager, and begin to replicate."""
    configured, broker_id, zookeeper = broker.configured, broker.broker_id, broker.zookeeper
    reactor, config, world = configured.reactor, configured.config, configured.world
    registration, quotas = Registration(), ReplicationQuotas(broker_id)
    at_start = dynamic_config.broker_config
    disk_pool = world.disk_pool(at_start.background_threads)
    replica_manager = ReplicaManager(
        reactor,
        config,
        broker_id=broker_id,
        registry=registry,
        followers=followers,
        leadership_listeners=leadership_listeners,
        registration=registration,
        controller_fence=fence,
        metadata=metadata,
        new_log_manager=partial(
            LogManager,
            broker.log_dirs,
            config_of=dynamic_config.log_config,
            executor=disk_pool,
            call_owner=reactor.callFromThread,
            now_ms=world.now_ms,
            boot_id=world.boot_id(),
            recovery_threads=at_start.num_recovery_threads_per_data_dir,
            move_executor=world.disk_pool(len(config.directories)),
            compaction=Compaction(
                world.new_cleaner_worker, world.disk_pool(MAX_CLEANER_THREADS), CompactionLogLines()
            ),
        ),
        disk_pool=disk_pool,
        quotas=quotas,
        alter_partition=AlterPartitionManager(reactor, zookeeper, broker.reconnect),
        fetchers=ReplicaFetcherManager(
            reactor,
            config,
            broker_id=broker_id,
            registration=registration,
            quota=quotas.follower,
            now_ms=world.now_ms,
            address=lambda other: metadata.address(other, config.inter_broker_listener),
            dial=dial,
        ),
        replica_selector=replica_selector(config.replica_selector_class, lambda: metadata.brokers),
        random_below=world.random_below,
        log_dir_failures=LogDirFailureChannel(reactor, zookeeper, broker_id),
        topic_config=dynamic_config.log_config,
        now_ms=world.now_ms,
        fatal=lambda cause: configured.on_fatal(CannotContinueError(cause)),
        add_partitions_to_txn_manager=add_partitions_to_txn_manager,
    )
    zookeeper.on_session(partial(_session_changed, replica_manager))
    dynamic_config.on_topic_config(replica_manager.reconfigure)
    dynamic_config.on_broker_config(replica_manager.log_schedule.reconfigure)
    replica_manager.log_schedule.reconfigure(dynamic_config.broker_config)
    dynamic_config.on_broker_config(replica_manager.throttle)
    replica_manager.throttle(dynamic_config.broker_config)
    replica_manager.start_replication()
    undo.add(replica_manager.stop_replication)
    return replica_manager


def _add_partitions_to_txn_manager(
    broker: IdentifiedBroker,
    dynamic_config: DynamicConfigManager,
    metadata: MetadataCache,
    dial: BrokerDial,
    undo: Undo,
) -> AddPartitionsToTxnManager:
    """Make the manager of verifications, with connections of its own: markers may wait for replicas on others."""
    config = broker.configured.config
    connections = BrokerConnections(
        broker_id=broker.broker_id, request_timeout=config.request_timeout_ms / 1000, dial=dial
    )
    undo.add(connections.close)
    return AddPartitionsToTxnManager(
        broker.configured.reactor,
        connections,
        coordinator_lookup(metadata, config.inter_broker_listener, partition_for),
        is_enabled=lambda: dynamic_config.broker_config.transaction_partition_verification_enable,
    )


def _coordinate_groups(
    broker: IdentifiedBroker, leadership: LeadershipEvidence
) -> GroupCoordinator:
    """Make the group coordinator."""
    config, world = broker.configured.config, broker.configured.world
    return GroupCoordinator(
        broker.configured.reactor,
        broker.zookeeper,
        broker_id=broker.broker_id,
        limits=_group_limits(config),
        now_ms=world.now_ms,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_commit_timeout=config.offsets_commit_timeout_ms / 1000,
        no_successor_at=partial(leadership.no_successor_at, OFFSETS_TOPIC),
        is_alone=partial(leadership.is_alone_in_isr, OFFSETS_TOPIC),
        new_uuid=world.new_uuid,
    )


def _coordinate_transactions(
    broker: IdentifiedBroker,
    leadership: LeadershipEvidence,
    metadata: MetadataCache,
    producer_ids: ProducerIdManager,
    send: BrokerConnections,
) -> TransactionCoordinator:
    """Make the transaction coordinator. *send* is for its markers: their responses wait for the in-sync replicas."""
    config = broker.configured.config
    return TransactionCoordinator(
        broker.configured.reactor,
        broker.zookeeper,
        broker_id=broker.broker_id,
        limits=_transaction_limits(config),
        now_ms=broker.configured.world.now_ms,
        producer_ids=producer_ids,
        metadata=metadata,
        listener=config.inter_broker_listener,
        send=send,
        no_successor_at=partial(leadership.no_successor_at, TRANSACTIONS_TOPIC),
        is_alone=partial(leadership.is_alone_in_isr, TRANSACTIONS_TOPIC),
    )


def _session_changed(replica_manager: ReplicaManager, event: SessionEvent) -> None:
    if isinstance(event, Lapsed):
        replica_manager.cut_off()
    elif isinstance(event, Expired):
        replica_manager.expired()


def _expire_offsets(
    broker: IdentifiedBroker, groups: GroupCoordinator, metadata: MetadataCache, undo: Undo
) -> None:
    config = broker.configured.config
    expiry = OffsetExpiry(
        broker.configured.reactor,
        broker.zookeeper,
        groups,
        retention_ms=config.offsets_retention_minutes * 60_000,
        interval=config.offsets_retention_check_interval_ms / 1000,
        is_known=lambda topic: metadata.topic(topic) is not None,
        now_ms=broker.configured.world.now_ms,
    )
    metadata.on_deletion(expiry.topics_deleted)
    groups.on_loaded(expiry.groups_loaded)
    expiry.start()
    undo.add(expiry.stop)


def _controller_settings(
    broker_id: int, config: KafkaConfig, dynamic_config: DynamicConfigManager
) -> ControllerSettings:
    return ControllerSettings(
        broker_id,
        config.inter_broker_listener,
        config.delete_topic_enable,
        control_plane_listener=config.control_plane_listener,
        rebalance_seconds=(
            config.leader_imbalance_check_interval_seconds
            if config.auto_leader_rebalance_enable
            else None
        ),
        imbalance_percentage=config.leader_imbalance_per_broker_percentage,
        unclean_leader_election=(
            lambda: dynamic_config.broker_config.unclean_leader_election_enable
        ),
        min_insync_replicas=dynamic_config.min_insync_replicas,
        is_extended=config.extends_inter_broker_protocol,
    )


def _group_limits(config: KafkaConfig) -> GroupLimits:
    return GroupLimits(
        min_session_timeout=config.group_min_session_timeout_ms / 1000,
        max_session_timeout=config.group_max_session_timeout_ms / 1000,
        initial_rebalance_delay=config.group_initial_rebalance_delay_ms / 1000,
        max_size=config.group_max_size,
    )


def _transaction_limits(config: KafkaConfig) -> TransactionLimits:
    return TransactionLimits(
        max_timeout_ms=config.transaction_max_timeout_ms,
        id_expiration_ms=config.transactional_id_expiration_ms,
        abort_interval=config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000,
        expire_interval=config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000,
    )
