"""kaudit with Spark workers on "other hosts": processes with a Python that has none of our packages (`kaudit pack`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kclient import AdminClient, NewTopic, Producer
from spark_jobs.spark_settings import FOR_FEW_OFFSETS
from tests.kit.brokers import MakeCluster
from tests.kit.jvm import SHORT_LIVED
from tests.kit.spark_standalone import spark_standalone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def kaudit(*words: str) -> subprocess.CompletedProcess[str]:
    # Not the driver's variables: kaudit chooses the Python of the workers itself.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK", "SPARK"))
    }
    command = [sys.executable, "-m", "spark_jobs", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, check=False
    )


def test_workers_without_our_packages_audit_with_a_packed_environment(
    module_clusters: MakeCluster, tmp_path: Path
) -> None:
    bootstrap = module_clusters(1).bootstrap
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(name, 4, 1) for name in ("t", "copy.t")])
    with Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"}) as producer:
        for n in range(2000):
            for name in ("t", "copy.t"):
                value = b"damaged" if (n, name) == (1234, "copy.t") else b"value %d" % n
                producer.send(name, value, partition=n % 4, timestamp_ms=1_700_000_000_000 + n)
        producer.flush()
    archive = tmp_path / "environment.tar.gz"
    packed = kaudit("pack", str(archive))
    assert packed.returncode == 0, packed.stderr
    with spark_standalone(tmp_path / "spark") as spark:
        pair = (
            *("--source", bootstrap, "--target", bootstrap, "--topics", "t"),
            *("--target-prefix", "copy.", "--out"),
        )
        on_workers = (
            *("--master", spark.master, "--environment", str(archive)),
            *("--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1"),
            *(word for each in FOR_FEW_OFFSETS.items() for word in ("--conf", "=".join(each))),
            *("--conf", f"spark.driver.extraJavaOptions={SHORT_LIVED}"),
            *("--conf", f"spark.executor.extraJavaOptions={SHORT_LIVED}"),
        )
        out = tmp_path / "out"
        done = kaudit("reconcile", *pair, str(out), *on_workers, "--complete", "--no-self-test")
        assert done.returncode == 1, done.stdout + done.stderr
        found = [json.loads(line) for line in (out / "findings.jsonl").read_text().splitlines()]
        assert [(each["class"], each["partition"], each["src_offset"]) for each in found] == [
            ("corrupt", 2, 308)
        ]
        headers = tmp_path / "headers"
        done = kaudit("headers", *pair, str(headers), *on_workers)
        assert done.returncode == 1, done.stdout + done.stderr
        windows = json.loads((headers / "headers.json").read_text())["windows"]
        assert (windows["with_batches"], windows["other_content"]) == (4, 1)
        # Both workers took part in both, with the packages of the archive.
        for worker in spark.workers:
            assert len(list(worker.glob("app-*/*/environment/lib/spark_jobs/tasks.py"))) == 2
