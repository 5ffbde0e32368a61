"""Where replicas are placed, by what this broker's metadata knows of the others."""

from __future__ import annotations

import pytest

from kbroker.config import BrokerConfig
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.metadata.topic_placement import NewTopic, TopicPlacement
from kbroker.zk.znodes import ReplicaAssignment, TopicAssignment
from kclient.wire.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    KafkaError,
    ReassignmentInProgress,
)
from kclient.wire.interbroker import UpdateMetadataBroker, UpdateMetadataRequest

SETTINGS = {
    "zookeeper.connect": "x:1",
    "broker.id": "1",
    "log.dirs": "/nowhere",
    "num.partitions": "4",
    "default.replication.factor": "2",
}


def placement(racks: dict[int, str | None], begin: int = 0) -> TopicPlacement:
    """Place on live brokers, *racks* by broker."""
    cache = MetadataCache("cluster")
    brokers = [UpdateMetadataBroker(broker, [], rack) for broker, rack in racks.items()]
    cache.update(UpdateMetadataRequest(controller_epoch=1, live_brokers=brokers))
    config = BrokerConfig.of(SETTINGS)
    return TopicPlacement(cache, lambda: config, lambda _below: begin)


THREE: dict[int, str | None] = {1: None, 2: None, 3: None}


def topic(*replicas: tuple[int, ...]) -> TopicAssignment:
    return TopicAssignment(None, {p: ReplicaAssignment(r) for p, r in enumerate(replicas)})


def test_a_number_that_is_not_given_is_the_brokers_default() -> None:
    placed = placement(THREE, begin=1).of_new(NewTopic("t"))
    assert sorted(placed) == [0, 1, 2, 3]
    assert {len(replicas) for replicas in placed.values()} == {2}
    assert [placed[p][0] for p in range(3)] == [2, 3, 1]


def test_replicas_are_spread_over_racks_if_every_broker_has_one() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b"}
    placed = placement(racks).of_new(NewTopic("t", 8, 2))
    assert all(racks[one] != racks[two] for one, two in placed.values())
    racks[4] = None
    half = placement(racks).of_new(NewTopic("t", 12, 2))
    assert half == placement(dict.fromkeys(racks)).of_new(NewTopic("t", 12, 2))


def test_new_partitions_are_spread_over_racks_and_go_on_in_their_order() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b"}
    whole = placement(racks, begin=1).of_new(NewTopic("t", 8, 2))
    grown = placement(racks).grown("t", topic(whole[0], whole[1]), 8, None)
    added = [grown.partitions[p].replicas for p in range(2, 8)]
    assert all(racks[one] != racks[two] for one, two in added)
    assert [leader for leader, _ in added] == [whole[p][0] for p in range(2, 8)]


def test_new_partitions_go_on_where_the_first_one_began() -> None:
    grown = placement(THREE).grown("t", topic((2, 3), (3, 1)), 4, None)
    assert [grown.partitions[p].replicas[0] for p in range(4)] == [2, 3, 1, 2]
    assert {len(each.replicas) for each in grown.partitions.values()} == {2}


def test_new_partitions_may_be_placed_by_hand() -> None:
    grown = placement(THREE).grown("t", topic((1, 2)), 3, [[3, 1], [2, 3]])
    assert [grown.partitions[p].replicas for p in range(3)] == [(1, 2), (3, 1), (2, 3)]


@pytest.mark.parametrize(
    ("count", "given", "error"),
    [
        (1, None, InvalidPartitions),
        (2, None, InvalidPartitions),
        (3, [[1, 2], [2, 3]], InvalidReplicaAssignment),
        (3, [[1]], InvalidReplicaAssignment),
        (3, [[1, 9]], InvalidReplicaAssignment),
    ],
    ids=["fewer", "as many", "too many given", "another factor", "a broker that is dead"],
)
def test_growth_that_cannot_be_is_refused(
    count: int, given: list[list[int]] | None, error: type[KafkaError]
) -> None:
    with pytest.raises(error):
        placement(THREE).grown("t", topic((1, 2), (2, 3)), count, given)


def test_too_few_brokers_for_the_factor_are_reported() -> None:
    with pytest.raises(InvalidReplicationFactor):
        placement({1: None}).of_new(NewTopic("t", 1, 2))
    with pytest.raises(InvalidReplicationFactor):
        placement({1: None}).grown("t", topic((1, 2)), 2, None)


def test_a_topic_that_is_being_reassigned_does_not_grow() -> None:
    moving = TopicAssignment(None, {0: ReplicaAssignment((1, 2), adding=(2,))})
    with pytest.raises(ReassignmentInProgress):
        placement(THREE).grown("t", moving, 2, None)
