"""Quotas in ZooKeeper, as Kafka has them there: two brokers write, and both apply what either wrote."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.config import KafkaConfig
from kbroker.metadata.dynamic_config_manager import DynamicConfigManager
from kbroker.quota.client_quota_admin import ClientQuotaAdmin
from kbroker.quota.client_quota_config import ClientQuotaConfig
from kbroker.quota.client_quota_manager import ClientQuotaManager
from kbroker.quota.core.entities import DEFAULT, QuotaEntity
from kbroker.quota.core.stored_quotas import Component, QuotaOperation
from kbroker.zk.reconnect import Reconnect
from kclient.net.waiting import as_deferred
from kclient.wire.errors import InvalidRequest
from tests.simulation.clock import Process
from tests.simulation.zk_connection import ZkConnection, client_of
from tests.stepped.zookeeper import SteppedZooKeeper

RATE = "producer_byte_rate"


class Broker:
    """The quotas of one broker."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.process = Process(world.scheduler, f"broker-{broker_id}", Random(broker_id))
        self.connections: list[ZkConnection] = []
        self.zk = client_of(world.ensemble, self.process, broker_id, self.connections)
        world.done(as_deferred(self.zk.start(10)))
        reconnect = Reconnect(self.zk, self.process)
        static = KafkaConfig.of({"zookeeper.connect": "x:1", "log.dirs": "/nowhere"})
        self.dynamic = DynamicConfigManager(
            self.zk, reconnect, static, broker_id=broker_id, now_ms=lambda: 0
        )
        self.manager = ClientQuotaManager(static, self.process.seconds, self.process.seconds)
        self.admin = ClientQuotaAdmin(self.zk, reconnect)
        self.config = ClientQuotaConfig(self.zk, reconnect, self.manager)
        self.do(self.dynamic.start())
        self.dynamic.on_quota_change(self.config.changed)
        self.do(self.config.start())

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.world.done(Deferred.fromCoroutine(work))

    def alter(
        self, entity: QuotaEntity, validate_only: bool = False, **values: float | None
    ) -> None:
        operations = [QuotaOperation(key, value) for key, value in values.items()]
        self.do(self.admin.alter(entity, operations, validate_only=validate_only))

    def limit(self, user: str, client_id: str) -> float | None:
        quota = self.manager.produce.of(user, client_id, 0.0)
        return None if quota is None else quota.limit


