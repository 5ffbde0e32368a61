"""Which API is served by which handler, and what each handler needs: the table behind `kbroker.apis`.

A handler is imported and made when it is first asked for, so that a broker starts fast, or a second after it is ready
(`Dispatcher.make_all`).
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from kbroker.apis import Factory, Handler, RawHandler, RequestContext, lazily
from kbroker.config.cluster import RACK_AWARE_SELECTOR
from kbroker.replica.stray_replicas import StrayReplicas
from kclient.wire.versions import ApiKey

if TYPE_CHECKING:
    from kbroker.app.broker import Broker

WHOLE_SECONDS = 2.0
"""Longest wait of a question about the cluster for the controller's first word; less than clients give an answer."""


def handlers_of(broker: Broker) -> Mapping[ApiKey, Factory]:
    """Return the factory of every API's handler."""
    table = {**_records(broker), **_control(broker), **_administration(broker), **_groups(broker)}
    for api in (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER):
        table[api] = _once_told(broker, table[api])
    return table


def _records(broker: Broker) -> dict[ApiKey, Factory]:
    replica_manager = broker.replica_manager
    dispatcher = broker.dispatcher

    def make_fetch() -> Handler | RawHandler:
        from kbroker.apis.api01_fetch import Fetch
        from kbroker.replica.preferred_read_replica import rack_aware_selector

        selector = broker.config.replica_selector_class.rpartition(".")[2]

        return Fetch(
            replica_manager,
            broker.config,
            random_below=broker.random_below,
            name_of=broker.topic_name,
            trust=broker.trust,
            replica_selector=(
                rack_aware_selector(lambda: broker.metadata.brokers)
                if selector == RACK_AWARE_SELECTOR
                else None
            ),
        )

    return {
        ApiKey.PRODUCE: lazily("kbroker.apis.api00_produce:Produce", replica_manager),
        ApiKey.FETCH: make_fetch,
        ApiKey.LIST_OFFSETS: lazily(
            "kbroker.apis.api02_list_offsets:ListOffsets", replica_manager, broker.trust
        ),
        ApiKey.API_VERSIONS: lazily(
            "kbroker.apis.api18_api_versions:ApiVersions",
            lambda: dispatcher.served,
            broker.trust,
        ),
        ApiKey.DELETE_RECORDS: lazily(
            "kbroker.apis.api21_delete_records:DeleteRecords", replica_manager
        ),
        ApiKey.INIT_PRODUCER_ID: lazily(
            "kbroker.apis.api22_init_producer_id:InitProducerId", broker.producer_ids
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: lazily(
            "kbroker.apis.api23_offset_for_leader_epoch:OffsetForLeaderEpoch",
            replica_manager,
            broker.trust,
        ),
    }


def _control(broker: Broker) -> dict[ApiKey, Factory]:
    """Return what the controller says to brokers, and they to it."""
    orders = {
        ApiKey.LEADER_AND_ISR: lazily(
            "kbroker.apis.api04_leader_and_isr:LeaderAndIsr",
            broker.replica_manager,
            broker.dynamic_config,
            broker.config.extends_inter_broker_protocol,
        ),
        ApiKey.STOP_REPLICA: lazily(
            "kbroker.apis.api05_stop_replica:StopReplica",
            broker.replica_manager,
            broker.dynamic_config,
        ),
        ApiKey.UPDATE_METADATA: lazily(
            "kbroker.apis.api06_update_metadata:UpdateMetadata",
            broker.metadata,
            lambda: broker.broker_epoch,
            StrayReplicas(broker.replica_manager, broker.metadata),
        ),
    }
    return {
        **{api: _once_registered(broker, factory) for api, factory in orders.items()},
        ApiKey.CONTROLLED_SHUTDOWN: lazily(
            "kbroker.apis.api07_controlled_shutdown:ControlledShutdown", broker.controller
        ),
    }


def _once_registered(broker: Broker, factory: Factory) -> Factory:
    """Let an order wait until we know our own broker epoch, and can tell one for an earlier life (KIP-380).

    Our registration of before a crash may still be there while we listen already: orders for it are on their way.

    Its controller epoch is checked against ZooKeeper first: no fence rises to an epoch that does not exist.
    """

    def make() -> Handler | RawHandler:
        obey = factory()

        async def wait(context: RequestContext, request: Any) -> Any:
            await broker.until_registered()
            await broker.controller_epochs.confirm(request.controller_epoch)
            answer = obey(context, request)
            return await answer if isawaitable(answer) else answer

        return wait

    return make


def _once_told(broker: Broker, factory: Factory) -> Factory:
    """Let a question about the cluster wait a moment until we have been told of it all.

    A broker that is back listens before it knows: a consumer that heard then that its topic is unknown would join its
    group anew, one that asked for its coordinator would have `__consumer_offsets` made. (Kafka's answer so.)
    """

    def make() -> Handler | RawHandler:
        return _OnceTold(broker, factory())

    return make


class _OnceTold:
    """A handler, raw or not, that is asked when the metadata cache is whole."""

    def __init__(self, broker: Broker, answer: Handler | RawHandler) -> None:
        self.raw: bool = getattr(answer, "raw", False)
        self._broker = broker
        self._answer: Any = answer

    def __call__(self, context: RequestContext, request: Any) -> Any:
        if self._broker.metadata.is_whole:
            return self._answer(context, request)
        return Deferred.fromCoroutine(self._wait(context, request))

    async def _wait(self, context: RequestContext, request: Any) -> Any:
        await self._broker.told_within(WHOLE_SECONDS)
        answer = self._answer(context, request)
        return await answer if isawaitable(answer) else answer


def _administration(broker: Broker) -> dict[ApiKey, Factory]:
    controller, topics = broker.controller, broker.topics
    dynamic, metadata, clock = broker.dynamic_config, broker.metadata, broker.seconds

    def make_describe_log_dirs() -> Handler:
        from kbroker.apis.api35_describe_log_dirs import DescribeLogDirs, spaces

        return DescribeLogDirs(
            broker.replica_manager, lambda paths: broker.in_thread(spaces, paths)
        )

    return {
        ApiKey.METADATA: lazily(
            "kbroker.apis.api03_metadata:Metadata",
            metadata,
            topics,
            lambda: dynamic.broker_config.auto_create_topics_enable,
            clock,
        ),
        ApiKey.CREATE_TOPICS: lazily(
            "kbroker.apis.api19_create_topics:CreateTopics", controller, topics, dynamic, clock
        ),
        ApiKey.DELETE_TOPICS: lazily(
            "kbroker.apis.api20_delete_topics:DeleteTopics", controller, topics, metadata, clock
        ),
        ApiKey.DESCRIBE_CONFIGS: lazily(
            "kbroker.apis.api32_describe_configs:DescribeConfigs",
            dynamic,
            metadata,
            broker.broker_id,
        ),
        ApiKey.ALTER_CONFIGS: lazily(
            "kbroker.apis.api33_alter_configs:AlterConfigs",
            broker.config_changes,
            broker.broker_id,
        ),
        ApiKey.DESCRIBE_LOG_DIRS: make_describe_log_dirs,
        ApiKey.CREATE_PARTITIONS: lazily(
            "kbroker.apis.api37_create_partitions:CreatePartitions", controller, topics, clock
        ),
        ApiKey.ELECT_LEADERS: lazily(
            "kbroker.apis.api43_elect_leaders:ElectLeaders", controller, topics, clock
        ),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: lazily(
            "kbroker.apis.api44_incremental_alter_configs:IncrementalAlterConfigs",
            broker.config_changes,
            broker.broker_id,
        ),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: lazily(
            "kbroker.apis.api45_alter_partition_reassignments:AlterPartitionReassignments",
            controller,
        ),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: lazily(
            "kbroker.apis.api46_list_partition_reassignments:ListPartitionReassignments",
            controller,
        ),
        ApiKey.DESCRIBE_CLUSTER: lazily(
            "kbroker.apis.api60_describe_cluster:DescribeCluster", metadata
        ),
    }


def _groups(broker: Broker) -> dict[ApiKey, Factory]:
    groups, metadata = broker.groups, broker.metadata
    return {
        ApiKey.OFFSET_COMMIT: lazily(
            "kbroker.apis.api08_offset_commit:OffsetCommit", groups, metadata
        ),
        ApiKey.OFFSET_FETCH: lazily("kbroker.apis.api09_offset_fetch:OffsetFetch", groups),
        ApiKey.FIND_COORDINATOR: lazily(
            "kbroker.apis.api10_find_coordinator:FindCoordinator", metadata, broker.topics
        ),
        ApiKey.JOIN_GROUP: lazily("kbroker.apis.api11_join_group:JoinGroup", groups),
        ApiKey.HEARTBEAT: lazily("kbroker.apis.api12_heartbeat:Heartbeat", groups),
        ApiKey.LEAVE_GROUP: lazily("kbroker.apis.api13_leave_group:LeaveGroup", groups),
        ApiKey.SYNC_GROUP: lazily("kbroker.apis.api14_sync_group:SyncGroup", groups),
        ApiKey.DESCRIBE_GROUPS: lazily("kbroker.apis.api15_describe_groups:DescribeGroups", groups),
        ApiKey.LIST_GROUPS: lazily("kbroker.apis.api16_list_groups:ListGroups", groups),
        ApiKey.DELETE_GROUPS: lazily("kbroker.apis.api42_delete_groups:DeleteGroups", groups),
        ApiKey.OFFSET_DELETE: lazily("kbroker.apis.api47_offset_delete:OffsetDelete", groups),
    }
