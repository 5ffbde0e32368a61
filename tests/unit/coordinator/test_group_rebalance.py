"""The rules of joining, syncing and rebalancing, one test each."""

from dataclasses import replace

import pytest

from kbroker.coordinator.group.core.effects import JoinGroupResult, MemberIdentity, Sync
from kbroker.coordinator.group.core.states import VALID_FROM, GroupState
from kclient.wire.error_codes import ErrorCode
from tests.kit.groups import LIMITS, GroupHarness, stable_group


def test_a_new_member_is_first_given_an_id() -> None:
    harness = GroupHarness()
    answer = harness.joined(harness.join("a"))
    assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id == "a-id"
    assert harness.group.state is GroupState.EMPTY


def test_an_old_client_joins_without_asking_for_an_id() -> None:
    harness = GroupHarness()
    token = harness.join("a", requires_known_member_id=False)
    harness.advance(3.0)
    assert harness.joined(token).generation_id == 1


def test_an_id_without_a_join_is_forgotten() -> None:
    harness = GroupHarness()
    harness.join("a")
    harness.advance(10.0)
    assert harness.joined(harness.join("a", "a-id")).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_first_rebalance_waits_for_more_members() -> None:
    harness = GroupHarness()
    a = harness.enter("a")
    harness.advance(2.9)
    b = harness.enter("b")
    harness.advance(2.9)
    assert harness.waiting == {a, b}
    harness.advance(3.0)
    assert harness.joined(a).generation_id == harness.joined(b).generation_id == 1


def test_the_first_rebalance_is_not_delayed_beyond_the_rebalance_timeout() -> None:
    harness = GroupHarness()
    first = harness.enter("m0", rebalance_timeout=7.0)
    for number in range(1, 9):
        harness.advance(1.0)
        harness.enter(f"m{number}", rebalance_timeout=7.0)
    assert harness.joined(first).generation_id == 1
    assert harness.now <= 8.0


def test_without_initial_delay_the_first_member_is_answered_at_once() -> None:
    harness = GroupHarness(replace(LIMITS, initial_rebalance_delay=0.0))
    assert harness.joined(harness.enter("a")).generation_id == 1


def test_the_leader_learns_the_members_and_a_follower_does_not() -> None:
    harness = GroupHarness()
    a, b = harness.enter("a"), harness.enter("b")
    harness.advance(6.0)
    assert harness.joined(a).leader == harness.joined(b).leader == "a-id"
    assert [member.member_id for member in harness.joined(a).members] == ["a-id", "b-id"]
    assert harness.joined(a).members[1].metadata == b"topics"
    assert harness.joined(b).members == ()


def test_the_protocol_most_voted_for_among_the_common_ones_is_chosen() -> None:
    harness = GroupHarness()
    sticky_first = (("sticky", b"s"), ("range", b"r"))
    tokens = [
        harness.enter("a", protocols=(("mine", b"m"), ("range", b"r"), ("sticky", b"s"))),
        harness.enter("b", protocols=sticky_first),
        harness.enter("c", protocols=sticky_first),
    ]
    harness.advance(9.0)
    assert {harness.joined(token).protocol_name for token in tokens} == {"sticky"}


def test_a_member_without_a_common_protocol_is_refused() -> None:
    harness = stable_group("a")
    refused = harness.joined(harness.join("b", protocols=(("other", b""),)))
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other_type = harness.joined(harness.join("b", protocol_type="connect"))
    assert other_type.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("changes", [{"protocol_type": ""}, {"protocols": ()}])
