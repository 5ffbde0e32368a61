"""`kaudit watch` on real brokers and real Spark: a signal ends it with a verdict, and it continues where it ended.

Source and target are topics of one broker, apart by the mirror's prefix, or of two clusters.
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
from typing import Any

import pytest

from kclient import AdminClient, NewTopic, Producer
from spark_jobs.spark_settings import FOR_FEW_OFFSETS
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.mirrored_clusters import make_topic

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


class Watch:
    """`kaudit watch` of one topic in *home*, in a session of its own; a later one in the same *home* continues it."""

    def __init__(self, source: Cluster, target: Cluster, home: Path, topic: str) -> None:
        words = ["--source", source.bootstrap, "--target", target.bootstrap, "--topics", topic]
        words += ["--target-prefix", "copy."] if source is target else []
        words += ["--checkpoint", str(home / "watch"), "--from", "earliest", "--settle", "2s"]
        words += ["--every", "1s", "--master", "local[1]"]
        words += [f"--conf={name}={value}" for name, value in FOR_FEW_OFFSETS.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spark_jobs", "watch", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, text: str) -> None:
        """Wait for a line of progress with *text*."""
        assert self._process.stderr is not None
        seen = []
        for line in self._process.stderr:
            seen.append(line)
            if text in line:
                return
        raise AssertionError((text, seen))

    def interrupt(self) -> tuple[int, str]:
        """Stop it as a terminal does, with all its processes; return exit code and output."""
        os.killpg(self._process.pid, signal.SIGINT)
        return self._end()

    def terminate(self) -> tuple[int, str]:
        """Stop it as a service manager does, by SIGTERM; return exit code and output."""
        self._process.send_signal(signal.SIGTERM)
        return self._end()

    def kill(self) -> None:
        """kill -9, also of Spark."""
        os.killpg(self._process.pid, signal.SIGKILL)
        assert self._end()[0] == -signal.SIGKILL

    def _end(self) -> tuple[int, str]:
        output, errors = self._process.communicate(timeout=300)
        assert "Traceback" not in errors, errors
        return self._process.returncode, output


def verdict(home: Path) -> dict[str, Any]:
    """Return watch.json."""
    found: dict[str, Any] = json.loads((home / "watch" / "watch.json").read_text())
    return found


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
    watch = Watch(cluster, cluster, tmp_path, topic)
    watch.wait_for("in all 4 equal")
    code, output = watch.interrupt()
    assert code == 0, output
    assert output.startswith("VERDICT  EQUAL")
    assert f"{topic}-0: from offset 0 up to and without 4: 4 records equal" in output

    write(cluster, topic, [(b"k4", b"new"), (b"k5", None)])
    write(cluster, f"copy.{topic}", [(b"k4", b"new"), (b"k5", b"")])
    watch = Watch(cluster, cluster, tmp_path, topic)
    watch.wait_for(f"FINDING corrupt {topic}-0 offset 5")
    code, output = watch.interrupt()
    assert code == 1, output
    assert output.startswith("VERDICT  DIVERGED")
    (partition,) = verdict(tmp_path)["partitions"]
    assert (partition["from"], partition["until"], partition["equal"]) == (0, 6, 5)
    assert partition["findings"] == {"missing": 0, "extra": 0, "corrupt": 1}


def test_a_killed_watch_of_two_clusters_continues_and_is_lagging_until_it_is_terminated(
    module_clusters: MakeCluster, tmp_path: Path
) -> None:
    east, west = module_clusters(1), module_clusters(1)
    topic = f"w{time.monotonic_ns() % 10**9}"
    records = [(b"k%d" % n, b"v%d" % n) for n in range(9)]
    for cluster in (east, west):
        make_topic(cluster, topic)
        write(cluster, topic, records[:4])
    watch = Watch(east, west, tmp_path, topic)
    watch.wait_for("in all 4 equal")
    write(east, topic, records[4:])
    write(west, topic, records[4:6])
    watch.wait_for("in all 6 equal")
    watch.kill()
    assert not (tmp_path / "watch" / "watch.json").exists()

    watch = Watch(east, west, tmp_path, topic)
    watch.wait_for("continuing the watch of 1 partitions")
    watch.wait_for(f"LATE {topic}-0 at the source: 3 records from offset 6 on")
    code, output = watch.terminate()
    assert code == 3, output
    assert output.startswith("VERDICT  LAGGING")
    found = verdict(tmp_path)
    assert (found["verdict"], found["waiting"], found["first_findings"]) == ("LAGGING", 3, [])
    (partition,) = found["partitions"]
    assert (partition["from"], partition["until"], partition["equal"]) == (0, 6, 6)


def test_a_record_that_a_transaction_marker_replaces_is_missing_and_markers_are_read(
    module_clusters: MakeCluster, tmp_path: Path
) -> None:
    """No row of the target shows its last offset; Spark's progress shows that it was read."""
    cluster = module_clusters(1)
    topic = f"w{time.monotonic_ns() % 10**9}"
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, 1, 1), NewTopic(f"copy.{topic}", 1, 1)])
    records = [(b"k%d" % n, b"v") for n in range(4)]
    write(cluster, topic, records)
    write(cluster, f"copy.{topic}", records[:2])
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": topic}
    with Producer(settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(f"copy.{topic}", b"v", key=b"k2", partition=0, timestamp_ms=NOW)
        producer.commit_transaction()
    watch = Watch(cluster, cluster, tmp_path, topic)
    watch.wait_for(f"FINDING missing {topic}-0 offset 3")
    code, output = watch.interrupt()
    assert code == 1, output
    found = verdict(tmp_path)
    (partition,) = found["partitions"]
    assert (partition["until"], partition["equal"], partition["waiting"]) == (4, 3, 0)
    assert found["not_read"]["target"] == {"offsets": 0, "partitions_unknown": 0}
