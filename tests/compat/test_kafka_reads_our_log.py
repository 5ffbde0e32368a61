"""Apache Kafka's own tools read our files, and we open what Apache Kafka wrote."""

from __future__ import annotations

import random
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.config.log import LogConfig
from kbroker.local.processes import start_bound_to_us
from kbroker.local.zookeeper import free_ports
from kbroker.log.claimed_log_dirs import ClaimedLogDirs
from kbroker.log.log_manager import LogManager
from kclient.log_files.dump import Dump, DumpOptions
from kclient.wire.batches import parse
from kclient.wire.records import ABORT, Record, encode_batch
from tests.kit.apache_kafka import java, with_kafka
from tests.kit.log_timestamps import offset_for_timestamp
from tests.kit.logs import append, batch_of, open_log, records
from tests.kit.producer_batches import append_numbered
from tests.kit.transactional_logs import marker, transactional

LOG = "00000000000000000000"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    with_kafka,
]


def dump(*arguments: str) -> str:
    """Run DumpLogSegments and return its output."""
    done = subprocess.run(
        java("128m", "kafka.tools.DumpLogSegments", *arguments),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def our_dump(files: str, options: DumpOptions) -> str:
    """Return what `kclient log dump` prints."""
    dump = Dump(options)
    lines = [line for name in files.split(",") for line in dump.lines(Path(name))]
    assert dump.findings() == []
    return "".join(f"{line}\n" for line in lines)


def test_dump_log_segments_reads_our_segment_and_finds_our_indexes_right(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", index_interval_bytes=200)
    for n in range(100):
        append(log, 1000 + n, 1000 + n, value=b"value-%d" % n, epoch=n // 40)
    for codec in (1, 2, 3, 4):
        batch = batch_of(2000, 2001, value=b"compressed", codec=codec)
        log.append_as_leader(batch, parse(batch), 3, 0)
    unusual = [
        Record(0, 5000, b"k", b"\xff", (("a", b"x"), ("a", None))),
        Record(1, 5002, b"tombstone", None, ()),
        Record(2, 5001, None, "größe".encode(), ()),
    ]
    batch = encode_batch(unusual)
    log.append_as_leader(batch, parse(batch), 3, 0)
    log.close()
    files = ",".join(
        str(tmp_path / "t-0" / LOG) + suffix for suffix in (".log", ".index", ".timeindex")
    )
    output = dump("--deep-iteration", "--print-data-log", "--files", files)
    batches = re.findall(
        r"^baseOffset: (\d+) .* partitionLeaderEpoch: (\d+) .* isvalid: true$", output, re.M
    )
    assert output == our_dump(files, DumpOptions(print_data=True))
    assert [int(base) for base, _ in batches] == [2 * n for n in range(105)]
    assert {epoch for _, epoch in batches} == {"0", "1", "2", "3"}
    assert output.count("payload: value-") == 200
    assert output.count("payload: compressed") == 8
    assert "compresscodec: zstd" in output
    assert "Index timestamp mismatch" not in output
    assert "mismatch" not in output.lower(), output
    assert len(re.findall(r"^offset: \d+ position: \d+$", output, re.M)) > 30
    assert len(re.findall(r"^timestamp: \d+ offset: \d+$", output, re.M)) > 30
    checked = dump("--index-sanity-check", "--files", str(tmp_path / "t-0" / f"{LOG}.index"))
    assert "passed sanity check" in checked


@pytest.mark.parametrize("records_in_it", [0, 1, 3000])
def test_dump_log_segments_reads_an_active_segment(tmp_path: Path, records_in_it: int) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1 << 20)
    append(log, 1)
    log.roll(5)
    for n in range(records_in_it):
        append(log, 1000 + n, value=bytes(100))
    for base in (0, 1):
        stem = tmp_path / "t-0" / f"{base:020d}"
        output = dump("--files", f"{stem}.log,{stem}.index,{stem}.timeindex")
        assert output.count("Dumping") == 3
        assert "mismatch" not in output.lower(), output
    log.close()


def test_dump_log_segments_reads_our_transactions(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for batch in (
        transactional(77, epoch=4), transactional(78, count=2), marker(77, ABORT, epoch=4, coordinator_epoch=6),
    ):  # fmt: skip
        log.append_as_leader(batch, parse(batch), 0, 1000)
    log.close()
    files = [str(path) for path in (tmp_path / "t-0").glob("*.txnindex")]
    files += [str(path) for path in (tmp_path / "t-0").glob("*.snapshot")]
    files.append(f"{tmp_path / 't-0' / LOG}.log")
    assert len(files) == 3
    output = dump("--print-data-log", "--files", ",".join(files))
    assert output == our_dump(",".join(files), DumpOptions(print_data=True))
    entry = "version: 0 producerId: 77 firstOffset: 0 lastOffset: 3 lastStableOffset: 1"
    assert entry in output
    assert re.search(
        r"producerId: 78 .*currentTxnFirstOffset: (Optional\[1\]|OptionalLong\[1\])", output
    )
    assert re.search(
        r"producerId: 77 .*coordinatorEpoch: 6 currentTxnFirstOffset: \S*[eE]mpty", output
    )
    assert "endTxnMarker: ABORT coordinatorEpoch: 6" in output


def test_dump_log_segments_reads_our_producer_snapshots(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for sequence in range(3):
        append_numbered(log, 77, sequence * 2, 2, epoch=4, now_ms=1000)
    append_numbered(log, 78, 9, now_ms=2000)
    log.close()
    output = dump("--files", str(tmp_path / "t-0" / "00000000000000000007.snapshot"))
    rows = re.findall(
        r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+)"
        r" currentTxnFirstOffset: (\S+) lastTimestamp: (\d+)"
        r" firstSequence: (\d+) lastSequence: (\d+) lastOffset: (\d+) offsetDelta: (\d+)"
        r" timestamp: (\d+)",
        output,
    )
    assert [(row[0], row[1], *row[5:9]) for row in rows] == [
        ("77", "4", "0", "1", "1", "1"),
        ("77", "4", "2", "3", "3", "1"),
        ("77", "4", "4", "5", "5", "1"),
        ("78", "0", "9", "9", "6", "0"),
    ], output


class ApacheKafka:
    """One Apache Kafka broker on *directory*, registered in *zookeeper*."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.output = directory.with_suffix(".output")
        settings = directory.with_suffix(".properties")
        settings.write_text(
            f"broker.id=1\nzookeeper.connect={zookeeper}\nlog.dirs={directory}\n"
            f"listeners=PLAINTEXT://{self.address}\noffsets.topic.replication.factor=1\n"
            "log.flush.offset.checkpoint.interval.ms=500\nzookeeper.session.timeout.ms=2000\n"
        )
        command = java("256m", "kafka.Kafka", str(settings))
        with self.output.open("ab") as output:
            self.process = start_bound_to_us(command, output=output)

    def client(self) -> dict[str, str]:
        return {"bootstrap.servers": self.address, "log_level": "0"}

    @classmethod
    def started(cls, directory: Path, zookeeper: str) -> ApacheKafka:
        """Start a broker and wait until it answers.

        It gives up while ZooKeeper still has the node of one that was killed: then start again.
        """
        deadline = time.monotonic() + 60
        kafka = cls(directory, zookeeper)
        admin = AdminClient(kafka.client())
        while time.monotonic() < deadline:
            if kafka.process.poll() is not None:
                kafka = cls(directory, zookeeper)
                admin = AdminClient(kafka.client())
            with suppress(KafkaException):
                if admin.list_topics(timeout=1).brokers:
                    return kafka
        raise AssertionError(kafka.output.read_text()[-3000:])

    def stop(self, *, clean: bool) -> None:
        if clean:
            self.process.terminate()
        else:
            self.process.kill()
        self.process.wait(30)


def open_dirs(directory: Path, settings: LogConfig) -> LogManager:
    log_dirs = ClaimedLogDirs((str(directory),))
    dirs = LogManager(
        log_dirs,
        config_of=lambda topic: settings,
        executor=ThreadPoolExecutor(1),
        call_owner=lambda call: call(),
        now_ms=lambda: int(time.time() * 1000),
        on_failure=lambda *what: pytest.fail(str(what)),
        on_flush=lambda _partition: None,
        on_move=lambda _partition, _path, _error: None,
    )
    owner = log_dirs.stored_identity()
    assert owner.broker_id == 1
    assert owner.cluster_id is not None
    log_dirs.take_identity(1, owner.cluster_id)
    dirs.load()
    return dirs


def values(address: str, count: int) -> list[bytes | None]:
    """The first *count* values of the topic, as librdkafka reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "enable.auto.commit": False,
            # A Kafka that has just started may not know yet that 0 is there; librdkafka then went to the end.
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[bytes | None] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(count - len(found), 1.0)]
    consumer.close()
    return found


@pytest.mark.timeout(180)
@pytest.mark.parametrize("clean", [True, False], ids=["shut down", "killed"])
def test_a_directory_of_apache_kafka_is_opened_and_given_back(
    tmp_path: Path, zookeeper_connect: str, clean: bool
) -> None:
    directory = tmp_path / "data"
    topic = {"segment.bytes": "20000", "index.interval.bytes": "500"}
    kafka = ApacheKafka.started(directory, zookeeper_connect)
    admin = AdminClient(kafka.client())
    created = admin.create_topics([NewTopic("t", 1, 1, config=topic)])
    created["t"].result(20)
    producer = Producer({**kafka.client(), "compression.type": "lz4", "batch.num.messages": "20"})
    expected = [b"%d " % n + random.Random(n).randbytes(60) for n in range(2000)]
    for n, value in enumerate(expected):
        producer.produce("t", value, timestamp=1_700_000_000_000 + n)
        if n % 100 == 0:
            producer.flush(10)
    assert producer.flush(30) == 0
    kafka.stop(clean=clean)

    settings = LogConfig(segment_bytes=20000, index_interval_bytes=500, retention_ms=-1)
    dirs = open_dirs(directory, settings)
    assert dirs.clean is clean
    assert dirs.failed == {}
    log = dirs.get("t", 0)
    assert log is not None
    assert (log.log_end_offset, log.topic_id is not None) == (2000, True)
    assert len(log.segments) > 3
    assert [value for _, value in records(log)] == expected
    for n in (0, 1, 777, 1999):
        found = offset_for_timestamp(log, 1_700_000_000_000 + n)
        assert found is not None
        assert found.offset == n
    epoch = log.leader_epochs.latest
    assert epoch >= 0
    for n in range(100):
        append(log, 1_700_000_002_000 + n, value=b"ours %d" % n, epoch=epoch)
        expected.append(b"ours %d" % n)
    assert dirs.close(broker_epoch=7)

    kafka = ApacheKafka.started(directory, zookeeper_connect)
    try:
        assert values(kafka.address, len(expected)) == expected
    finally:
        kafka.stop(clean=False)
