"""Members with an instance id (KIP-345): they keep their place through a restart."""

import pytest

from kbroker.coordinator.group.core.effects import MemberIdentity
from kbroker.coordinator.group.core.states import GroupState
from kclient.wire.error_codes import ErrorCode
from tests.kit.groups import GroupOnTheTable


@pytest.fixture
def table() -> GroupOnTheTable:
    """Return a Stable group: the static member ``s`` leads, ``a`` follows."""
    table = GroupOnTheTable()
    table.join("s", group_instance_id="i")
    table.enter("a")
    table.advance(6.0)
    table.sync("s", s=b"S", a=b"A")
    table.sync("a")
    return table


def test_a_static_member_is_not_asked_for_an_id(table: GroupOnTheTable) -> None:
    assert table.group.members["s-id"].group_instance_id == "i"


def test_a_restarted_static_member_takes_its_place_without_a_rebalance(
    table: GroupOnTheTable,
) -> None:
    back = table.joined(table.join("s2", group_instance_id="i"))
    assert (back.error, back.member_id, back.generation_id) == (ErrorCode.NONE, "s2-id", 1)
    assert back.leader == "s-id"  # it does not know that it leads, so it does not assign
    assert table.group.state is GroupState.STABLE
    assert table.synced(table.sync("s2")).assignment == b"S"
    assert table.heartbeat("a") is ErrorCode.NONE


def test_a_restarted_static_leader_skips_the_assignment(table: GroupOnTheTable) -> None:
    token = table.join("s2", group_instance_id="i", supports_skip_assignment=True)
    back = table.joined(token)
    assert (back.leader, back.skip_assignment, len(back.members)) == ("s2-id", True, 2)


def test_the_old_id_of_a_static_member_is_fenced(table: GroupOnTheTable) -> None:
    table.join("s2", group_instance_id="i")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert table.group.heartbeat("s-id", "i", 1, table.now) is fenced
    assert table.group.check_commit("s-id", "i", 1, table.now) is fenced
    assert table.joined(table.join("s", "s-id", group_instance_id="i")).error is fenced
    assert table.left(table.leave(MemberIdentity("s-id", "i"))) == [fenced]


def test_the_new_id_is_written_before_it_is_answered(table: GroupOnTheTable) -> None:
    table.auto_persist = False
    token = table.join("s2", group_instance_id="i")
    assert token in table.waiting
    table.acknowledge()
    assert table.joined(token).member_id == "s2-id"
    assert table.take_over().heartbeat("s2") is ErrorCode.NONE


def test_a_static_member_that_comes_back_during_the_assignment_restarts_it(
    table: GroupOnTheTable,
) -> None:
    table.join("s", "s-id", group_instance_id="i")
    a = table.join("a", "a-id")
    assert table.group.state is GroupState.COMPLETING_REBALANCE
    waiting = table.sync("a")
    table.join("s2", group_instance_id="i")
    assert table.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert table.joined(a).generation_id == 2


def test_of_two_static_twins_that_join_the_first_is_fenced() -> None:
    table = GroupOnTheTable()
    first = table.join("s", group_instance_id="i")
    second = table.join("s2", group_instance_id="i")
    assert table.joined(first).error is ErrorCode.FENCED_INSTANCE_ID
    table.advance(6.0)
    assert table.joined(second).generation_id == 1


def test_a_static_member_keeps_its_place_through_a_rebalance_it_missed(
    table: GroupOnTheTable,
) -> None:
    table.group.members["s-id"].session_timeout = 300.0
    assert table.group.heartbeat("s-id", "i", 1, table.now) is ErrorCode.NONE
    table.join("a", "a-id", protocols=(("range", b"more"),))
    table.advance(61.0, "a")
    assert table.group.generation_id == 2
    assert "s-id" in table.group.members


def test_an_administrator_removes_a_static_member_by_its_instance_id(
    table: GroupOnTheTable,
) -> None:
    assert table.left(table.leave(MemberIdentity("", "i"))) == [ErrorCode.NONE]
    assert "s-id" not in table.group.members


def test_an_id_that_was_given_out_is_no_way_into_the_place_of_a_static_member(
    table: GroupOnTheTable,
) -> None:
    given = table.joined(table.join("b")).member_id
    thief = table.joined(table.join("b", given, group_instance_id="i"))
    assert thief.error is ErrorCode.FENCED_INSTANCE_ID
    other = table.joined(table.join("b", given, group_instance_id="j"))
    assert other.error is ErrorCode.UNKNOWN_MEMBER_ID
    both = [MemberIdentity("s-id", "i"), MemberIdentity("a-id")]
    assert table.left(table.leave(*both)) == [ErrorCode.NONE, ErrorCode.NONE]
    assert not len(table.group.members)


def test_no_answer_names_a_generation_that_was_never_written() -> None:
    """The snapshot of the next generation takes the place of one that waits to be written."""
    table = GroupOnTheTable(auto_persist=False)
    first = table.join("s", group_instance_id="i")
    table.advance(3.0)
    assert table.group.generation_id == 1
    assert first in table.waiting
    second = table.join("s2", group_instance_id="i")
    assert table.joined(first).error is ErrorCode.FENCED_INSTANCE_ID
    table.acknowledge()
    assert table.joined(second).generation_id == 2


def test_answers_of_an_earlier_generation_do_not_outlive_the_rebalance(
    table: GroupOnTheTable,
) -> None:
    table.join("s", "s-id", group_instance_id="i", rebalance_timeout=2.0)
    table.auto_persist = False
    a = table.join("a", "a-id", rebalance_timeout=2.0)
    assert a in table.waiting
    table.join("t", group_instance_id="j", rebalance_timeout=2.0)
    table.join("s", "s-id", group_instance_id="i", rebalance_timeout=2.0)
    table.advance(3.0)
    assert table.group.generation_id == 3
    assert table.joined(a).error is ErrorCode.UNKNOWN_MEMBER_ID, "it did not rejoin in time"


def test_a_static_member_that_missed_a_rebalance_is_asked_to_rejoin(
    table: GroupOnTheTable,
) -> None:
    table.auto_persist = False
    held = table.join("s", "s-id", group_instance_id="i", rebalance_timeout=2.0)
    table.join("a", "a-id", rebalance_timeout=2.0)
    assert (held in table.waiting, table.group.generation_id) == (True, 2)
    table.join("t", group_instance_id="j", rebalance_timeout=2.0)
    table.join("a", "a-id", rebalance_timeout=2.0)
    table.advance(3.0)
    assert table.group.generation_id == 3
    assert "s-id" in table.group.members
    assert table.joined(held).error is ErrorCode.REBALANCE_IN_PROGRESS
