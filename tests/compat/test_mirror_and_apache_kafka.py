"""Apache Kafka as the source of a mirror is copied batch for batch; as the target it is rejected."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from kclient.wire.batches import iterate
from tests.kit.apache_kafka import ApacheKafka, java, running_kafka, with_kafka
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.mirrors import Mirror, stored
from tests.kit.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.timeout(
        240
    ),  # a JVM of a whole Kafka has to start, on machines that have other work
    with_kafka,
]


@pytest.fixture
def apache(tmp_path: Path, zookeeper_connect: str) -> Iterator[ApacheKafka]:
    with running_kafka(tmp_path / "apache", f"{zookeeper_connect}/apache") as kafka:
        yield kafka


def kafka_holds(apache: ApacheKafka, topic: str) -> list[tuple[int, int, bytes]]:
    found = []
    for path in sorted((apache.data / f"{topic}-0").glob("*.log")):
        data = path.read_bytes()
        found += [
            (info.base_offset, info.next_offset, data[info.position + 16 : info.end])
            for info in iterate(data)
        ]
    return found


def test_its_topics_are_copied_markers_and_aborted_records_too(
    apache: ApacheKafka, broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    west = broker_clusters(1)
    client = AdminClient({"bootstrap.servers": apache.bootstrap, "log_level": 0})
    for future in client.create_topics([NewTopic("plain", 1, 1), NewTopic("tx", 1, 1)]).values():
        future.result(10)
    settings = {"bootstrap.servers": apache.bootstrap, "log_level": 0}
    plain = Producer({**settings, "enable.idempotence": True, "compression.type": "zstd"})
    for n in range(3000):
        plain.produce("plain", b"value-%d" % n, headers=[("n", b"%d" % n)])
    assert plain.flush(20) == 0
    tx = Producer({**settings, "transactional.id": "x"})
    tx.init_transactions(20)
    for number in range(4):
        tx.begin_transaction()
        tx.produce("tx", b"value-%d" % number)
        assert tx.flush(20) == 0
        (tx.abort_transaction if number % 2 else tx.commit_transaction)(20)
    copier = Mirror(tmp_path / "mirror", apache, west, None)  # type: ignore[arg-type]
    assert copier.run_once() == 0, copier.output
    for topic in ("plain", "tx"):
        there = kafka_holds(apache, topic)
        assert there
        assert [(b.base_offset, b.next_offset, b.rest) for b in stored(west, topic)] == there
    there = committed(apache.bootstrap)
    assert [value for _, value in there] == [b"value-0", b"value-2"]
    assert committed(west.bootstrap) == there


def committed(bootstrap: str) -> list[tuple[int | None, bytes | None]]:
    """Return offset and value of what librdkafka reads of `tx` with read_committed."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": "read_committed",
        "enable.partition.eof": True, "log_level": 0,
    })  # fmt: skip
    consumer.assign([TopicPartition("tx", 0, 0)])
    found = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                return found
            found.append((message.offset(), message.value()))
    finally:
        consumer.close()


