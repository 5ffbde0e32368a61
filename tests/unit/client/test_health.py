"""What counts as unhealthy."""

from __future__ import annotations

import pytest

from kclient.admin.health import (
    health_of,
    is_at_min_isr,
    is_unavailable,
    is_under_min_isr,
    is_under_replicated,
)
from kclient.net.metadata import Broker, ClusterMetadata, PartitionMetadata, TopicMetadata
from kclient.types import TopicPartition


def partition(
    leader: int = 1, replicas: tuple[int, ...] = (1, 2, 3), isr: tuple[int, ...] = (1, 2, 3)
) -> PartitionMetadata:
    return PartitionMetadata("t", 0, leader, 0, replicas, isr)


def cluster(
    *partitions: PartitionMetadata, live: tuple[int, ...] = (1, 2, 3), controller: int = 1
) -> ClusterMetadata:
    return ClusterMetadata(
        brokers={n: Broker(n, "h", 9092) for n in live},
        topics={"t": TopicMetadata("t", None, False, dict(enumerate(partitions)))},
        controller_id=controller,
    )


@pytest.mark.parametrize(
    ("given", "under_replicated", "under_min", "at_min", "unavailable"),
    [
        (partition(), False, False, False, False),
        (partition(isr=(1, 2)), True, False, True, False),
        (partition(isr=(1,)), True, True, False, False),
        (partition(leader=-1, isr=(1, 2)), True, True, True, True),
        (partition(leader=9), False, False, False, True),
    ],
)
def test_a_partition_is_what_kafka_calls_it(
    given, under_replicated, under_min, at_min, unavailable
):
    assert is_under_replicated(given) is under_replicated
    assert is_under_min_isr(given, 2) is under_min
    assert is_at_min_isr(given, 2) is at_min
    assert is_unavailable(given, {1, 2, 3}) is unavailable


def test_a_replica_that_is_only_being_added_may_lag():
    moving = partition(replicas=(1, 2, 3, 4), isr=(1, 2, 3))
    assert is_under_replicated(moving)
    assert not is_under_replicated(moving, adding=(4,))
    found = health_of(cluster(moving, live=(1, 2, 3, 4)), {}, adding={TopicPartition("t", 0): [4]})
    assert found.is_healthy


def test_a_whole_cluster_is_healthy():
    found = health_of(cluster(partition(), partition()), {"t": 3})
    assert (found.is_healthy, found.reasons) == (True, [])
    assert (found.expected, found.down) == ((1, 2, 3), ())


def test_brokers_are_expected_where_replicas_are():
    found = health_of(cluster(partition(isr=(1, 2)), live=(1, 2, 7)), {"t": 2})
    assert (found.expected, found.down) == ((1, 2, 3, 7), (3,))
    assert found.reasons == ["1 broker down: 3", "1 partition under-replicated"]


def test_every_reason_is_named_the_worst_first():
    dead = partition(leader=-1, isr=(3,))
    found = health_of(
        cluster(dead, dead, live=(1, 2), controller=3),
        {"t": 2},
        offline_log_dirs={2: ("/data",)},
    )
    assert found.controller == -1
    assert found.reasons == [
        "no controller",
        "1 broker down: 3",
        "broker 2 lost /data",
        "2 partitions leaderless",
        "2 partitions under min ISR",
        "2 partitions under-replicated",
    ]
    assert found.leaderless == (TopicPartition("t", 0), TopicPartition("t", 1))


@pytest.mark.parametrize(
    ("live", "isr", "hope"),
    [
        ((3,), (1, 2), "waits for broker 1 or 2"),
        ((2, 3), (1, 2), "ISR 1, 2: 2 live, but not eligible: see the controller's log"),
        ((3,), (), "has no ISR"),
    ],
)
def test_the_brokers_that_a_leaderless_partition_waits_for_are_named(live, isr, hope):
    found = health_of(cluster(partition(leader=-1, isr=isr), live=live, controller=3), {})
    assert found.leaderless_isr == {TopicPartition("t", 0): isr}
    assert found.waits_for(TopicPartition("t", 0)) == hope
