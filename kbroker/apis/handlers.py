"""The factories of the handlers: what each of them needs.

A factory imports the handler's module when it is called (`RequestPipeline.make_handlers`). That is at the first request
of its API, or after the broker has served for a moment. So a broker starts fast, and its package may be replaced on
disk afterwards. mypy checks every constructor. A handler gets its collaborators, never `HandlerDependencies`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.wire.versions import SERVED

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
    from kbroker.apis.request import Handler, RawHandler
    from kbroker.common.logger_levels import LoggerLevels
    from kbroker.common.topic_partition import TopicPartition
    from kbroker.config import KafkaConfig
    from kbroker.controller.controller import KafkaController
    from kbroker.coordinator.group.group_coordinator import GroupCoordinator
    from kbroker.coordinator.transaction.producer_id_manager import ProducerIdManager
    from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
    from kbroker.metadata.admin_manager import AdminManager
    from kbroker.metadata.config_admin_manager import ConfigAdminManager
    from kbroker.metadata.dynamic_config_manager import DynamicConfigManager
    from kbroker.metadata.metadata_cache import MetadataCache
    from kbroker.quota.client_quota_admin import ClientQuotaAdmin
    from kbroker.replica.replica_manager import ReplicaManager
    from kclient.wire.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class HandlerDependencies:
    """The parts of a broker that its handlers are made of."""

    reactor: Any
    config: KafkaConfig
    broker_id: int
    authorizer: InterBrokerAuthorizer
    replica_manager: ReplicaManager
    metadata: MetadataCache
    admin_manager: AdminManager
    dynamic_config: DynamicConfigManager
    config_admin_manager: ConfigAdminManager
    quota_admin: ClientQuotaAdmin
    controller: KafkaController
    groups: GroupCoordinator
    producer_ids: ProducerIdManager
    transactions: TransactionCoordinator
    logger_levels: LoggerLevels
    now_ms: Callable[[], int]
    """The wall clock."""


# -- records ---------------------------------------------------------------------------------------


def produce(broker: HandlerDependencies) -> RawHandler:
    """Make the handler of Produce."""
    from kbroker.apis.api00_produce import Produce

    return Produce(broker.replica_manager)


def fetch(broker: HandlerDependencies) -> RawHandler:
    """Make the handler of Fetch."""
    from kbroker.apis.api01_fetch import Fetch

    return Fetch(
        broker.replica_manager,
        broker.config,
        name_of=broker.metadata.topic_name,
        authorizer=broker.authorizer,
    )


def list_offsets(broker: HandlerDependencies) -> Handler:
    """Make the handler of ListOffsets."""
    from kbroker.apis.api02_list_offsets import ListOffsets

    return ListOffsets(broker.replica_manager, broker.authorizer)


def delete_records(broker: HandlerDependencies) -> Handler:
    """Make the handler of DeleteRecords."""
    from kbroker.apis.api21_delete_records import DeleteRecords

    metadata = broker.metadata
    return DeleteRecords(broker.replica_manager, lambda: metadata.brokers)


def init_producer_id(broker: HandlerDependencies) -> Handler:
    """Make the handler of InitProducerId."""
    from kbroker.apis.api22_init_producer_id import InitProducerId

    return InitProducerId(broker.producer_ids, broker.transactions)


def offset_for_leader_epoch(broker: HandlerDependencies) -> Handler:
    """Make the handler of OffsetForLeaderEpoch."""
    from kbroker.apis.api23_offset_for_leader_epoch import OffsetForLeaderEpoch

    return OffsetForLeaderEpoch(broker.replica_manager, broker.authorizer)


def alter_replica_log_dirs(broker: HandlerDependencies) -> Handler:
    """Make the handler of AlterReplicaLogDirs."""
    from kbroker.apis.api34_alter_replica_log_dirs import AlterReplicaLogDirs

    return AlterReplicaLogDirs(broker.replica_manager)


def describe_log_dirs(broker: HandlerDependencies) -> Handler:
    """Make the handler of DescribeLogDirs, which queries the file systems in a thread."""
    from collections.abc import Collection

    from twisted.internet.threads import deferToThreadPool

    from kbroker.apis.api35_describe_log_dirs import DescribeLogDirs, Space, spaces

    reactor = broker.reactor

    def spaces_in_thread(paths: Collection[str]) -> Deferred[dict[str, Space]]:
        return deferToThreadPool(reactor, reactor.getThreadPool(), spaces, paths)

    return DescribeLogDirs(broker.replica_manager, spaces_in_thread)


# -- between brokers -------------------------------------------------------------------------------


def leader_and_isr(broker: HandlerDependencies) -> Handler:
    """Make the handler of LeaderAndIsr."""
    from kbroker.apis.api04_leader_and_isr import LeaderAndIsr

    return LeaderAndIsr(
        broker.replica_manager, broker.dynamic_config, broker.config.extends_inter_broker_protocol
    )


def stop_replica(broker: HandlerDependencies) -> Handler:
    """Make the handler of StopReplica."""
    from kbroker.apis.api05_stop_replica import StopReplica

    return StopReplica(broker.replica_manager, broker.dynamic_config)


def update_metadata(broker: HandlerDependencies) -> Handler:
    """Make the handler of UpdateMetadata."""
    from kbroker.apis.api06_update_metadata import UpdateMetadata

    return UpdateMetadata(
        broker.metadata,
        broker.replica_manager,
        broker.dynamic_config.follow_topics,
        broker.admin_manager.deleted_of,
    )


def controlled_shutdown(broker: HandlerDependencies) -> Handler:
    """Make the handler of ControlledShutdown."""
    from kbroker.apis.api07_controlled_shutdown import ControlledShutdown

    return ControlledShutdown(broker.controller)


# -- the cluster -----------------------------------------------------------------------------------


def api_versions(broker: HandlerDependencies) -> Handler:
    """Make the handler of ApiVersions."""
    from kbroker.apis.api18_api_versions import ApiVersions

    return ApiVersions(SERVED, broker.authorizer)


def metadata(broker: HandlerDependencies) -> RawHandler:
    """Make the handler of Metadata."""
    from kbroker.apis.api03_metadata import Metadata

    dynamic = broker.dynamic_config
    return Metadata(
        broker.metadata,
        broker.admin_manager,
        lambda: dynamic.broker_config.auto_create_topics_enable,
        broker.reactor.seconds,
    )


def describe_cluster(broker: HandlerDependencies) -> Handler:
    """Make the handler of DescribeCluster."""
    from kbroker.apis.api60_describe_cluster import DescribeCluster

    return DescribeCluster(broker.metadata)


def describe_producers(broker: HandlerDependencies) -> Handler:
    """Make the handler of DescribeProducers."""
    from kbroker.apis.api61_describe_producers import DescribeProducers

    return DescribeProducers(broker.replica_manager)


def create_topics(broker: HandlerDependencies) -> Handler:
    """Make the handler of CreateTopics."""
    from kbroker.apis.api19_create_topics import CreateTopics

    return CreateTopics(
        broker.controller, broker.admin_manager, broker.dynamic_config, broker.reactor.seconds
    )


def delete_topics(broker: HandlerDependencies) -> Handler:
    """Make the handler of DeleteTopics."""
    from kbroker.apis.api20_delete_topics import DeleteTopics

    return DeleteTopics(
        broker.controller, broker.admin_manager, broker.metadata, broker.reactor.seconds
    )


def create_partitions(broker: HandlerDependencies) -> Handler:
    """Make the handler of CreatePartitions."""
    from kbroker.apis.api37_create_partitions import CreatePartitions

    return CreatePartitions(broker.controller, broker.admin_manager, broker.reactor.seconds)


def elect_leaders(broker: HandlerDependencies) -> Handler:
    """Make the handler of ElectLeaders."""
    from kbroker.apis.api43_elect_leaders import ElectLeaders

    return ElectLeaders(broker.controller, broker.admin_manager, broker.reactor.seconds)


def alter_partition_reassignments(broker: HandlerDependencies) -> Handler:
    """Make the handler of AlterPartitionReassignments."""
    from kbroker.apis.api45_alter_partition_reassignments import AlterPartitionReassignments

    return AlterPartitionReassignments(broker.controller)


def list_partition_reassignments(broker: HandlerDependencies) -> Handler:
    """Make the handler of ListPartitionReassignments."""
    from kbroker.apis.api46_list_partition_reassignments import ListPartitionReassignments

    return ListPartitionReassignments(broker.controller)


def describe_configs(broker: HandlerDependencies) -> Handler:
    """Make the handler of DescribeConfigs."""
    from kbroker.apis.api32_describe_configs import DescribeConfigs

    return DescribeConfigs(
        broker.dynamic_config, broker.metadata, broker.broker_id, broker.logger_levels
    )


def alter_configs(broker: HandlerDependencies) -> Handler:
    """Make the handler of AlterConfigs."""
    from kbroker.apis.api33_alter_configs import AlterConfigs

    return AlterConfigs(broker.config_admin_manager, broker.broker_id)


def incremental_alter_configs(broker: HandlerDependencies) -> Handler:
    """Make the handler of IncrementalAlterConfigs."""
    from kbroker.apis.api44_incremental_alter_configs import IncrementalAlterConfigs

    return IncrementalAlterConfigs(
        broker.config_admin_manager, broker.broker_id, broker.logger_levels
    )


def describe_client_quotas(broker: HandlerDependencies) -> Handler:
    """Make the handler of DescribeClientQuotas."""
    from kbroker.apis.api48_describe_client_quotas import DescribeClientQuotas

    return DescribeClientQuotas(broker.quota_admin)


def alter_client_quotas(broker: HandlerDependencies) -> Handler:
    """Make the handler of AlterClientQuotas."""
    from kbroker.apis.api49_alter_client_quotas import AlterClientQuotas

    return AlterClientQuotas(broker.quota_admin)


# -- groups ----------------------------------------------------------------------------------------


def find_coordinator(broker: HandlerDependencies) -> Handler:
    """Make the handler of FindCoordinator."""
    from kbroker.apis.api10_find_coordinator import FindCoordinator

    return FindCoordinator(broker.metadata, broker.admin_manager)


def offset_commit(broker: HandlerDependencies) -> Handler:
    """Make the handler of OffsetCommit."""
    from kbroker.apis.api08_offset_commit import OffsetCommit

    return OffsetCommit(broker.groups, broker.metadata)


def offset_fetch(broker: HandlerDependencies) -> Handler:
    """Make the handler of OffsetFetch."""
    from kbroker.apis.api09_offset_fetch import OffsetFetch

    return OffsetFetch(broker.groups)


def offset_delete(broker: HandlerDependencies) -> Handler:
    """Make the handler of OffsetDelete."""
    from kbroker.apis.api47_offset_delete import OffsetDelete

    return OffsetDelete(broker.groups, broker.metadata)


def join_group(broker: HandlerDependencies) -> Handler:
    """Make the handler of JoinGroup."""
    from kbroker.apis.api11_join_group import JoinGroup

    return JoinGroup(broker.groups)


def sync_group(broker: HandlerDependencies) -> Handler:
    """Make the handler of SyncGroup."""
    from kbroker.apis.api14_sync_group import SyncGroup

    return SyncGroup(broker.groups)


def heartbeat(broker: HandlerDependencies) -> Handler:
    """Make the handler of Heartbeat."""
    from kbroker.apis.api12_heartbeat import Heartbeat

    return Heartbeat(broker.groups)


def leave_group(broker: HandlerDependencies) -> Handler:
    """Make the handler of LeaveGroup."""
    from kbroker.apis.api13_leave_group import LeaveGroup

    return LeaveGroup(broker.groups)


def describe_groups(broker: HandlerDependencies) -> Handler:
    """Make the handler of DescribeGroups."""
    from kbroker.apis.api15_describe_groups import DescribeGroups

    return DescribeGroups(broker.groups)


def list_groups(broker: HandlerDependencies) -> Handler:
    """Make the handler of ListGroups."""
    from kbroker.apis.api16_list_groups import ListGroups

    return ListGroups(broker.groups)


def delete_groups(broker: HandlerDependencies) -> Handler:
    """Make the handler of DeleteGroups."""
    from kbroker.apis.api42_delete_groups import DeleteGroups

    return DeleteGroups(broker.groups)


# -- transactions ----------------------------------------------------------------------------------


def add_partitions_to_txn(broker: HandlerDependencies) -> Handler:
    """Make the handler of AddPartitionsToTxn."""
    from kbroker.apis.api24_add_partitions_to_txn import AddPartitionsToTxn

    return AddPartitionsToTxn(broker.transactions, broker.metadata, broker.authorizer)


def add_offsets_to_txn(broker: HandlerDependencies) -> Handler:
    """Make the handler of AddOffsetsToTxn."""
    from kbroker.apis.api25_add_offsets_to_txn import AddOffsetsToTxn

    return AddOffsetsToTxn(broker.transactions)


def end_txn(broker: HandlerDependencies) -> Handler:
    """Make the handler of EndTxn."""
    from kbroker.apis.api26_end_txn import EndTxn

    return EndTxn(broker.transactions)


def write_txn_markers(broker: HandlerDependencies) -> Handler:
    """Make the handler of WriteTxnMarkers. As long as there is no authorizer, every principal has ALTER."""
    from kbroker.apis.api27_write_txn_markers import WriteTxnMarkers

    return WriteTxnMarkers(
        broker.replica_manager,
        broker.authorizer,
        may_alter_cluster=lambda _principal: True,
        end_group_transaction=broker.groups.end_transaction,
        request_timeout=broker.config.request_timeout_ms / 1000,
    )


def txn_offset_commit(broker: HandlerDependencies) -> Handler:
    """Make the handler of TxnOffsetCommit."""
    from kbroker.apis.api28_txn_offset_commit import TxnOffsetCommit

    verifier = broker.replica_manager.add_partitions_to_txn_manager
    assert verifier is not None  # where transactions are served

    def verify(
        transactional_id: str, producer_id: int, producer_epoch: int, partition: TopicPartition
    ) -> Deferred[tuple[ErrorCode, int]]:
        result = verifier.verify(transactional_id, producer_id, producer_epoch, partition)
        return result.addCallback(lambda found: (found.error, found.number))

    return TxnOffsetCommit(broker.groups, broker.metadata, verify)


def describe_acls(broker: HandlerDependencies) -> Handler:
    """Make the handler of DescribeAcls."""
    from kbroker.apis.api29_describe_acls import DescribeAcls

    return DescribeAcls()


def create_acls(broker: HandlerDependencies) -> Handler:
    """Make the handler of CreateAcls."""
    from kbroker.apis.api30_create_acls import CreateAcls

    return CreateAcls()


def delete_acls(broker: HandlerDependencies) -> Handler:
    """Make the handler of DeleteAcls."""
    from kbroker.apis.api31_delete_acls import DeleteAcls

    return DeleteAcls()


def describe_transactions(broker: HandlerDependencies) -> Handler:
    """Make the handler of DescribeTransactions."""
    from kbroker.apis.api65_describe_transactions import DescribeTransactions

    return DescribeTransactions(broker.transactions)


def list_transactions(broker: HandlerDependencies) -> Handler:
    """Make the handler of ListTransactions."""
    from kbroker.apis.api66_list_transactions import ListTransactions

    return ListTransactions(broker.transactions, broker.now_ms)
