"""What is written before what is answered, and what the next coordinator finds."""

import pytest

from kbroker.coordinator.group.core.effects import MemberIdentity
from kbroker.coordinator.group.core.records import (
    CommitDetail,
    decode_detail,
    decode_snapshot,
    encode_detail,
    encode_snapshot,
    subscribed_topics,
)
from kbroker.coordinator.group.core.states import GroupState
from kclient.wire.error_codes import ErrorCode
from tests.kit.groups import GroupHarness, join_request, stable_group


def test_a_generation_is_written_before_it_is_answered() -> None:
    harness = GroupHarness(auto_persist=False)
    a = harness.enter("a")
    harness.advance(3.0)
    assert a in harness.waiting
    assert harness.unacknowledged[0].snapshot.generation_id == 1
    harness.acknowledge()
    assert harness.joined(a).generation_id == 1


def test_an_assignment_is_written_before_it_is_answered() -> None:
    harness = GroupHarness(auto_persist=False)
    harness.enter("a")
    harness.advance(3.0)
    harness.acknowledge()
    a = harness.sync("a", a=b"A")
    assert a in harness.waiting
    assert harness.unacknowledged[0].snapshot.members[0].assignment == b"A"
    harness.acknowledge()
    assert harness.synced(a).assignment == b"A"


def test_a_leave_is_written_before_it_is_answered() -> None:
    harness = stable_group("a", "b")
    harness.auto_persist = False
    left = harness.leave(MemberIdentity("b-id"))
    assert left in harness.waiting
    harness.acknowledge()
    assert harness.left(left) == [ErrorCode.NONE]


def test_a_session_does_not_run_out_while_zookeeper_is_slow() -> None:
    harness = GroupHarness(auto_persist=False)
    a = harness.enter("a")
    harness.advance(3.0)
    harness.advance(30.0)
    harness.acknowledge()
    assert harness.joined(a).error is ErrorCode.NONE
    assert harness.heartbeat("a") is ErrorCode.NONE


def test_a_join_during_the_write_of_the_assignment_wins() -> None:
    harness = stable_group("a")
    harness.join("a", "a-id")
    harness.auto_persist = False
    a = harness.sync("a", a=b"new")
    harness.enter("b")
    assert harness.synced(a).error is ErrorCode.REBALANCE_IN_PROGRESS
    harness.acknowledge()
    assert harness.group.state is GroupState.PREPARING_REBALANCE


def test_what_waits_for_a_write_is_answered_when_the_group_is_let_go() -> None:
    harness = stable_group("a", "b")
    harness.auto_persist = False
    left = harness.leave(MemberIdentity("b-id"))
    a = harness.join("a", "a-id")
    harness.perform(harness.group.unload(ErrorCode.NOT_COORDINATOR))
    assert harness.joined(a).error is ErrorCode.NOT_COORDINATOR
    assert left not in harness.waiting


def test_the_next_coordinator_carries_on_without_a_rebalance() -> None:
    successor = stable_group("a", "b").take_over()
    assert successor.group.state is GroupState.STABLE
    successor.advance(9.0)
    assert successor.heartbeat("a", 1) is successor.heartbeat("b", 1) is ErrorCode.NONE
    assert successor.synced(successor.sync("b")).assignment == b"b"
    assert successor.joined(successor.join("b", "b-id")).generation_id == 1


def test_the_next_coordinator_gives_every_member_a_fresh_session_timeout() -> None:
    harness = stable_group("a", "b")
    harness.advance(9.0, "a")
    successor = harness.take_over()
    successor.advance(9.9, "a")
    assert successor.heartbeat("a") is ErrorCode.NONE
    successor.advance(0.2, "a")
    assert successor.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_next_coordinator_completes_a_rebalance_that_waited_for_the_leader() -> None:
    harness = GroupHarness()
    harness.enter("a"), harness.enter("b")
    harness.advance(6.0)
    successor = harness.take_over()
    b = successor.sync("b", 1)
    successor.sync("a", 1, a=b"A", b=b"B")
    assert successor.synced(b).assignment == b"B"


def test_the_next_coordinator_does_not_wait_for_ever_for_a_lost_leader() -> None:
    harness = GroupHarness()
    harness.enter("a"), harness.enter("b")
    harness.advance(6.0)
    successor = harness.take_over()
    successor.advance(61.0, "b")
    assert successor.group.state is not GroupState.COMPLETING_REBALANCE


def test_the_next_coordinator_does_not_know_a_member_that_left() -> None:
    harness = stable_group("a", "b")
    harness.leave(MemberIdentity("b-id"))
    successor = harness.take_over()
    assert successor.group.state is GroupState.PREPARING_REBALANCE
    assert successor.heartbeat("b") is ErrorCode.UNKNOWN_MEMBER_ID
    assert successor.joined(successor.join("a", "a-id")).generation_id == 2


