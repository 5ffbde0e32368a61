"""Which brokers hold a new partition."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.metadata.core.replica_assignment import (
    InvalidAssignmentError,
    assign_replicas,
    check_manual_assignment,
    row_of,
)


def test_replicas_go_round_the_brokers_as_in_kafkas_own_example():
    # AdminUtils: 5 brokers, 10 partitions, 3 replicas, start index 0.
    assigned = assign_replicas([0, 1, 2, 3, 4], 10, 3, start_index=0)
    assert [assigned[p] for p in range(10)] == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]


def test_a_single_broker_holds_everything():
    assert assign_replicas([7], 3, 1, start_index=0) == {0: (7,), 1: (7,), 2: (7,)}


def test_partitions_that_are_added_continue_the_round():
    whole = assign_replicas([1, 2, 3], 7, 1, start_index=1)
    added = assign_replicas([1, 2, 3], 4, 1, start_index=1, first_partition=3)
    assert added == {p: whole[p] for p in range(3, 7)}


@given(
    brokers=st.sets(st.integers(0, 50), min_size=1, max_size=9),
    partitions=st.integers(1, 60),
    data=st.data(),
)
def test_replicas_are_distinct_and_spread_evenly(brokers, partitions, data):
    factor = data.draw(st.integers(1, len(brokers)))
    start = data.draw(st.integers(0, len(brokers) - 1))
    assigned = assign_replicas(list(brokers), partitions, factor, start_index=start)
    assert sorted(assigned) == list(range(partitions))
    for replicas in assigned.values():
        assert len(set(replicas)) == factor
        assert set(replicas) <= brokers
    leaders = Counter(replicas[0] for replicas in assigned.values())
    counts = [leaders[b] for b in brokers]
    assert max(counts) - min(counts) <= 1


def test_brokers_of_different_racks_alternate_as_in_kafkas_own_example():
    # AdminUtils: racks of 3 + 3, and of 2 + 2 + 2.
    racks = {0: "r1", 1: "r1", 2: "r1", 3: "r2", 4: "r2", 5: "r2", 6: "r3", 7: "r3", 8: "r3"}
    assert row_of(racks, racks) == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assigned = assign_replicas(racks, 12, 3, start_index=0, racks=racks)
    assert list(assigned.values()) == [
        (0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3),
        (0, 4, 2), (3, 2, 0), (1, 0, 3), (5, 3, 1), (4, 1, 5), (2, 5, 4),
    ]  # fmt: skip


@given(
    racks=st.dictionaries(st.integers(0, 50), st.sampled_from("abcd"), min_size=1, max_size=10),
    partitions=st.integers(1, 60),
    data=st.data(),
)
def test_with_racks_replicas_are_in_as_many_as_can_be_and_leaders_even(racks, partitions, data):
    factor = data.draw(st.integers(1, len(racks)))
    start = data.draw(st.integers(0, len(racks) - 1))
    assigned = assign_replicas(racks, partitions, factor, start_index=start, racks=racks)
    assert sorted(assigned) == list(range(partitions))
    for replicas in assigned.values():
        assert len(replicas) == len(set(replicas)) == factor
        used = {racks[broker] for broker in replicas}
        assert len(used) == min(factor, len(set(racks.values())))
    leaders = Counter(replicas[0] for replicas in assigned.values())
    counts = [leaders[broker] for broker in racks]
    assert max(counts) - min(counts) <= 1


@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)), rounds=st.integers(1, 3), data=st.data()
)
def test_with_racks_of_one_size_every_broker_holds_as_many_replicas(sizes, rounds, data):
    """Kafka promises so much: as many brokers a rack, partitions a multiple of brokers."""
    number, size = sizes
    racks = {rack * 10 + n: f"r{rack}" for rack in range(number) for n in range(size)}
    factor = data.draw(st.integers(1, number))
    start = data.draw(st.integers(0, len(racks) - 1))
    assigned = assign_replicas(racks, len(racks) * rounds, factor, start_index=start, racks=racks)
    held = Counter(broker for replicas in assigned.values() for broker in replicas)
    assert set(held.values()) == {factor * rounds}


@given(start=st.integers(0, 5), before=st.integers(1, 12), added=st.integers(1, 12))
def test_with_racks_too_partitions_that_are_added_continue_the_round(start, before, added):
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    whole = assign_replicas(racks, before + added, 1, start_index=start, racks=racks)
    grown = assign_replicas(
        racks,
        added,
        1,
        start_index=row_of(racks, racks).index(whole[0][0]),
        first_partition=before,
        racks=racks,
    )
    assert grown == {p: whole[p] for p in range(before, before + added)}


def test_racks_that_not_every_broker_has_count_for_nothing():
    assert row_of([3, 1, 2], {1: "a", 2: "b"}) == [1, 2, 3]
    plain = assign_replicas([1, 2, 3], 6, 2, start_index=1)
    assert assign_replicas([1, 2, 3], 6, 2, start_index=1, racks={1: "a", 2: "a"}) == plain


@pytest.mark.parametrize(("partitions", "factor"), [(0, 1), (-1, 1), (1, 0), (1, -1), (1, 3)])
def test_what_cannot_be_assigned_is_refused(partitions, factor):
    with pytest.raises(InvalidAssignmentError):
        assign_replicas([1, 2], partitions, factor, start_index=0)


def test_a_manual_assignment_that_fits_is_taken_as_it_is():
    assert check_manual_assignment({1: [2], 0: [3]}, {2, 3}) == {0: (3,), 1: (2,)}


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ({}, "empty"),
        ({1: [1]}, "consecutive"),
        ({0: [1], 2: [1]}, "consecutive"),
        ({-1: [1], 0: [1]}, "consecutive"),
        ({0: []}, "empty replica list"),
        ({0: [1, 1]}, "Duplicate"),
        ({0: [9]}, "Unknown broker"),
        ({0: [1], 1: [1, 2]}, "same number"),
    ],
)
def test_a_manual_assignment_that_does_not_fit_is_refused(assignment, words):
    with pytest.raises(InvalidAssignmentError, match=words):
        check_manual_assignment(assignment, {1, 2})