class World(SteppedZooKeeper):
    """Two brokers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Broker(self, 1), Broker(self, 2)

    def config(self, path: str) -> dict[str, str] | None:
        """Return the settings in a znode; None if there is none."""
        node = self.ensemble.tree.get(path)
        return None if node is None else json.loads(node.data)["config"] if node.data else {}

    def notices(self) -> list[str]:
        return [
            json.loads(node.data)["entity_path"]
            for path, node in sorted(self.ensemble.tree.items())
            if path.startswith("/config/changes/")
        ]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (QuotaEntity("u"), "users/u"),
        (QuotaEntity(DEFAULT), "users/<default>"),
        (QuotaEntity("<default>"), "users/%3Cdefault%3E"),
        (QuotaEntity("CN=a, O=b*~"), "users/CN%3Da%2C%20O%3Db%2A%7E"),
        (QuotaEntity(None, "c"), "clients/c"),
        (QuotaEntity(None, DEFAULT), "clients/<default>"),
        (QuotaEntity("u", "c/d"), "users/u/clients/c%2Fd"),
        (QuotaEntity(DEFAULT, DEFAULT), "users/<default>/clients/<default>"),
    ],
)
def test_quotas_are_where_kafka_has_them_and_apply_on_every_broker(
    world: World, entity: QuotaEntity, path: str
) -> None:
    world.one.alter(entity, producer_byte_rate=100)
    assert world.config(f"/config/{path}") == {RATE: "100"}
    assert world.notices() == [path]
    user = entity.user if isinstance(entity.user, str) else "any user"
    client = entity.client_id if isinstance(entity.client_id, str) else "any client"
    for broker in (world.one, world.two):
        world.run(lambda broker=broker: broker.limit(user, client) == 100)
    found = world.two.do(world.two.admin.describe({}, is_strict=False))
    assert found == {entity: {RATE: 100}}
    world.two.alter(entity, producer_byte_rate=None)
    world.run(lambda: not world.one.manager.is_enabled)
    assert world.config(f"/config/{path}") is None
    below = [each for each in world.ensemble.tree if each.startswith("/config/users/")]
    assert not below


def test_quotas_survive_all_brokers(world: World) -> None:
    world.one.alter(QuotaEntity("u"), producer_byte_rate=100)
    assert Broker(world, 3).limit("u", "c") == 100


def test_a_change_that_a_broker_missed_applies_after_it_is_connected_again(world: World) -> None:
    world.two.connections[-1].broken()
    world.one.alter(QuotaEntity("u"), producer_byte_rate=100)
    world.run(lambda: world.two.limit("u", "c") == 100)


def test_changes_of_both_brokers_at_once_are_both_kept(world: World) -> None:
    entity = QuotaEntity("u", "c")
    work = [
        Deferred.fromCoroutine(broker.admin.alter(entity, [QuotaOperation(key, 5)]))
        for broker, key in ((world.one, RATE), (world.two, "consumer_byte_rate"))
    ]
    for each in work:
        world.done(each)
    assert world.config("/config/users/u/clients/c") == {RATE: "5", "consumer_byte_rate": "5"}


@pytest.mark.parametrize("steps", range(12))
def test_a_change_during_a_read_causes_another_read(world: World, steps: int) -> None:
    world.one.config.changed()
    for _ in range(steps):
        world.scheduler.step(world.scheduler.now + 1)
    world.ensemble.put("/config/users/late", b'{"version":1,"config":{"producer_byte_rate":"5"}}')
    world.one.config.changed()
    world.pass_time(2)
    assert world.one.limit("late", "c") == 5


def test_a_user_with_client_ids_or_credentials_stays(world: World) -> None:
    world.one.alter(QuotaEntity("u"), producer_byte_rate=1)
    world.one.alter(QuotaEntity("u", "c"), producer_byte_rate=2)
    world.one.alter(QuotaEntity("u"), producer_byte_rate=None)
    assert world.config("/config/users/u") == {}
    world.write("/config/users/u", b'{"version":1,"config":{"SCRAM-SHA-256":"secret"}}')
    world.one.alter(QuotaEntity("u", "c"), producer_byte_rate=None)
    assert world.config("/config/users/u/clients/c") is None
    world.one.alter(QuotaEntity("u"), producer_byte_rate=3)
    world.one.alter(QuotaEntity("u"), producer_byte_rate=None)
    assert world.config("/config/users/u") == {"SCRAM-SHA-256": "secret"}


def test_nothing_is_written_for_what_is_invalid_there_already_or_only_validated(
    world: World,
) -> None:
    entity = QuotaEntity("u")
    with pytest.raises(InvalidRequest):
        world.one.alter(entity, producer_byte_rate=10, consumer_byte_rate=0)
    world.one.alter(entity, validate_only=True, producer_byte_rate=10)
    world.one.alter(entity, producer_byte_rate=None)
    assert (world.config("/config/users/u"), world.notices()) == (None, [])
    world.one.alter(entity, producer_byte_rate=10)
    world.one.alter(entity, producer_byte_rate=10)
    assert world.notices() == ["users/u"]


def test_unreadable_znodes_hide_no_others(world: World) -> None:
    world.one.alter(QuotaEntity("u"), producer_byte_rate=10)
    world.one.alter(QuotaEntity("v"), producer_byte_rate=10)
    world.write("/config/users/u", b"poison")
    world.one.alter(QuotaEntity("w"), producer_byte_rate=10)
    world.run(lambda: world.two.limit("w", "c") == 10)
    assert world.two.limit("v", "c") == 10
    assert world.two.limit("u", "c") is None
    exact = {"user": Component("v")}
    assert len(world.one.do(world.one.admin.describe(exact, is_strict=True))) == 1
    with pytest.raises(InvalidRequest, match="repair or delete"):
        world.one.alter(QuotaEntity("u"), producer_byte_rate=10)
