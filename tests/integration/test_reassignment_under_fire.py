"""S26: twenty partitions move under load while brokers are killed, and moves are cancelled or changed.

Two writers, each with ten partitions of three replicas and min.insync.replicas=3. One broker of the target hangs, so
that the moves are still under way when the faults come. In the end: every acknowledged record at its offset, on
every replica; exactly the replicas asked for, in ZooKeeper, in metadata and on the disks.
"""

from __future__ import annotations

import time

import pytest

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.operators import Operator, assignment_of, until_directories, znodes_of
from tests.kit.replicated import Observer, read_all, until_replicas_agree
from tests.kit.waiting import eventually
from tests.kit.writers import Acknowledgement, KclientWriter, LibrdkafkaWriter, Writer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PARTITIONS = 10
SETTINGS = {
    # The moves to the paused broker are asked for within its session: later they are an INVALID_REPLICA_ASSIGNMENT.
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.backoff.ms": "200",
    "log.segment.delete.delay.ms": "0",
    "leader.imbalance.check.interval.seconds": "2",
}
Replicas = dict[int, list[int]]


def spread(*brokers: int) -> Replicas:
    """Three of *brokers* for every partition, each broker first in its turn."""
    n = len(brokers)
    return {p: [brokers[(p + i) % n] for i in range(3)] for p in range(PARTITIONS)}


def until_progress(writers: list[Writer], numbers: int, timeout: float = 60.0) -> None:
    """Wait until every writer has so many more acknowledgements."""
    goals = [writer.count + numbers for writer in writers]
    deadline = time.monotonic() + timeout
    for writer, goal in zip(writers, goals, strict=True):
        while writer.count < goal:
            assert writer.is_alive(), f"{writer.topic} ended: {writer.problem!r}"
            assert time.monotonic() < deadline, f"{writer.topic}: no acknowledgements"
            time.sleep(0.01)


def ask(admin: Operator, topic: str, replicas: Replicas) -> None:
    """Ask for the replicas of a whole topic."""
    asked = admin.reassign({(topic, p): ids for p, ids in replicas.items()})
    assert set(asked.values()) == {""}


def is_there(sent: Acknowledgement, log: dict[int, bytes]) -> bool:
    """Return whether *log* has what was acknowledged, at its offset.

    librdkafka also takes a batch for acknowledged if one behind it in sequence was: then the offset is not known.
    """
    value = b"%d" % sent.number
    return value in log.values() if sent.offset is None else log.get(sent.offset) == value


def check(cluster: Cluster, observer: Observer, writer: Writer, replicas: Replicas) -> None:
    """Demand the replicas, and what was acknowledged on each of them."""
    topic = writer.topic
    with znodes_of(cluster) as zookeeper:
        znode = assignment_of(zookeeper, topic)
    found = {int(p): ids for p, ids in znode["partitions"].items()}
    assert {p: set(ids) for p, ids in found.items()} == {p: set(i) for p, i in replicas.items()}
    assert znode["adding_replicas"] == znode["removing_replicas"] == {}
    for index in range(PARTITIONS):
        observer.in_sync(topic, index, replicas[index], 30)
    stored = read_all(cluster.bootstrap, topic, PARTITIONS)
    for index in range(PARTITIONS):
        lost = [sent for sent in writer.acknowledged[index] if not is_there(sent, stored[index])]
        assert not lost, f"{topic}-{index}: acknowledged, not there: {lost[:5]}"
        until_replicas_agree(cluster, topic, index, replicas[index])
    until_directories(cluster, topic, replicas)


def test_reassignment_under_fire(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(5, SETTINGS)
    observer, admin = Observer(cluster), Operator(cluster)
    before, after = spread(1, 2, 3), spread(3, 4, 5)
    writers: list[Writer] = [
        KclientWriter("kclient", PARTITIONS, "all", cluster.bootstrap, idempotence=True),
        LibrdkafkaWriter("librdkafka", PARTITIONS, "all", cluster.bootstrap, idempotence=True),
    ]
    for writer in writers:
        observer.create(writer.topic, list(before.values()), {"min.insync.replicas": "3"})
    for writer in writers:
        writer.start()
    until_progress(writers, 200)

    hung = 4 if observer.controller() != 4 else 5
    cluster.pause(hung)
    for writer in writers:
        ask(admin, writer.topic, after)
    assert len(admin.moving()) == 2 * PARTITIONS
    cluster.kill(hung)
    cluster.restart(2)
    killed = observer.controller()
    cluster.kill(killed)
    eventually("another controller", lambda: observer.controller() not in (-1, killed))
    assert admin.moving(), "the next controller knows of none"
    off = range(PARTITIONS // 2)
    called_off = admin.reassign({("librdkafka", p): None for p in off})
    assert set(called_off.values()) == {""}
    cluster.start(hung, killed)
    admin.until_moved(60)
    until_progress(writers, 100)

    ask(admin, "kclient", before)
    ask(admin, "kclient", spread(2, 3, 5))
    admin.until_moved(60)
    until_progress(writers, 100)
    for writer in writers:
        writer.finish()
    check(cluster, observer, writers[0], spread(2, 3, 5))
    check(cluster, observer, writers[1], after | {p: before[p] for p in off})
