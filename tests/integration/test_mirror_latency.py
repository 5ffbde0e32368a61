"""How long the copies took, as a real kmirror states it at the target."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kclient import Consumer
from kclient.mirror_latency import Histogram, Interval, Measured, measured_in
from kclient.types import TopicPartition
from tests.integration.test_mirror_transactions import ONE_BROKER
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.mirrored_clusters import (
    MakeMirror,
    make_topic,
    making_mirrors,
    setting_of,
    topic_names,
)
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOPIC = "east.latency.internal"
ENABLED = {"emit.latency.enabled": "true", "emit.latency.interval.seconds": "1"}
HOUR = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def produce_at(cluster: Cluster, topic: str, partition: int, timestamps: Iterable[int]) -> None:
    """Produce a record with each timestamp, each in a batch of its own."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.num.messages": 1})
    for timestamp in timestamps:
        producer.produce(topic, b"v", partition=partition, timestamp=timestamp)
    assert producer.flush(10) == 0


def measured(cluster: Cluster) -> list[Measured]:
    """What the latency topic of the cluster states; nothing if it does not exist."""
    if TOPIC not in topic_names(cluster):
        return []
    tp = TopicPartition(TOPIC, 0)
    with Consumer(config={"bootstrap.servers": cluster.bootstrap}) as consumer:
        end = consumer.end_offsets([tp])[tp]
        consumer.assign([tp], consumer.beginning_offsets([tp]))
        found: dict[Interval, Measured] = {}
        while consumer.position(tp) < end:
            records = [(each.key, each.value) for each in consumer.consume(100, 0.5)]
            for each in measured_in(records):
                assert each is not None
                found[each.interval] = each
    return list(found.values())


def of_topics(found: Iterable[Measured]) -> defaultdict[str, Histogram]:
    sums: defaultdict[str, Histogram] = defaultdict(Histogram)
    for each in found:
        sums[each.interval.topic].merge(each.latencies)
    return sums


def test_each_copied_record_has_a_latency_from_its_timestamp_to_the_acknowledgement(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 2)
    make_topic(east, "payments")
    make_topic(east, "empty")
    began = now_ms()
    produce_at(east, "orders", 0, [began - HOUR] * 3)
    produce_at(east, "orders", 1, [began] * 7)
    produce_at(east, "payments", 0, [began + HOUR, began])
    assert mirror(ENABLED).run_once() == 0
    lasted = now_ms() - began

    found = of_topics(measured(west))
    assert set(found) == {"orders", "payments"}
    orders, payments = found["orders"], found["payments"]
    assert (orders.records, orders.ahead, orders.max_partition) == (10, 0, 0)
    assert orders.max_ms is not None
    assert HOUR <= orders.max_ms <= HOUR + lasted
    assert orders.min_ms is not None
    assert 0 <= orders.min_ms <= lasted
    assert (payments.records, payments.ahead) == (2, 1)
    assert payments.min_ms is not None
    assert -HOUR <= payments.min_ms <= lasted - HOUR
    assert setting_of(west, TOPIC, "cleanup.policy") == "delete"
    assert "east.latency.internal" not in topic_names(east)


def test_a_running_mirror_writes_at_intervals_and_what_a_restart_copies_adds_up(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    running = mirror(ENABLED)
    running.start()
    produce_at(east, "orders", 0, [now_ms()] * 5)
    eventually("five latencies", lambda: of_topics(measured(west))["orders"].records == 5)
    produce_at(east, "orders", 0, [now_ms()] * 4)
    eventually("nine latencies", lambda: of_topics(measured(west))["orders"].records == 9)
    running.stop()
    produce_at(east, "orders", 0, [now_ms()] * 3)
    assert running.run_once() == 0
    assert of_topics(measured(west))["orders"].records == 12
    assert len({each.interval.process for each in measured(west)}) == 2


def test_records_copied_to_other_offsets_have_a_latency_too(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east, west = broker_clusters(1, ONE_BROKER), broker_clusters(1, ONE_BROKER)
    make_topic(east, "orders", 2)
    began = now_ms()
    produce_at(east, "orders", 0, [began] * 20)
    produce_at(east, "orders", 1, [began - HOUR] * 10)
    producer = Producer({"bootstrap.servers": east.bootstrap, "transactional.id": "aborted"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("orders", b"no copy has it", partition=0, timestamp=began - 2 * HOUR)
    producer.abort_transaction(20)
    with making_mirrors(tmp_path, east, west) as make:
        assert make({**ENABLED, "target.offsets": "renumber"}).run_once(60) == 0
    found = of_topics(measured(west))["orders"]
    assert (found.records, found.ahead, found.max_partition) == (30, 0, 1)


def test_latencies_are_written_in_batches_that_the_target_accepts(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(west, TOPIC, max_message_bytes="1000")
    topics = {f"orders-{n}" for n in range(12)}
    for topic in topics:
        make_topic(east, topic)
        produce_at(east, topic, 0, [now_ms()])
    assert mirror(ENABLED).run_once() == 0
    assert set(of_topics(measured(west))) == topics


def test_kaudit_shows_and_judges_what_kmirror_measured(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path
) -> None:
    make_topic(east, "orders", 2)
    make_topic(east, "payments")
    began = now_ms()
    produce_at(east, "orders", 1, [began] * 98 + [began - HOUR] * 2)
    produce_at(east, "payments", 0, [began])
    assert mirror(ENABLED).run_once() == 0

    def latency(topics: str) -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "-m", "spark_jobs", "latency", "--target", west.bootstrap]
        options = ["--topics", topics, "--max-p99", "10m", "--out", str(tmp_path / "out")]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
        return done.returncode, json.loads((tmp_path / "out" / "latency.json").read_text())

    code, found = latency("payments")
    assert (code, found["result"]) == (0, "WITHIN")
    code, found = latency("orders|payments")
    assert (code, found["result"]) == (1, "ABOVE")
    worst, other = found["rows"]
    assert (worst["topic"], worst["records"], worst["max_partition"]) == ("orders", 100, 1)
    assert worst["p50_ms"] < HOUR <= worst["p99_ms"]
    assert (other["topic"], other["p99_is"]) == ("payments", "within")


def test_nothing_is_written_unless_it_is_enabled(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    produce_at(east, "orders", 0, [now_ms()])
    assert mirror({}).run_once() == 0
    assert topic_names(west) >= {"orders"}
    assert TOPIC not in topic_names(west)
