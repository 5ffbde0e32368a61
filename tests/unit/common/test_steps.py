"""An event in steps: the same effects in the end, and nothing that comes between spoils them."""

import pytest

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.controller.core import events
from kbroker.controller.core.context import Broker, Topic
from kbroker.controller.core.state_machine import ControllerStateMachine
from tests.kit.state_machine import handle, new_machine
from tests.unit.controller.test_state_machine import ID, brokers

REPLICAS = dict.fromkeys(range(50), (1, 2, 3))


def controller() -> ControllerStateMachine:
    made = new_machine()
    states = {("t", index): LeaderAndIsr(1, 5, (1, 2, 3), 1, 10) for index in REPLICAS}
    handle(
        made, events.BecameController(2, brokers(1, 2, 3), {"t": Topic("t", ID, REPLICAS)}, states)
    )
    return made


@pytest.mark.parametrize(
    ("event", "least"),
    [
        (events.BrokersChanged(brokers(2, 3)), len(REPLICAS)),
        # Each partition goes, every broker gets UpdateMetadata of each, and each replica StopReplica.
        (events.TopicDeletionRequested(frozenset({"t"})), len(REPLICAS) * 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_event_takes_a_step_for_each_partition_and_ends_as_if_it_took_one(
    event: events.Event, least: int
) -> None:
    patient, hasty = controller(), controller()
    work, steps = patient.process(event), 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            effects = end.value
            break
        steps += 1
    assert steps >= least
    assert effects == handle(hasty, event)
    assert patient.context == hasty.context


def test_nothing_comes_out_of_an_event_during_which_the_controller_resigned() -> None:
    machine = controller()
    work = machine.process(events.BrokersChanged(brokers(2, 3)))
    next(work)
    machine.resign()
    with pytest.raises(StopIteration) as end:
        next(work)
    assert end.value.value == []
    assert handle(machine, events.BrokersChanged(brokers(3))) == []


def test_an_event_cannot_begin_in_the_middle_of_another() -> None:
    machine = controller()
    work = machine.process(events.BrokersChanged(brokers(2, 3)))
    next(work)
    with pytest.raises(RuntimeError, match="BrokersChanged came out of turn"):
        handle(machine, events.BrokersChanged({4: Broker(4, 1, ())}))
