"""flush.messages=1 on real brokers: no acknowledgement comes before the recorded sync of its record."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.observed_syncs import observe, syncs
from tests.kit.replicated import Observer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

SYNC_SECONDS = 0.1
RECORDS = 6


@pytest.fixture
def observed(broker_clusters: MakeCluster, tmp_path: Path) -> tuple[Cluster, dict[int, Path]]:
    """Three brokers with slow disks, and what each has synced."""
    cluster = broker_clusters(3, start=False)
    records = {n: observe(cluster[n], tmp_path, SYNC_SECONDS) for n in cluster.brokers}
    cluster.start()
    return cluster, records


def produce(cluster: Cluster, topic: str, acks: str, name: str, count: int) -> dict[bytes, float]:
    """Produce records one by one; return when each was acknowledged."""
    settings = {"bootstrap.servers": cluster.bootstrap, "acks": acks, "log_level": 0}
    producer = Producer({**settings, "linger.ms": 0})
    acknowledged: dict[bytes, float] = {}
    for number in range(count):
        value = b"<%s %d>" % (name.encode(), number)
        errors: list[object] = []
        producer.produce(
            topic, value, partition=0,
            on_delivery=lambda error, _, errors=errors: errors.append(error),
        )  # fmt: skip
        producer.flush(20)
        acknowledged[value] = time.monotonic()
        assert errors == [None]
    return acknowledged


def synced_at(cluster: Cluster, record: Path, broker: int, topic: str, value: bytes) -> float:
    """Return when a broker had synced the record with *value*."""
    (path,) = (cluster[broker].data / f"{topic}-0").glob("*.log")
    end = path.read_bytes().index(value) + len(value)
    return min(each.ended for each in syncs(record, f"{topic}-0") if each.size >= end)


@pytest.mark.parametrize("acks", ["1", "all"])
def test_no_acknowledgement_comes_before_the_sync(
    observed: tuple[Cluster, dict[int, Path]], acks: str
) -> None:
    cluster, records = observed
    topic = f"acks-{acks}"
    observer = Observer(cluster)
    observer.create(topic, [[1, 2, 3]], {"flush.messages": "1", "min.insync.replicas": "2"})
    acknowledged = produce(cluster, topic, acks, "one", RECORDS)
    assert observer.placement(topic, 0).isr == {1, 2, 3}
    for value, at in acknowledged.items():
        for broker in (1,) if acks == "1" else (1, 2, 3):
            assert synced_at(cluster, records[broker], broker, topic, value) <= at


def test_producers_share_syncs_and_other_topics_do_not_wait(
    observed: tuple[Cluster, dict[int, Path]],
) -> None:
    cluster, records = observed
    observer = Observer(cluster)
    observer.create("synced", [[1]], {"flush.messages": "1"})
    observer.create("plain", [[1]])
    acknowledged: dict[bytes, float] = {}
    producers = [
        threading.Thread(
            target=lambda name=name: acknowledged.update(
                produce(cluster, "synced", "1", name, RECORDS)
            )
        )
        for name in "abcdefgh"
    ]
    for each in producers:
        each.start()
    began = time.monotonic()
    produce(cluster, "plain", "1", "plain", 20)
    assert time.monotonic() - began < 20 * SYNC_SECONDS / 2
    for each in producers:
        each.join()
    assert len(acknowledged) == 8 * RECORDS
    assert len(syncs(records[1], "synced-0")) < len(acknowledged) / 2
    for value, at in acknowledged.items():
        assert synced_at(cluster, records[1], 1, "synced", value) <= at


def test_the_brokers_default_is_dynamic(observed: tuple[Cluster, dict[int, Path]]) -> None:
    cluster, records = observed
    observer = Observer(cluster)
    observer.create("t", [[1]])
    produce(cluster, "t", "1", "before", 2)
    assert syncs(records[1], "t-0") == []
    observer.configure_broker(1, {"log.flush.interval.messages": "1"})
    for value, at in produce(cluster, "t", "1", "after", 2).items():
        assert synced_at(cluster, records[1], 1, "t", value) <= at
