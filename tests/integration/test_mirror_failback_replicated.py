"""`kmirror failback` to a cluster of three brokers, one of which is killed meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.kit.brokers import MakeCluster
from tests.kit.mirrored_clusters import admin, deliver, making_mirrors, record_of, values

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 3


def test_a_broker_that_is_killed_during_a_failback_delays_it_and_loses_nothing(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east = broker_clusters(3, {"offsets.topic.replication.factor": "3"})
    west = broker_clusters(1)
    client = admin(east)
    client.create_topics([NewTopic("orders", PARTITIONS, 3)])["orders"].result(20)
    for n in range(PARTITIONS):
        assert deliver(east, "orders", b"common", partition=n) is None
    export = tmp_path / "export"
    with making_mirrors(tmp_path, east, west) as make:
        both = make({"west->east.enabled": "true"})
        assert both.run_once(60) == 0
        for n in range(PARTITIONS):
            assert deliver(east, "orders", b"tail", partition=n) is None
        code, output = both.ask("promote", "--flow", "east->west", "--source-lost", timeout=60)
        assert code == 0, output
        for n in range(PARTITIONS):
            assert deliver(west, "orders", b"west", b"west", partition=n) is None

        options = ["--flow", "west->east", "--execute", "--export", str(export), "--no-audit"]
        process = subprocess.Popen(
            [sys.executable, "-m", "mirrormaker", "failback", str(both.path), *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        written = []
        assert process.stderr is not None
        assert process.stdout is not None
        with process, process.stderr, process.stdout:
            for line in process.stderr:
                written.append(line)
                if "is read-only" in line:
                    east.kill(2)
                if "diverges at" in line and 2 in east.down:
                    east.start(2, wait=False)  # a replica that is down cannot be deleted
            output = "".join(written) + process.stdout.read()
        assert process.returncode == 0, output
        east.wait_ready(2)
        assert record_of(output)["rpo_records"] == PARTITIONS
        for n in range(PARTITIONS):
            assert values(east, "orders", n) == [b"common", b"west", b"west"]
        (described,) = client.list_topics("orders", timeout=10).topics.values()
        replicas = [each.replicas for each in described.partitions.values()]
        assert [sorted(each) for each in replicas] == [[1, 2, 3]] * PARTITIONS
        assert len({each[0] for each in replicas}) == 3, "the leaders are spread"
        refused = deliver(east, "orders", b"no")
        assert refused is not None
        assert refused.name() == "POLICY_VIOLATION"
    assert json.loads(next(export.glob("orders-*/manifest.json")).read_text())["topic"] == "orders"
