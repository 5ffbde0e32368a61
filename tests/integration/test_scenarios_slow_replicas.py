"""S32: a follower that is paused again and again; the others continue, and the ISR shrinks and expands once."""

from __future__ import annotations

import json

import pytest

from kbroker.testing import KafkaCluster
from tests.integration.test_replicated_topics import check_acknowledged, until_progress
from tests.kit.writers import LibrdkafkaWriter
from tests.kit.zookeeper import zookeeper_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SETTINGS = {"zookeeper.session.timeout.ms": "12000", "replica.lag.time.max.ms": "1500"}


def state_of(cluster: KafkaCluster, topic: str) -> tuple[dict[str, object], int]:
    """Return the content of partition 0's state znode, and how often it was written."""
    with zookeeper_at(cluster.zookeeper_connect) as client:
        data, stat = client.get(f"/brokers/topics/{topic}/partitions/0/state")
    return json.loads(data), stat.version


@pytest.mark.kafka(settings=SETTINGS)
def test_s32_a_follower_that_is_paused_again_and_again_neither_stops_the_rest_nor_makes_the_isr_flap(
    kafka_cluster: KafkaCluster,
) -> None:
    kafka_cluster.create_topic("t", config={"min.insync.replicas": "2"}, assignment={0: [1, 2, 3]})
    writer = LibrdkafkaWriter("t", 1, "all", kafka_cluster.bootstrap, idempotence=True)
    writer.start()
    until_progress([writer], 100)
    before, version = state_of(kafka_cluster, "t")
    sleeps = 3
    for _ in range(sleeps):
        kafka_cluster.pause(3)
        kafka_cluster.wait_isr("t", [1, 2])
        until_progress([writer], 200)
        kafka_cluster.resume(3)
        kafka_cluster.wait_isr("t")
        until_progress([writer], 200)
    after, changed = state_of(kafka_cluster, "t")
    assert changed - version == 2 * sleeps, "one shrink and one expansion for each sleep"
    assert after["leader_epoch"] == before["leader_epoch"]
    writer.finish()
    check_acknowledged(kafka_cluster, writer)
