"""Consumers that read from a follower in their rack (KIP-392): kclient and librdkafka, the leader stopped meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import confluent_kafka
import pytest

from kclient import Consumer, Producer, TopicPartition
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

RECORDS = 400
RACKS = {1: "east", 2: "west", 3: "north"}
_names = count(1)


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(
        3,
        {
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            # The leader that is stopped stays the leader.
            "zookeeper.session.timeout.ms": "60000",
            "replica.lag.time.max.ms": "60000",
            "auto.leader.rebalance.enable": "false",
        },
        racks=RACKS,
    )


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic led by broker 1, in the east, with records that broker 2 knows to be committed."""
    name = f"topic-{next(_names)}"
    Observer(cluster).create(name, [[1, 2, 3]], {"min.insync.replicas": "3"})
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=0) as producer:
        for n in range(RECORDS):
            producer.send(name, b"%d" % n * 200)
    return name


class KclientReader:
    """kclient, in a rack."""

    def __init__(self, cluster: Cluster, topic: str, rack: str) -> None:
        self._consumer = Consumer(
            bootstrap_servers=cluster.bootstrap,
            client_rack=rack,
            max_partition_fetch_bytes=4096,
            fetch_max_bytes=4096,
            auto_offset_reset="earliest",
        )
        self._consumer.assign([TopicPartition(topic, 0)])

    def poll(self) -> list[int]:
        return [r.offset for r in self._consumer.consume(20, 0.2)]

    def close(self) -> None:
        self._consumer.close()


class LibrdkafkaReader:
    """librdkafka, in a rack."""

    def __init__(self, cluster: Cluster, topic: str, rack: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "client.rack": rack,
                "group.id": "unused",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": 4096,
                "fetch.max.bytes": 4096,
                "message.max.bytes": 4096,
                "queued.max.messages.kbytes": 8,
                "log_level": 0,
            }
        )
        start = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)
        self._consumer.assign([start])

    def poll(self) -> list[int]:
        found = []
        for message in self._consumer.consume(20, 0.2):
            assert message.error() is None, message.error()
            found.append(message.offset())
        return found

    def close(self) -> None:
        self._consumer.close()


Reader = KclientReader | LibrdkafkaReader


@pytest.mark.parametrize("kind", [KclientReader, LibrdkafkaReader])
def test_a_backlog_is_read_from_the_follower_while_the_leader_stands_still(
    cluster: Cluster, topic: str, kind: Callable[..., Reader]
) -> None:
    reader = kind(cluster, topic, "west")
    found: list[int] = []
    try:
        eventually("the first records", lambda: found.extend(reader.poll()) or found)
        cluster.pause(1)
        assert len(found) < RECORDS
        eventually(
            "the rest, from broker 2",
            lambda: found.extend(reader.poll()) or len(found) >= RECORDS,
        )
    finally:
        cluster.resume(1)
        reader.close()
    assert found == list(range(RECORDS))


@pytest.mark.parametrize("kind", [KclientReader, LibrdkafkaReader])
def test_what_is_new_comes_by_the_follower_soon(
    cluster: Cluster, topic: str, kind: Callable[..., Reader]
) -> None:
    reader = kind(cluster, topic, "west")
    found: list[int] = []
    try:
        eventually("the backlog", lambda: found.extend(reader.poll()) or len(found) >= RECORDS)
        with Producer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=0) as producer:
            for n in range(5):
                producer.send(topic, b"x").result(10)
                eventually(
                    "the new record",
                    lambda n=n: found.extend(reader.poll()) or found[-1] == RECORDS + n,
                )
    finally:
        reader.close()
    assert found == list(range(RECORDS + 5))


def test_a_follower_that_dies_is_left_for_the_leader(cluster: Cluster, topic: str) -> None:
    """Long before its session ends, and the leader ceases to name it."""
    reader = KclientReader(cluster, topic, "north")
    found: list[int] = []
    try:
        eventually("the first records", lambda: found.extend(reader.poll()) or found)
        cluster.kill(3)
        eventually(
            "the rest, from the leader",
            lambda: found.extend(reader.poll()) or len(found) >= RECORDS,
        )
    finally:
        reader.close()
        cluster.start(3, broker_rack=RACKS[3])
        Observer(cluster).in_sync(topic, 0, [1, 2, 3], 40)
    assert found == list(range(RECORDS))
