"""A cluster in the middle of a rolling upgrade: brokers of two versions of the inter-broker protocol."""

from __future__ import annotations

import json

import pytest
from kazoo.client import KazooClient

from tests.integration.test_replicated_topics import (
    ALL,
    SAFE,
    SESSION,
    SETTINGS,
    check_acknowledged,
    until_progress,
)
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually
from tests.kit.writers import KclientWriter, LibrdkafkaWriter, Writer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

OLD, NEW = "3.8-IV0", "3.9-IV0"


def registration(cluster: Cluster, broker_id: int) -> dict[str, object]:
    """The content of /brokers/ids/N."""
    client = KazooClient(cluster.zookeeper_connect)
    client.start(10)
    try:
        found: dict[str, object] = json.loads(client.get(f"/brokers/ids/{broker_id}")[0])
        return found
    finally:
        client.stop()
        client.close()


def test_brokers_of_two_versions_lose_nothing_with_any_controller_and_leader(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(3, SETTINGS, start=False)
    versions = {1: OLD, 2: NEW, 3: OLD}
    for broker_id, version in versions.items():
        cluster.start(broker_id, inter_broker_protocol_version=version)
    observer = Observer(cluster)
    writers: list[Writer] = [
        LibrdkafkaWriter("librdkafka", 2, "all", cluster.bootstrap, idempotence=False),
        KclientWriter("kclient", 2, "all", cluster.bootstrap, idempotence=False),
    ]
    for writer in writers:
        observer.create(writer.topic, [[1, 2, 3], [2, 3, 1]], SAFE)
        writer.start()
    assert "start" not in registration(cluster, 1)
    assert "start" in registration(cluster, 2)
    until_progress(writers, 200)
    # The upgrade's second step: each broker is killed, the controller among them, and comes back with the new version.
    for victim in ALL:
        led = observer.placement("kclient").leader
        cluster.kill(victim)
        if victim == led:
            _, seconds = observer.led_by_another("kclient", 0, victim)
            assert seconds <= SESSION + 1
        until_progress(writers, 100, timeout=30)
        cluster.start(victim, inter_broker_protocol_version=NEW)
        for writer in writers:
            for index in range(2):
                observer.in_sync(writer.topic, index, ALL, 20)
        until_progress(writers, 100)
    eventually(
        "every broker registers as the new version does",
        lambda: all("start" in registration(cluster, broker_id) for broker_id in ALL),
    )
    for writer in writers:
        writer.finish()
    for writer in writers:
        check_acknowledged(cluster, writer)


def test_a_cluster_of_the_old_version_sends_no_extension_and_survives_a_power_cycle(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(3, {**SETTINGS, "inter.broker.protocol.version": "3.8"})
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3]], SAFE)
    writer = KclientWriter("t", 1, "all", cluster.bootstrap, idempotence=False)
    writer.start()
    until_progress([writer], 200)
    for broker_id in ALL:
        cluster.kill(broker_id)
    cluster.start()
    until_progress([writer], 200, timeout=30)
    writer.finish()
    observer.in_sync("t", 0, ALL, 20)
    assert all("start" not in registration(cluster, broker_id) for broker_id in ALL)
    check_acknowledged(cluster, writer)
