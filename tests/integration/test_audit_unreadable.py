"""A partition without a leader, or a topic without settings, is unreadable; the audit goes on with the others."""

from __future__ import annotations

import pytest

from kbroker.testing import KafkaCluster
from kclient import TopicPartition
from kclient.errors import TopicAuthorizationFailed
from spark_jobs.cluster import read_cluster
from tests.kit.brokers import MakeCluster
from tests.kit.mirrored_clusters import make_topic, produce

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_a_partition_without_a_leader_is_unreadable_and_the_others_have_their_ranges(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(2)
    make_topic(cluster, "orders", 4)
    produce(cluster, "orders", 40, partitions=4)
    cluster.terminate(2)
    found = read_cluster("east", cluster.bootstrap, ["orders"], stable="after")
    led, unled = set(found.ranges), set(found.unreadable)
    assert len(led) == len(unled) == 2
    assert not led & unled
    assert all(each.end == 10 for each in found.ranges.values())
    assert all("orders" in cause or "leader" in cause for cause in found.unreadable.values())


def test_each_partition_of_a_topic_is_unreadable_if_its_settings_are_refused_and_needed() -> None:
    with KafkaCluster(1) as cluster:
        cluster.create_topic("orders", partitions=2)
        with cluster.fail_requests("DescribeConfigs", TopicAuthorizationFailed):
            found = read_cluster("east", cluster.bootstrap, ["orders", "absent"])
            without = read_cluster("east", cluster.bootstrap, ["orders"], configs=False)
    assert (dict(found.ranges), dict(found.configs)) == ({}, {})
    assert found.unreadable.keys() == {TopicPartition("orders", 0), TopicPartition("orders", 1)}
    for cause in found.unreadable.values():
        assert cause.startswith("its settings: TOPIC_AUTHORIZATION_FAILED")
    assert (len(without.ranges), dict(without.unreadable)) == (2, {})
