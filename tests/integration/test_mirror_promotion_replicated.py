"""`kmirror promote` to a cluster of three brokers, one of which is killed behind the fence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.test_mirror_promotion import Writer
from tests.kit.brokers import MakeCluster
from tests.kit.mirrored_clusters import (
    admin,
    deliver,
    make_topic,
    making_mirrors,
    record_of,
    values,
)
from tests.kit.mirrors import stored
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 3
KILLED = 2


def leaders(client: AdminClient) -> dict[int, int]:
    """Return the leader of each partition."""
    (described,) = client.list_topics("orders", timeout=10).topics.values()
    return {number: each.leader for number, each in described.partitions.items()}


def in_sync(client: AdminClient) -> list[int]:
    """Return the number of in-sync replicas of each partition."""
    (described,) = client.list_topics("orders", timeout=10).topics.values()
    return [len(each.isrs) for each in described.partitions.values()]


def test_a_leader_that_is_killed_behind_the_fence_delays_the_promotion_and_loses_nothing(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east = broker_clusters(1)
    west = broker_clusters(3, {"offsets.topic.replication.factor": "3"})
    make_topic(east, "orders", PARTITIONS)
    client = admin(west)
    with making_mirrors(tmp_path, east, west) as make:
        one = make({"replication.factor": "3"})
        one.start()
        writers = [Writer(east, "orders", partition) for partition in range(PARTITIONS)]
        for n in range(PARTITIONS):
            eventually("records at the target", lambda n=n: len(stored(west, "orders", n)) > 3)  # type: ignore[misc]
        assert KILLED in leaders(client).values(), "the leaders are spread"

        process = subprocess.Popen(
            [sys.executable, "-m", "mirrormaker", "promote", str(one.path)],
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
                if "is read-only" in line and KILLED not in west.down:
                    west.kill(KILLED)
            output = "".join(written) + process.stdout.read()
        assert process.returncode == 0, output
        assert KILLED in west.down, output
        record = record_of(output)
        assert record["rpo_records"] == 0
        for n, writer in enumerate(writers):
            writer.join()
            assert writer.refusal == "POLICY_VIOLATION"
            assert set(writer.acknowledged) <= set(values(west, "orders", n))

        # The broker that was down when the mark became empty leads again, and does not refuse producers.
        west.start(KILLED)
        eventually("all replicas in sync", lambda: in_sync(client) == [3] * PARTITIONS)
        tps = [TopicPartition("orders", n) for n in range(PARTITIONS)]
        client.elect_leaders(ElectionType.PREFERRED, tps).result(20)
        eventually("its leadership", lambda: KILLED in leaders(client).values())
        for n in range(PARTITIONS):
            assert deliver(west, "orders", b"after", partition=n) is None
            assert values(west, "orders", n)[-1] == b"after"
            refused = deliver(east, "orders", b"no", partition=n)
            assert refused is not None
            assert refused.name() == "POLICY_VIOLATION"
