"""A consumer group with a replicated coordinator goes on when any broker dies."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from kbroker.testing import KafkaCluster
from tests.kit.waiting import eventually
from tests.kit.writers import LibrdkafkaWriter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "replica.fetch.backoff.ms": "200",
}
OFFSETS = "__consumer_offsets"


class Reader:
    """One member that commits what it has read, and records its acknowledged commits."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
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


@pytest.mark.kafka(settings=SETTINGS)
def test_a_group_outlives_its_coordinator_and_its_followers(kafka_cluster: KafkaCluster) -> None:
    kafka_cluster.create_topic("t", config={"min.insync.replicas": "2"})
    writer = LibrdkafkaWriter("t", 1, "all", kafka_cluster.bootstrap, idempotence=False)
    writer.start()
    reader = Reader(kafka_cluster.bootstrap, "t")
    try:
        reader.read(100)
        kafka_cluster.wait_isr(OFFSETS)
        coordinator = kafka_cluster.leader(OFFSETS)
        follower = next(n for n in kafka_cluster.brokers if n != coordinator)
        for victim in (follower, coordinator):
            assert victim is not None
            kafka_cluster.kill(victim)
            kafka_cluster.wait_leader(OFFSETS, not_on=victim)
            reader.read(200)
            assert eventually(
                "the committed offset", lambda: reader.fetch_committed() == reader.committed
            )
            kafka_cluster.start(victim)
            kafka_cluster.wait_isr(OFFSETS)
        reader.read(100)
    finally:
        writer.finish()
        reader.close()
    assert reader.seen == list(range(len(reader.seen)))
