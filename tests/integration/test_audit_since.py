"""`kaudit reconcile --since` and `kaudit headers` on a real broker and real Spark.

Source and target are topics of one broker, apart by the mirror's prefix.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from kclient import AdminClient, NewTopic, Producer, TopicPartition
from spark_jobs.report.contents import json_text
from spark_jobs.session import spark_session
from spark_jobs.spark_settings import SparkSettings
from spark_jobs.verdict import ExitCode
from tests.kit.audit_reports import violations
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.kaudit import kaudit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(1)


class Mirrored:
    """A topic, and its copy under the prefix `copy.`."""

    def __init__(self, cluster: Cluster) -> None:
        self.bootstrap = cluster.bootstrap
        self.topic = f"s{time.monotonic_ns() % 10**9}"
        self.first_ms = int(time.time() * 1000)
        self.names = (self.topic, f"copy.{self.topic}")
        self.create(self.names)

    def create(self, names: Sequence[str]) -> None:
        with AdminClient({"bootstrap.servers": self.bootstrap}) as admin:
            admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])

    def write(self, name: str, numbers: Sequence[int], codec: str = "none") -> None:
        """Write the records *numbers*, one batch per partition: the same bytes in every topic."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "compression.type": codec,
            "enable.idempotence": False,
            "linger.ms": 5000,
            "batch.size": 1 << 20,
        }
        with Producer(settings) as producer:
            for n in numbers:
                value = b"value %d" % n
                producer.send(
                    name,
                    value,
                    key=b"k%d" % (n % 5),
                    partition=n % PARTITIONS,
                    timestamp_ms=self.first_ms + n,
                )
            producer.flush()

    def write_both(self, numbers: Sequence[int]) -> None:
        for name in self.names:
            self.write(name, numbers)

    def kaudit(self, *words: str) -> Result:
        clusters = ("--source", self.bootstrap, "--target", self.bootstrap)
        more = ("--target-prefix", "copy.", "--topics", self.topic)
        arguments = [words[0], *clusters, *more, *words[1:], "--master", "local[2]", "-q"]
        return kaudit(*arguments)

    def since(self, out: Path, *words: str) -> Result:
        return self.self_tested(out, "--no-self-test", *words)

    def self_tested(self, out: Path, *words: str) -> Result:
        return self.kaudit("reconcile", "--out", str(out), *words)


def report(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / "report.json").read_text())
    assert violations("report", document) == []
    return document


def test_a_run_builds_on_the_one_before(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pair, again = Mirrored(cluster), ("--since", str(tmp_path))
    pair.write_both(range(400))
    assert pair.since(tmp_path, "--window", "50").exit_code == ExitCode.CONSISTENT
    first = report(tmp_path)
    for each in first["topics"][0]["partitions"]:
        assert each["proof"]["end"] == 200
        assert each["proof"]["source_epoch"] is not None
        assert each["proof"]["target_epoch"] is not None
    cluster.restart(1)  # Later records have another leader epoch.
    pair.write_both(range(400, 420))
    done = pair.self_tested(tmp_path, *again)
    assert done.exit_code == ExitCode.CONSISTENT, done.output
    # Of both partitions the last window of 50, one more of all kept windows (1 %), and what is new.
    assert "compared or explained in this run 170 offsets, in earlier runs 250" in done.output
    second = report(tmp_path)
    assert second["since"]["refused"] == []
    assert second["read"]["source"]["records"] == 170
    assert second["totals"]["verified"] == 420
    assert second["meta"]["previous"] == second["since"]["base"]["report_sha256"]
    with spark_session("kbroker-tests", SparkSettings("local[2]", offsets=1000)) as spark:
        digests = spark.read.parquet(str(tmp_path / "digests.parquet"))
        sums = digests.groupBy("side").agg({"records": "sum", "placed": "sum"}).collect()
        source, target = sorted(sums, key=lambda row: str(row["side"]))
        assert source["sum(records)"] == target["sum(records)"] == 420
        # An unsigned 64-bit number is decimal(20,0) in Spark: the sum does not overflow.
        assert source["sum(placed)"] == target["sum(placed)"] > 1 << 64
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.delete_records({TopicPartition(pair.names[0], 0): 75})
        admin.delete_topics([pair.names[1]])
    pair.create(pair.names[1:])
    pair.write(pair.names[1], range(410))
    done = pair.self_tested(tmp_path, *again, "--min-coverage", "0.5", "--max-lag", "10")
    third = report(tmp_path)
    # It runs once per version and environment; a report that relies on an earlier one has its time.
    relied_on = third["meta"]["self_test"]
    assert second["meta"]["self_test_passed"] is third["meta"]["self_test_passed"] is True
    assert relied_on.startswith(f"{second['meta']['self_test']} (on 20")
    assert relied_on.endswith(", same version and environment)")
    assert f"auditor self-test {relied_on}" in (tmp_path / "report.html").read_text()
    assert len(third["since"]["refused"]) == PARTITIONS
    assert "was created again in target" in third["since"]["refused"][0]["reason"]
    assert third["since"]["offsets"]["earlier"] == 0
    assert (third["verdict"], done.exit_code) == ("INCOMPLETE", ExitCode.CONSISTENT)
    assert third["totals"]["verified"] == 410 - 75
    for name in ("report.json", "digests.report.json"):
        other = json.loads((tmp_path / name).read_text())
        other["source"]["cluster_id"] = "another"
        (tmp_path / name).write_text(json_text(other))
    done = pair.since(tmp_path, *again)
    assert (done.exit_code, "the kept run read another" in done.output) == (ExitCode.USAGE, True)
    assert report(tmp_path)["exit_code"] == ExitCode.USAGE
    assert (tmp_path / "digests.parquet").exists()


def test_headers_are_compared_and_other_headers_by_content(
    cluster: Cluster, tmp_path: Path
) -> None:
    pair = Mirrored(cluster)
    pair.write_both(range(200))
    words = ("headers", "--out", str(tmp_path), "--window", "30")

    def audit() -> tuple[int, dict[str, Any]]:
        done = pair.kaudit(*words)
        document: dict[str, Any] = json.loads((tmp_path / "headers.json").read_text())
        assert done.output.startswith(f"VERDICT  {document['verdict']}"), done.output
        return done.exit_code, document

    code, found = audit()
    assert (code, found["verdict"]) == (0, "HEADERS-EQUAL")
    assert found["windows"]["compared_by_content"] == 0
    assert [each["records"] for each in found["read"]] == [200, 200]
    pair.write(pair.names[0], range(200, 240))
    pair.write(pair.names[1], range(200, 240), codec="gzip")
    code, found = audit()
    assert (code, found["verdict"]) == (0, "CONTENT-EQUAL")
    assert found["windows"]["other_headers"] == PARTITIONS
    pair.write(pair.names[0], [300, 301])
    pair.write(pair.names[1], [302, 303])
    code, found = audit()
    assert (code, found["verdict"]) == (1, "DIVERGED")
    assert [each[:3] for each in found["other_content"]] == [
        [pair.topic, number, 4] for number in range(PARTITIONS)
    ]
