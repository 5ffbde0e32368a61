"""Members with an instance id (KIP-345): they keep their place through a restart."""

import pytest

from kbroker.coordinator.group.core.effects import MemberIdentity
from kbroker.coordinator.group.core.states import GroupState
from kclient.wire.error_codes import ErrorCode
from tests.kit.groups import GroupHarness


@pytest.fixture
def harness() -> GroupHarness:
    """Return a Stable group: the static member ``s`` leads, ``a`` follows."""
    harness = GroupHarness()
    harness.join("s", group_instance_id="i")
    harness.enter("a")
    harness.advance(6.0)
    harness.sync("s", s=b"S", a=b"A")
    harness.sync("a")
    return harness


def test_a_static_member_is_not_asked_for_an_id(harness: GroupHarness) -> None:
    assert harness.group.members["s-id"].group_instance_id == "i"


def test_a_restarted_static_member_takes_its_place_without_a_rebalance(
    harness: GroupHarness,
) -> None:
    back = harness.joined(harness.join("s2", group_instance_id="i"))
    assert (back.error, back.member_id, back.generation_id) == (ErrorCode.NONE, "s2-id", 1)
    assert back.leader == "s-id"  # it does not know that it leads, so it does not assign
    assert harness.group.state is GroupState.STABLE
    assert harness.synced(harness.sync("s2")).assignment == b"S"
    assert harness.heartbeat("a") is ErrorCode.NONE


def test_a_restarted_static_leader_skips_the_assignment(harness: GroupHarness) -> None:
    token = harness.join("s2", group_instance_id="i", supports_skip_assignment=True)
    back = harness.joined(token)
    assert (back.leader, back.skip_assignment, len(back.members)) == ("s2-id", True, 2)


def test_the_old_id_of_a_static_member_is_fenced(harness: GroupHarness) -> None:
    harness.join("s2", group_instance_id="i")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert harness.group.heartbeat("s-id", "i", 1, harness.now) is fenced
    assert harness.group.check_commit("s-id", "i", 1, harness.now) is fenced
    assert harness.joined(harness.join("s", "s-id", group_instance_id="i")).error is fenced
    assert harness.left(harness.leave(MemberIdentity("s-id", "i"))) == [fenced]


def test_the_new_id_is_written_before_it_is_answered(harness: GroupHarness) -> None:
    harness.auto_persist = False
    token = harness.join("s2", group_instance_id="i")
    assert token in harness.waiting
    harness.acknowledge()
    assert harness.joined(token).member_id == "s2-id"
    assert harness.take_over().heartbeat("s2") is ErrorCode.NONE


def test_a_static_member_that_comes_back_during_the_assignment_restarts_it(
    harness: GroupHarness,
) -> None:
    harness.join("s", "s-id", group_instance_id="i")
    a = harness.join("a", "a-id")
    assert harness.group.state is GroupState.COMPLETING_REBALANCE
    waiting = harness.sync("a")
    harness.join("s2", group_instance_id="i")
    assert harness.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.joined(a).generation_id == 2


def test_of_two_static_twins_that_join_the_first_is_fenced() -> None:
    harness = GroupHarness()
    first = harness.join("s", group_instance_id="i")
    second = harness.join("s2", group_instance_id="i")
    assert harness.joined(first).error is ErrorCode.FENCED_INSTANCE_ID
    harness.advance(6.0)
    assert harness.joined(second).generation_id == 1


def test_a_static_member_keeps_its_place_through_a_rebalance_it_missed(
    harness: GroupHarness,
) -> None:
    harness.group.members["s-id"].session_timeout = 300.0
    assert harness.group.heartbeat("s-id", "i", 1, harness.now) is ErrorCode.NONE
    harness.join("a", "a-id", protocols=(("range", b"more"),))
    harness.advance(61.0, "a")
    assert harness.group.generation_id == 2
    assert "s-id" in harness.group.members


def test_an_administrator_removes_a_static_member_by_its_instance_id(
    harness: GroupHarness,
) -> None:
    assert harness.left(harness.leave(MemberIdentity("", "i"))) == [ErrorCode.NONE]
    assert "s-id" not in harness.group.members


def test_an_id_that_was_given_out_is_no_way_into_the_place_of_a_static_member(
    harness: GroupHarness,
) -> None:
    given = harness.joined(harness.join("b")).member_id
    thief = harness.joined(harness.join("b", given, group_instance_id="i"))
    assert thief.error is ErrorCode.FENCED_INSTANCE_ID
    other = harness.joined(harness.join("b", given, group_instance_id="j"))
    assert other.error is ErrorCode.UNKNOWN_MEMBER_ID
    both = [MemberIdentity("s-id", "i"), MemberIdentity("a-id")]
    assert harness.left(harness.leave(*both)) == [ErrorCode.NONE, ErrorCode.NONE]
    assert not len(harness.group.members)


def test_no_answer_names_a_generation_that_was_never_written() -> None:
    """The snapshot of the next generation takes the place of one that waits to be written."""
    harness = GroupHarness(auto_persist=False)
    first = harness.join("s", group_instance_id="i")
    harness.advance(3.0)
    assert harness.group.generation_id == 1
    assert first in harness.waiting
    second = harness.join("s2", group_instance_id="i")
    assert harness.joined(first).error is ErrorCode.FENCED_INSTANCE_ID
    harness.acknowledge()
    assert harness.joined(second).generation_id == 2


def test_answers_of_an_earlier_generation_do_not_outlive_the_rebalance(
    harness: GroupHarness,
) -> None:
    harness.join("s", "s-id", group_instance_id="i", rebalance_timeout=2.0)
    harness.auto_persist = False
    a = harness.join("a", "a-id", rebalance_timeout=2.0)
    assert a in harness.waiting
    harness.join("t", group_instance_id="j", rebalance_timeout=2.0)
    harness.join("s", "s-id", group_instance_id="i", rebalance_timeout=2.0)
    harness.advance(3.0)
    assert harness.group.generation_id == 3
    assert harness.joined(a).error is ErrorCode.UNKNOWN_MEMBER_ID, "it did not rejoin in time"


def test_a_static_member_that_missed_a_rebalance_is_asked_to_rejoin(
    harness: GroupHarness,
) -> None:
    harness.auto_persist = False
    held = harness.join("s", "s-id", group_instance_id="i", rebalance_timeout=2.0)
    harness.join("a", "a-id", rebalance_timeout=2.0)
    assert (held in harness.waiting, harness.group.generation_id) == (True, 2)
    harness.join("t", group_instance_id="j", rebalance_timeout=2.0)
    harness.join("a", "a-id", rebalance_timeout=2.0)
    harness.advance(3.0)
    assert harness.group.generation_id == 3
    assert "s-id" in harness.group.members
    assert harness.joined(held).error is ErrorCode.REBALANCE_IN_PROGRESS
