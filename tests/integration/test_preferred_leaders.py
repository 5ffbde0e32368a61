"""S29: leaders are balanced every second while the preferred replica lags, and while partitions move.

Broker 1 comes back and is throttled (KIP-73), so that it is alive and out of the ISR for as long as we like.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from confluent_kafka import Producer
from kazoo.client import KazooClient

from tests.kit.brokers import MakeCluster
from tests.kit.operators import Operator, znodes_of
from tests.kit.replicated import Observer, until_replicas_agree
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

SETTINGS = {
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "1",
    "leader.imbalance.per.broker.percentage": "0",
    "replica.lag.time.max.ms": "1000",
    "replica.fetch.max.bytes": "100000",
}
CHECKS_SEEN = 3.5
"""Seconds in which leaders are balanced three times."""
NO_LIMIT = str(2**63 - 1)


def state(zookeeper: KazooClient, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        zookeeper.get(f"/brokers/topics/{topic}/partitions/0/state")[0]
    )
    return found


def test_a_lagging_preferred_replica_is_not_elected_and_elections_are_not_repeated(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(3, SETTINGS)
    observer, admin = Observer(cluster), Operator(cluster)
    throttled = {f"{side}.replication.throttled.replicas": "*" for side in ("leader", "follower")}
    observer.create("t", [[1, 2]], throttled)
    observer.create("moving", [[2, 3]], throttled)
    observer.configure_broker(1, {"follower.replication.throttled.rate": "1"})
    cluster.kill(1)
    observer.led_by_another("t", 0, 1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for _ in range(300):
        for topic in ("t", "moving"):
            producer.produce(topic, bytes(10_000), partition=0)
    assert producer.flush(20) == 0
    cluster.start(1)
    with znodes_of(cluster) as zookeeper:
        # Its new preferred replica lags, too: the first of what it shall have is broker 1.
        assert admin.reassign({("moving", 0): [1, 3]}) == {("moving", 0): ""}
        before = {topic: state(zookeeper, topic) for topic in ("t", "moving")}
        until = time.monotonic() + CHECKS_SEEN
        while time.monotonic() < until:
            for topic, first in before.items():
                now = state(zookeeper, topic)
                assert (now["leader"], now["leader_epoch"]) == (2, first["leader_epoch"])
                assert 1 not in now["isr"]
            time.sleep(0.1)
        observer.configure_broker(1, {"follower.replication.throttled.rate": NO_LIMIT})
        eventually("broker 1 to lead t", lambda: observer.placement("t").leader == 1, 40)
        eventually("broker 1 to lead what moved", lambda: observer.placement("moving").leader == 1)
        admin.until_moved()
        after = {topic: state(zookeeper, topic) for topic in before}
        # One election each; the move makes two steps, of which the second may elect already.
        assert after["t"]["leader_epoch"] == before["t"]["leader_epoch"] + 1
        assert after["moving"]["leader_epoch"] <= before["moving"]["leader_epoch"] + 2
    assert after["t"]["leader"] in after["t"]["isr"]
    observer.in_sync("t", 0, [1, 2])
    observer.in_sync("moving", 0, [1, 3])
    until_replicas_agree(cluster, "t", 0, [1, 2])
    until_replicas_agree(cluster, "moving", 0, [1, 3])
