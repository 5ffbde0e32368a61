"""Reassignment on real brokers: exact replicas, equal logs, and no replica left over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.operators import (
    REASSIGN,
    Operator,
    assignment_of,
    partitions_json,
    until_directories,
    znodes_of,
)
from tests.kit.replicated import Observer, read_all, until_replicas_agree
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

_numbers = itertools.count(1)
RECORDS = 500
SETTINGS = {
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": "2000",
    "log.segment.delete.delay.ms": "0",
}


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(4, SETTINGS)


@pytest.fixture
def admin(cluster: Cluster) -> Operator:
    return Operator(cluster)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Give every run of a test living brokers, and a name of its own."""
    if cluster.down:
        cluster.start(*cluster.down)
    return f"topic-{next(_numbers)}"


def filled(cluster: Cluster, topic: str, assignment: list[list[int]]) -> Observer:
    """Make *topic* with records in every partition."""
    observer = Observer(cluster)
    observer.create(topic, assignment)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for index in range(len(assignment)):
        for n in range(RECORDS):
            producer.produce(topic, b"%d" % n, partition=index)
    assert producer.flush(20) == 0
    return observer


def check_moved(
    cluster: Cluster, observer: Observer, topic: str, replicas: Sequence[Sequence[int]]
) -> None:
    """Demand exactly these replicas, all in sync, with all records, and no files of others."""
    with znodes_of(cluster) as zookeeper:
        znode = assignment_of(zookeeper, topic)
    assert znode["partitions"] == {str(n): list(each) for n, each in enumerate(replicas)}
    assert znode["adding_replicas"] == znode["removing_replicas"] == {}
    for index, each in enumerate(replicas):
        observer.in_sync(topic, index, each)
        assert observer.placement(topic, index).leader in each
        until_replicas_agree(cluster, topic, index, each)
    found = read_all(cluster.bootstrap, topic, len(replicas))
    for index in range(len(replicas)):
        assert list(found[index].values()) == [b"%d" % n for n in range(RECORDS)]
    until_directories(cluster, topic, dict(enumerate(replicas)))


def test_all_replicas_move_and_leaders_with_them(
    cluster: Cluster, admin: Operator, topic: str
) -> None:
    observer = filled(cluster, topic, [[1, 2], [2, 1]])
    asked = admin.reassign({(topic, 0): [3, 4], (topic, 1): [2, 3]})
    assert asked == {(topic, 0): "", (topic, 1): ""}
    admin.until_moved()
    check_moved(cluster, observer, topic, [[3, 4], [2, 3]])


def test_the_replication_factor_grows_and_shrinks(
    cluster: Cluster, admin: Operator, topic: str
) -> None:
    observer = filled(cluster, topic, [[1]])
    admin.reassign({(topic, 0): [2, 1, 3]})
    admin.until_moved()
    check_moved(cluster, observer, topic, [[2, 1, 3]])
    admin.reassign({(topic, 0): [3]})
    admin.until_moved()
    check_moved(cluster, observer, topic, [[3]])


def test_a_classic_tool_writes_a_znode_which_goes_when_all_is_done(
    cluster: Cluster, topic: str
) -> None:
    observer = filled(cluster, topic, [[1, 2], [2, 1]])
    with znodes_of(cluster) as zookeeper:
        request = {(topic, 0): [3, 4], (topic, 1): [4], ("none", 0): [1]}
        zookeeper.create(REASSIGN, partitions_json(request))
        eventually("the znode to be deleted", lambda: not zookeeper.exists(REASSIGN), 30)
        zookeeper.create(REASSIGN, b"nonsense")
        eventually("the nonsense to be gone", lambda: not zookeeper.exists(REASSIGN))
    check_moved(cluster, observer, topic, [[3, 4], [4]])


