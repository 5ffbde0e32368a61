"""`kaudit counts` and `kaudit profile` on a real broker and real Spark, against a brute-force count.

Source and target are topics of one broker, apart by the mirror's prefix.
"""

from __future__ import annotations

import csv
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import Result

from kclient import AdminClient, NewTopic, Producer, TopicPartition
from spark_jobs import topic_job
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.kaudit import kaudit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MINUTE = 60_000
START = 1_700_000_000_000 // MINUTE * MINUTE
PARTITIONS = 3


class Sent(NamedTuple):
    topic: str
    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(1)


@pytest.fixture
def topics(cluster: Cluster) -> tuple[str, str]:
    """Two topics at both sides."""
    name = f"c{time.monotonic_ns() % 10**9}"
    both = f"{name}-a", f"{name}-b"
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics(
            [NewTopic(prefix + each, PARTITIONS, 1) for each in both for prefix in ("", "copy.")]
        )
    return both


def records(topics: Sequence[str], count: int, seed: int = 1) -> list[Sent]:
    rng = random.Random(seed)
    return [
        Sent(
            rng.choice(topics),
            rng.randrange(PARTITIONS),
            START + rng.randrange(5 * MINUTE),
            rng.choice([None, b"", b"k%d" % rng.randrange(50)]),
            rng.choice([None, rng.randbytes(rng.randrange(200))]),
        )
        for _ in range(count)
    ]


