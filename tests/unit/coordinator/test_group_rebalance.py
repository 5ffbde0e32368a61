"""The rules of joining, syncing and rebalancing, one test each."""

from dataclasses import replace

import pytest

from kbroker.coordinator.group.core.effects import JoinGroupResult, MemberIdentity, Sync
from kbroker.coordinator.group.core.states import VALID_FROM, GroupState
from kclient.wire.error_codes import ErrorCode
from tests.kit.groups import LIMITS, GroupOnTheTable, stable_group


def test_a_new_member_is_first_given_an_id() -> None:
    table = GroupOnTheTable()
    answer = table.joined(table.join("a"))
    assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id == "a-id"
    assert table.group.state is GroupState.EMPTY


def test_an_old_client_joins_without_asking_for_an_id() -> None:
    table = GroupOnTheTable()
    token = table.join("a", requires_known_member_id=False)
    table.advance(3.0)
    assert table.joined(token).generation_id == 1


def test_an_id_without_a_join_is_forgotten() -> None:
    table = GroupOnTheTable()
    table.join("a")
    table.advance(10.0)
    assert table.joined(table.join("a", "a-id")).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_first_rebalance_waits_for_more_members() -> None:
    table = GroupOnTheTable()
    a = table.enter("a")
    table.advance(2.9)
    b = table.enter("b")
    table.advance(2.9)
    assert table.waiting == {a, b}
    table.advance(3.0)
    assert table.joined(a).generation_id == table.joined(b).generation_id == 1


def test_the_first_rebalance_is_not_delayed_beyond_the_rebalance_timeout() -> None:
    table = GroupOnTheTable()
    first = table.enter("m0", rebalance_timeout=7.0)
    for number in range(1, 9):
        table.advance(1.0)
        table.enter(f"m{number}", rebalance_timeout=7.0)
    assert table.joined(first).generation_id == 1
    assert table.now <= 8.0


def test_without_initial_delay_the_first_member_is_answered_at_once() -> None:
    table = GroupOnTheTable(replace(LIMITS, initial_rebalance_delay=0.0))
    assert table.joined(table.enter("a")).generation_id == 1


def test_the_leader_learns_the_members_and_a_follower_does_not() -> None:
    table = GroupOnTheTable()
    a, b = table.enter("a"), table.enter("b")
    table.advance(6.0)
    assert table.joined(a).leader == table.joined(b).leader == "a-id"
    assert [member.member_id for member in table.joined(a).members] == ["a-id", "b-id"]
    assert table.joined(a).members[1].metadata == b"topics"
    assert table.joined(b).members == ()


def test_the_protocol_most_voted_for_among_the_common_ones_is_chosen() -> None:
    table = GroupOnTheTable()
    sticky_first = (("sticky", b"s"), ("range", b"r"))
    tokens = [
        table.enter("a", protocols=(("mine", b"m"), ("range", b"r"), ("sticky", b"s"))),
        table.enter("b", protocols=sticky_first),
        table.enter("c", protocols=sticky_first),
    ]
    table.advance(9.0)
    assert {table.joined(token).protocol_name for token in tokens} == {"sticky"}


def test_a_member_without_a_common_protocol_is_refused() -> None:
    table = stable_group("a")
    refused = table.joined(table.join("b", protocols=(("other", b""),)))
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other_type = table.joined(table.join("b", protocol_type="connect"))
    assert other_type.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("changes", [{"protocol_type": ""}, {"protocols": ()}])
