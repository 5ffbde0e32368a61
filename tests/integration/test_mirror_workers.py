"""Several `kmirror run` share the partitions of a flow through the target's ZooKeeper."""

from __future__ import annotations

import re

import pytest

from kclient.blocking import Consumer
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.kit.brokers import Cluster
from tests.kit.mirrored_clusters import MakeMirror, make_topic, mark_of, produce
from tests.kit.mirrors import Mirror, until_same
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

PARTITIONS = 6
TPS = [TopicPartition("orders", n) for n in range(PARTITIONS)]


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


def billing(cluster: Cluster) -> Consumer:
    return Consumer(
        bootstrap_servers=cluster.bootstrap, group_id="billing", enable_auto_commit=False
    )


def commit(cluster: Cluster, offset: int) -> None:
    """Commit *offset* for every partition, as the group."""
    with billing(cluster) as consumer:
        consumer.assign(TPS)
        consumer.commit({tp: OffsetAndMetadata(offset) for tp in TPS})


def committed(cluster: Cluster) -> list[int]:
    with billing(cluster) as consumer:
        found = consumer.committed(TPS)
    return [each.offset for tp in TPS if (each := found.get(tp)) is not None]


def test_workers_share_partitions_and_take_over_those_of_a_killed_one(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    settings = {
        "west.zookeeper.connect": west.zookeeper_connect,
        "west.zookeeper.session.timeout.ms": "4000",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
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
    commit(east, 20)
    code, output = second.ask("status")
    workers = [line for line in output.splitlines() if line.startswith("  worker ")]
    assert code == 0, output
    assert len(workers) == 2, output
    assert ", elected: 3 partitions orders-" in workers[0]
    assert sorted(re.findall(r"orders-\d", "".join(workers))) == [f"orders-{n}" for n in range(6)]
    eventually("the offsets of all partitions", lambda: committed(west) == [20] * PARTITIONS)

    make_topic(west, "prepared", 4)
    make_topic(east, "prepared", 4)
    produce(east, "prepared", 100, partitions=4)
    until_same(east, west, "prepared", 4)
    assert mark_of(west, "prepared"), "the elected worker checked all of its partitions"
    eventually("the first worker to have half", lambda: shares(first, "1 of 2, elected", 5))
    eventually("the second worker to have half", lambda: shares(second, "2 of 2", 5))
    produce(east, "prepared", 100, partitions=4)
    until_same(east, west, "prepared", 4)

    first.kill()
    make_topic(east, "later")
    produce(east, "later", 10)
    produce(east, "orders", 300, partitions=PARTITIONS)
    until_same(east, west, "orders", PARTITIONS)
    until_same(east, west, "later")
    eventually("the second worker to have all", lambda: shares(second, "1 of 1, elected", 11))

    third.start()
    eventually("the third worker to have a part", lambda: "worker 2 of 2" in last_status(third))
    produce(east, "orders", 300, partitions=PARTITIONS)
    until_same(east, west, "orders", PARTITIONS)
    assert second.stop() == 0
    eventually("the third worker to have all", lambda: shares(third, "1 of 1, elected", 11))
    produce(east, "orders", 300, partitions=PARTITIONS)
    until_same(east, west, "orders", PARTITIONS)
