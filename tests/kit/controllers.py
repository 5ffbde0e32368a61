"""Controllers on a real ZooKeeper, with brokers that only register and answer the controller's requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from twisted.internet import reactor
from twisted.internet.defer import Deferred, fail, succeed

from kbroker.common.endpoint import Endpoint
from kbroker.config import KafkaConfig
from kbroker.controller.controller import KafkaController
from kbroker.metadata.admin_manager import AdminManager
from kbroker.metadata.config_admin_manager import ConfigAdminManager
from kbroker.metadata.dynamic_config_manager import DynamicConfigManager
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.zk import znodes
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import ErrorCode, KafkaError
from kclient.wire.interbroker import (
    LeaderAndIsrResponse,
    StopReplicaPartitionError,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from kclient.wire.versions import ApiKey
from tests.kit.controller_settings import controller_settings


@dataclass
class FakeBroker:
    """A broker as the controller sees it: it registers, executes requests, and keeps them."""

    broker_id: int
    cache: MetadataCache = field(default_factory=lambda: MetadataCache("cluster"))
    received: list[tuple[ApiKey, Any]] = field(default_factory=list)
    leads: dict[tuple[str, int], int] = field(default_factory=dict)
    """Leader epoch by partition that it leads."""
    deleted: set[tuple[str, int]] = field(default_factory=set)
    controller_epoch: int = 0
    reachable: bool = True
    answer: Callable[[ApiKey, Any], Any] | None = None
    """Answers instead, now or later, if it returns something."""

    def receive(self, api: ApiKey, request: Any) -> Any:
        if self.answer is not None and (given := self.answer(api, request)) is not None:
            return given
        stale = request.controller_epoch < self.controller_epoch
        self.controller_epoch = max(self.controller_epoch, request.controller_epoch)
        code = int(ErrorCode.STALE_CONTROLLER_EPOCH if stale else ErrorCode.NONE)
        if not stale:
            self.received.append((api, request))
        if api is ApiKey.UPDATE_METADATA:
            if not stale:
                self.cache.update(request)
            return UpdateMetadataResponse(code)
        if api is ApiKey.LEADER_AND_ISR:
            for topic in [] if stale else request.topic_states:
                for state in topic.partition_states:
                    key = (topic.topic_name, state.partition_index)
                    if state.leader == self.broker_id:
                        assert state.leader_epoch >= self.leads.get(key, 0)
                        self.leads[key] = state.leader_epoch
                    else:
                        self.leads.pop(key, None)
            return LeaderAndIsrResponse(code)
        response = StopReplicaResponse(code)
        for topic in [] if stale else request.topic_states:
            for stop in topic.partition_states:
                key = (topic.topic_name, stop.partition_index)
                self.leads.pop(key, None)
                if stop.delete_partition:
                    self.deleted.add(key)
                response.partition_errors.append(StopReplicaPartitionError(*key, 0))
        return response


class FakeBrokers:
    """Brokers by id; `send` is the controllers' way to them."""

    def __init__(self) -> None:
        self.brokers: dict[int, FakeBroker] = {}

    def __getitem__(self, broker_id: int) -> FakeBroker:
        return self.brokers.setdefault(broker_id, FakeBroker(broker_id))

    def send(
        self, broker_id: int, host: str, port: int, api: ApiKey, version: int, request: Any
    ) -> Deferred[Any]:
        broker = self[broker_id]
        if not broker.reachable:
            return fail(ConnectionError("unreachable"))
        try:
            answer = broker.receive(api, request)
        except KafkaError as error:
            return fail(error)
        return answer if isinstance(answer, Deferred) else succeed(answer)


async def register(zk: ZooKeeperClient, broker_id: int, rack: str | None = None) -> int:
    """Register a broker in the session of *zk*; its epoch."""
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9000 + broker_id)
    path = znodes.broker_path(broker_id)
    registration = znodes.BrokerInfo(broker_id, (endpoint,), rack=rack, timestamp=1)
    await zk.create(path, znodes.encode_broker(registration), ephemeral=True)
    stat = await zk.exists(path)
    assert stat is not None
    return stat.czxid


@dataclass
class ControlPlane:
    """One broker's control plane: a candidate controller and what the admin APIs use."""

    zk: ZooKeeperClient
    cluster: FakeBrokers
    broker_id: int
    delete_topic_enable: bool = True

    def __post_init__(self) -> None:
        self.reconnect = Reconnect(self.zk, reactor)
        self.controller = KafkaController(
            reactor,
            self.zk,
            controller_settings(
                broker_id=self.broker_id,
                delete_topic_enable=self.delete_topic_enable,
                leave_seconds=60,
            ),
            self.cluster.send,
            now_ms=lambda: 1_700_000_000_000,
            new_topic_id=uuid4,
            reconnect=self.reconnect,
        )
        self.cache = self.cluster[self.broker_id].cache
        self.config = KafkaConfig.of(
            {"zookeeper.connect": "x:1", "broker.id": str(self.broker_id), "log.dirs": "/nowhere"}
        )
        self.topics = AdminManager(
            reactor,
            self.zk,
            self.reconnect,
            self.cache,
            lambda: self.config,
            new_topic_id=uuid4,
            random_below=lambda n: 0,
        )
        self.dynamic = DynamicConfigManager(
            self.zk,
            self.reconnect,
            self.config,
            broker_id=self.broker_id,
            now_ms=lambda: 1_700_000_000_000,
        )
        self.config_changes = ConfigAdminManager(
            self.zk,
            self.reconnect,
            lambda: self.dynamic.broker_config,
            lambda: self.dynamic.layers,
        )
