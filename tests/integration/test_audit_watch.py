"""`kaudit watch` on a real broker and real Spark: Ctrl-C ends it with a verdict, and it continues where it ended.

Source and target are topics of one broker, apart by the mirror's prefix.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from kclient import AdminClient, NewTopic, Producer
from spark_jobs.spark_settings import FOR_FEW_OFFSETS
from tests.kit.brokers import Cluster, MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NOW = int(time.time() * 1000)
"""Both logs have the same timestamps, which retention does not reach."""


def write(
    cluster: Cluster, topic: str, records: Iterable[tuple[bytes | None, bytes | None]]
) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        for key, value in records:
            headers = [("h", b"1"), ("h", None)] if key == b"k1" else []
            producer.send(topic, value, key=key, partition=0, timestamp_ms=NOW, headers=headers)
        producer.flush()


def watched(cluster: Cluster, home: Path, topic: str, until: str) -> tuple[int, str]:
    """Run a watch, stop it by Ctrl-C behind a line of progress with *until*, and return its exit code and output."""
    words = ["--source", cluster.bootstrap, "--target", cluster.bootstrap, "--topics", topic]
    words += ["--target-prefix", "copy.", "--checkpoint", str(home / "watch"), "--from", "earliest"]
    words += ["--every", "1s", "--master", "local[1]"]
    words += [f"--conf={name}={value}" for name, value in FOR_FEW_OFFSETS.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_jobs", "watch", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if until in line:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it
            break
    output, errors = process.communicate(timeout=300)
    assert any(until in line for line in seen), (seen, errors, output)
    return process.returncode, output


def test_a_watch_ends_with_a_verdict_and_continues_behind_what_it_compared(
    module_clusters: MakeCluster, tmp_path: Path
) -> None:
    cluster = module_clusters(1)
    topic = f"w{time.monotonic_ns() % 10**9}"
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, 1, 1), NewTopic(f"copy.{topic}", 1, 1)])
    first = [(b"k0", b"v"), (b"k1", None), (None, b""), (b"", b"x")]
    for name in (topic, f"copy.{topic}"):
        write(cluster, name, first)
    code, output = watched(cluster, tmp_path, topic, "in all 4 equal")
    assert code == 0, output
    assert output.startswith("VERDICT  EQUAL")
    assert f"{topic}-0: from offset 0 up to and without 4: 4 records equal" in output

    write(cluster, topic, [(b"k4", b"new"), (b"k5", None)])
    write(cluster, f"copy.{topic}", [(b"k4", b"new"), (b"k5", b"")])
    code, output = watched(cluster, tmp_path, topic, f"FINDING corrupt {topic}-0 offset 5")
    assert code == 1, output
    assert output.startswith("VERDICT  DIVERGED")
    (partition,) = json.loads((tmp_path / "watch" / "watch.json").read_text())["partitions"]
    assert (partition["from"], partition["until"], partition["equal"]) == (0, 6, 5)
    assert partition["findings"] == {"missing": 0, "extra": 0, "corrupt": 1}
