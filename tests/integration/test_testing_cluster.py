"""`KafkaCluster`: what each fault does to brokers, seen through its own waits; one cluster for the file."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.local.processes import ProcessIdentity
from kbroker.testing import ZOOKEEPER, Acknowledged, KafkaCluster, assert_acked_equals_consumed
from kclient import Producer
from tests.kit.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated"),  # of kafka-python's import
]

ALL = (1, 2, 3)
SOON = {"zookeeper.session.timeout.ms": "1500", "replica.lag.time.max.ms": "1500"}


@pytest.fixture(scope="module")
def whole() -> Iterator[KafkaCluster]:
    with KafkaCluster(3, settings=SOON, racks={1: "a"}) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole: KafkaCluster) -> Iterator[KafkaCluster]:
    """Give the cluster; it is whole again afterwards."""
    yield whole
    whole.heal()
    whole.resume(*(n for n in ALL if n not in whole.down))
    whole.start()
    whole.wait_live(ALL)


@pytest.fixture
def topic(cluster: KafkaCluster, request: pytest.FixtureRequest) -> str:
    return cluster.create_topic(
        f"{re.sub(r'[^a-z_]+', '-', request.node.name)}{os.urandom(2).hex()}",
        assignment={0: [1, 2, 3]},
    )


def follower(cluster: KafkaCluster, topic: str) -> int:
    """Return a broker that is neither the leader nor the controller."""
    return next(n for n in (3, 2) if n not in (cluster.leader(topic), cluster.controller()))


def test_a_paused_follower_leaves_the_isr_and_comes_back(cluster: KafkaCluster, topic: str) -> None:
    paused = follower(cluster, topic)
    cluster.pause(paused)
    cluster.wait_isr(topic, set(ALL) - {paused})
    cluster.resume(paused)
    cluster.wait_isr(topic)


def test_a_follower_that_is_cut_from_the_leader_leaves_the_isr_and_serves_its_clients(
    cluster: KafkaCluster, topic: str
) -> None:
    cut = follower(cluster, topic)
    others = [n for n in ALL if n != cut]
    with (
        Producer({"bootstrap.servers": cluster.bootstrap}) as producer,
        cluster.partition([cut], others),
    ):
        producer.send(topic, b"what the follower lacks")
        cluster.wait_isr(topic, others)
        assert cluster.controller() in others, (
            "ZooKeeper is on both sides: the same brokers are alive"
        )
        with socket.create_connection(("127.0.0.1", cluster[cut].port), 5):
            pass
        with cluster.partition([others[0]], [others[1]]):
            assert len(cluster._partitions) == 2
        assert cluster.isr(topic) == set(others), "one of two partitions was healed"
    cluster.wait_isr(topic, ALL)


def test_acknowledgements_wait_for_followers_behind_a_slow_network(
    cluster: KafkaCluster, topic: str
) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        producer.send(topic, b"0").result(timeout=20)
        with cluster.delay([1], [2, 3], seconds=0.3), cluster.delay(1, 2, seconds=0.1):
            producer.send(topic, b"1").result(timeout=20)  # a fetch may have been on its way
            began = time.monotonic()
            producer.send(topic, b"2").result(timeout=20)
            assert time.monotonic() - began >= 0.3
        began = time.monotonic()
        for n in range(20):
            producer.send(topic, b"%d" % n).result(timeout=20)
        assert time.monotonic() - began < 0.3 * 20
    assert cluster.isr(topic) == {1, 2, 3}


def test_followers_connect_again_after_a_reset(cluster: KafkaCluster, topic: str) -> None:
    acked = Acknowledged()
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        for n in range(300):
            if n % 100 == 50:
                cluster.reset([1], [2], [3, ZOOKEEPER])
            acked.track(producer.send(topic, b"%d" % n), b"%d" % n)
        assert producer.flush(timeout=30) == 0
    assert len(acked) == 300
    cluster.wait_isr(topic)
    cluster.assert_acked_equals_consumed(acked)


def test_an_isolated_controller_and_leader_is_replaced_and_acknowledges_nothing(
    cluster: KafkaCluster, topic: str
) -> None:
    controller = cluster.controller()
    topic = cluster.create_topic(
        f"{topic}-led-by-the-controller",
        assignment={0: [controller, *(n for n in ALL if n != controller)]},
    )
    acked = Acknowledged()
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        acked.track(producer.send(topic, b"before"), b"before").result(10)
        with cluster.isolate(controller):
            acked.track(producer.send(topic, b"within"), b"within")
            cluster.wait_leader(topic, not_on=controller)
            assert len(acked) == 1
        assert producer.flush(30) == 0
    cluster.wait_isr(topic)
    cluster.assert_acked_equals_consumed(acked)
    assert len(acked) == 2


def test_zookeeper_can_be_cut_from_one_broker_alone(cluster: KafkaCluster, topic: str) -> None:
    cut = follower(cluster, topic)
    cluster.partition([cut], [ZOOKEEPER])
    cluster.wait_live(set(ALL) - {cut})
    cluster.heal()
    cluster.wait_live(ALL)


def test_a_controlled_shutdown_moves_the_leader_and_a_restart_brings_its_settings(
    cluster: KafkaCluster, topic: str
) -> None:
    cluster.terminate(1)
    assert cluster.down == [1]
    assert cluster.leader(topic) != 1, "it moved before the broker ended"
    cluster.start(1)
    cluster.wait_isr(topic)
    cluster.restart(1, log_retention_hours="7")
    cluster.wait_isr(topic)
    properties = (cluster[1].home / "server.properties").read_text().splitlines()
    assert {"log.retention.hours=7", "broker.rack=a"} <= set(properties)
    with pytest.raises(RuntimeError, match="broker 1 runs already"):
        cluster.start(1)


def of_confluent_kafka(bootstrap: str, topic: str, acked: Acknowledged) -> Iterator[Any]:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for n in range(200):
        yield producer.produce(topic, b"%d" % n, on_delivery=acked.on_delivery)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    consumed = consumer.consume(200, 30)
    consumer.close()
    assert_acked_equals_consumed(acked, consumed)


def of_kafka_python(bootstrap: str, topic: str, acked: Acknowledged) -> Iterator[Any]:
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, reconnect_backoff_max_ms=200)
    for n in range(200):
        yield acked.track(producer.send(topic, b"%d" % n), b"%d" % n)
    producer.flush(30)
    producer.close(5)
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    consumed = [next(consumer) for _ in range(200)]
    consumer.close()
    assert_acked_equals_consumed(acked, consumed)


@pytest.mark.parametrize("client", [of_confluent_kafka, of_kafka_python])
def test_clients_of_other_libraries_lose_nothing_when_the_leader_is_killed(
    cluster: KafkaCluster, topic: str, client: Callable[..., Iterator[Any]]
) -> None:
    acked = Acknowledged()
    for n, _ in enumerate(client(cluster.bootstrap, topic, acked)):
        if n == 100:
            cluster.kill(1)
            assert cluster.leader(topic) == 1, "in ZooKeeper, until the session expires"
            assert cluster.wait_leader(topic) != 1
    assert len(acked) == 200
    cluster.assert_acked_equals_consumed(acked)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_everything_of_a_process_that_ends_goes_with_it(tmp_path: Path, number: int) -> None:
    program = """
import sys, time
from kbroker.testing import KafkaCluster
cluster = KafkaCluster(2)
cluster.start()
cluster.pause()  # so that only the kernel can end the brokers
print(cluster._session.directory, *(broker.pid for broker in cluster.brokers.values()), flush=True)
time.sleep(60)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        directory, *pids = process.stdout.readline().decode().split()
        brokers = [ProcessIdentity.of(int(pid)) for pid in pids]
        found = processes_of(directory)
        assert len(brokers) == 2
        assert all(brokers)
        assert len(found) >= 4, "two brokers, ZooKeeper and its keeper"
        process.send_signal(number)
    eventually("all processes ended", lambda: not processes_of(directory), 15)
    assert not any(broker and broker.alive for broker in brokers)
    eventually("all files removed", lambda: not list(tmp_path.iterdir()), 15)


def processes_of(directory: str) -> list[str]:
    """Return the command lines of all processes that name *directory*, or write below it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            output = os.readlink(place / "fd" / "2")
        except OSError:
            continue
        if directory in line or output.startswith(directory):
            found.append(line)
    return found
