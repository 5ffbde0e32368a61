"""Sets of broker epochs: those that log directories cover."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.common.log_dir_integrity import (
    MAX_BROKER_EPOCH,
    MAX_RANGES,
    UNKNOWN_INTEGRITY,
    BrokerEpochs,
    broker_epochs,
)

EPOCHS = st.lists(st.integers(0, 40), min_size=1, unique=True).map(sorted)


def members(epochs: BrokerEpochs | None) -> set[int]:
    return set() if epochs is None else {n for n in range(60) if epochs.covers(n)}


@given(EPOCHS, EPOCHS, st.integers(0, 50))
def test_a_set_of_broker_epochs_is_a_set(one: list[int], other: list[int], epoch: int) -> None:
    first, second = broker_epochs(*one), broker_epochs(*other)
    assert members(first) == set(one)
    assert members(first.common_with(second)) == set(one) & set(other)
    assert members(first.since(epoch)) == {n for n in one if n >= epoch}
    assert (first.first, first.last) == (one[0], one[-1])


@given(EPOCHS, st.lists(st.tuples(st.none() | st.integers(0, 5), st.integers(1, 9)), max_size=8))
def test_registrations_are_covered_and_those_between_them_only_if_the_end_was_open(
    known: list[int], steps: list[tuple[int | None, int]]
) -> None:
    epochs, expected = broker_epochs(*known), set(known)
    for open_after, further in steps:
        last = epochs.last
        if open_after is not None:
            epochs = epochs.opened(last + open_after)
            assert epochs.covers(last + 1000)
            expected |= set(range(last + open_after, last + further))
        epochs = epochs.registered(last + further)
        expected.add(last + further)
    assert {n for n in range(200) if epochs.covers(n)} == expected


@given(EPOCHS, st.integers(0, 50))
def test_a_registration_that_is_still_there_takes_nothing_away(
    known: list[int], since: int
) -> None:
    epochs = broker_epochs(*known)
    assert members(epochs.opened(since).registered(epochs.last)) == set(known)


def test_beyond_its_most_ranges_a_set_takes_the_oldest_two_for_one() -> None:
    epochs = broker_epochs(0)
    for registration in range(1, 2 * MAX_RANGES):
        epochs = epochs.registered(10 * registration)
    assert len(epochs.ranges) == len(epochs.opened(epochs.last + 9).ranges) == MAX_RANGES
    assert epochs.covers(5)
    assert not epochs.covers(epochs.last - 5)
    assert all(epochs.covers(10 * n) for n in range(2 * MAX_RANGES))


def test_epochs_of_a_zookeeper_that_began_again_replace_the_older_ones() -> None:
    assert broker_epochs(10, 50).registered(7) == broker_epochs(7)
    assert broker_epochs(10, (50, MAX_BROKER_EPOCH)).registered(7) == broker_epochs(7)
    assert broker_epochs(10, 50).registered(50) == broker_epochs(10, 50)


def test_a_registration_that_states_nothing_covers_every_epoch() -> None:
    assert UNKNOWN_INTEGRITY.covers(0)
    assert UNKNOWN_INTEGRITY.covers(MAX_BROKER_EPOCH)
