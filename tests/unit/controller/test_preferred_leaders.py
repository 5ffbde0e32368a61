"""Leadership goes back to the preferred replica, if that is alive and in sync."""

from __future__ import annotations

from uuid import UUID

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.steps import at_once
from kbroker.controller.core import effects as fx
from kbroker.controller.core import events
from kbroker.controller.core.context import Broker, Topic
from kbroker.controller.core.preferred_leaders import imbalanced_partitions
from kbroker.controller.core.state_machine import ControllerStateMachine
from tests.kit.state_machine import handle, new_machine


def controller(
    *leaders: int, isr: tuple[int, ...] = (1, 2), live: tuple[int, ...] = (1, 2)
) -> ControllerStateMachine:
    """Topic t on brokers 1 and 2, broker 1 preferred, partition n led by the nth of *leaders*."""
    made = new_machine()
    states = {("t", n): LeaderAndIsr(leader, 5, isr, 1, 10) for n, leader in enumerate(leaders)}
    topic = Topic("t", UUID(int=1), dict.fromkeys(range(len(leaders)), (1, 2)))
    brokers = {n: Broker(n, 100 + n, ()) for n in live}
    handle(made, events.BecameController(2, brokers, {"t": topic}, states))
    return made


def moved(
    machine: ControllerStateMachine, percentage: int = 10
) -> list[tuple[int, int, int | None]]:
    """What is written: partition, leader, expected version."""
    return [
        (write.partition[1], write.state.leader, write.expected_version)
        for effect in handle(machine, events.PreferredLeaderElectionDue(percentage))
        if isinstance(effect, fx.WriteStates)
        for write in effect.writes
    ]


def test_a_broker_that_came_back_gets_its_partitions() -> None:
    assert moved(controller(2, 2, 1)) == [(0, 1, 10), (1, 1, 10)]


def test_a_small_imbalance_is_left_alone() -> None:
    assert moved(controller(2, 1, 1, 1, 1, 1, 1, 1, 1, 1)) == []
    assert moved(controller(2, 1, 1), percentage=40) == []


def test_a_replica_out_of_the_isr_is_not_elected() -> None:
    assert moved(controller(2, 2, isr=(2,))) == []


def test_a_broker_that_is_shutting_down_is_not_elected() -> None:
    machine = controller(2, 2)
    machine.context.shutting_down.add(1)
    assert moved(machine) == []


def test_the_leader_epoch_rises_and_the_isr_stays() -> None:
    machine = controller(2)
    (effect,) = handle(machine, events.PreferredLeaderElectionDue(10))
    assert isinstance(effect, fx.WriteStates)
    state = effect.writes[0].state
    assert (state.leader_epoch, state.isr, state.controller_epoch) == (6, (1, 2), 2)


def test_balancing_again_and_again_writes_only_what_there_is_to_move() -> None:
    """S29: no storm, neither while the preferred replica lags nor after it was elected."""
    machine = controller(2, isr=(2,))
    assert [moved(machine, 0) for _ in range(5)] == [[]] * 5
    found = LeaderAndIsr(2, 5, (2, 1), 1, 11)
    handle(machine, events.IsrChanged({("t", 0): found}))
    assert moved(machine, 0) == [(0, 1, 11)]
    handle(machine, events.StatesWritten({("t", 0): 12}))
    assert [moved(machine, 0) for _ in range(5)] == [[]] * 5


def test_partitions_that_move_are_left_alone_and_others_are_not() -> None:
    machine = controller(2, 2)
    handle(machine, events.ReassignmentRequested({("t", 0): (1,)}))
    machine.context.being_reassigned.add(("t", 0))
    assert at_once(imbalanced_partitions(machine.context, 0)) == [("t", 1)]