def test_the_next_coordinator_never_goes_back_a_generation() -> None:
    harness = stable_group("a")
    harness.advance(10.0)
    successor = harness.take_over()
    token = successor.enter("b")
    successor.advance(3.0)
    assert successor.joined(token).generation_id == 3


def test_a_new_member_in_an_unfinished_rebalance_is_not_written() -> None:
    harness = stable_group("a", "b")
    harness.enter("c")
    harness.leave(MemberIdentity("b-id"))
    assert harness.durable is not None
    assert [member.member_id for member in harness.durable.members] == ["a-id"]


def test_a_snapshot_survives_its_znode() -> None:
    harness = GroupHarness()
    harness.enter("a", protocols=(("x", b"\0\xff"), ("y", b"\0\xff"), ("z", b"other")))
    harness.enter("b", protocols=(("x", b""), ("z", b"")))
    harness.advance(6.0)
    harness.sync("a", a=b"A\0", b=b"")
    assert harness.durable is not None
    assert decode_snapshot("/p", encode_snapshot(harness.durable, 5)) == (harness.durable, 5)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"version":1,"state":"Stable","generation":1,"protocol_type":null,"protocol":null,'
        b'"leader":null,"timestamp":"1","members":[]}',
        b'{"version":1,"state":"Empty","generation":"1","protocol_type":null,"protocol":null,'
        b'"leader":null,"timestamp":"1","members":[]}',
    ],
)
def test_a_poisoned_state_names_its_path(data: bytes) -> None:
    with pytest.raises(ValueError, match="/consumers/g/state"):
        decode_snapshot("/consumers/g/state", data)


def test_a_commit_detail_survives_its_znode() -> None:
    detail = CommitDetail(7, "métadonnées")
    assert decode_detail("/p", encode_detail(detail)) == detail


def test_topics_are_read_out_of_a_subscription() -> None:
    metadata = b"\0\1" + b"\0\0\0\2" + b"\0\1t" + b"\0\2uu" + b"rest"
    assert subscribed_topics(metadata) == ("t", "uu")
    assert subscribed_topics(b"\0\0\0\0\0\0") == ()
    assert subscribed_topics(b"\0\0\0\0\0\2\0\1t\x7f\xff") is None
    assert subscribed_topics(b"garbage") is None
    assert subscribed_topics(b"") is None


def test_members_join_again_if_their_generation_is_not_written_in_time() -> None:
    harness = GroupHarness(auto_persist=False)
    a = harness.enter("a")
    harness.advance(3.0)
    harness.perform(harness.group.persist_timed_out(harness.now))
    assert harness.joined(a).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.joined(a).member_id == "a-id"
    again = harness.join("a", "a-id")
    assert again in harness.waiting
    harness.acknowledge()
    assert harness.joined(again).generation_id == 1
    assert harness.group.state is GroupState.COMPLETING_REBALANCE


def test_members_sync_again_if_their_assignment_is_not_written_in_time() -> None:
    harness = stable_group("a", "b")
    harness.join("a", "a-id")
    harness.join("b", "b-id")
    harness.auto_persist = False
    b, a = harness.sync("b"), harness.sync("a", a=b"A", b=b"B")
    harness.perform(harness.group.persist_timed_out(harness.now))
    for late in (a, b):
        assert harness.synced(late).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = harness.sync("b")
    harness.acknowledge()
    assert harness.synced(again).assignment == b"B"
    assert harness.group.state is GroupState.STABLE


def test_a_member_that_does_not_ask_again_is_removed() -> None:
    harness = stable_group("a", "b")
    harness.join("a", "a-id")
    harness.join("b", "b-id")
    harness.auto_persist = False
    harness.sync("b"), harness.sync("a", a=b"A", b=b"B")
    harness.perform(harness.group.persist_timed_out(harness.now))
    harness.acknowledge()
    harness.advance(11.0, "a")
    assert [member.member_id for member in harness.group.members] == ["a-id"]


def test_only_what_changes_the_group_has_to_be_written() -> None:
    group = stable_group("a", "b").group
    assert not group.join_writes(join_request("b", "b-id"))
    assert not group.join_writes(join_request("c"))
    assert group.join_writes(join_request("a", "a-id"))
    assert group.join_writes(join_request("b", "b-id", protocols=(("range", b"other"),)))
    assert group.join_writes(join_request("c", group_instance_id="i"))
    assert group.join_writes(join_request("c", requires_known_member_id=False))
    assert not group.tick_writes(6.0)
    assert group.tick_writes(1000.0)


def test_a_join_during_a_rebalance_does_not_wait_for_zookeeper() -> None:
    harness = stable_group("a", "b")
    harness.join("a", "a-id")
    assert harness.group.state is GroupState.PREPARING_REBALANCE
    assert not harness.group.join_writes(join_request("b", "b-id", protocols=(("range", b"2"),)))
