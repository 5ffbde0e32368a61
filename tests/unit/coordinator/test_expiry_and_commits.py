"""Offsets that expire while their group commits again: no acknowledged commit is lost (KIP-211)."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.coordinator.group.core.commits import OffsetCommit
from kbroker.coordinator.group.core.effects import Sync
from kbroker.coordinator.group.core.states import GroupState
from kclient.wire.error_codes import ErrorCode
from tests.stepped.coordinator import SteppedCoordinator

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


SUBSCRIBED = (("range", b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"),)
UNREADABLE = (("range", b"\0\1" + b"\0\0\0\1" + b"\0\x09t"),)


def stable(coordinator: SteppedCoordinator, **changes: Any) -> str:
    """Have the group g of one member begin a generation; return the member's id."""
    joined = coordinator.done(coordinator.join("a", **changes))
    sync = Sync(joined.member_id, joined.generation_id, {joined.member_id: b"all"})
    coordinator.done(coordinator.coordinator.sync("g", sync))
    return str(joined.member_id)


def commit_as(coordinator: SteppedCoordinator, member: str, *offsets: tuple[str, int, int]) -> None:
    wanted = [(topic, partition, OffsetCommit(at)) for topic, partition, at in offsets]
    committing = coordinator.coordinator.commit("g", wanted, generation_id=1, member_id=member)
    assert coordinator.done(Deferred.fromCoroutine(committing)) == ACKNOWLEDGED * len(offsets)


def test_a_stable_group_loses_old_offsets_of_topics_without_a_subscription(
    coordinator: SteppedCoordinator,
) -> None:
    member = stable(coordinator, protocols=SUBSCRIBED)
    commit_as(coordinator, member, ("t", 0, 5), ("former", 0, 6), ("recent", 0, 7))
    coordinator.now_ms += 1000
    commit_as(coordinator, member, ("recent", 0, 8))
    assert coordinator.done(coordinator.expire(coordinator.now_ms)) == 1
    assert coordinator.offsets() == {"t": {0: 5}, "former": {}, "recent": {0: 8}}
    assert "/consumers/g/offsets/former/0" not in coordinator.ensemble.tree


@pytest.mark.parametrize(
    "changes", [{"protocols": UNREADABLE}, {"protocols": SUBSCRIBED, "protocol_type": "connect"}]
)
def test_a_stable_group_with_unknown_subscriptions_loses_nothing(
    coordinator: SteppedCoordinator, changes: dict[str, Any]
) -> None:
    member = stable(coordinator, **changes)
    commit_as(coordinator, member, ("t", 0, 5), ("former", 0, 6))
    coordinator.now_ms += 1000
    assert coordinator.done(coordinator.expire(coordinator.now_ms)) == 0
    assert coordinator.offsets() == {"t": {0: 5}, "former": {0: 6}}


def test_a_group_that_rebalances_loses_nothing(coordinator: SteppedCoordinator) -> None:
    member = stable(coordinator, protocols=SUBSCRIBED)
    commit_as(coordinator, member, ("former", 0, 6))
    coordinator.now_ms += 1000
    coordinator.join("b", protocols=SUBSCRIBED)
    coordinator.run(
        lambda: coordinator.coordinator.listing()[0][0].state is GroupState.PREPARING_REBALANCE
    )
    assert coordinator.done(coordinator.expire(coordinator.now_ms)) == 0
    assert coordinator.offsets() == {"former": {0: 6}}