def test_a_member_must_name_a_protocol(changes: dict[str, object]) -> None:
    harness = GroupHarness()
    assert (
        harness.joined(harness.join("a", **changes)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )


@pytest.mark.parametrize("timeout", [0.0, 5.9, 1801.0, -1.0])
def test_a_session_timeout_out_of_bounds_is_refused(timeout: float) -> None:
    harness = GroupHarness()
    assert (
        harness.joined(harness.join("a", session_timeout=timeout)).error
        is ErrorCode.INVALID_SESSION_TIMEOUT
    )


def test_followers_wait_in_sync_for_the_leader() -> None:
    harness = GroupHarness()
    harness.enter("a"), harness.enter("b")
    harness.advance(6.0)
    b = harness.sync("b")
    assert b in harness.waiting
    a = harness.sync("a", a=b"A", b=b"B")
    assert (harness.synced(a).assignment, harness.synced(b).assignment) == (b"A", b"B")
    assert harness.group.state is GroupState.STABLE


def test_a_member_that_the_leader_left_out_gets_an_empty_assignment() -> None:
    harness = GroupHarness()
    harness.enter("a"), harness.enter("b")
    harness.advance(6.0)
    harness.sync("a", a=b"A")
    b = harness.synced(harness.sync("b"))
    assert (b.error, b.assignment) == (ErrorCode.NONE, b"")


def test_a_late_sync_of_a_stable_group_gets_its_assignment() -> None:
    harness = stable_group("a", "b")
    assert harness.synced(harness.sync("b")).assignment == b"b"


def test_a_late_sync_of_a_stable_group_keeps_its_member_alive() -> None:
    """A follower that was slow after its join: the session timeout begins again, as in Kafka."""
    harness = stable_group("a", "b")
    harness.advance(9.0, "a")
    assert harness.synced(harness.sync("b")).error is ErrorCode.NONE
    harness.advance(3.0, "a")
    assert harness.heartbeat("b") is ErrorCode.NONE


def test_a_sync_with_another_protocol_is_refused() -> None:
    harness = stable_group("a")
    token = harness._token()
    sync = Sync("a-id", 1, {}, protocol_type="connect")
    harness.perform(harness.group.sync(token, sync, harness.now))
    assert harness.synced(token).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_join_makes_the_others_rejoin_and_bumps_the_generation() -> None:
    harness = stable_group("a")
    b = harness.enter("b")
    assert harness.group.state is GroupState.PREPARING_REBALANCE
    assert harness.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.synced(harness.sync("a")).error is ErrorCode.REBALANCE_IN_PROGRESS
    a = harness.join("a", "a-id")
    assert harness.joined(a).generation_id == harness.joined(b).generation_id == 2


def test_a_join_while_completing_sends_the_others_back() -> None:
    harness = GroupHarness()
    harness.enter("a"), harness.enter("b")
    harness.advance(6.0)
    b = harness.sync("b")
    harness.enter("c")
    assert harness.synced(b).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.group.state is GroupState.PREPARING_REBALANCE


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    harness = stable_group("a", "b")
    c = harness.enter("c")
    a = harness.join("a", "a-id")
    harness.advance(60.0, "b")
    assert harness.joined(a).generation_id == harness.joined(c).generation_id == 2
    assert harness.heartbeat("b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_sync_in_time_is_removed() -> None:
    harness = GroupHarness()
    harness.enter("a"), harness.enter("b")
    harness.advance(6.0)
    harness.sync("a", a=b"A", b=b"B")
    harness.advance(60.0, "a", "b")
    assert harness.group.state is GroupState.PREPARING_REBALANCE
    assert harness.heartbeat("b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_does_not_get_stuck_if_its_leader_never_syncs() -> None:
    harness = GroupHarness()
    harness.enter("a"), harness.enter("b")
    harness.advance(6.0)
    b = harness.sync("b")
    harness.advance(60.0, "a", "b")
    assert harness.synced(b).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_silent_member_is_removed_after_its_session_timeout() -> None:
    harness = stable_group("a", "b")
    harness.advance(9.9, "a")
    assert harness.heartbeat("a") is ErrorCode.NONE
    harness.advance(0.2, "a")
    assert harness.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    a = harness.join("a", "a-id")
    assert len(harness.joined(a).members) == 1


def test_the_last_member_to_go_leaves_an_empty_group_of_the_next_generation() -> None:
    harness = stable_group("a")
    harness.advance(10.0)
    assert (harness.group.state, harness.group.generation_id) == (GroupState.EMPTY, 2)
    assert harness.durable is not None
    assert (harness.durable.state, harness.durable.members) == (GroupState.EMPTY, ())


def test_a_follower_that_rejoins_unchanged_is_answered_without_a_rebalance() -> None:
    harness = stable_group("a", "b")
    assert harness.joined(harness.join("b", "b-id")).generation_id == 1
    assert harness.group.state is GroupState.STABLE


def test_a_leader_that_rejoins_causes_a_rebalance() -> None:
    harness = stable_group("a", "b")
    harness.join("a", "a-id")
    assert harness.heartbeat("b") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_changed_subscription_causes_a_rebalance() -> None:
    harness = stable_group("a", "b")
    harness.join("b", "b-id", protocols=(("range", b"more topics"),))
    assert harness.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_missed_the_answer_gets_it_again_while_completing() -> None:
    harness = GroupHarness()
    harness.enter("a"), harness.enter("b")
    harness.advance(6.0)
    again = harness.joined(harness.join("a", "a-id"))
    assert (again.generation_id, len(again.members)) == (1, 2)
    assert harness.group.state is GroupState.COMPLETING_REBALANCE


def test_of_two_joins_of_one_member_the_older_is_sent_back() -> None:
    harness = GroupHarness()
    old = harness.enter("a")
    new = harness.join("a", "a-id")
    assert harness.joined(old).error is ErrorCode.REBALANCE_IN_PROGRESS
    harness.advance(6.0)
    assert harness.joined(new).generation_id == 1


def test_a_new_member_is_removed_if_its_join_waits_too_long() -> None:
    harness = stable_group("a", limits=replace(LIMITS, new_member_join_timeout=20.0))
    harness.group.members["a-id"].rebalance_timeout = 1000.0
    b = harness.enter("b")
    harness.advance(21.0, "a")
    assert harness.joined(b) == JoinGroupResult(ErrorCode.UNKNOWN_MEMBER_ID)


def test_leaving_moves_the_partitions_of_the_member() -> None:
    harness = stable_group("a", "b")
    left = harness.leave(MemberIdentity("b-id"))
    assert harness.left(left) == [ErrorCode.NONE]
    assert harness.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.durable is not None
    assert [member.member_id for member in harness.durable.members] == ["a-id"]


def test_leaving_answers_each_identity() -> None:
    harness = stable_group("a")
    harness.join("p")
    left = harness.leave(
        MemberIdentity("unknown"),
        MemberIdentity(""),
        MemberIdentity("p-id"),
        MemberIdentity("", "i"),
        MemberIdentity("a-id", "i"),
    )
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.left(left) == [unknown, unknown, ErrorCode.NONE, unknown, unknown]
    assert harness.group.state is GroupState.STABLE


def test_the_leaders_place_goes_to_another_member() -> None:
    harness = stable_group("a", "b")
    harness.leave(MemberIdentity("a-id"))
    assert harness.joined(harness.join("b", "b-id")).leader == "b-id"


def test_a_full_group_refuses_one_more() -> None:
    harness = stable_group("a", "b", limits=replace(LIMITS, max_size=2))
    assert harness.joined(harness.join("c")).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.group.state is GroupState.STABLE


def test_the_members_of_a_full_group_may_rejoin() -> None:
    harness = stable_group("a", "b", limits=replace(LIMITS, max_size=2))
    a = harness.join("a", "a-id")
    b = harness.join("b", "b-id")
    assert harness.joined(a).error is harness.joined(b).error is ErrorCode.NONE


def test_a_subscription_too_large_for_the_znode_is_refused_with_its_cause() -> None:
    harness = stable_group("a", limits=replace(LIMITS, max_state_bytes=10_000))
    big = (("range", bytes(20_000)),)
    assert (
        harness.joined(harness.join("b", protocols=big)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    )
    assert "room for 10000" in harness.notes[-1]
    assert harness.group.state is GroupState.STABLE


def test_an_assignment_too_large_for_the_znode_is_refused_with_its_cause() -> None:
    harness = GroupHarness(replace(LIMITS, max_state_bytes=10_000))
    harness.enter("a")
    harness.advance(3.0)
    assert (
        harness.synced(harness.sync("a", a=bytes(20_000))).error is ErrorCode.UNKNOWN_SERVER_ERROR
    )
    assert any("cannot store its leader's assignment" in note for note in harness.notes)


def test_ids_given_out_are_bounded() -> None:
    harness = GroupHarness(replace(LIMITS, max_pending_members=3))
    errors = [harness.joined(harness.join(f"m{n}")).error for n in range(4)]
    assert errors == [ErrorCode.MEMBER_ID_REQUIRED] * 3 + [ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_an_unloaded_group_answers_every_request() -> None:
    harness = GroupHarness()
    a, b = harness.enter("a"), harness.enter("b")
    harness.perform(harness.group.unload(ErrorCode.NOT_COORDINATOR))
    assert {harness.joined(token).error for token in (a, b)} == {ErrorCode.NOT_COORDINATOR}
    assert harness.group.state is GroupState.DEAD
    assert harness.joined(harness.join("c")).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.heartbeat("a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.group.check_commit("", None, -1, 0.0) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_every_state_can_be_left_for_dead_and_none_comes_back() -> None:
    assert VALID_FROM[GroupState.DEAD] == set(GroupState)
    assert all(GroupState.DEAD not in VALID_FROM[s] for s in GroupState if s is not GroupState.DEAD)
