"""A consumer group with a replicated coordinator goes on when any broker dies."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually
from tests.kit.writers import LibrdkafkaWriter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SETTINGS = {
    "zookeeper.session.timeout.ms": "3000",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "replica.fetch.backoff.ms": "200",
}
ALL = [1, 2, 3]


class Reader:
    """One member that commits what it has read, and records its acknowledged commits."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "socket.timeout.ms": 3000,
                "log_level": 0,
            }
        )
        self._topic = topic
        self.seen: list[int] = []
        self.committed = 0
        self._consumer.subscribe([topic])

    def read(self, count: int, timeout: float = 30.0) -> None:
        """Read so many more and commit them, whatever it takes."""
        goal, deadline = len(self.seen) + count, time.monotonic() + timeout
        while len(self.seen) < goal:
            assert time.monotonic() < deadline, f"only {len(self.seen)} of {goal}"
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.seen.append(message.offset())

        def commit() -> bool:
            try:
                self._consumer.commit(asynchronous=False)
            except KafkaException:
                return False
            return True

        eventually("a commit", commit, timeout)
        self.committed = self.seen[-1] + 1

    def close(self) -> None:
        self._consumer.close()

    def fetch_committed(self) -> int:
        """Ask the coordinator."""
        (found,) = self._consumer.committed([TopicPartition(self._topic, 0)], 10)
        return int(found.offset)


def test_a_group_outlives_its_coordinator_and_its_followers(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(3, SETTINGS)
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3]], {"min.insync.replicas": "2"})
    writer = LibrdkafkaWriter("t", 1, "all", cluster.bootstrap, idempotence=False)
    writer.start()
    reader = Reader(cluster, "t")
    try:
        reader.read(100)
        offsets = "__consumer_offsets"
        observer.in_sync(offsets, 0, ALL)
        coordinator = observer.placement(offsets).leader
        follower = next(b for b in ALL if b != coordinator)
        for victim in (follower, coordinator):
            cluster.kill(victim)
            observer.led_by_another(offsets, 0, victim)
            reader.read(200)
            assert eventually(
                "the committed offset", lambda: reader.fetch_committed() == reader.committed
            )
            cluster.start(victim)
            observer.in_sync(offsets, 0, ALL)
        reader.read(100)
    finally:
        writer.finish()
        reader.close()
    assert reader.seen == list(range(len(reader.seen)))
