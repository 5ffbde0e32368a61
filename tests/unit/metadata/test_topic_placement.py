"""Where replicas are placed."""

from __future__ import annotations

import pytest

from kbroker.config import KafkaConfig
from kbroker.metadata.metadata_cache import BrokerMetadata
from kbroker.metadata.topic_placement import NewTopic, TopicPlacement
from kbroker.zk.znodes import ReplicaAssignment, TopicAssignment
from kclient.wire.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    KafkaError,
    ReassignmentInProgress,
)

Racks = dict[int, str | None]
SETTINGS = {
    "zookeeper.connect": "x:1",
    "broker.id": "1",
    "log.dirs": "/nowhere",
    "num.partitions": "4",
    "default.replication.factor": "2",
}


def alive(racks: Racks) -> dict[int, BrokerMetadata]:
    """Live brokers, *racks* by broker."""
    return {broker: BrokerMetadata(broker, {}, rack) for broker, rack in racks.items()}


def of_new(racks: Racks, new: NewTopic, begin: int = 0) -> dict[int, tuple[int, ...]]:
    """Place a new topic on live brokers, *racks* by broker."""
    config = KafkaConfig.of(SETTINGS)
    return TopicPlacement(lambda: config, lambda _below: begin).of_new(new, alive(racks))


def grown(
    racks: Racks, topic: TopicAssignment, count: int, given: list[list[int]] | None = None
) -> TopicAssignment:
    """Grow a topic on live brokers, *racks* by broker."""
    config = KafkaConfig.of(SETTINGS)
    placement = TopicPlacement(lambda: config, lambda _below: 0)
    return placement.grown("t", topic, count, given, alive(racks))


THREE: Racks = {1: None, 2: None, 3: None}


def topic(*replicas: tuple[int, ...]) -> TopicAssignment:
    return TopicAssignment(None, {p: ReplicaAssignment(r) for p, r in enumerate(replicas)})


def test_a_number_that_is_not_given_is_the_brokers_default() -> None:
    placed = of_new(THREE, NewTopic("t"), begin=1)
    assert sorted(placed) == [0, 1, 2, 3]
    assert {len(replicas) for replicas in placed.values()} == {2}
    assert [placed[p][0] for p in range(3)] == [2, 3, 1]


def test_replicas_are_spread_over_racks_if_every_broker_has_one() -> None:
    racks: Racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    placed = of_new(racks, NewTopic("t", 8, 2))
    assert all(racks[one] != racks[two] for one, two in placed.values())
    racks[4] = None
    half = of_new(racks, NewTopic("t", 12, 2))
    assert half == of_new(dict.fromkeys(racks), NewTopic("t", 12, 2))


def test_new_partitions_are_spread_over_racks_and_go_on_in_their_order() -> None:
    racks: Racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    whole = of_new(racks, NewTopic("t", 8, 2), begin=1)
    after = grown(racks, topic(whole[0], whole[1]), 8)
    added = [after.partitions[p].replicas for p in range(2, 8)]
    assert all(racks[one] != racks[two] for one, two in added)
    assert [leader for leader, _ in added] == [whole[p][0] for p in range(2, 8)]


def test_new_partitions_go_on_where_the_first_one_began() -> None:
    after = grown(THREE, topic((2, 3), (3, 1)), 4)
    assert [after.partitions[p].replicas[0] for p in range(4)] == [2, 3, 1, 2]
    assert {len(each.replicas) for each in after.partitions.values()} == {2}


def test_new_partitions_may_be_placed_by_hand() -> None:
    after = grown(THREE, topic((1, 2)), 3, [[3, 1], [2, 3]])
    assert [after.partitions[p].replicas for p in range(3)] == [(1, 2), (3, 1), (2, 3)]


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
        grown(THREE, topic((1, 2), (2, 3)), count, given)


def test_too_few_brokers_for_the_factor_are_reported() -> None:
    with pytest.raises(InvalidReplicationFactor):
        of_new({1: None}, NewTopic("t", 1, 2))
    with pytest.raises(InvalidReplicationFactor):
        grown({1: None}, topic((1, 2)), 2)


def test_a_topic_that_is_being_reassigned_does_not_grow() -> None:
    moving = TopicAssignment(None, {0: ReplicaAssignment((1, 2), adding=(2,))})
    with pytest.raises(ReassignmentInProgress):
        grown(THREE, moving, 2)