def test_a_reassignment_to_a_broker_that_hangs_is_listed_cancelled_and_leaves_nothing(
    cluster: Cluster, admin: Operator, topic: str
) -> None:
    observer = filled(cluster, topic, [[1, 2]])
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    idle = 3 if observer.controller() != 3 else 4
    assert admin.reassign({(topic, 0): [2, 9]}) == {(topic, 0): "INVALID_REPLICA_ASSIGNMENT"}
    assert admin.reassign({(topic, 0): None}) == {(topic, 0): "NO_REASSIGNMENT_IN_PROGRESS"}
    cluster.pause(idle)
    try:
        assert admin.reassign({(topic, 0): [idle, 2]}) == {(topic, 0): ""}
        assert admin.moving() == {(topic, 0): ([idle, 2, 1], [idle], [1])}
        with znodes_of(cluster) as zookeeper:
            znode = assignment_of(zookeeper, topic)
        assert znode["partitions"] == {"0": [idle, 2, 1]}
        assert znode["adding_replicas"] == {"0": [idle]}
        assert znode["removing_replicas"] == {"0": [1]}
        (growing,) = client.create_partitions([NewPartitions(topic, 2)]).values()
        with pytest.raises(KafkaException, match="being reassigned"):
            growing.result(20)
        assert admin.reassign({(topic, 0): None}) == {(topic, 0): ""}
        assert admin.moving() == {}
    finally:
        cluster.resume(idle)
    observer.in_sync(topic, 0, [1, 2])
    until_directories(cluster, topic, {0: [1, 2]})


def test_a_replica_that_was_down_when_it_was_moved_away_is_deleted_when_it_is_back(
    cluster: Cluster, admin: Operator, topic: str
) -> None:
    observer = filled(cluster, topic, [[1, 2]])
    cluster.kill(1)
    observer.led_by_another(topic, 0, 1)
    assert admin.reassign({(topic, 0): [2, 3]}) == {(topic, 0): ""}
    admin.until_moved()
    assert (cluster[1].data / f"{topic}-0").is_dir()
    cluster.start(1)
    check_moved(cluster, observer, topic, [[2, 3]])


def test_a_topic_is_deleted_while_it_moves(cluster: Cluster, admin: Operator, topic: str) -> None:
    observer = filled(cluster, topic, [[1, 2]])
    idle = 3 if observer.controller() != 3 else 4
    cluster.pause(idle)
    try:
        asked = admin.reassign({(topic, 0): [idle, 2]})
        observer.delete(topic)
    finally:
        cluster.resume(idle)
    assert asked == {(topic, 0): ""}
    with znodes_of(cluster) as zookeeper:
        eventually("its znode to go", lambda: not zookeeper.exists(f"/brokers/topics/{topic}"), 30)
    until_directories(cluster, topic, {})
    assert admin.moving() == {}


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttled_reassignment_keeps_to_its_rate_and_does_not_affect_others(
    cluster: Cluster, admin: Operator, topic: str, side: str
) -> None:
    """KIP-73: 2.5 MB at 0.5 MB/s; a fetch brings one at most, and after each the average is waited for."""
    size, other = 2_500_000, f"other-{topic}"
    observer = Observer(cluster)
    observer.create(topic, [[1, 2]])
    observer.create(other, [[1, 2, 3]], {"min.insync.replicas": "3"})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0, "linger.ms": 5})
    for _ in range(size // 10_000):
        producer.produce(topic, bytes(10_000), partition=0)
    assert producer.flush(20) == 0
    named = {"leader": "0:1,0:2", "follower": "0:3"}
    observer.configure(topic, {f"{side}.replication.throttled.replicas": named[side]})
    for broker_id in cluster.brokers:
        rates = dict.fromkeys(named, str(2**63 - 1)) | {side: "500000"}
        observer.configure_broker(
            broker_id,
            {f"{each}.replication.throttled.rate": rate for each, rate in rates.items()},
        )
    # The brokers have the topic's settings as well: they were sent before.
    began = time.monotonic()
    assert admin.reassign({(topic, 0): [3, 2]}) == {(topic, 0): ""}
    producer.produce(other, b"not held back", partition=0)
    assert producer.flush(20) == 0
    assert admin.moving()
    admin.until_moved(60)
    assert time.monotonic() - began > 2.0  # nothing makes it faster than the rate
    until_directories(cluster, topic, {0: [3, 2]})
    until_replicas_agree(cluster, topic, 0, [3, 2])