def write(cluster: Cluster, prefix: str, sent: Sequence[Sent], codec: str = "none") -> None:
    settings = {"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 20}
    with Producer(settings) as producer:
        for each in sent:
            producer.send(
                prefix + each.topic,
                each.value,
                key=each.key,
                partition=each.partition,
                timestamp_ms=each.timestamp,
            )
        producer.flush()


def run(*words: str) -> Result:
    return kaudit(*words, "--master", "local[2]", "-q")


def count(cluster: Cluster, topics: tuple[str, str], out: Path, *words: str) -> Result:
    clusters = ("--source", cluster.bootstrap, "--target", cluster.bootstrap)
    prefix, _ = topics[0].rsplit("-", 1)
    more = ("--target-prefix", "copy.", "--topics", f"{prefix}-.", "--out", str(out))
    return run("counts", *clusters, *more, *words)


def sums(sent: Sequence[Sent]) -> dict[tuple[str, int], tuple[int, int]]:
    number: Counter[tuple[str, int]] = Counter()
    size: Counter[tuple[str, int]] = Counter()
    for each in sent:
        bucket = each.topic, each.timestamp // MINUTE * MINUTE
        number[bucket] += 1
        size[bucket] += len(each.key or b"") + len(each.value or b"")
    return {bucket: (number[bucket], size[bucket]) for bucket in number}


def in_file(path: Path, side: str) -> dict[tuple[str, int], tuple[int, int]]:
    with path.open() as lines:
        rows = [
            (
                row["topic"],
                int(row["start_ms"]),
                int(row[f"{side}_records"]),
                int(row[f"{side}_bytes"]),
            )
            for row in csv.DictReader(lines)
        ]
    return {(topic, start): (number, size) for topic, start, number, size in rows if number}


def test_the_counts_of_both_sides_are_those_of_a_brute_force_count(
    cluster: Cluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    sent = records(topics, 2000)
    write(cluster, "", sent, "gzip")
    write(cluster, "copy.", sent)
    done = count(cluster, topics, tmp_path)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("COUNTS  EQUAL")
    assert "no proof" in done.output
    for side in ("source", "target"):
        assert in_file(tmp_path / "counts.csv", side) == sums(sent)

    # What the target alone has is counted, and what it lacks at the end is lag.
    extra = records(topics[:1], 40, seed=2)
    write(cluster, "copy.", extra)
    late = records(topics[1:], 30, seed=3)
    write(cluster, "", late)
    done = count(cluster, topics, tmp_path)
    assert done.exit_code == 1, done.output
    assert in_file(tmp_path / "counts.csv", "source") == sums(sent)
    assert in_file(tmp_path / "counts.csv", "target") == sums(sent + extra)
    found = json.loads((tmp_path / "counts.json").read_text())
    assert (found["exit_codes"], found["offsets"]["lag"]) == ([1, 3, 0], 30)
    assert (tmp_path / "counts.png").read_bytes().startswith(b"\x89PNG")


def test_counts_of_what_only_one_log_has_are_not_compared(
    cluster: Cluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    sent = [each for each in records(topics, 300) if each.partition == 0]
    write(cluster, "", sent)
    write(cluster, "copy.", sent)
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.delete_records({TopicPartition(topics[0], 0): 10})
    done = count(cluster, topics, tmp_path)
    assert done.exit_code == 5, done.output
    assert done.output.startswith("COUNTS  AGED OUT")
    below = [each for each in sent if each.topic == topics[0]][:10]
    left = [each for each in sent if each not in below]
    for side in ("source", "target"):
        assert in_file(tmp_path / "counts.csv", side) == sums(left)
    (segment,) = (cluster[1].data / f"copy.{topics[1]}-0").glob("*.log")
    with segment.open("r+b") as log:
        log.seek(-1, 2)
        log.write(b"\x55")
    done = count(cluster, topics, tmp_path, "--min-coverage", "0.5")
    assert done.exit_code == 4, done.output
    assert "CRC" in done.output


def test_wrong_options_and_unreachable_clusters_have_their_codes(tmp_path: Path) -> None:
    (tmp_path / "counts.json").write_text("of an earlier run")
    words = ("counts", "--source", "127.0.0.1:1", "--target", "127.0.0.1:1", "--out", str(tmp_path))
    assert run(*words, "--topics", "(").exit_code == 2
    assert run(*words, "--topics", "x", "--bucket", "1y").exit_code == 2
    assert run(*words, "--topics", "x", "--names", "a,a").exit_code == 2
    assert (tmp_path / "counts.json").exists()
    assert run(*words, "--topics", "x").exit_code == 4
    assert not (tmp_path / "counts.json").exists()


def test_the_profile_of_topics_is_that_of_a_brute_force_count(
    cluster: Cluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    sent = records(topics[:1], 3000)
    write(cluster, "", sent, "lz4")
    prefix, _ = topics[0].rsplit("-", 1)
    words = ("--cluster", cluster.bootstrap, "--topics", f"{prefix}-.", "--out", str(tmp_path))
    done = run("profile", *words)
    assert done.exit_code == 0, done.output
    full, empty = json.loads((tmp_path / "profile.json").read_text())["topics"]
    assert (full["topic"], full["records"], full["offsets"]) == (topics[0], 3000, 3000)
    assert (empty["topic"], empty["records"], empty["partitions"]["count"]) == (topics[1], 0, 3)
    assert full["null_keys"] == sum(each.key is None for each in sent)
    assert full["null_values"] == sum(each.value is None for each in sent)
    assert full["distinct_keys_estimate"] == len({each.key for each in sent} - {None})
    sizes = sorted(len(each.value) for each in sent if each.value is not None)
    assert full["sizes"]["value"]["p95"] == sizes[-(-len(sizes) * 95 // 100) - 1]
    assert full["partitions"]["records"] == {
        str(number): sum(each.partition == number for each in sent) for number in range(PARTITIONS)
    }
    assert full["batches"]["codecs"] == {"lz4": full["batches"]["count"]}
    with (tmp_path / "profile.csv").open() as lines:
        rows = {int(row["start_ms"]): int(row["records"]) for row in csv.DictReader(lines)}
    assert rows == Counter(each.timestamp // MINUTE * MINUTE for each in sent)
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")
    assert "distinct about" in done.output


def test_more_time_buckets_than_the_driver_takes_are_wrong_options_and_no_result(
    cluster: Cluster, topics: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = records(topics, 100)
    write(cluster, "", sent)
    write(cluster, "copy.", sent)
    monkeypatch.setattr(topic_job, "MOST_BUCKETS", 9)
    prefix, _ = topics[0].rsplit("-", 1)
    words = ("--cluster", cluster.bootstrap, "--topics", f"{prefix}-.", "--out", str(tmp_path))
    for done in (count(cluster, topics, tmp_path), run("profile", *words)):
        assert done.exit_code == 2, done.output
        assert "more than 9 time buckets" in done.output
        assert "larger --bucket" in done.output
        assert {each.name for each in tmp_path.iterdir()} <= {"spark.log"}
    assert count(cluster, topics, tmp_path, "--bucket", "1h").exit_code == 0
    assert run("profile", *words, "--bucket", "1h").exit_code == 0
