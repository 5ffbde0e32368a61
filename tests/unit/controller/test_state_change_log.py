"""What the controller's changes are called, so that a failover can be read back."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.steps import at_once
from kbroker.controller.core.context import Broker, ControllerContext, ReplicaAssignment, Topic
from kbroker.controller.core.effects import StateWrite
from kbroker.controller.core.state_change_log import (
    LINES_LOGGED,
    broker_change_line,
    reassignment_lines,
    state_change_lines,
    state_changes,
)
from kclient.wire.interbroker import NO_LEADER

REPLICAS = (1, 2, 3)


def broker(broker_id: int, epoch: int = 1) -> Broker:
    return Broker(broker_id, epoch, ())


def context_of(live: tuple[int, ...] = REPLICAS, partitions: int = 1) -> ControllerContext:
    topic = Topic("t", UUID(int=1), dict.fromkeys(range(partitions), REPLICAS))
    return ControllerContext(4, brokers={n: broker(n) for n in live}, topics={"t": topic})


def line(
    context: ControllerContext,
    before: tuple[int, tuple[int, ...]] | None,
    after: tuple[int, tuple[int, ...]],
    **more: int,
) -> str:
    """The line of t-0 going from *before* to *after*, each (leader, ISR)."""
    if before is not None:
        context.leader_and_isr["t", 0] = LeaderAndIsr(before[0], 6, before[1], 3)
    write = StateWrite(("t", 0), LeaderAndIsr(after[0], 7, after[1], 4, **more), 9)
    (found,) = state_change_lines(at_once(state_changes(context, [write])))
    return found


def test_a_failover_is_logged_with_leaders_epoch_isr_and_reason():
    assert line(context_of((2, 3)), (1, (1, 2, 3)), (2, (2, 3))) == (
        "t-0: leader 1 -> 2 in leader epoch 7, ISR 1,2,3 -> 2,3: broker 1 is down"
    )


@pytest.mark.parametrize(
    ("live", "before", "after", "words"),
    [
        ((2,), (1, (1,)), (NO_LEADER, (1,)), "leader 1 -> none in leader epoch 7, ISR 1: broker 1 is down"),
        ((1, 2), (NO_LEADER, (1,)), (1, (1,)), "leader none -> 1 in leader epoch 7, ISR 1: broker 1, which has all"),
        ((1, 2), (1, (1, 2, 3)), (1, (1, 2)), "leader 1 stays in leader epoch 7, ISR 1,2,3 -> 1,2: broker 3 is down"),
        ((1, 2, 3), (2, (1, 2)), (1, (1, 2)), "leader 2 -> 1 in leader epoch 7, ISR 1,2: broker 1 is the preferred"),
        ((1, 2, 3), (1, (1, 2)), (2, (2,)), "broker 1 may lack committed records"),
    ],
)  # fmt: skip
def test_every_reason_is_named(live, before, after, words):
    assert words in line(context_of(live), before, after)


def test_an_unclean_election_cries_out():
    text = line(context_of((2,)), (NO_LEADER, (1,)), (2, (2,)), leader_recovery_state=1)
    assert "UNCLEAN, broker 2 may lack committed records: they are lost" in text


def test_shutdowns_and_failed_directories_are_not_deaths():
    leaving = context_of()
    leaving.shutting_down.add(1)
    assert "broker 1 is shutting down" in line(leaving, (1, (1, 2)), (2, (2,)))
    broken = context_of()
    broken.replicas_on_offline_dirs[1] = {("t", 0)}
    assert "broker 1 lost its log directory" in line(broken, (1, (1, 2)), (2, (2,)))


def test_the_line_of_a_reassigned_partition_has_that_as_its_reason():
    context = context_of()
    context.topics["t"] = replace(context.topics["t"], assignment={0: (2, 3)})
    text = line(context, (1, (1, 2)), (2, (1, 2)))
    assert "the partition is reassigned away from broker 1" in text


@pytest.mark.parametrize(
    ("isr_epoch", "words"),
    [
        (1, "leader 1 stays in leader epoch 7, ISR 1,2,3 -> 1,2: the partition is reassigned away from broker 3"),
        (0, "ISR 1,2,3 -> 1,2: broker 3 came back and may lack committed records"),
    ],
)  # fmt: skip
def test_why_a_live_replica_leaves_the_isr(isr_epoch, words):
    context = context_of()
    context.leader_and_isr["t", 0] = LeaderAndIsr(1, 6, REPLICAS, 3, isr_epochs=(1, 1, isr_epoch))
    write = StateWrite(("t", 0), LeaderAndIsr(1, 7, (1, 2), 4), 9)
    assert words in state_change_lines(at_once(state_changes(context, [write])))[0]


def test_thousands_are_logged_by_kind():
    many = 3000
    context = context_of((2, 3), many)
    writes = []
    for n in range(many):
        to = 2 if n % 3 else 3
        context.leader_and_isr["t", n] = LeaderAndIsr(1, 6, REPLICAS, 3)
        writes.append(StateWrite(("t", n), LeaderAndIsr(to, 7, (2, 3), 4), 9))
    assert state_change_lines(at_once(state_changes(context, writes))) == [
        "1000 partitions (t-0, t-3, t-6, t-9, t-12, ...): leader 1 -> 3: broker 1 is down",
        "2000 partitions (t-1, t-2, t-4, t-5, t-7, ...): leader 1 -> 2: broker 1 is down",
    ]
    assert (
        len(state_change_lines(at_once(state_changes(context, writes[:LINES_LOGGED]))))
        == LINES_LOGGED
    )


def test_new_partitions_share_a_line():
    context = context_of(partitions=3)
    writes = [StateWrite(("t", n), LeaderAndIsr(1 + n % 2, 0, REPLICAS, 4), None) for n in range(3)]
    assert state_change_lines(at_once(state_changes(context, writes))) == [
        "3 partitions of t for the first time: led by 1 (2), 2 (1)"
    ]


def test_brokers_come_go_and_come_back():
    one, two = {1: broker(1), 2: broker(2)}, {2: broker(2), 3: broker(3)}
    assert broker_change_line(one, two) == "live brokers are 2,3: gone 1; joined 3"
    assert broker_change_line(one, {1: broker(1, 5), 2: broker(2)}) == (
        "live brokers are 1,2: registered again 1"
    )
    assert broker_change_line(one, {}) == "live brokers are none: gone 1,2"
    assert broker_change_line(one, dict(one)) is None


def test_reassignments_are_logged_by_partition_or_by_step():
    moving, done = ReplicaAssignment((3, 1), (3,), (1,)), ReplicaAssignment((3,))
    assert reassignment_lines({("t", 0): moving, ("t", 1): done}) == [
        "t-0 is on brokers 3,1 (adding 3, removing 1)",
        "t-1 is on brokers 3 (adding none, removing none)",
    ]
    many = {("t", n): done if n % 7 == 0 else moving for n in range(50)}
    assert reassignment_lines(many) == [
        "8 partitions (t-0, t-7, t-14, t-21, t-28, ...) have their target replicas",
        "42 partitions (t-1, t-2, t-3, t-4, t-5, ...) are being reassigned",
    ]
