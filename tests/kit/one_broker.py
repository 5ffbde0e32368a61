"""One broker without ZooKeeper: the real socket server, request pipeline, handlers and log.

For tests and profiles of the data path alone: `python -m tests.kit.one_broker DIR PORT topic:partitions ...` prints
READY and serves until it is terminated. LeaderAndIsr and UpdateMetadata are made here, as a controller would send them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from random import randrange
from typing import Any, cast
from uuid import UUID, uuid5

from twisted.internet.defer import Deferred

from kbroker.apis.api00_produce import Produce
from kbroker.apis.api01_fetch import Fetch
from kbroker.apis.api02_list_offsets import ListOffsets
from kbroker.apis.api03_metadata import Metadata
from kbroker.apis.api18_api_versions import ApiVersions
from kbroker.apis.api21_delete_records import DeleteRecords
from kbroker.apis.api23_offset_for_leader_epoch import OffsetForLeaderEpoch
from kbroker.apis.pipeline import RequestPipeline
from kbroker.apis.request import HandlerFactory
from kbroker.common.steps import at_once
from kbroker.common.turns import SharedTurns
from kbroker.config import KafkaConfig, LogConfig
from kbroker.log.claimed_log_dirs import ClaimedLogDirs
from kbroker.log.disk import OS_DISK, Disk
from kbroker.log.log_manager import LogManager
from kbroker.metadata.admin_manager import AdminManager
from kbroker.metadata.epoch_fences import ControllerFence, Registration
from kbroker.network.socket_server import SocketServer
from kbroker.quota.client_quota_manager import ClientQuotaManager
from kbroker.replica.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from kbroker.replica.core.replication_quota import ReplicationQuotas
from kbroker.replica.leadership_evidence import follower_liveness
from kbroker.replica.partition_registry import PartitionRegistry
from kbroker.replica.preferred_read_replica import replica_selector
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.replica.role_changes import LeadershipListener
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from kclient.wire.versions import SERVED, ApiKey
from tests.kit.inter_broker import authorizer_of
from tests.kit.open_gates import OpenGates
from tests.kit.replica_fakes import CacheOfOneBroker, NoFetchers, NoReports, RecordedIsrWrites

CLUSTER = UUID(int=0x5EED)
CLUSTER_ID = "one-broker-cluster-idx"
BROKER = 1


class OneBroker:
    """The data path of broker 1, alone in its cluster."""

    def __init__(
        self,
        reactor: Any,
        directory: str,
        settings: dict[str, str] | None = None,
        *,
        disk: Disk = OS_DISK,
        pool: Executor | None = None,
        move_pool: Executor | None = None,
        add_partitions_to_txn_manager: AddPartitionsToTxnManager | None = None,
        leadership_listeners: Iterable[LeadershipListener] = (),
    ) -> None:
        self.reactor = reactor
        self.config = KafkaConfig.of(
            {
                "broker.id": str(BROKER),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "zookeeper.connect": "none:1",
                "log.dirs": directory,
                **(settings or {}),
            }
        )
        self.topic_configs: dict[str, LogConfig] = {}
        self.fatal: list[str] = []
        self.isr_writes = RecordedIsrWrites()
        self.fetchers = NoFetchers()
        self.leadership: list[tuple[str, int, int, int, bool]] = []
        """What the leadership listener received."""
        self.wall_clock: Callable[[], float] = time.time
        fence = ControllerFence()
        self.cache = CacheOfOneBroker(CLUSTER_ID, fence)
        self.disk_pool = pool or ThreadPoolExecutor(self.config.background_threads, "disk")
        log_dirs = ClaimedLogDirs(self.config.directories, disk=disk)
        log_dirs.take_identity(BROKER, CLUSTER_ID)
        self.replica_manager = ReplicaManager(
            reactor,
            self.config,
            broker_id=BROKER,
            registry=PartitionRegistry(),
            followers=follower_liveness(self.config),
            leadership_listeners=[*leadership_listeners, self.leadership_changed],
            registration=Registration(),
            controller_fence=fence,
            metadata=self.cache,
            new_log_manager=partial(
                LogManager,
                log_dirs,
                config_of=self.topic_config,
                executor=self.disk_pool,
                move_executor=move_pool,
                call_owner=reactor.callFromThread,
                now_ms=self.now_ms,
                recovery_threads=self.config.num_recovery_threads_per_data_dir,
            ),
            disk_pool=self.disk_pool,
            quotas=ReplicationQuotas(BROKER),
            alter_partition=self.isr_writes,
            fetchers=self.fetchers,
            log_dir_failures=NoReports(),
            replica_selector=replica_selector(
                self.config.replica_selector_class, lambda: self.cache.brokers
            ),
            random_below=randrange,
            topic_config=self.topic_config,
            now_ms=self.now_ms,
            fatal=self.fatal.append,
            add_partitions_to_txn_manager=add_partitions_to_txn_manager,
        )
        self.authorizer = authorizer_of(BROKER)
        self.work_clock: Callable[[], float] = time.perf_counter
        self.quotas = ClientQuotaManager(
            self.config, lambda: self.reactor.seconds(), lambda: self.work_clock()
        )
        self.handlers = self._handlers()
        """The factories of the handlers."""
        self.pipeline = self.make_pipeline()
        self.network = SocketServer(reactor, self.config, self.pipeline)
        self.port = 0

    def now_ms(self) -> int:
        """Return the wall clock in ms."""
        return int(self.wall_clock() * 1000)

    def leadership_changed(self, *change: Any) -> None:
        """Note that leadership of a partition came or went."""
        self.leadership.append(change)

    def topic_config(self, topic: str) -> LogConfig:
        """Return the settings in `topic_configs`, else the broker's defaults."""
        return self.topic_configs.get(topic, self.config.log_defaults)

    def _handlers(self) -> dict[ApiKey, HandlerFactory]:
        replicas, topics = self.replica_manager, cast(AdminManager, None)  # creates no topics
        return {
            ApiKey.PRODUCE: lambda: Produce(replicas),
            ApiKey.FETCH: lambda: Fetch(
                replicas,
                self.config,
                name_of=self.cache.topic_name,
                authorizer=self.authorizer,
            ),
            ApiKey.LIST_OFFSETS: lambda: ListOffsets(replicas, self.authorizer),
            ApiKey.METADATA: lambda: Metadata(self.cache, topics, lambda: False, time.monotonic),
            ApiKey.API_VERSIONS: lambda: ApiVersions(
                {api: SERVED[api] for api in self.handlers}, self.authorizer
            ),
            ApiKey.DELETE_RECORDS: lambda: DeleteRecords(replicas, lambda: self.cache.brokers),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda: OffsetForLeaderEpoch(replicas, self.authorizer),
        }

    def make_pipeline(self) -> RequestPipeline:
        """Return a pipeline without handlers that are made already."""
        turns = SharedTurns(self.reactor)
        return RequestPipeline(
            self.handlers,
            authorizer=self.authorizer,
            gates=OpenGates(),
            quotas=self.quotas,
            turns=turns,
        )

    def start(self) -> Deferred[int]:
        """Load the logs and listen; fires with the port."""
        return self.replica_manager.load().addCallback(lambda _: self._listen())

    def _listen(self) -> int:
        self.port = self.network.start()[0].port
        self._update()
        return self.port

    def become_leader_or_follower(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Apply LeaderAndIsr in one turn."""
        return at_once(self.replica_manager.state_changes._become_leader_or_follower(request))

    def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Apply StopReplica in one turn."""
        return at_once(self.replica_manager.state_changes._stop_replicas(request))

    def lead(self, topic: str, partitions: int, *, leader_epoch: int = 0) -> list[int]:
        """Become leader of every partition of *topic*; return the error codes."""
        topic_id = uuid5(CLUSTER, topic)
        response = self.become_leader_or_follower(
            LeaderAndIsrRequest(
                controller_id=BROKER,
                controller_epoch=1,
                topic_states=[
                    LeaderAndIsrTopicState(
                        topic,
                        topic_id,
                        [
                            LeaderAndIsrPartitionState(
                                index, 1, BROKER, leader_epoch, [BROKER], 0, [BROKER], is_new=True
                            )
                            for index in range(partitions)
                        ],
                    )
                ],
            )
        )
        states = [
            UpdateMetadataPartitionState(index, 1, BROKER, leader_epoch, [BROKER], 0, [BROKER])
            for index in range(partitions)
        ]
        self._update(UpdateMetadataTopicState(topic, topic_id, states))
        return [error.error_code for topic in response.topics for error in topic.partition_errors]

    def leads(self, topic: str, partition: int) -> bool:
        """Return whether the broker leads a partition."""
        found = self.replica_manager.registry.partitions.get((topic, partition))
        return found is not None and found.leader_state is not None

    def _update(self, *topics: UpdateMetadataTopicState) -> None:
        endpoint = UpdateMetadataEndpoint(self.port, "127.0.0.1", "PLAINTEXT", 0)
        self.cache.update(
            UpdateMetadataRequest(
                controller_id=BROKER,
                controller_epoch=1,
                topic_states=list(topics),
                live_brokers=[UpdateMetadataBroker(BROKER, [endpoint])],
            )
        )

    def stop(self) -> Deferred[bool]:
        """Close the connections, then the logs."""
        self.network.stop()
        return self.replica_manager.close()


def main(directory: str, port: str, topics: Iterable[str]) -> None:
    """Serve until SIGTERM."""
    from twisted.internet import reactor as _reactor
    from twisted.logger import FileLogObserver, formatEventAsClassicLogText, globalLogBeginner

    reactor: Any = _reactor
    globalLogBeginner.beginLoggingTo(
        [FileLogObserver(sys.stderr, lambda event: formatEventAsClassicLogText(event))],
        redirectStandardIO=False,
    )
    broker = OneBroker(reactor, directory, {"listeners": f"PLAINTEXT://127.0.0.1:{port}"})

    def ready(bound: int) -> None:
        for item in topics:
            name, _, partitions = item.partition(":")
            broker.lead(name, int(partitions or 1))
        print(f"READY broker.id=1 PLAINTEXT://127.0.0.1:{bound}", flush=True)  # noqa: T201

    broker.start().addCallback(ready)
    reactor.addSystemEventTrigger("before", "shutdown", broker.stop)
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
