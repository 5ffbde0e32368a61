"""Kafka's tools cancel a throttled reassignment and elect preferred leaders; kafka-python's admin client reassigns."""

from __future__ import annotations

import itertools
import json
import subprocess
import warnings
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kit.apache_kafka import java, with_kafka
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.operators import Operator, until_directories
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
SIDES = ("leader", "follower")
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"

pytestmark = [pytest.mark.slow, pytest.mark.compat, pytest.mark.timeout(180)]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(
        3,
        {
            "auto.leader.rebalance.enable": "false",
            "log.segment.delete.delay.ms": "0",
            "replica.fetch.max.bytes": "100000",  # what the first fetch brings is not held back
        },
    )


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Make a topic with two partitions of 2.5 MB on brokers 1 and 2, under a name of its own."""
    name = f"topic-{next(_numbers)}"
    Observer(cluster).create(name, [[1, 2], [2, 1]])
    # A batch is never cut: small ones, or a throttled move is done after three fetches.
    settings = {"bootstrap.servers": cluster.bootstrap, "batch.size": 50_000, "log_level": 0}
    producer = Producer(settings)
    for n in range(500):
        producer.produce(name, bytes(10_000), partition=n % 2)
    assert producer.flush(20) == 0
    return name


def tool(cluster: Cluster, command: str, *arguments: str) -> str:
    """Run one of Kafka's tools; return its output."""
    done = subprocess.run(
        [
            *java("128m", command, "--bootstrap-server", cluster.bootstrap, *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def plan(path: Path, topic: str, *replicas: list[int]) -> str:
    """Write a plan as the tool reads it; its path."""
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "partitions": [
                    {"topic": topic, "partition": n, "replicas": each}
                    for n, each in enumerate(replicas)
                ],
            }
        )
    )
    return str(path)


@with_kafka
def test_kafka_reassign_partitions_lists_and_cancels_what_it_began(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    moves = plan(tmp_path / "moves.json", topic, [3, 2], [2, 3])
    observer = Observer(cluster)
    # The brokers get the tool's settings after the move has begun: so they are set before.
    observer.configure(topic, {f"{s}.replication.throttled.replicas": "*" for s in SIDES})
    for broker_id in cluster.brokers:
        observer.configure_broker(
            broker_id, {f"{side}.replication.throttled.rate": "1" for side in SIDES}
        )
    output = tool(  # so slow that it is still under way when the next tool has started
        cluster, REASSIGN, "--reassignment-json-file", moves, "--execute", "--throttle", "1"
    )
    assert "Successfully started" in output
    assert f"{topic}-" in tool(cluster, REASSIGN, "--list")
    output = tool(cluster, REASSIGN, "--reassignment-json-file", moves, "--cancel")
    assert "Successfully cancelled partition reassignments for:" in output
    until_directories(cluster, topic, {0: [1, 2], 1: [2, 1]})
    assert Operator(cluster).moving() == {}


@with_kafka
def test_kafka_leader_election_gets_the_preferred_leaders_back(
    cluster: Cluster, topic: str
) -> None:
    observer = Observer(cluster)
    cluster.restart(1)
    observer.led_by_another(topic, 0, 1)
    observer.in_sync(topic, 0, [1, 2])
    output = tool(
        cluster, ELECT, "--election-type", "preferred", "--topic", topic, "--partition", "0"
    )
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in output
    assert observer.placement(topic, 0).leader == 1
    output = tool(
        cluster, ELECT, "--election-type", "preferred", "--topic", topic, "--partition", "0"
    )
    assert f"Valid replica already elected for partitions {topic}-0" in output


def test_kafka_python_reassigns_lists_and_cancels(cluster: Cluster, topic: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
        from kafka import TopicPartition
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    with admin:
        first, none = TopicPartition(topic, 0), TopicPartition("none", 0)
        answers = admin.alter_partition_reassignments({first: [3, 1], none: [1]})
        assert answers[first] is None
        assert answers[none].errno == 3
        eventually("the move to be done", lambda: not admin.list_partition_reassignments(), 30)
        until_directories(cluster, topic, {0: [3, 1], 1: [2, 1]})
        answers = admin.alter_partition_reassignments({first: None})
        assert answers[first].errno == 85
        answers = admin.alter_partition_reassignments({first: [1, 7]})
        assert answers[first].errno == 39
        result = admin.elect_leaders(0, {topic: [0]}, timeout_ms=10_000)
        assert [e.error_code for e in result.replica_election_results[0].partition_result] == [0]
        observer = Observer(
            cluster
        )  # asks any broker; the controller that has answered is the first to know
        eventually("broker 3 to lead", lambda: observer.placement(topic, 0).leader == 3)
