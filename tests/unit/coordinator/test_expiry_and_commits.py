"""Offsets that expire while their group commits again: no acknowledged commit is lost (KIP-211)."""

from __future__ import annotations

import pytest

from kclient.wire.error_codes import ErrorCode
from tests.kit.stepped_coordinator import SteppedCoordinator

ACKNOWLEDGED = [ErrorCode.NONE]


@pytest.fixture
def coordinator() -> SteppedCoordinator:
    return SteppedCoordinator()


def test_the_first_commit_of_a_group_is_not_lost_in_a_sweep(
    coordinator: SteppedCoordinator,
) -> None:
    committing = coordinator.commit(("t", 0, 5))
    sweeping = coordinator.expire(coordinator.now_ms - 1)
    assert coordinator.done(committing) == ACKNOWLEDGED
    coordinator.done(sweeping)
    assert coordinator.offsets() == {"t": {0: 5}}


def test_a_commit_after_a_long_time_is_not_lost_in_a_sweep(coordinator: SteppedCoordinator) -> None:
    coordinator.done(coordinator.commit(("t", 0, 5), ("t", 1, 6)))
    coordinator.now_ms += 1000
    sweeping = coordinator.expire(coordinator.now_ms - 1)
    again = coordinator.commit(("t", 1, 7))
    coordinator.done(sweeping)
    while (errors := coordinator.done(again)) != ACKNOWLEDGED:
        assert errors == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        again = coordinator.commit(("t", 1, 7))
    assert coordinator.offsets()["t"][1] == 7


def test_a_commit_that_is_under_way_is_not_lost_in_a_sweep(coordinator: SteppedCoordinator) -> None:
    coordinator.done(coordinator.commit(("t", 0, 5), ("t", 1, 6)))
    coordinator.now_ms += 1000
    again = coordinator.commit(("t", 1, 7))
    coordinator.turn()  # its multi is sent
    sweeping = coordinator.expire(coordinator.now_ms - 1)
    assert coordinator.done(again) == ACKNOWLEDGED
    assert coordinator.done(sweeping) == 1
    assert coordinator.offsets() == {"t": {1: 7}}


def test_a_commit_during_the_deletion_of_other_offsets_is_not_lost(
    coordinator: SteppedCoordinator,
) -> None:
    coordinator.done(coordinator.commit(("t", 0, 5), ("t", 1, 6)))
    coordinator.now_ms += 1000
    coordinator.done(coordinator.commit(("t", 2, 1)))  # the group is in use: not deleted as a whole
    sweeping = coordinator.expire(coordinator.now_ms - 1)
    assert coordinator.done(coordinator.commit(("t", 1, 7))) == ACKNOWLEDGED
    assert coordinator.done(sweeping) == 1
    assert coordinator.offsets() == {"t": {1: 7, 2: 1}}


def test_offsets_without_further_commits_expire(coordinator: SteppedCoordinator) -> None:
    coordinator.done(coordinator.commit(("t", 0, 5), ("t", 1, 6)))
    coordinator.now_ms += 1000
    assert coordinator.done(coordinator.expire(coordinator.now_ms)) == 2
    assert coordinator.offsets() == {}
    assert "/consumers/g" not in coordinator.ensemble.tree


def test_a_commit_without_a_valid_offset_creates_no_group(coordinator: SteppedCoordinator) -> None:
    assert coordinator.done(coordinator.commit()) == []
    assert coordinator.done(coordinator.commit(("..", 0, 1))) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert coordinator.coordinator.listing() == ([], ErrorCode.NONE)
