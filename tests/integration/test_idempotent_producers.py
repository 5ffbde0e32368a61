"""Connections that are cut between append and answer, and brokers that are killed there: one copy, in order (S12).

Every client is as idempotent as it is by itself. The proxy loses answers; the client sends the batch again, and must
get the offset of the first copy.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.lossy_proxy import CrashPoint, LossyProxy
from tests.kit.replicated import Observer, until_replicas_agree
from tests.kit.waiting import eventually
from tests.kit.writers import KafkaPythonWriter, KclientWriter, LibrdkafkaWriter, Writer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]

TOPIC = "t"
PARTITIONS = 2


def librdkafka(address: str) -> Writer:
    return LibrdkafkaWriter(
        TOPIC, PARTITIONS, "all", address, idempotence=True, socket_timeout_ms=10_000
    )


def kclient(address: str) -> Writer:
    return KclientWriter(TOPIC, PARTITIONS, "all", address, idempotence=True)


def kafka_python(address: str) -> Writer:
    return KafkaPythonWriter(TOPIC, PARTITIONS, "all", address)


CLIENTS = pytest.mark.parametrize("client", [librdkafka, kclient, kafka_python])


def started(broker_clusters: MakeCluster, **settings: str) -> tuple[Cluster, LossyProxy]:
    """One broker behind a proxy."""
    cluster = broker_clusters(1, start=False)
    proxy = LossyProxy(cluster[1].address)
    start(cluster, proxy, **settings)
    return cluster, proxy


def start(cluster: Cluster, proxy: LossyProxy, **settings: str) -> None:
    cluster.start(
        advertised_listeners=f"PLAINTEXT://{proxy.address}", log_roll_ms="600000", **settings
    )


def create_topic(proxy: LossyProxy, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": proxy.address, "log_level": 0})
    topic = NewTopic(
        TOPIC, PARTITIONS, 1, config={k.replace("_", "."): v for k, v in configs.items()}
    )
    admin.create_topics([topic])[TOPIC].result(20)


def consume(address: str) -> dict[int, list[int]]:
    """Every number in each partition, by offset."""
    consumer: Any = Consumer(
        {"bootstrap.servers": address, "group.id": "g", "log_level": 0, "enable.auto.commit": False}
    )
    found: dict[int, list[int]] = {}
    try:
        for index in range(PARTITIONS):
            low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, index), 20)
            assert low == 0
            consumer.assign([TopicPartition(TOPIC, index, 0)])
            numbers = found.setdefault(index, [])
            deadline = time.monotonic() + 30
            while len(numbers) < high and time.monotonic() < deadline:
                numbers += [int(one.value()) for one in consumer.consume(high - len(numbers), 1.0)]
    finally:
        consumer.close()
    return found


def judge(writer: Writer, address: str) -> None:
    """Every number is there once, in order, at the offset that was acknowledged."""
    held = consume(address)
    for index in range(PARTITIONS):
        assert held[index] == list(range(index, writer.sent, PARTITIONS))
        acknowledged = {one.number: one.offset for one in writer.acknowledged[index]}
        assert acknowledged == {number: offset for offset, number in enumerate(held[index])}


@CLIENTS
def test_answers_that_are_lost_leave_one_copy_in_order(
    broker_clusters: MakeCluster, client: Callable[[str], Writer]
) -> None:
    cluster, proxy = started(broker_clusters)
    dice = random.Random(7)
    with proxy:
        create_topic(proxy, segment_bytes="20000")
        proxy.fate = lambda number: CrashPoint.CUT if dice.random() < 0.2 else CrashPoint.PASS
        writer = client(proxy.address)
        writer.start()
        eventually("answers are lost", lambda: proxy.lost >= 25 or writer.problem is not None)
        proxy.fate = lambda number: CrashPoint.PASS
        writer.finish()
        assert writer.count == writer.sent > 100, writer.failed
        judge(writer, cluster[1].address)


@CLIENTS
def test_a_broker_killed_between_append_and_answer_recognises_what_it_has(
    broker_clusters: MakeCluster, client: Callable[[str], Writer]
) -> None:
    cluster, proxy = started(broker_clusters)
    with proxy:
        create_topic(proxy, segment_bytes="20000")
        writer = client(proxy.address)
        writer.start()
        for _ in range(3):
            before = proxy.answers
            eventually(
                "it writes",
                lambda before=before: proxy.answers > before + 40 or writer.problem is not None,
            )
            lost = proxy.lost
            proxy.fate = lambda number: CrashPoint.SWALLOW
            eventually("answers are lost", lambda lost=lost: proxy.lost >= lost + 2)
            cluster.kill(1)
            proxy.fate = lambda number: CrashPoint.PASS
            start(cluster, proxy)
        before = proxy.answers
        eventually("it goes on", lambda: proxy.answers > before + 40)
        writer.finish()
        assert writer.count == writer.sent > 100, writer.failed
        judge(writer, cluster[1].address)


@CLIENTS
def test_the_next_leader_recognises_what_the_killed_one_did_not_answer(
    broker_clusters: MakeCluster, client: Callable[[str], Writer]
) -> None:
    cluster = broker_clusters(3, {"zookeeper.session.timeout.ms": "3000"}, start=False)
    with ExitStack() as stack:
        proxies = {n: stack.enter_context(LossyProxy(cluster[n].address)) for n in (1, 2, 3)}
        for n, proxy in proxies.items():
            cluster.start(n, advertised_listeners=f"PLAINTEXT://{proxy.address}")
        observer = Observer(cluster)
        observer.create(TOPIC, [[1, 2, 3], [2, 3, 1]], {"min.insync.replicas": "2"})
        writer = client(",".join(proxy.address for proxy in proxies.values()))
        writer.start()
        for _ in range(2):
            victim = observer.placement(TOPIC).leader
            proxy = proxies[victim]
            before = proxy.answers
            eventually("the leader answers", lambda p=proxy, n=before: p.answers > n + 20)
            before = proxy.lost
            proxy.fate = lambda number: CrashPoint.SWALLOW
            eventually("answers are lost", lambda p=proxy, n=before: p.lost >= n + 3)
            cluster.kill(victim)
            proxy.fate = lambda number: CrashPoint.PASS
            observer.led_by_another(TOPIC, 0, victim)
            cluster.start(victim, advertised_listeners=f"PLAINTEXT://{proxy.address}")
            observer.in_sync(TOPIC, 0, [1, 2, 3], 15)
        writer.finish()
        assert writer.count == writer.sent > 100, writer.failed
        judge(writer, cluster.bootstrap)
        for index in range(PARTITIONS):
            until_replicas_agree(cluster, TOPIC, index, [1, 2, 3])
