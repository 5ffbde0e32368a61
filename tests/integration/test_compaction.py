"""Brokers compact the logs of topics with cleanup.policy=compact, through kill -9 and over damage (S34)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tests.kit.brokers import Broker, Cluster, MakeCluster
from tests.kit.replicated import Observer, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

BROKER = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.retention.check.interval.ms": "300",
}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "16384",
    "min.cleanable.dirty.ratio": "0.01",
}
VALUE_BYTES = 100


class Written(NamedTuple):
    """A record that was acknowledged."""

    offset: int
    key: bytes
    value: bytes | None


class Writes:
    """Writes to partition 0 of a topic, and keeps what was acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.size": 4000,  # several batches in a segment
                "log_level": 0,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self.acknowledged: list[Written] = []
        self._number = 0

    def put(self, key: str, *, is_tombstone: bool = False, timestamp: int = 0) -> None:
        """Send a record; the value has a number that no other has."""
        self._number += 1
        value = None if is_tombstone else b"%d " % self._number + b"." * VALUE_BYTES
        encoded = key.encode()

        def delivered(error: KafkaError | None, message: object) -> None:
            if error is None:
                offset = message.offset()  # type: ignore[attr-defined]
                self.acknowledged.append(Written(offset, encoded, value))

        given = {"timestamp": timestamp} if timestamp else {}
        self._producer.produce(
            self._topic, value, encoded, partition=0, on_delivery=delivered, **given
        )
        self._producer.poll(0)

    def put_rounds(self, rounds: int, keys: int) -> None:
        """Send *rounds* records for each of *keys* keys."""
        for _ in range(rounds):
            for key in range(keys):
                self.put(f"key-{key}")
        self.flush()

    def flush(self) -> None:
        """Wait until all is acknowledged."""
        assert self._producer.flush(60) == 0

    def last(self) -> dict[bytes, Written]:
        """Return the last record of each key."""
        return {each.key: each for each in sorted(self.acknowledged)}


def read_all(bootstrap: str, topic: str, partition: int = 0) -> list[Written]:
    """Consume a partition from its start to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found = []
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            problem = message.error()
            if problem is None:
                found.append(Written(message.offset(), message.key(), message.value()))
            elif problem.code() == KafkaError._PARTITION_EOF:
                return found
    finally:
        consumer.close()
    raise AssertionError(f"{topic}-{partition} was not read to its end")


def check(found: list[Written], writes: Writes) -> None:
    """Check that the last record of each key is there, and that nothing was invented or moved."""
    offsets = [each.offset for each in found]
    assert offsets == sorted(set(offsets))
    written = set(writes.acknowledged)
    assert [each for each in found if each not in written] == []
    last = writes.last()
    missing = [each for each in last.values() if each not in found and each.value is not None]
    assert missing == []


def compacted_to(broker: Broker, name: str) -> int:
    """Return the first dirty offset of a partition, by the broker's log lines; -1 without one."""
    lines = [line for line in broker.log.splitlines() if f"compacted {name} up to offset" in line]
    return int(lines[-1].split("up to offset ")[1].split(":")[0]) if lines else -1


def wait_until_compacted(broker: Broker, name: str, offset: int = 1) -> None:
    eventually(
        f"{name} compacted on broker {broker.broker_id}",
        lambda: compacted_to(broker, name) >= offset,
        30,
    )


def cleaners() -> Iterator[tuple[int, int]]:
    """Yield the ids of the cleaner processes of this machine, and of their parents."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
                state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if b"kbroker.log.cleaner_process" in command and state != "Z":
                yield int(process.name), int(parent)


def cleaners_of(broker: Broker) -> list[int]:
    return [pid for pid, parent in cleaners() if parent == broker.pid]


def test_a_broker_compacts_and_its_cleaner_ends_with_it(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(1, BROKER)
    observer = Observer(cluster)
    observer.create("t", [[1]], {**COMPACTED, "delete.retention.ms": "500"})
    observer.create("plain", [[1]], {"segment.bytes": "16384"})
    writes, plain = Writes(cluster, "t"), Writes(cluster, "plain")
    assert not cleaners_of(cluster[1]), "no process before the first round"
    plain.put_rounds(10, 50)
    writes.put_rounds(20, 50)
    for key in range(10):
        writes.put(f"key-{key}", is_tombstone=True)
    for number in range(400):  # the tombstones are not in the active segment
        writes.put(f"other-{number % 40}")
    writes.flush()
    wait_until_compacted(cluster[1], "t-0", 1010)
    found = read_all(cluster.bootstrap, "t")
    check(found, writes)
    assert len(found) < 500, "1410 were written, of 90 keys"
    assert len(read_all(cluster.bootstrap, "plain")) == 500
    pids = cleaners_of(cluster[1])
    assert len(pids) == 1

    def without_tombstones() -> bool:
        for number in range(200):
            writes.put(f"other-{number % 40}")
        writes.flush()
        return all(each.value is not None for each in read_all(cluster.bootstrap, "t"))

    eventually("the tombstones to be gone", without_tombstones, 30)
    check(read_all(cluster.bootstrap, "t"), writes)

    cluster.kill(1)
    eventually("the end of the process", lambda: not set(pids) & {pid for pid, _ in cleaners()})
    cluster.start()
    check(read_all(cluster.bootstrap, "t"), writes)
    writes.put_rounds(20, 50)
    eventually("the cleaner of the second run", lambda: cleaners_of(cluster[1]), 30)
    pids = cleaners_of(cluster[1])
    cluster.terminate(1)
    assert not set(pids) & {pid for pid, _ in cleaners()}
    checkpoint = (cluster[1].data / "cleaner-offset-checkpoint").read_text()
    assert f"t 0 {compacted_to(cluster[1], 't-0')}" in checkpoint