def test_a_member_must_name_a_protocol(changes: dict[str, object]) -> None:
    table = GroupOnTheTable()
    assert table.joined(table.join("a", **changes)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("timeout", [0.0, 5.9, 1801.0, -1.0])
def test_a_session_timeout_out_of_bounds_is_refused(timeout: float) -> None:
    table = GroupOnTheTable()
    assert (
        table.joined(table.join("a", session_timeout=timeout)).error
        is ErrorCode.INVALID_SESSION_TIMEOUT
    )


def test_followers_wait_in_sync_for_the_leader() -> None:
    table = GroupOnTheTable()
    table.enter("a"), table.enter("b")
    table.advance(6.0)
    b = table.sync("b")
    assert b in table.waiting
    a = table.sync("a", a=b"A", b=b"B")
    assert (table.synced(a).assignment, table.synced(b).assignment) == (b"A", b"B")
    assert table.group.state is GroupState.STABLE


def test_a_member_that_the_leader_left_out_gets_an_empty_assignment() -> None:
    table = GroupOnTheTable()
    table.enter("a"), table.enter("b")
    table.advance(6.0)
    table.sync("a", a=b"A")
    b = table.synced(table.sync("b"))
    assert (b.error, b.assignment) == (ErrorCode.NONE, b"")


def test_a_late_sync_of_a_stable_group_gets_its_assignment() -> None:
    table = stable_group("a", "b")
    assert table.synced(table.sync("b")).assignment == b"b"


def test_a_late_sync_of_a_stable_group_keeps_its_member_alive() -> None:
    """A follower that was slow after its join: the session timeout begins again, as in Kafka."""
    table = stable_group("a", "b")
    table.advance(9.0, "a")
    assert table.synced(table.sync("b")).error is ErrorCode.NONE
    table.advance(3.0, "a")
    assert table.heartbeat("b") is ErrorCode.NONE


def test_a_sync_with_another_protocol_is_refused() -> None:
    table = stable_group("a")
    token = table._token()
    sync = Sync("a-id", 1, {}, protocol_type="connect")
    table.perform(table.group.sync(token, sync, table.now))
    assert table.synced(token).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_join_makes_the_others_rejoin_and_bumps_the_generation() -> None:
    table = stable_group("a")
    b = table.enter("b")
    assert table.group.state is GroupState.PREPARING_REBALANCE
    assert table.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    assert table.synced(table.sync("a")).error is ErrorCode.REBALANCE_IN_PROGRESS
    a = table.join("a", "a-id")
    assert table.joined(a).generation_id == table.joined(b).generation_id == 2


def test_a_join_while_completing_sends_the_others_back() -> None:
    table = GroupOnTheTable()
    table.enter("a"), table.enter("b")
    table.advance(6.0)
    b = table.sync("b")
    table.enter("c")
    assert table.synced(b).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert table.group.state is GroupState.PREPARING_REBALANCE


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    table = stable_group("a", "b")
    c = table.enter("c")
    a = table.join("a", "a-id")
    table.advance(60.0, "b")
    assert table.joined(a).generation_id == table.joined(c).generation_id == 2
    assert table.heartbeat("b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_sync_in_time_is_removed() -> None:
    table = GroupOnTheTable()
    table.enter("a"), table.enter("b")
    table.advance(6.0)
    table.sync("a", a=b"A", b=b"B")
    table.advance(60.0, "a", "b")
    assert table.group.state is GroupState.PREPARING_REBALANCE
    assert table.heartbeat("b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_does_not_get_stuck_if_its_leader_never_syncs() -> None:
    table = GroupOnTheTable()
    table.enter("a"), table.enter("b")
    table.advance(6.0)
    b = table.sync("b")
    table.advance(60.0, "a", "b")
    assert table.synced(b).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_silent_member_is_removed_after_its_session_timeout() -> None:
    table = stable_group("a", "b")
    table.advance(9.9, "a")
    assert table.heartbeat("a") is ErrorCode.NONE
    table.advance(0.2, "a")
    assert table.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    a = table.join("a", "a-id")
    assert len(table.joined(a).members) == 1


def test_the_last_member_to_go_leaves_an_empty_group_of_the_next_generation() -> None:
    table = stable_group("a")
    table.advance(10.0)
    assert (table.group.state, table.group.generation_id) == (GroupState.EMPTY, 2)
    assert table.durable is not None
    assert (table.durable.state, table.durable.members) == (GroupState.EMPTY, ())


def test_a_follower_that_rejoins_unchanged_is_answered_without_a_rebalance() -> None:
    table = stable_group("a", "b")
    assert table.joined(table.join("b", "b-id")).generation_id == 1
    assert table.group.state is GroupState.STABLE


def test_a_leader_that_rejoins_causes_a_rebalance() -> None:
    table = stable_group("a", "b")
    table.join("a", "a-id")
    assert table.heartbeat("b") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_changed_subscription_causes_a_rebalance() -> None:
    table = stable_group("a", "b")
    table.join("b", "b-id", protocols=(("range", b"more topics"),))
    assert table.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_missed_the_answer_gets_it_again_while_completing() -> None:
    table = GroupOnTheTable()
    table.enter("a"), table.enter("b")
    table.advance(6.0)
    again = table.joined(table.join("a", "a-id"))
    assert (again.generation_id, len(again.members)) == (1, 2)
    assert table.group.state is GroupState.COMPLETING_REBALANCE


def test_of_two_joins_of_one_member_the_older_is_sent_back() -> None:
    table = GroupOnTheTable()
    old = table.enter("a")
    new = table.join("a", "a-id")
    assert table.joined(old).error is ErrorCode.REBALANCE_IN_PROGRESS
    table.advance(6.0)
    assert table.joined(new).generation_id == 1


def test_a_new_member_is_removed_if_its_join_waits_too_long() -> None:
    table = stable_group("a", limits=replace(LIMITS, new_member_join_timeout=20.0))
    table.group.members["a-id"].rebalance_timeout = 1000.0
    b = table.enter("b")
    table.advance(21.0, "a")
    assert table.joined(b) == JoinGroupResult(ErrorCode.UNKNOWN_MEMBER_ID)


def test_leaving_moves_the_partitions_of_the_member() -> None:
    table = stable_group("a", "b")
    left = table.leave(MemberIdentity("b-id"))
    assert table.left(left) == [ErrorCode.NONE]
    assert table.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    assert table.durable is not None
    assert [member.member_id for member in table.durable.members] == ["a-id"]


def test_leaving_answers_each_identity() -> None:
    table = stable_group("a")
    table.join("p")
    left = table.leave(
        MemberIdentity("unknown"),
        MemberIdentity(""),
        MemberIdentity("p-id"),
        MemberIdentity("", "i"),
        MemberIdentity("a-id", "i"),
    )
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert table.left(left) == [unknown, unknown, ErrorCode.NONE, unknown, unknown]
    assert table.group.state is GroupState.STABLE


def test_the_leaders_place_goes_to_another_member() -> None:
    table = stable_group("a", "b")
    table.leave(MemberIdentity("a-id"))
    assert table.joined(table.join("b", "b-id")).leader == "b-id"


def test_a_full_group_refuses_one_more() -> None:
    table = stable_group("a", "b", limits=replace(LIMITS, max_size=2))
    assert table.joined(table.join("c")).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert table.group.state is GroupState.STABLE


def test_the_members_of_a_full_group_may_rejoin() -> None:
    table = stable_group("a", "b", limits=replace(LIMITS, max_size=2))
    a = table.join("a", "a-id")
    b = table.join("b", "b-id")
    assert table.joined(a).error is table.joined(b).error is ErrorCode.NONE


def test_a_subscription_too_large_for_the_znode_is_refused_with_its_cause() -> None:
    table = stable_group("a", limits=replace(LIMITS, max_state_bytes=10_000))
    big = (("range", bytes(20_000)),)
    assert table.joined(table.join("b", protocols=big)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "room for 10000" in table.notes[-1]
    assert table.group.state is GroupState.STABLE


def test_an_assignment_too_large_for_the_znode_is_refused_with_its_cause() -> None:
    table = GroupOnTheTable(replace(LIMITS, max_state_bytes=10_000))
    table.enter("a")
    table.advance(3.0)
    assert table.synced(table.sync("a", a=bytes(20_000))).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert any("cannot store its leader's assignment" in note for note in table.notes)


def test_ids_given_out_are_bounded() -> None:
    table = GroupOnTheTable(replace(LIMITS, max_pending_members=3))
    errors = [table.joined(table.join(f"m{n}")).error for n in range(4)]
    assert errors == [ErrorCode.MEMBER_ID_REQUIRED] * 3 + [ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_an_unloaded_group_answers_every_request() -> None:
    table = GroupOnTheTable()
    a, b = table.enter("a"), table.enter("b")
    table.perform(table.group.unload(ErrorCode.NOT_COORDINATOR))
    assert {table.joined(token).error for token in (a, b)} == {ErrorCode.NOT_COORDINATOR}
    assert table.group.state is GroupState.DEAD
    assert table.joined(table.join("c")).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert table.heartbeat("a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert table.group.check_commit("", None, -1, 0.0) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_every_state_can_be_left_for_dead_and_none_comes_back() -> None:
    assert VALID_FROM[GroupState.DEAD] == set(GroupState)
    assert all(GroupState.DEAD not in VALID_FROM[s] for s in GroupState if s is not GroupState.DEAD)
