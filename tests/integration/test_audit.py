"""The audit on real clusters and real Spark: it names every difference, and returns the documented exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.processes import peak_memory_mib
from kclient.avro import AvroSerializer
from spark_jobs.accounting import Ledger
from spark_jobs.arrow_batches import unread_part
from spark_jobs.cluster import matching_topics, read_cluster, time_span
from spark_jobs.comparison import Options
from spark_jobs.cut import OffsetRange
from spark_jobs.engine import FailureKind
from spark_jobs.findings import DEFAULT_MAX_FINDINGS, FindingClass
from spark_jobs.in_step import MANY as ALIGNED_IN_STEP
from spark_jobs.kafka_reader import KafkaReader
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.report.document import config_drift
from spark_jobs.session import SparkNotStarted, spark_session
from spark_jobs.spark_engine import SparkEngine
from spark_jobs.spark_settings import SparkSettings
from spark_jobs.verdict import ExitCode, Verdict
from tests.kit.audit_reports import violations
from tests.kit.brokers import Cluster
from tests.kit.kaudit import MASTER, kaudit, start_spark, stop_spark
from tests.kit.mirrors import Mirror
from tests.kit.zookeeper import Ensemble

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_numbers = count(1)
MANY = 100
"""Partitions of one record each."""


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]] = ()


def messages(count: int) -> list[Message]:
    """Records with everything Kafka can hold: nulls, empties, headers in order with repeated keys."""
    return [
        Message(
            [b"k%d" % (n % 7), b"", None][n % 3],
            None if n % 11 == 5 else b"value %d" % n,
            1_700_000_000_000 + n * 1000,
            [("a", b"1"), ("a", None), ("b", b"")] if n % 4 == 0 else [],
        )
        for n in range(count)
    ]


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    """A session of the Spark application of this process."""
    start_spark()
    with spark_session("kbroker-tests", SparkSettings(MASTER, offsets=1000)) as session:
        yield session


@pytest.fixture(scope="module")
def clusters(
    tmp_path_factory: pytest.TempPathFactory, zookeeper_server: Ensemble
) -> Iterator[tuple[Cluster, Cluster]]:
    made = [
        Cluster(
            tmp_path_factory.mktemp(name),
            f"{zookeeper_server.connect}/audit-{os.getpid()}-{name}",
            1,
        )
        for name in ("east", "west")
    ]
    try:
        for cluster in made:
            cluster.start()
        yield made[0], made[1]
    finally:
        for cluster in made:
            cluster.stop_all()
    assert [line for cluster in made for line in cluster.complaints()] == []


class Pair:
    """One topic on both clusters; its name begins with *topic*, and is new."""

    def __init__(
        self, clusters: tuple[Cluster, Cluster], topic: str, *, partitions: int = 2
    ) -> None:
        self.east, self.west = (cluster.bootstrap for cluster in clusters)
        self.topic = f"{topic}-{next(_numbers)}"
        self.partitions = partitions
        for bootstrap in (self.east, self.west):
            admin = AdminClient({"bootstrap.servers": bootstrap})
            for future in admin.create_topics([NewTopic(self.topic, partitions, 1)]).values():
                future.result(20)

    def write(self, bootstrap: str, records: Sequence[Message], codec: str = "none") -> None:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
        )
        for n, message in enumerate(records):
            producer.produce(
                self.topic,
                message.value,
                message.key,
                partition=n % self.partitions,
                timestamp=message.timestamp,
                headers=list(message.headers),
            )
        assert producer.flush(20) == 0

    def audit(
        self,
        spark: SparkSession,
        *,
        complete: bool = True,
        renumbered: bool = False,
        many: int = ALIGNED_IN_STEP,
        max_findings: int = DEFAULT_MAX_FINDINGS,
    ) -> Reconciliation:
        target = read_cluster("west", self.west, [self.topic], read_committed=renumbered)
        source = read_cluster("east", self.east, [self.topic], read_committed=renumbered)
        options = Options(50, complete, renumbered=renumbered)
        buckets = TimeBuckets.over(time_span(source))
        reader = KafkaReader(spark, slice_offsets=100)
        engine = SparkEngine(reader, options.window, buckets, max_findings=max_findings, many=many)
        return reconcile(engine, source, target, options, buckets=buckets)


def named(run: Reconciliation) -> list[tuple[str, int, int | None, int | None, str | None]]:
    return [
        (f.finding_class.value, f.partition, f.source_offset, f.target_offset, f.field)
        for f in run.findings
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_copy_in_any_codec_is_consistent(
    spark: SparkSession, clusters: tuple[Cluster, Cluster], codec: str
) -> None:
    pair = Pair(clusters, f"equal-{codec}")
    pair.write(pair.east, messages(400), codec)
    pair.write(pair.west, messages(400), "none")
    run = pair.audit(spark)
    assert (run.outcome.verdict, named(run)) == (Verdict.CONSISTENT, [])
    assert run.counts.verified == 400


def test_every_kind_of_difference_is_named(
    spark: SparkSession, clusters: tuple[Cluster, Cluster]
) -> None:
    pair = Pair(clusters, "damaged")
    source = messages(400)
    target = [list(source[0::2]), list(source[1::2])]
    first, second = target
    del first[20]
    first[100] = first[100]._replace(value=b"changed")
    second.insert(60, second[40])
    second.insert(160, second.pop(150))
    second[10] = second[10]._replace(key=b"" if second[10].key is None else None)
    second.append(Message(b"foreign", b"from elsewhere", 1))
    pair.write(pair.east, source)
    write_apart(pair, target)
    run = pair.audit(spark)
    assert run.outcome.exit_code is ExitCode.DIVERGED
    assert sorted(named(run), key=str) == sorted(
        [
            ("missing", 0, 20, None, None),
            ("corrupt", 0, 101, 100, "value"),
            ("duplicate", 1, None, 60, None),
            ("corrupt", 1, 10, 10, "key"),
            ("reordered", 1, 149, 160, None),
            ("extra", 1, None, 201, None),
        ],
        key=str,
    )


def write_apart(pair: Pair, partitions: Sequence[Sequence[Message]]) -> None:
    producer = Producer({"bootstrap.servers": pair.west, "linger.ms": 20})
    for number, records in enumerate(partitions):
        for message in records:
            producer.produce(
                pair.topic,
                message.value,
                message.key,
                partition=number,
                timestamp=message.timestamp,
                headers=list(message.headers),
            )
    assert producer.flush(20) == 0


def test_a_tail_not_received_is_lag_and_a_complete_mirror_has_lost_it(
    spark: SparkSession, clusters: tuple[Cluster, Cluster]
) -> None:
    pair = Pair(clusters, "lagging")
    pair.write(pair.east, messages(100))
    pair.write(pair.west, messages(90))
    run = pair.audit(spark, complete=False)
    assert (run.outcome.verdict, run.counts.lagging, named(run)) == (Verdict.LAGGING, 10, [])
    run = pair.audit(spark, complete=True)
    assert [(f.finding_class.value, f.records) for f in run.findings] == [("truncated", 5)] * 2


def test_what_retention_removed_from_the_copy_can_not_be_verified(
    spark: SparkSession, clusters: tuple[Cluster, Cluster]
) -> None:
    pair = Pair(clusters, "aged")
    for bootstrap in (pair.east, pair.west):
        pair.write(bootstrap, messages(100))
    admin = AdminClient({"bootstrap.servers": pair.west})
    for future in admin.delete_records([Place(pair.topic, 0, 30)]).values():
        future.result(20)
    run = pair.audit(spark)
    assert (run.outcome.verdict, run.outcome.exit_code) == (Verdict.INCOMPLETE, ExitCode.AGED_OUT)
    assert (run.counts.aged_out, run.counts.verified, named(run)) == (30, 70, [])


def test_many_small_partitions_are_read_by_a_few_tasks(
    spark: SparkSession, clusters: tuple[Cluster, Cluster]
) -> None:
    """2,000 partitions of one record took 693 s: a task, a connection and metadata for each."""
    pair = Pair(clusters, "many", partitions=MANY)
    for bootstrap in (pair.east, pair.west):
        pair.write(bootstrap, messages(MANY))
    run = pair.audit(spark)
    assert (run.outcome.verdict, run.counts.verified) == (Verdict.CONSISTENT, MANY)
    ranges = [OffsetRange(pair.topic, number, 0, 1) for number in range(MANY)]
    frame = KafkaReader(spark).hashes(run.source, ranges)
    assert frame.rdd.getNumPartitions() == 4
    assert frame.count() == MANY


def test_a_partition_is_read_from_several_places(
    spark: SparkSession, clusters: tuple[Cluster, Cluster]
) -> None:
    pair = Pair(clusters, "places")
    pair.write(pair.east, messages(400))
    ranges = [
        OffsetRange(pair.topic, 1, 150, 151),
        OffsetRange(pair.topic, 0, 10, 20),
        OffsetRange(pair.topic, 1, 0, 3),
        OffsetRange(pair.topic, 0, 20, 25),
    ]
    east = read_cluster("east", pair.east, [pair.topic])
    found = KafkaReader(spark).hashes(east, ranges).select("partition", "offset").collect()
    expected = [(each.partition, n) for each in ranges for n in range(each.low, each.high)]
    assert sorted(map(tuple, found)) == sorted(expected)


def test_what_retention_removed_from_the_source_can_not_be_verified(
    spark: SparkSession, clusters: tuple[Cluster, Cluster]
) -> None:
    pair = Pair(clusters, "aged-source")
    tampered = messages(100)
    tampered[4] = tampered[4]._replace(value=b"tampered with")
    pair.write(pair.east, messages(100))
    pair.write(pair.west, tampered)
    admin = AdminClient({"bootstrap.servers": pair.east})
    for future in admin.delete_records([Place(pair.topic, 0, 30)]).values():
        future.result(20)
    run = pair.audit(spark)
    assert (run.outcome.verdict, run.outcome.exit_code) == (Verdict.INCOMPLETE, ExitCode.AGED_OUT)
    assert (run.counts.aged_out, run.counts.verified, named(run)) == (30, 70, [])


def test_partitions_that_only_the_target_has_are_extra_and_a_prefix_is_followed(
    spark: SparkSession, clusters: tuple[Cluster, Cluster]
) -> None:
    pair = Pair(clusters, "east.more")
    topic = pair.topic.removeprefix("east.")
    admin = AdminClient({"bootstrap.servers": pair.east})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    records = messages(20)
    write_apart(pair, [records, records[:5]])
    producer = Producer({"bootstrap.servers": pair.east})
    for message in records:
        producer.produce(
            topic,
            message.value,
            message.key,
            partition=0,
            timestamp=message.timestamp,
            headers=list(message.headers),
        )
    assert producer.flush(20) == 0
    pattern = re.compile(topic.replace("more", "mo.e"))
    assert matching_topics("west", pair.west, pattern, "east.") == [topic]
    target = read_cluster("west", pair.west, [topic], "east.")
    source = read_cluster("east", pair.east, [topic])
    assert config_drift(source, target) == []
    options, buckets = Options(window=50), TimeBuckets.over(time_span(source))
    engine = SparkEngine(KafkaReader(spark), options.window, buckets)
    run = reconcile(engine, source, target, options, buckets=buckets)
    assert run.outcome.exit_code is ExitCode.DIVERGED
    assert [(f.finding_class.value, f.partition, f.records) for f in run.findings] == [
        ("extra", 1, 5)
    ]
    assert run.counts.verified == 20


def end_of_batch(log: IO[bytes], start: int) -> int:
    """Return where the batch at file position *start* ends."""
    log.seek(start + 8)
    return start + 12 + int.from_bytes(log.read(4))


def damage_second_batch(segment: Path) -> None:
    """Change the last byte of the second batch of *segment*: its CRC is wrong then."""
    with segment.open("r+b") as log:
        second = end_of_batch(log, 0)
        last_byte = end_of_batch(log, second) - 1
        log.seek(last_byte)
        (byte,) = log.read(1)
        log.seek(last_byte)
        log.write(bytes([byte ^ 1]))


def test_what_can_not_be_read_is_named_and_the_rest_is_read(
    spark: SparkSession, clusters: tuple[Cluster, Cluster]
) -> None:
    pair = Pair(clusters, "partly")
    for bootstrap in (pair.east, pair.west):
        for _ in range(4):
            pair.write(bootstrap, messages(200))
    admin = AdminClient({"bootstrap.servers": pair.east})
    for future in admin.delete_records([Place(pair.topic, 1, 150)]).values():
        future.result(20)
    (segment,) = (clusters[0][1].data / f"{pair.topic}-0").glob("*.log")
    damage_second_batch(segment)
    ranges = [OffsetRange(pair.topic, number, 0, 400) for number in range(2)]
    east = read_cluster("east", pair.east, [pair.topic])
    rows = KafkaReader(spark).hashes(east, ranges).collect()
    offsets = {
        number: {row["offset"] for row in rows if row["partition"] == number and not row["unread"]}
        for number in range(2)
    }
    unread = {row["partition"]: unread_part(row["unread"]) for row in rows if row["unread"]}
    assert unread[1][:3] == (0, 150, FailureKind.DELETED)
    assert offsets[1] == set(range(150, 400))
    low, high, kind, cause = unread[0]
    assert kind is FailureKind.UNDECODABLE
    assert f"{pair.topic}-0, batch at offset {low}" in cause
    assert 0 < high - low < 200
    assert offsets[0] == set(range(400)) - set(range(low, high))
    run = pair.audit(spark)
    (finding,) = run.findings
    assert (finding.finding_class, finding.partition) == (FindingClass.UNDECODABLE, 0)
    assert run.outcome.exit_code is ExitCode.DIVERGED
    assert run.counts.verified == 800 - 150 - (high - low)


def test_partitions_that_are_read_in_step_have_the_same_findings(
    spark: SparkSession, clusters: tuple[Cluster, Cluster]
) -> None:
    pair = Pair(clusters, "in-step")
    source = messages(1_200)
    target = list(source)
    target[100] = target[100]._replace(value=b"tampered with")
    target[502], target[700] = target[700], target[502]
    target[900] = target[901] = Message(b"of", b"another log", 1_700_000_000_000)
    del target[1_150:]
    for bootstrap, records in ((pair.east, source), (pair.west, target)):
        for low in range(0, len(records), 200):
            pair.write(bootstrap, records[low : low + 200], "zstd")
    (segment,) = (clusters[1][1].data / f"{pair.topic}-1").glob("*.log")
    damage_second_batch(segment)
    one, other = pair.audit(spark), pair.audit(spark, many=0)
    assert (other.findings, other.counts, other.account.partitions) == (
        one.findings,
        one.counts,
        one.account.partitions,
    )
    assert {f.finding_class for f in one.findings} >= {
        FindingClass.CORRUPT,
        FindingClass.REORDERED,
        FindingClass.TRUNCATED,
        FindingClass.UNDECODABLE,
    }


@pytest.mark.parametrize("many", [0, ALIGNED_IN_STEP], ids=["in step", "at once"])
def test_many_findings_are_a_few_runs_with_exact_counts(
    spark: SparkSession, clusters: tuple[Cluster, Cluster], many: int
) -> None:
    pair = Pair(clusters, "many-findings", partitions=1)
    source = messages(3_000)
    target = [
        each._replace(value=b"damaged") if 500 <= n < 1_500 else each
        for n, each in enumerate(source[:2_000])
    ]
    foreign = [Message(b"of", b"another log %d" % n, 1_700_000_000_000) for n in range(500)]
    pair.write(pair.east, source)
    pair.write(pair.west, [*target[:100], *foreign, *target[100:]])
    run = pair.audit(spark, many=many, max_findings=5)
    records: Counter[str] = Counter()
    for each in run.findings:
        records[each.finding_class.value] += each.records
    assert records == {"extra": 500, "corrupt": 1_000, "truncated": 1_000}
    assert (run.counts.verified, len(run.findings) < 200) == (100, True)
    assert run.findings[-1].last_offset == 2_999


def test_a_renumbered_copy_of_a_source_that_begins_later_is_compared_in_step(
    spark: SparkSession, clusters: tuple[Cluster, Cluster]
) -> None:
    pair = Pair(clusters, "renumbered", partitions=1)
    pair.write(pair.west, messages(7))
    for number in range(3):
        records = [each._replace(key=b"%d" % number) for each in messages(400)]
        pair.write(pair.east, records)
        pair.write(pair.west, [*records[:50], *records[51:]] if number == 2 else records)
    delete_below(pair.east, Place(pair.topic, 0, 307))
    delete_below(pair.west, Place(pair.topic, 0, 7))
    run = pair.audit(spark, renumbered=True)
    (missing,) = run.findings
    assert (missing.finding_class, missing.source_offset) == (FindingClass.MISSING, 850)
    assert (run.counts.verified, run.counts.aged_out) == (892, 307)


def make_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(20)


def produce(bootstrap: str, topic: str, records: Sequence[Message]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1})
    for n, message in enumerate(records):
        producer.produce(topic, message.value, message.key, partition=n % 2)
    assert producer.flush(20) == 0


def delete_below(bootstrap: str, place: Place) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([place])[place].result(20)


def test_records_that_the_mirror_skipped_are_a_gap_also_under_its_prefix(
    spark: SparkSession, clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    east, west = clusters
    topic = f"skipped-{next(_numbers)}"
    make_topic(east.bootstrap, topic)
    produce(east.bootstrap, topic, messages(100))
    settings = {
        "gap.policy": "skip",
        "replication.policy.class": "DefaultReplicationPolicy",
        "east->west.topics": topic,
    }
    mirror = Mirror(tmp_path / "mirror", east, west, settings)
    assert mirror.run_once() == 0, mirror.output
    produce(east.bootstrap, topic, messages(100))
    delete_below(east.bootstrap, Place(topic, 0, 90))
    assert mirror.run_once() == 0, mirror.output
    target = read_cluster("west", west.bootstrap, [topic], "east.")
    source = read_cluster("east", east.bootstrap, [topic])
    options, buckets = Options(window=50), TimeBuckets.over(time_span(source))
    engine = SparkEngine(KafkaReader(spark), options.window, buckets)
    run = reconcile(engine, source, target, options, buckets=buckets)
    assert run.outcome.verdict is Verdict.DIVERGED
    (gap,) = run.findings
    assert (gap.finding_class.value, gap.source_offset, gap.records) == ("gap", 50, 40)
    assert (run.counts.verified, run.counts.aged_out) == (110, 50)
    assert config_drift(source, target) == []


@pytest.mark.skipif(
    not Path(os.environ["KAUDIT_CLASS_ARCHIVE"]).exists(),
    reason="no archive of Spark's classes (tools/setup.sh writes it)",
)
def test_the_driver_maps_the_archive_of_its_classes(spark: SparkSession) -> None:
    driver = spark.sparkContext._gateway.proc.pid
    assert os.environ["KAUDIT_CLASS_ARCHIVE"] in Path(f"/proc/{driver}/maps").read_text()


def test_sessions_of_a_held_application_have_settings_of_their_own(spark: SparkSession) -> None:
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    with spark_session("other", SparkSettings(MASTER, {name: "3"})) as session:
        assert session.sparkContext is spark.sparkContext
        assert session.conf.get(name) == "3"
        assert session.range(7).count() == 7
    assert (spark.range(7).count(), spark.conf.get(name)) == (7, before)
    for settings, reason in (
        (SparkSettings("local[1]"), r"a Spark application with --master local\[2\]: another"),
        (SparkSettings(MASTER, {"spark.driver.memory": "2g"}), "spark.driver.memory=2g cannot be"),
    ):
        with pytest.raises(SparkNotStarted, match=reason), spark_session("other", settings):
            pass


def test_another_application_of_the_process_is_neither_used_nor_stopped() -> None:
    """A notebook has one. Before, kaudit took it with all its settings, and stopped it at the end."""
    from pyspark.sql import SparkSession

    stop_spark()
    theirs = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false").getOrCreate()
    try:
        with (
            pytest.raises(SparkNotStarted, match="runs in this process already"),
            spark_session("other", SparkSettings(MASTER)),
        ):
            pass
        assert theirs.range(7).count() == 7
    finally:
        theirs.stop()


def kaudit_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spark_jobs", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_the_command_writes_its_reports_and_exits_with_the_verdict(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    pair = Pair(clusters, "by-command")
    pattern = pair.topic.replace("command", "comm.nd")
    pair.write(pair.east, messages(60))
    pair.write(pair.west, messages(59))
    done = kaudit_process(
        *("reconcile", "--source", pair.east, "--target", pair.west, "--topics", pattern),
        *("--out", str(tmp_path / "report"), "--complete", "--master", "local[2]"),
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("VERDICT  DIVERGED")
    assert len(done.stdout.splitlines()) <= 40
    document = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (document["verdict"], document["totals"]["findings"]["truncated"]) == ("DIVERGED", 1)
    assert violations("report", document) == []
    repair = json.loads((tmp_path / "report" / "repair.json").read_text())
    assert violations("repair", repair) == []
    assert [(row["partition"], row["ranges"]) for row in repair["copy"]] == [
        (1, [{"from": 29, "until": 30, "records": {"truncated": 1}}])
    ]
    (finding,) = (tmp_path / "report" / "findings.jsonl").read_text().splitlines()
    assert json.loads(finding)["class"] == "truncated"
    explained = kaudit_process("explain", "--run", str(tmp_path / "report"))
    assert explained.returncode == 0, explained.stderr
    assert "as audited      yes, the same hash" in explained.stdout
    assert "not in the log: it ends" in explained.stdout
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<svg" in page
    assert "src=" not in page
    assert re.findall(r'href="(?!#)', page) == [], "nothing is fetched; links stay on the page"


def process_of_session(session: int, word: str) -> int | None:
    """Return a process of *session* with *word* in its command."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and word in (entry / "cmdline").read_text():
                    return int(entry.name)
    return None