def test_the_audit_of_its_mirror_has_no_drift_of_defaults_and_takes_no_marker_for_a_gap(
    apache: ApacheKafka, broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    west = broker_clusters(1)
    client = AdminClient({"bootstrap.servers": apache.bootstrap, "log_level": 0})
    client.create_topics([NewTopic("tx", 1, 1)])["tx"].result(10)
    tx = Producer({"bootstrap.servers": apache.bootstrap, "log_level": 0, "transactional.id": "x"})
    tx.init_transactions(20)
    for number in range(6):
        tx.begin_transaction()
        tx.produce("tx", b"value")
        assert tx.flush(20) == 0
        (tx.abort_transaction if number % 2 else tx.commit_transaction)(20)
    copier = Mirror(tmp_path / "mirror", apache, west, None)  # type: ignore[arg-type]
    assert copier.run_once() == 0, copier.output
    assert audited(apache, west, tmp_path / "whole") == (0, "CONSISTENT", 12, 0, [])
    place = TopicPartition("tx", 0, 8)
    client.delete_records([place])[place].result(10)
    assert audited(apache, west, tmp_path / "aged") == (5, "INCOMPLETE", 4, 8, [])


def audited(apache: ApacheKafka, west: Cluster, out: Path) -> tuple[int, str, int, int, list[str]]:
    """Return exit code, verdict, verified and aged out offsets, and settings that differ."""
    command = [sys.executable, "-m", "spark_jobs", "reconcile", "--topics", "tx", "--out", str(out)]
    command += ["--source", apache.bootstrap, "--target", west.bootstrap, "--master", "local[2]"]
    done = subprocess.run(
        [*command, "--no-self-test"], capture_output=True, text=True, timeout=120, check=False
    )
    report = json.loads((out / "report.json").read_text())
    totals = report["totals"]
    drift = [row["config"] for row in report["drift"]]
    return done.returncode, report["verdict"], totals["verified"], totals["aged_out"], drift


def test_an_open_transaction_counts_as_lag(
    apache: ApacheKafka, broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    west = broker_clusters(1)
    client = AdminClient({"bootstrap.servers": apache.bootstrap, "log_level": 0})
    client.create_topics([NewTopic("tx", 1, 1)])["tx"].result(10)
    settings = {"bootstrap.servers": apache.bootstrap, "log_level": 0}
    hung, plain = Producer({**settings, "transactional.id": "x"}), Producer(settings)
    plain.produce("tx", b"before")
    assert plain.flush(20) == 0
    hung.init_transactions(20)
    hung.begin_transaction()
    hung.produce("tx", b"open")
    assert hung.flush(20) == 0
    plain.produce("tx", b"behind")
    assert plain.flush(20) == 0
    copier = Mirror(tmp_path / "mirror", apache, west, None)  # type: ignore[arg-type]
    assert copier.run_once() == 0, copier.output
    assert [batch.base_offset for batch in stored(west, "tx")] == [0]
    assert "lag 2 rec" in copier.output
    assert "2 rec in open transactions" in copier.output
    code, output = copier.ask("status", "--settle", "0.5")
    assert "open transaction: 2 records from offset 1 on are not readable yet" in output
    assert code == 4
    hung.commit_transaction(20)
    assert copier.run_once() == 0
    assert copier.ask("status")[0] == 0


def test_a_config_that_the_target_refuses_is_drift_and_blocks_no_data(
    apache: ApacheKafka, broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    west = broker_clusters(1)
    client = AdminClient({"bootstrap.servers": apache.bootstrap, "log_level": 0})
    config = {"cleanup.policy": "", "retention.ms": "86400000000"}
    client.create_topics([NewTopic("created", 1, 1, config=config), NewTopic("there", 1, 1)])
    eventually("both topics", lambda: len(client.list_topics(timeout=5).topics) == 2)
    producer = Producer({"bootstrap.servers": apache.bootstrap, "log_level": 0})
    for topic in ("created", "there"):
        producer.produce(topic, b"one")
    assert producer.flush(20) == 0
    copier = Mirror(tmp_path / "mirror", apache, west, None)  # type: ignore[arg-type]
    code, output = copier.ask("plan")
    assert code == 0
    assert "drift created: cleanup.policy is refused by the target: INVALID_CONFIG" in output
    assert copier.run_once() == 0, copier.output
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, "there", incremental_configs=entries)
    client.incremental_alter_configs([resource])[resource].result(10)
    producer.produce("there", b"two")
    assert producer.flush(20) == 0
    assert copier.run_once() == 0, copier.output
    for topic, count in (("created", 1), ("there", 2)):
        assert f"topic {topic}: DRIFT cleanup.policy= is not set" in copier.output
        assert len(stored(west, topic)) == count
        described = ConfigResource(ConfigResource.Type.TOPIC, topic)
        there = AdminClient({"bootstrap.servers": west.bootstrap, "log_level": 0})
        entries_there = there.describe_configs([described])[described].result(10)
        assert entries_there["retention.ms"].value == "86400000000", "the others are set"


def test_apache_kafka_is_rejected_as_a_target_that_would_append_without_a_condition(
    apache: ApacheKafka, broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east = broker_clusters(1)
    client = AdminClient({"bootstrap.servers": east.bootstrap, "log_level": 0})
    client.create_topics([NewTopic("t", 1, 1)])["t"].result(10)
    copier = Mirror(tmp_path / "mirror", east, apache, None)  # type: ignore[arg-type]
    assert copier.run_once() == 1
    assert "does not serve kbroker.conditional.append" in copier.output
    assert not (apache.data / "t-0").exists(), "not even a topic was created"
    for command in ("plan", "status"):
        code, output = copier.ask(command)
        assert code == 1
        assert "does not serve kbroker.conditional.append" in output


@pytest.mark.parametrize("idempotent", ["true", "false"])
def test_a_java_producer_to_a_mirror_fails_at_once_and_shows_why(
    broker_clusters: MakeCluster, tmp_path: Path, idempotent: str
) -> None:
    logging = tmp_path / "log4j.properties"
    logging.write_text(
        "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.out.layout=org.apache.log4j.SimpleLayout\n"
    )
    west = broker_clusters(1)
    client = AdminClient({"bootstrap.servers": west.bootstrap, "log_level": 0})
    topic = NewTopic("t", 1, 1, config={"kbroker.mirror.source.cluster.id": "there"})
    client.create_topics([topic])["t"].result(10)
    command = java("128m", f"-Dlog4j.configuration={logging.as_uri()}")
    command += ["kafka.tools.ConsoleProducer", "--topic", "t"]
    command += ["--bootstrap-server", west.bootstrap, "--producer-property", "acks=all"]
    command += ["--producer-property", f"enable.idempotence={idempotent}"]
    done = subprocess.run(
        command, input="ours\n", capture_output=True, text=True, timeout=60, check=False
    )
    output = done.stdout + done.stderr
    assert "PolicyViolationException" in output
    assert "t-0 is a mirror of cluster there and read-only" in output
    assert "retrying" not in output
    assert stored(west, "t") == []


WRITE_A_GAP = """
import sys
from kclient.aio import run
from kclient.config import CommonConfig
from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from mirrormaker.ledger import Ledger
from mirrormaker.link_state import Cause, Gap

async def main():
    from twisted.internet import reactor
    cluster = Cluster(reactor, CommonConfig.load({"bootstrap.servers": sys.argv[1]}))
    await cluster.start()
    ledger = Ledger(cluster, "east.gaps.internal", lambda: "east-id", replication_factor=-1)
    tp = TopicPartition("orders", 0)
    for until in (15, 15, 17):
        await ledger.record(tp, tp, Gap(10, until, Cause.RETENTION), "id")
    await cluster.close()

run(main)
"""


def test_the_gap_ledger_is_written_to_apache_kafka_and_read_from_it(
    apache: ApacheKafka, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", WRITE_A_GAP, apache.bootstrap]
    subprocess.run(command, timeout=120, check=True)
    records = kafka_holds(apache, "east.gaps.internal")
    assert [record[:2] for record in records] == [(0, 1), (1, 2)], "the same gap is written once"
    resource = ConfigResource(ConfigResource.Type.TOPIC, "east.gaps.internal")
    client = AdminClient({"bootstrap.servers": apache.bootstrap, "log_level": 0})
    configs = client.describe_configs([resource])[resource].result(10)
    assert configs["cleanup.policy"].value == "compact"
    unreachable = {"east.bootstrap.servers": "127.0.0.1:1"}
    copier = Mirror(tmp_path / "mirror", apache, apache, unreachable)  # type: ignore[arg-type]
    code, output = copier.ask("gaps", "--format", "json")
    assert code == 0, output
    (entry,) = [json.loads(line) for line in output.splitlines()]
    assert (entry["from"], entry["until"], entry["cause"]) == (10, 17, "retention")


def test_messages_of_an_old_format_stop_their_partition_and_are_named(
    broker_clusters: MakeCluster, tmp_path: Path, zookeeper_connect: str
) -> None:
    old = {"inter.broker.protocol.version": "2.8", "log.message.format.version": "0.10.2"}
    with running_kafka(tmp_path / "apache", f"{zookeeper_connect}/apache", old) as apache:
        west = broker_clusters(1)
        client = AdminClient({"bootstrap.servers": apache.bootstrap, "log_level": 0})
        topics = [
            NewTopic("old", 1, 1),
            NewTopic("new", 1, 1, config={"message.format.version": "2.8"}),
        ]
        for future in client.create_topics(topics).values():
            future.result(10)
        producer = Producer({"bootstrap.servers": apache.bootstrap, "log_level": 0})
        for n in range(100):
            for topic in ("old", "new"):
                producer.produce(topic, b"value-%d" % n)
        assert producer.flush(20) == 0
        copier = Mirror(tmp_path / "mirror", apache, west, None)  # type: ignore[arg-type]
        assert copier.run_once() == 5
        assert "STOPPED old-0: the source cannot be read" in copier.output
        assert "message format 1" in copier.output
        assert sum(b.next_offset - b.base_offset for b in stored(west, "new")) == 100
        read = subprocess.run(
            [sys.executable, "-m", "kclient", "-b", apache.bootstrap, "consume", "old", "-e"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert read.returncode == 1
        assert "old-0 at offset 0: message format 1" in read.stderr
