"""Elections that operators ask for, on real brokers: by librdkafka, by kafka-python, by a znode."""

from __future__ import annotations

import itertools

import pytest
from confluent_kafka import ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.operators import PREFERRED_ELECTION, Operator, partitions_json, znodes_of
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PREFERRED, UNCLEAN = 0, 1
_numbers = itertools.count(1)
SETTINGS = {
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": "2000",
    "unclean.leader.election.enable": "false",
}


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(3, SETTINGS)


def led_elsewhere(cluster: Cluster, topic: str) -> Observer:
    """Make *topic* on brokers 1 and 2, and bounce broker 1: broker 2 leads, both are in sync."""
    observer = Observer(cluster)
    observer.create(topic, [[1, 2], [1, 2]])
    cluster.restart(1)
    for index in (0, 1):
        observer.led_by_another(topic, index, 1)
        observer.in_sync(topic, index, [1, 2])
    return observer


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Give every run of a test living brokers, and a name of its own."""
    if cluster.down:
        cluster.start(*cluster.down)
    return f"topic-{next(_numbers)}"


def leaders(observer: Observer, topic: str) -> list[int]:
    return [observer.placement(topic, index).leader for index in (0, 1)]


def test_librdkafka_gets_the_preferred_leaders_back(cluster: Cluster, topic: str) -> None:
    observer = led_elsewhere(cluster, topic)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    asked = [TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition("none", 0)]
    results = admin.elect_leaders(ElectionType.PREFERRED, asked).result(20)
    outcomes = {
        (tp.topic, tp.partition): None if error is None else error.code()
        for tp, error in results.items()
    }
    assert outcomes == {
        (topic, 0): None,
        (topic, 1): None,
        ("none", 0): KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
    assert leaders(observer, topic) == [
        1,
        1,
    ]  # already, in the metadata of the broker that answered
    again = admin.elect_leaders(ElectionType.PREFERRED, asked[:1]).result(20)
    assert [e.code() for e in again.values()] == [KafkaError.ELECTION_NOT_NEEDED]


def test_a_classic_tool_writes_a_znode_which_goes_when_all_was_tried(
    cluster: Cluster, topic: str
) -> None:
    observer = led_elsewhere(cluster, topic)
    with znodes_of(cluster) as zookeeper:
        request = partitions_json({(topic, 0): None, (topic, 1): None, ("none", 3): None})
        zookeeper.create(PREFERRED_ELECTION, request)
        eventually("the znode to be deleted", lambda: not zookeeper.exists(PREFERRED_ELECTION))
        eventually("broker 1 to lead", lambda: leaders(observer, topic) == [1, 1])
        zookeeper.create(PREFERRED_ELECTION, b"what?")
        eventually("the nonsense to be gone", lambda: not zookeeper.exists(PREFERRED_ELECTION))


def test_an_operator_forces_a_leader_where_the_topic_forbids_it(
    cluster: Cluster, topic: str
) -> None:
    observer = Observer(cluster)
    observer.create(topic, [[1, 2]], {"unclean.leader.election.enable": "false"})
    cluster.kill(2)
    observer.in_sync(topic, 0, [1])
    cluster.kill(1)
    cluster.start(2)
    eventually("no leader", lambda: observer.placement(topic).leader == -1)
    admin = Operator(cluster)
    asked = admin.elect(UNCLEAN, [(topic, 0), ("none", 0)])
    assert asked == {(topic, 0): "", ("none", 0): "UNKNOWN_TOPIC_OR_PARTITION"}
    assert observer.placement(topic).leader == 2
    assert admin.elect(PREFERRED, [(topic, 0)]) == {(topic, 0): "PREFERRED_LEADER_NOT_AVAILABLE"}
    assert admin.elect(UNCLEAN, [(topic, 0)]) == {(topic, 0): "ELECTION_NOT_NEEDED"}
    cluster.kill(2)
    none = {(topic, 0): "ELIGIBLE_LEADERS_NOT_AVAILABLE"}
    eventually("no eligible replica", lambda: admin.elect(UNCLEAN, [(topic, 0)]) == none)
    logs = "".join(broker.log for broker in cluster.brokers.values())
    assert f"UNCLEAN ELECTION requested by an operator: {topic}-0 is led by broker 2" in logs
