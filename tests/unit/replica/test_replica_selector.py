"""Which replica a consumer is sent to (KIP-392)."""

import pytest

from kbroker.replica.core.replica_selector import ReplicaView, select_replica


def replica(broker_id, rack, end=100, start=0, caught_up_at=5.0):
    return ReplicaView(broker_id, rack, end, start, caught_up_at)


LEADER = replica(1, "east")


def test_a_consumer_reads_from_the_follower_in_its_rack():
    assert select_replica("west", LEADER, [replica(2, "north"), replica(3, "west")], 50) == 3


def test_the_leader_serves_those_of_its_own_rack_and_those_of_none():
    others = [replica(2, "east"), replica(3, "west"), replica(4, None)]
    assert select_replica("east", LEADER, others, 50) == 1
    assert select_replica("", LEADER, others, 50) == 1
    assert select_replica("mars", LEADER, others, 50) == 1


def test_of_several_the_one_with_most_of_the_log_then_the_one_that_had_all_last():
    assert select_replica("w", LEADER, [replica(2, "w", 99), replica(3, "w", 98)], 50) == 2
    there = [replica(2, "w", caught_up_at=7), replica(3, "w", caught_up_at=6)]
    assert select_replica("w", LEADER, there, 50) == 2
    assert select_replica("w", LEADER, [replica(2, "w"), replica(3, "w")], 50) == 3


@pytest.mark.parametrize("offset", [9, 101])
def test_a_follower_that_does_not_have_the_offset_is_not_named(offset):
    assert select_replica("w", LEADER, [replica(2, "w", end=100, start=10)], offset) == 1
    assert select_replica("w", LEADER, [replica(2, "w", end=100, start=10)], 100) == 2
