"""A full disk (S16): no partial write is visible, and the broker recovers as soon as there is space."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.brokers import MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SIZE_MIB = 24


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waited 20 s for {what}"
        time.sleep(0.02)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a file system of its own needs root: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_loses_nothing_that_was_acknowledged_and_room_is_all_it_needs(
    broker_clusters: MakeCluster, small_disk: Path
) -> None:
    ballast = small_disk / "ballast"
    with ballast.open("wb") as stream:
        stream.write(bytes(12 << 20))
    cluster = broker_clusters(1, {"log.dirs": str(small_disk / "data")})
    cluster.allowed.append(r"No space|log director|FATAL")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (made,) = admin.create_topics([NewTopic("t", 1, 1)]).values()
    made.result(20)

    acknowledged: list[int] = []
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            value = message.value()
            assert isinstance(value, bytes)
            acknowledged.append(int(value[:8]))

    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "message.timeout.ms": 4000,
        }
    )
    for number in range(2000):
        producer.produce(
            "t", b"%08d" % number + os.urandom(16_000), partition=0, on_delivery=delivered
        )
        producer.poll(0)
    producer.flush(20)
    assert failed, "the disk was never full"
    assert acknowledged
    # Its only log directory failed, so the broker ends (S15) instead of pretending.
    process = cluster[1].process
    assert process is not None
    until(lambda: process.poll() is not None, "the broker to end")
    assert process.returncode == 1

    cluster.kill(1)  # it is gone already: only its pipe is closed
    ballast.unlink()
    cluster.start(1)
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    ends: list[int] = []
    until(lambda: _end(consumer, ends), "the partition to be led again")
    seen: list[int] = []
    until(lambda: _take(consumer, seen) >= ends[0], "all records")
    consumer.close()
    assert seen[: len(acknowledged)] == acknowledged
    assert seen == sorted(set(seen))


def _take(consumer: Consumer, seen: list[int]) -> int:
    for message in consumer.consume(500, 0.2):
        assert message.error() is None
        value = message.value()
        assert isinstance(value, bytes)
        seen.append(int(value[:8]))
    return len(seen)


def _end(consumer: Consumer, ends: list[int]) -> bool:
    """Note where the partition ends, once it is led."""
    try:
        ends.append(consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=5)[1])
    except KafkaException:
        return False
    return True
