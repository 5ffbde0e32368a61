"""`kaudit latency` as a process, with a real broker: records of kmirror's form in, the screen and the files out."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kclient import AdminClient, NewTopic, Producer, TopicPartition
from kclient.mirror_latency import Histogram, Interval, Measured, encode, latency_topic
from spark_jobs.cluster import matching_topics, read_latencies, reader, records_until
from spark_jobs.commands.options import pattern_of
from spark_jobs.latency import Scope
from tests.kit.brokers import Cluster, MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MINUTE = 60_000
START = 1_700_000_000_000 // MINUTE * MINUTE


@pytest.fixture
def cluster(broker_clusters: MakeCluster) -> Cluster:
    return broker_clusters(1)


def create(cluster: Cluster, *topics: str) -> None:
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])


def measured(
    *latencies: int, topic: str = "orders", at: int = START, process: str = "p"
) -> Measured:
    histogram = Histogram()
    for each in latencies:
        histogram.add(each, records=1, partition=2)
    return Measured(Interval("east-id", topic, process, at, at + MINUTE), histogram)


def write(cluster: Cluster, *found: Measured | bytes, alias: str = "east") -> None:
    """Append one batch a record."""
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        for each in found:
            key, value = (None, each) if isinstance(each, bytes) else encode(each)
            producer.send(latency_topic(alias), value, key=key)
            producer.flush()


def words(bootstrap: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "spark_jobs", "latency", "--target", bootstrap, *more]


def run(bootstrap: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words(bootstrap, *more), capture_output=True, text=True, timeout=100)


def test_what_kmirror_measured_is_shown_judged_and_written(
    cluster: Cluster, tmp_path: Path
) -> None:
    create(cluster, "orders", "payments", "idle", "east.latency.internal", "north.latency.internal")
    twice = measured(*[100] * 98, 5000, 5000)
    write(cluster, twice, twice, measured(30, process="q"), b"of another program")
    write(cluster, measured(7, topic="payments", at=START + MINUTE), alias="north")
    out = tmp_path / "out"
    topics = ("--topics", "orders|payments|idle")
    done = run(cluster.bootstrap, *topics, "--out", str(out))
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        f"LATENCY  MEASURED   {cluster.bootstrap}   exit 0",
    )
    assert "reading the latency topics" in done.stderr
    assert "2023-11-14T22:13:00.000Z to 2023-11-14T22:15:00.000Z" in done.stdout
    assert "1 in east.latency.internal" in done.stdout
    assert "no figure in this time: idle" in done.stdout
    with (out / "latency.csv").open() as lines:
        rows = [
            (each["topic"], int(each["start_ms"]), each["records"])
            for each in csv.DictReader(lines)
        ]
    assert rows == [("orders", START, "101"), ("payments", START + MINUTE, "1")]
    found = json.loads((out / "latency.json").read_text())
    assert (found["exit_code"], found["from_ms"], found["until_ms"]) == (
        0,
        START,
        START + 2 * MINUTE,
    )
    assert [(each["p99_ms"], each["max_partition"]) for each in found["rows"]] == [
        (5000, 2),
        (7, 2),
    ]
    assert (out / "latency.png").read_bytes().startswith(b"\x89PNG")
    assert not list(out.glob(".*"))

    done = run(cluster.bootstrap, *topics, "-q", "--max-p99", "2s")
    assert (done.returncode, done.stderr) == (1, "")
    assert "above       east orders" in done.stdout
    done = run(cluster.bootstrap, "--topics", "payments", "--max-p99", "7ms")
    assert done.returncode == 3, "the record of another program may be of this topic"
    done = run(cluster.bootstrap, "--topics", "orders", "--last", "1h", "--max-p99", "2s")
    assert (done.returncode, "emit.latency.enabled=true" in done.stdout) == (3, True)
    with subprocess.Popen(
        words(cluster.bootstrap, *topics), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 0, "a closed pipe does not change the exit code"
    assert matching_topics("target", cluster.bootstrap, pattern_of(".*")) == [
        "idle",
        "orders",
        "payments",
    ]


def test_the_last_minutes_count_back_from_now(cluster: Cluster) -> None:
    create(cluster, "east.latency.internal")
    now = int(time.time() * 1000)
    write(cluster, measured(9000, at=now - 60 * MINUTE), measured(5, at=now - 10 * MINUTE))
    done = run(cluster.bootstrap, "--topics", ".*", "--last", "30m", "--max-p99", "2s")
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("LATENCY  WITHIN")


def test_a_damaged_topic_is_not_read_and_the_others_are_shown(
    cluster: Cluster, tmp_path: Path
) -> None:
    create(cluster, "east.latency.internal", "north.latency.internal")
    write(cluster, measured(5), measured(6, process="q"))
    write(cluster, measured(7, topic="payments"), alias="north")
    (segment,) = (cluster[1].data / "east.latency.internal-0").glob("*.log")
    with segment.open("r+b") as log:
        log.seek(-1, 2)
        log.write(b"\x55")
    done = run(cluster.bootstrap, "--topics", ".*", "--max-p99", "1s", "--out", str(tmp_path))
    assert done.returncode == 4, done.stdout
    assert done.stdout.startswith("LATENCY  NOT READ")
    assert "not read    east.latency.internal: " in done.stdout
    assert "north   payments" in done.stdout
    assert json.loads((tmp_path / "latency.json").read_text())["exit_code"] == 4


def late_read(cluster: Cluster, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    tp = TopicPartition(topic, 0)
    with reader(cluster.bootstrap) as consumer:
        consumer.assign([tp], {tp: 0})
        return list(records_until(consumer, tp, 20))


def test_records_that_retention_deletes_while_they_are_read_do_not_stop_the_read(
    cluster: Cluster,
) -> None:
    create(cluster, "east.latency.internal", "north.latency.internal")
    every = [measured(n, process=f"p{n}") for n in range(20)]
    write(cluster, *every)
    write(cluster, *every, alias="north")
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.delete_records(
            {
                TopicPartition("east.latency.internal", 0): 15,
                TopicPartition("north.latency.internal", 0): 20,
            }
        )
    # Offset 0 is the log start that was looked up before the deletion, 20 the log end.
    assert late_read(cluster, "east.latency.internal") == [encode(each) for each in every[15:]]
    assert late_read(cluster, "north.latency.internal") == []
    read = read_latencies("west", cluster.bootstrap, Scope("west", pattern_of(".*"), None))
    assert {key.source_alias: row.intervals for key, row in read.rows.items()} == {"east": 5}
    assert read.aliases == {"east", "north"}
    assert run(cluster.bootstrap, "--topics", ".*").returncode == 0


def test_wrong_options_and_an_unreachable_target_have_their_codes(tmp_path: Path) -> None:
    (tmp_path / "latency.json").write_text("of an earlier run")
    out = ("--out", str(tmp_path))
    assert run("127.0.0.1:1", "--topics", "(", *out).returncode == 2
    for wrong in ("--last=0s", "--last=1y", "--max-p99=0ms", "--max-p99=2", "--bucket=10ms"):
        done = run("127.0.0.1:1", "--topics", "x", wrong, *out)
        assert (done.returncode, wrong.partition("=")[0] in done.stderr) == (2, True)
    done = run("127.0.0.1:1", "--topics", "x", "--out", str(tmp_path / "latency.json"))
    assert done.returncode == 2
    assert (tmp_path / "latency.json").exists()
    assert run("127.0.0.1:1", "--topics", "x", *out).returncode == 4
    assert not (tmp_path / "latency.json").exists()


def test_neither_spark_nor_a_jvm_is_started(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, "east.latency.internal")
    (tmp_path / "pyspark.py").write_text("raise RuntimeError('imported')")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        words(cluster.bootstrap, "--topics", "x", "--out", str(tmp_path / "out")),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, done.stderr
