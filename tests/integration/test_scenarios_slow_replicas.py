"""S32: a follower that is paused again and again; the others continue, and the ISR shrinks and expands once."""

from __future__ import annotations

import json

import pytest

from tests.integration.test_replicated_topics import check_acknowledged, until_progress
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.replicated import Observer
from tests.kit.writers import LibrdkafkaWriter
from tests.kit.zookeeper import zookeeper_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ALL = [1, 2, 3]


def state_of(cluster: Cluster, topic: str) -> tuple[dict[str, object], int]:
    """Return the content of partition 0's state znode, and how often it was written."""
    with zookeeper_at(cluster.zookeeper_connect) as client:
        data, stat = client.get(f"/brokers/topics/{topic}/partitions/0/state")
    return json.loads(data), stat.version


def test_s32_a_follower_that_is_paused_again_and_again_neither_stops_the_rest_nor_makes_the_isr_flap(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(
        3, {"zookeeper.session.timeout.ms": "12000", "replica.lag.time.max.ms": "1500"}
    )
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3]], {"min.insync.replicas": "2"})
    writer = LibrdkafkaWriter("t", 1, "all", cluster.bootstrap, idempotence=True)
    writer.start()
    until_progress([writer], 100)
    before, version = state_of(cluster, "t")
    sleeps = 3
    for _ in range(sleeps):
        cluster.pause(3)
        try:
            observer.in_sync("t", 0, [1, 2])
            until_progress([writer], 200)
        finally:
            cluster.resume(3)
        observer.in_sync("t", 0, ALL)
        until_progress([writer], 200)
    after, changed = state_of(cluster, "t")
    assert changed - version == 2 * sleeps, "one shrink and one expansion for each sleep"
    assert after["leader_epoch"] == before["leader_epoch"]
    writer.finish()
    check_acknowledged(cluster, writer)
