"""Exchanged or damaged files in one broker's log directory (S8): acknowledged records stay on every replica.

All brokers are down; on one the files are exchanged or damaged. That broker starts first, so that the controller can
elect no other. When the others are back all records are there, on all three.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.replicated import Observer, read_all, until_replicas_agree
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SETTINGS = {
    "zookeeper.session.timeout.ms": "3000",
    "replica.fetch.backoff.ms": "200",
    "replica.high.watermark.checkpoint.interval.ms": "200",
    "offsets.topic.replication.factor": "3",
}
ALL = (1, 2, 3)
PATIENCE = 40.0
_numbers = itertools.count(1)

Damage = Callable[[Path, str], None]
"""Changes the files of a log directory; of the topic and of another one, "TOPIC.other"."""


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    """Three brokers for all tests of this file; every test leaves them running."""
    return module_clusters(3, SETTINGS)


def send(cluster: Cluster, topic: str, counts: tuple[int, ...]) -> dict[int, list[bytes]]:
    """Produce so many records to each partition with acks=all; return their values."""
    reports: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    sent = {p: [f"{topic} {p} {n}".encode() for n in range(many)] for p, many in enumerate(counts)}
    for partition, values in sent.items():
        for value in values:
            producer.produce(
                topic, value, partition=partition, on_delivery=lambda e, _m: reports.append(e)
            )
    assert producer.flush(PATIENCE) == 0
    assert reports == [None] * sum(counts)
    return sent


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def of_two_topics(data: Path, topic: str) -> None:
    exchange(data / f"{topic}-0", data / f"{topic}.other-0")


def of_one_topic(data: Path, topic: str) -> None:
    exchange(data / f"{topic}-0", data / f"{topic}-1")


def of_another_broker(data: Path, topic: str) -> None:
    shutil.rmtree(data / f"{topic}-0")
    shutil.copytree(data.parents[1] / "broker-2" / "data" / f"{topic}-0", data / f"{topic}-0")


def only_the_metadata(data: Path, topic: str) -> None:
    metadata = "partition.metadata"
    exchange(data / f"{topic}-0" / metadata, data / f"{topic}.other-0" / metadata)


def only_the_epochs(data: Path, topic: str) -> None:
    for number in (0, 1):
        (data / f"{topic}-{number}" / "leader-epoch-checkpoint").write_text("0\n1\n9 0\n")


def set_line(data: Path, checkpoint: str, topic: str, offset: int) -> None:
    path = data / f"{checkpoint}-offset-checkpoint"
    others = [
        line
        for line in (path.read_text().splitlines()[2:] if path.exists() else ())
        if not line.startswith(f"{topic} 0 ")
    ]
    lines = [*others, f"{topic} 0 {offset}"]
    path.write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")


def bad_line(checkpoint: str, offset: int) -> Damage:
    return lambda data, topic: set_line(data, checkpoint, topic, offset)


def until_decided(cluster: Cluster, partition: str, after: int) -> None:
    """Wait until broker 1 leads a partition or has refused to, by its log behind *after*."""
    outcomes = (f"{partition}: leader in epoch", f"{partition} is not led from here")
    eventually(
        f"broker 1 to lead {partition}, or not",
        lambda: any(outcome in cluster[1].log[after:] for outcome in outcomes),
        PATIENCE,
    )


DAMAGES: dict[str, Damage] = {
    "directories of two topics": of_two_topics,
    "directories of one topic": of_one_topic,
    "directory of another broker": of_another_broker,
    "partition.metadata": only_the_metadata,
    "leader-epoch-checkpoint": only_the_epochs,
    "log start within": bad_line("log-start", 200),
    "log start at the end": bad_line("log-start", 300),
    "log start beyond": bad_line("log-start", 123_456_789),
    "recovery point": bad_line("recovery-point", 123_456_789),
    "high watermark": bad_line("replication", 123_456_789),
}


KILLED = ("directories of two topics", "directories of one topic", "log start beyond")
"""What is tried after kill -9, too."""


@pytest.mark.parametrize(
    ("damage", "ends"),
    [*((damage, "cleanly") for damage in DAMAGES), *((damage, "killed") for damage in KILLED)],
)
def test_s08_no_damage_to_one_log_directory_takes_records_from_the_others(
    cluster: Cluster, damage: str, ends: str
) -> None:
    for broker_id in cluster.down:
        cluster.start(broker_id)
    observer = Observer(cluster)
    topic = f"t{next(_numbers)}"
    other = f"{topic}.other"
    safe = {"min.insync.replicas": "2"}
    observer.create(topic, [[1, 2, 3], [1, 2, 3]], safe)
    observer.create(other, [[1, 2, 3]], safe)
    sent = send(cluster, topic, (300, 300))
    others = send(cluster, other, (100,))
    if ends == "cleanly":
        for broker_id in (2, 3, 1):
            cluster.terminate(broker_id)
    else:
        cluster.kill()
    DAMAGES[damage](cluster[1].data, topic)
    before = len(cluster[1].log)
    cluster.start(1)
    for name in (f"{topic}-0", f"{topic}-1", f"{other}-0"):
        until_decided(cluster, name, before)
    cluster.start(2, 3)
    for name, partitions in ((topic, (0, 1)), (other, (0,))):
        for partition in partitions:
            observer.in_sync(name, partition, ALL, PATIENCE)
            until_replicas_agree(cluster, name, partition, ALL, PATIENCE)
    found = read_all(cluster.bootstrap, topic, 2)
    assert {p: list(values.values()) for p, values in found.items()} == sent
    found = read_all(cluster.bootstrap, other, 1)
    assert {p: list(values.values()) for p, values in found.items()} == others
    for name in (topic, other):
        observer.delete(
            name
        )  # so that broker 1 logs each partition by its name in the next test, too
