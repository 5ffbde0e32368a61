"""Several `kmirror run` share the partitions of a flow through the target's ZooKeeper."""

from __future__ import annotations

import re

import pytest

from tests.kit.brokers import Cluster
from tests.kit.mirrored_clusters import MakeMirror, make_topic, produce
from tests.kit.mirrors import Mirror, until_same
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

PARTITIONS = 6


def last_status(worker: Mirror) -> str:
    """Return the last status line of a worker."""
    lines = [line for line in worker.output.splitlines() if " rec/s" in line]
    return lines[-1] if lines else ""


def shares(worker: Mirror, place: str, partitions: int) -> bool:
    """Return whether a worker has this place, such as 1 of 2, and copies so many partitions."""
    return (
        re.search(rf"\b{partitions} partitions\b.*worker {place}\b", last_status(worker))
        is not None
    )


def test_workers_share_partitions_and_take_over_those_of_a_killed_one(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    settings = {
        "west.zookeeper.connect": west.zookeeper_connect,
        "west.zookeeper.session.timeout.ms": "4000",
    }
    make_topic(east, "orders", PARTITIONS)
    produce(east, "orders", 300, partitions=PARTITIONS)
    first, second, third = (mirror(settings) for _ in range(3))
    first.start()
    eventually("the first worker to copy everything", lambda: shares(first, "1 of 1, elected", 6))
    second.start()
    eventually("the second worker to have half", lambda: shares(second, "2 of 2", 3))
    eventually("the first worker to have half", lambda: shares(first, "1 of 2, elected", 3))
    produce(east, "orders", 300, partitions=PARTITIONS)
    until_same(east, west, "orders", PARTITIONS)
    code, output = second.ask("status")
    workers = [line for line in output.splitlines() if line.startswith("  worker ")]
    assert code == 0, output
    assert len(workers) == 2, output
    assert ", elected: 3 partitions orders-" in workers[0]
    assert sorted(re.findall(r"orders-\d", "".join(workers))) == [f"orders-{n}" for n in range(6)]

    first.kill()
    make_topic(east, "later")
    produce(east, "later", 10)
    produce(east, "orders", 300, partitions=PARTITIONS)
    until_same(east, west, "orders", PARTITIONS)
    until_same(east, west, "later")
    eventually("the second worker to have all", lambda: shares(second, "1 of 1, elected", 7))

    third.start()
    eventually("the third worker to have a part", lambda: shares(third, "2 of 2", 3))
    produce(east, "orders", 300, partitions=PARTITIONS)
    until_same(east, west, "orders", PARTITIONS)
    assert second.stop() == 0
    eventually("the third worker to have all", lambda: shares(third, "1 of 1, elected", 7))
    produce(east, "orders", 300, partitions=PARTITIONS)
    until_same(east, west, "orders", PARTITIONS)