def killed_halfway(words: Sequence[str], victim: str) -> tuple[int, str]:
    """Run kaudit, and kill *victim* (a word of its command) once Spark's daemon of Python workers runs."""
    with subprocess.Popen(
        [sys.executable, "-m", "spark_jobs", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 120
        while (
            process_of_session(process.pid, "spark_jobs.worker_daemon") is None
            or (found := process_of_session(process.pid, victim)) is None
        ):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(found, signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
    return process.returncode, output


def test_a_run_that_is_killed_halfway_is_no_verdict_and_the_next_one_is_not_affected(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    pair = Pair(clusters, "killed")
    pair.write(pair.east, messages(60))
    pair.write(pair.west, messages(59))
    words = [
        *("reconcile", "--source", pair.east, "--target", pair.west, "--topics", pair.topic),
        *("--out", str(tmp_path), "--complete", "--master", "local[2]", "--no-self-test"),
    ]
    report = tmp_path / "report.json"
    assert kaudit(*words).exit_code == ExitCode.DIVERGED
    before = json.loads(report.read_text())

    code, output = killed_halfway(words, "org.apache.spark.deploy.SparkSubmit")
    assert code in (ExitCode.INTERNAL, ExitCode.UNREADABLE)
    assert "VERDICT" not in output
    document = json.loads(report.read_text())
    assert (document["verdict"], document["exit_code"]) == ("ERROR", code)

    assert killed_halfway(words, "spark_jobs\0reconcile") == (-signal.SIGKILL, "")
    assert not report.exists(), "it could be taken for that of this run"

    assert kaudit(*words).exit_code == ExitCode.DIVERGED
    after = json.loads(report.read_text())
    del before["meta"], after["meta"]
    assert after == before


def kaudit_pair(pair: Pair, out: Path, *options: str) -> int:
    done = kaudit(
        *("reconcile", "--source", pair.east, "--target", pair.west, "--topics", pair.topic),
        *("--out", str(out), "--master", "local[2]", "--no-self-test", "--quiet", *options),
    )
    assert done.stdout, done.stderr
    return done.exit_code


def recent(count: int) -> list[Message]:
    """Return messages that retention does not delete while a test runs."""
    now = int(time.time() * 1000)
    return [each._replace(timestamp=now + n) for n, each in enumerate(messages(count))]


@pytest.mark.timeout(900)
def test_the_command_run_twice_writes_the_same_bytes_outside_of_meta_and_a_chain(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    pair = Pair(clusters, "twice", partitions=3)
    records = recent(300)
    order = {"type": "record", "name": "Order", "fields": [{"name": "price", "type": "long"}]}
    schema, encode = tmp_path / "order.avsc", AvroSerializer(order)
    schema.write_text(json.dumps(order))
    records[100] = records[100]._replace(value=encode({"price": 7}))
    pair.write(pair.east, records)
    damaged = [*records]
    for n in (10, 11, 100):
        damaged[n] = damaged[n]._replace(value=encode({"price": 8}) if n == 100 else b"changed")
    pair.write(pair.west, damaged)
    written = []
    for _ in range(2):
        options = ("--window", "20", "--avro", str(schema))
        assert kaudit_pair(pair, tmp_path, *options) == ExitCode.DIVERGED
        files = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
        document = json.loads(files["report.json"])
        assert violations("report", document) == []
        meta = document.pop("meta")
        written.append((document, files["findings.jsonl"], files["repair.json"]))
        for name, known in document["files"].items():
            assert sha256(files[name]).hexdigest() == known
    assert written[0] == written[1]
    assert files["report.html"].count(b"Avro field price</strong>") == 1
    assert files["report.html"].count(b"fields are not known") == 2
    assert meta["previous"] == sha256(files["report.previous.json"]).hexdigest()
    assert f'scope="{pair.topic}",verdict="DIVERGED"}} 1\n'.encode() in files["metrics.prom"]
    assert files["report.md"].startswith(b"# DIVERGED: source to target")


@pytest.mark.timeout(900)
def test_the_command_ends_with_the_exit_code_of_each_verdict(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    records = recent(50)
    pair = Pair(clusters, "codes", partitions=1)
    for bootstrap in (pair.east, pair.west):
        pair.write(bootstrap, records)
    assert kaudit_pair(pair, tmp_path) == ExitCode.CONSISTENT
    pair.write(pair.east, recent(5))
    assert kaudit_pair(pair, tmp_path) == ExitCode.NO_VERDICT_YET
    delete_below(pair.west, Place(pair.topic, 0, 10))
    assert kaudit_pair(pair, tmp_path) == ExitCode.AGED_OUT
    assert kaudit_pair(pair, tmp_path, "--min-coverage", "0.7") == ExitCode.NO_VERDICT_YET
    accepted = ("--min-coverage", "0.7", "--max-lag", "5")
    assert kaudit_pair(pair, tmp_path, *accepted) == ExitCode.CONSISTENT
    assert kaudit_pair(pair, tmp_path, "--min-coverage", "0.9") == ExitCode.AGED_OUT


@pytest.mark.timeout(900)
def test_an_audit_that_overlooks_a_class_of_faults_fails_its_self_test_and_has_no_verdict(
    clusters: tuple[Cluster, Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(clusters, "self-test", partitions=1)
    for bootstrap in (pair.east, pair.west):
        pair.write(bootstrap, recent(5))
    monkeypatch.setattr(Ledger, "find_misrouted", lambda _: None)
    done = kaudit(
        *("reconcile", "--source", pair.east, "--target", pair.west, "--topics", pair.topic),
        *("--out", str(tmp_path), "--master", "local[2]", "--self-test"),
    )
    assert done.exit_code == ExitCode.INTERNAL, done.output
    document = json.loads((tmp_path / "report.json").read_text())
    assert (document["verdict"], document["meta"]["self_test_passed"]) == ("ERROR", False)
    assert "CONSISTENT" not in done.stdout


WORKER_MIB = 1024
"""The bound of the memory of one of Spark's Python workers (docs/design/audit-reading.md)."""


class WorkerMemory(threading.Thread):
    """Keeps the most memory that each worker of Spark has had, in MiB, until `stop`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[str, float] = {}
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.1):
            for process in Path("/proc").iterdir():
                with suppress(OSError, RuntimeError):  # it has ended
                    if (
                        process.name.isdigit()
                        and b"worker_daemon" in (process / "cmdline").read_bytes()
                    ):
                        self.peaks[process.name] = peak_memory_mib(int(process.name))

    def stop(self) -> None:
        self._done.set()
        self.join()


@pytest.mark.timeout(900)
def test_records_of_1_mb_that_are_some_kb_in_a_batch_are_compared_in_bounded_memory(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    pair = Pair(clusters, "large", partitions=1)
    now = int(time.time() * 1000)
    part = os.urandom(1000)
    for bootstrap in (pair.east, pair.west):
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": "zstd",
                "linger.ms": 500,
                "batch.num.messages": 40,
                "batch.size": 100_000_000,
                "message.max.bytes": 100_000_000,
            }
        )
        for n in range(120):
            end = b"changed" if n in (7, 90) and bootstrap == pair.west else b"as written"
            value = b"%d " % n + part * 990 + end
            producer.produce(pair.topic, value, b"key", partition=0, timestamp=now + n)
        assert producer.flush(60) == 0
    workers = WorkerMemory()
    workers.start()
    code = kaudit_pair(pair, tmp_path)
    workers.stop()
    assert code == ExitCode.DIVERGED
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["totals"]["verified"] == 118
    found = (tmp_path / "findings.jsonl").read_text().splitlines()
    assert [json.loads(line)["src_offset"] for line in found] == [7, 90]
    assert workers.peaks
    assert max(workers.peaks.values()) < WORKER_MIB, workers.peaks


def test_a_side_that_can_not_be_reached_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"verdict": "CONSISTENT"}')
    (tmp_path / "findings.jsonl").touch()
    done = kaudit_process(
        *("reconcile", "--source", "127.0.0.1:1", "--target", "127.0.0.1:1", "--topics", "x"),
        *("--out", str(tmp_path)),
    )
    assert done.returncode == 4
    assert "connection refused" in done.stderr
    assert {each.name for each in tmp_path.iterdir()} == {
        "report.json",
        "report.previous.json",
        "report.md",
        "metrics.prom",
    }
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["verdict"] == "ERROR"
    assert violations("report", document) == []


def test_a_topic_that_does_not_exist_gives_no_verdict(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    east, west = clusters
    done = kaudit_process(
        *(
            "reconcile",
            "--source",
            east.bootstrap,
            "--target",
            west.bootstrap,
            "--topics",
            "no-such",
        ),
        *("--out", str(tmp_path)),
    )
    assert done.returncode == 4
    assert "no topic matching" in done.stderr


@pytest.mark.parametrize(
    "wrong", [("--fail-on", "nonsense"), ("--window", "0"), ("--min-coverage", "2")]
)
def test_wrong_options_are_usage_errors(tmp_path: Path, wrong: tuple[str, str]) -> None:
    done = kaudit_process(
        *(
            "reconcile",
            "--source",
            "a:1",
            "--target",
            "b:1",
            "--topics",
            "x",
            "--out",
            str(tmp_path),
        ),
        *wrong,
    )
    assert done.returncode == 2


def test_workers_are_forked_with_what_tasks_need(spark: SparkSession) -> None:
    def seen(_numbers: Iterator[int]) -> Iterator[tuple[str, int, bool]]:
        import gc

        import pyspark

        yield pyspark.__file__, gc.get_freeze_count(), "spark_jobs.kafka_reader" in sys.modules

    ((file, frozen, is_there),) = (
        spark.sparkContext.parallelize([0], 1).mapPartitions(seen).collect()
    )
    assert ".zip" not in file  # where Python compiles it in every process
    assert frozen > 100_000
    assert is_there
