"""A log directory that Apache Kafka and kbroker compact in turn: each opens what the other one left."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.config.log import LogConfig
from kbroker.log.claimed_log_dirs import ClaimedLogDirs
from kbroker.log.cleaner import CleanerSizes
from kbroker.log.log_cleaner import CleanerConfig, Compaction
from kbroker.log.log_manager import LogManager
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import iterate
from kclient.wire.records import decode_batch
from tests.kit.apache_kafka import ApacheKafka, java, running_kafka, with_kafka
from tests.kit.inline_cleaner import InlineCleaner, RecordedRounds
from tests.kit.log_managers import Pool
from tests.kit.logs import read_bytes
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.compat, with_kafka, pytest.mark.timeout(240)]

KEYS = 60
DUMP = java("128m", "kafka.tools.DumpLogSegments")
CONFIG = LogConfig(
    cleanup_policy=("compact",), segment_bytes=20_000, min_cleanable_dirty_ratio=0.01
)
Found = list[tuple[int, bytes | None, bytes | None]]
"""Offset, key and value of each record."""


@contextmanager
def kafka_on(home: Path, zookeeper_connect: str, *, compacts: bool) -> Iterator[ApacheKafka]:
    """Run Apache Kafka on the directory of the test; shut down cleanly at the end."""
    settings = {
        "log.dirs": str(home.parent / "data"),
        "zookeeper.session.timeout.ms": "2000",
        "log.cleaner.backoff.ms": "200" if compacts else "86400000",
        "log.cleaner.dedupe.buffer.size": "2097152",
    }
    with running_kafka(home, zookeeper_connect, settings) as kafka:
        yield kafka
        kafka.process.terminate()
        kafka.process.wait(40)


@contextmanager
def our_log(directory: Path) -> Iterator[tuple[LogManager, UnifiedLog]]:
    """Open the directory as a broker of kbroker with a cleaner does; close cleanly at the end."""
    log_dirs = ClaimedLogDirs((str(directory),))
    dirs = LogManager(
        log_dirs,
        config_of=lambda topic: CONFIG if topic == "t" else LogConfig(),
        executor=ThreadPoolExecutor(1),
        call_owner=lambda call: call(),
        now_ms=lambda: int(time.time() * 1000),
        on_failure=lambda *what: pytest.fail(str(what)),
        on_flush=lambda _partition: None,
        on_move=lambda _partition, _path, _error: None,
        compaction=Compaction(InlineCleaner, Pool(), RecordedRounds()),
    )
    owner = log_dirs.stored_identity()
    assert owner.cluster_id is not None
    log_dirs.take_identity(1, owner.cluster_id)
    dirs.load()
    assert dirs.clean
    assert dirs.failed == {}
    dirs.configure_cleaner(CleanerConfig(1, CleanerSizes(1 << 20, 0.9, 1 << 16), 1e12))
    log = dirs.get("t", 0)
    assert log is not None
    yield dirs, log
    assert not dirs.uncleanable
    assert dirs.close(broker_epoch=7)


def produce(kafka: ApacheKafka, expected: dict[bytes, tuple[int, bytes | None]]) -> None:
    """Write 2,000 records of 60 keys and 20 of keys of their own; keep the last one of each key."""
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "batch.num.messages": "20",
            "enable.idempotence": True,
        }
    )
    begun = time.time_ns()
    for n in range(2000):
        key = b"once %d %d" % (begun, n) if n % 100 == 0 else b"key %d" % (n % KEYS)
        value = None if n % 47 == 0 else b"%d %d " % (begun, n) + b"." * 60

        def delivered(
            _: object, message: object, key: bytes = key, value: bytes | None = value
        ) -> None:
            expected[key] = message.offset(), value  # type: ignore[attr-defined]

        producer.produce("t", value, key, partition=0, on_delivery=delivered)
    assert producer.flush(30) == 0


def read_of(kafka: ApacheKafka) -> Found:
    """Read the partition with librdkafka, checking CRCs."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    found: Found = []
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        problem = message.error()
        if problem is None:
            found.append((message.offset() or 0, message.key(), message.value()))
        elif problem.code() == KafkaError._PARTITION_EOF:
            consumer.close()
            return found
    raise AssertionError("the partition was not read to its end")


def held(log: UnifiedLog) -> Found:
    """Return what a fetch from our log returns."""
    found: Found = []
    offset = log.log_start_offset
    while data := read_bytes(log, offset):
        for info in iterate(data):
            found += [(each.offset, each.key, each.value) for each in decode_batch(data, info)]
            offset = info.next_offset
    return found


def check(found: Found, expected: dict[bytes, tuple[int, bytes | None]]) -> None:
    """Check that the last record of each key is there, at its offset; a tombstone may be gone."""
    last = {key: (offset, value) for offset, key, value in found}
    assert {key: each for key, each in last.items() if each != expected[key or b""]} == {}
    assert [key for key, (_, value) in expected.items() if value and key not in last] == []


def dump(directory: Path) -> str:
    """Have Kafka's DumpLogSegments read each segment, with its indexes."""
    files = ",".join(
        str(path)
        for path in sorted(directory.iterdir())
        if path.suffix in (".log", ".index", ".timeindex")
    )
    done = subprocess.run(
        [*DUMP, "--deep-iteration", "--files", files],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_apache_kafka_and_kbroker_compact_a_directory_in_turn(
    tmp_path: Path, zookeeper_connect: str
) -> None:
    data = tmp_path / "data"
    expected: dict[bytes, tuple[int, bytes | None]] = {}
    with kafka_on(tmp_path / "first", zookeeper_connect, compacts=False) as kafka:
        settings = {
            "cleanup.policy": "compact",
            "segment.bytes": "20000",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "86400000",
        }
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1, config=settings)])["t"].result(20)
        produce(kafka, expected)
    with our_log(data) as (dirs, log):
        assert len(held(log)) == 2000
        dirs.compact(lambda _key: log.log_end_offset)
        ours = held(log)
        check(ours, expected)
        assert len(ours) < 500
        first_dirty = log.clean_below
    assert first_dirty is not None
    assert f"t 0 {first_dirty}\n" in (data / "cleaner-offset-checkpoint").read_text()
    output = dump(data / "t-0")
    assert "Mismatch" not in output
    assert "out of order" not in output
    assert "corrupt" not in output.lower()

    with kafka_on(tmp_path / "second", zookeeper_connect, compacts=False) as kafka:
        assert read_of(kafka) == ours
        produce(kafka, expected)
    with kafka_on(tmp_path / "third", zookeeper_connect, compacts=True) as kafka:
        eventually("Kafka's compaction", lambda: len(read_of(kafka)) < 600, 60)
        check(read_of(kafka), expected)
    theirs = int((data / "cleaner-offset-checkpoint").read_text().split("t 0 ")[1].split()[0])
    assert theirs > first_dirty

    with our_log(data) as (dirs, log):
        assert log.clean_below == theirs
        check(held(log), expected)
        log.roll(int(time.time() * 1000))
        log.flush()
        dirs.compact(lambda _key: log.log_end_offset)
        assert log.clean_below == log.log_end_offset
        check(held(log), expected)
        assert len(held(log)) <= KEYS + 40
