"""One group on its coordinator: its timer, and patience after the process was stopped."""

from typing import Any, cast

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from kbroker.coordinator.group.core.records import GroupSnapshot, MemberSnapshot
from kbroker.coordinator.group.core.states import GroupState
from kbroker.coordinator.group.group_metadata import GroupMetadata
from kbroker.coordinator.shard_fence import ShardFence
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import CoordinatorNotAvailable, KafkaError
from tests.kit.groups import LIMITS, RANGE, join_request


def waiting_for_its_member(clock: Clock, forgotten: list[GroupMetadata]) -> GroupMetadata:
    """Return a group that gave out an id, which is forgotten after 10 s."""
    no_fence = cast(ShardFence, None)  # nothing is written here
    group = GroupMetadata(clock, no_fence, "g", LIMITS, forgotten.append, lambda: 0)
    answers: list[Any] = []
    join = join_request("a")
    group.submit(group.machine.join, join).addCallback(answers.append)
    assert answers[0].member_id == "a-id"
    return group


def test_the_timer_makes_the_machine_tick() -> None:
    clock, forgotten = Clock(), list[GroupMetadata]()
    group = waiting_for_its_member(clock, forgotten)
    clock.pump([1.0] * 9)
    assert group.machine.members.pending
    clock.pump([0.5, 0.5])
    assert not group.machine.members.pending
    assert forgotten == [group]


def test_after_a_stall_the_requests_of_members_are_handled_first() -> None:
    clock, forgotten = Clock(), list[GroupMetadata]()
    group = waiting_for_its_member(clock, forgotten)
    clock.advance(60.0)  # stopped, like by SIGSTOP
    assert group.machine.members.pending
    clock.advance(0.5)
    assert not group.machine.members.pending


def test_a_group_let_go_has_no_timer() -> None:
    clock = Clock()
    waiting_for_its_member(clock, []).unload(ErrorCode.NOT_COORDINATOR)
    assert clock.getDelayedCalls() == []


class Doubtful:
    """A fence that ZooKeeper confirms or not."""

    def __init__(self) -> None:
        self.error: KafkaError | None = CoordinatorNotAvailable()
        self.resigned = False

    def confirm_writable(self) -> Deferred[None]:
        return fail(self.error) if self.error is not None else succeed(None)


def test_no_member_is_removed_while_zookeeper_does_not_answer() -> None:
    clock, fence = Clock(), Doubtful()
    group = GroupMetadata(
        clock, cast(ShardFence, fence), "g", LIMITS, lambda _group: None, lambda: 0
    )
    member = MemberSnapshot("m", None, "m", "/h", 6000, 6000, RANGE, b"A")
    snapshot = GroupSnapshot(GroupState.STABLE, 3, "consumer", "range", "m", (member,))
    group._perform(group.machine.restore(snapshot, clock.seconds()))
    clock.pump([0.25] * 200)
    assert len(group.machine.members) == 1
    assert group.machine.state is GroupState.STABLE
    fence.error = None
    written: list[Any] = []
    group._write = lambda: written.append(group._newest)  # type: ignore[method-assign]
    clock.pump([0.25] * 4)
    assert not len(group.machine.members)
    assert written[-1].snapshot.state is GroupState.EMPTY
