"""Consumers of a replicated topic, while its leader and their coordinator are killed."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from kbroker.testing import Acknowledged, KafkaCluster, assert_acked_equals_consumed
from kclient.admin.client import AdminClient
from kclient.consumer.client import Consumer
from kclient.producer.producer import Producer
from kclient.types import AnyRecord, NewTopic, TopicPartition
from tests.kit.brokers import MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

QUICK: dict[str, Any] = {
    "retry_backoff_ms": 50,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 200,
    "request_timeout_ms": 3000,
}
SETTINGS = {
    "zookeeper.session.timeout.ms": "3000",
    "offsets.topic.replication.factor": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "2000",
}


class Numbers:
    """Produces numbers to a topic, one after the other, and knows which were acknowledged where."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.producer: Producer[Any, Any] = Producer(
            bootstrap_servers=bootstrap, linger_ms=0, delivery_timeout_ms=40_000, **QUICK
        )
        self.acknowledged = Acknowledged()
        self.ending = False
        self.done = Deferred.fromCoroutine(self._write(topic, partitions))

    async def _write(self, topic: str, partitions: int) -> None:
        n = 0
        async with self.producer:
            while not self.ending:
                at = await self.producer.send(topic, b"%d" % n, partition=n % partitions)
                self.acknowledged.add(at, b"%d" % n)
                n += 1


async def take_until(
    consumer: Consumer, found: list[AnyRecord], wanted: Any, seconds: float = 40.0
) -> None:
    reactor = consumer.cluster.reactor
    give_up_at = reactor.seconds() + seconds
    while not wanted():
        assert reactor.seconds() < give_up_at, f"{len(found)} records came"
        for records in (await consumer.poll(timeout=0.1)).values():
            found += records


@pytest.mark.parametrize("by_group", [False, True], ids=["by assignment", "by group"])
@pytest.mark.kafka(settings=SETTINGS)
@pytest_twisted.ensureDeferred
async def test_a_dead_leader_costs_no_record_and_repeats_none(
    kafka_cluster: KafkaCluster, by_group: bool
) -> None:
    kafka_cluster.create_topic("t", partitions=2)
    group = {"group_id": "g", "session_timeout_ms": 20_000} if by_group else {}
    found: list[AnyRecord] = []
    async with Consumer(
        bootstrap_servers=kafka_cluster.bootstrap, auto_offset_reset="earliest", **QUICK, **group
    ) as consumer:
        if by_group:
            consumer.subscribe(["t"])
        else:
            consumer.assign([TopicPartition("t", n) for n in range(2)])
        numbers = Numbers(kafka_cluster.bootstrap, "t", 2)
        await take_until(consumer, found, lambda: len(found) > 100)
        leader = kafka_cluster.leader("t")
        assert leader is not None
        kafka_cluster.kill(leader)
        before = len(numbers.acknowledged)
        await take_until(consumer, found, lambda: len(numbers.acknowledged) > before + 200)
        numbers.ending = True
        await take_until(
            consumer, found, lambda: numbers.done.called and len(found) >= len(numbers.acknowledged)
        )
        await numbers.done
        if by_group:
            await consumer.commit()
            committed = await consumer.committed([TopicPartition("t", n) for n in range(2)])
            assert sum(at.offset for at in committed.values() if at is not None) == len(found)
    assert_acked_equals_consumed(numbers.acknowledged, found)
    for partition in range(2):
        offsets = [record.offset for record in found if record.partition == partition]
        assert offsets == sorted(offsets), "in order"


@pytest_twisted.ensureDeferred
async def test_an_unclean_election_is_noticed_and_reading_goes_on_where_the_logs_part(
    broker_clusters: MakeCluster,
) -> None:
    settings = {**SETTINGS, "offsets.topic.replication.factor": "1", "min.insync.replicas": "1"}
    cluster = broker_clusters(2, {**settings, "default.replication.factor": "2"})
    tp = TopicPartition("t", 0)
    async with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        topic = NewTopic(
            "t",
            configs={"unclean.leader.election.enable": "true"},
            replica_assignment={0: [1, 2]},
        )
        await admin.create_topics([topic])
        await admin.wait_for_topics(["t"])

    async def produce(*values: bytes) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, acks="all", **QUICK) as producer:
            for value in values:
                await producer.send("t", value, partition=0)

    async def read(consumer: Consumer, count: int) -> list[bytes | None]:
        found: list[AnyRecord] = []
        await take_until(consumer, found, lambda: len(found) >= count)
        return [record.value for record in found]

    async with Consumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="latest", **QUICK
    ) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        await produce(b"0", b"1", b"2")
        assert await read(consumer, 3) == [b"0", b"1", b"2"]
        cluster.kill(2)
        await produce(b"lost 3", b"lost 4", b"lost 5")
        assert await read(consumer, 3) == [b"lost 3", b"lost 4", b"lost 5"]
        cluster.kill(1)
        cluster.start(2)
        await produce(b"new 3", b"new 4", b"new 5", b"new 6")
        assert await read(consumer, 4) == [b"new 3", b"new 4", b"new 5", b"new 6"]
