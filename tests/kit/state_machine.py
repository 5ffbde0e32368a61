"""The controller's state machine as tests use it: an event in all its steps at once."""

from __future__ import annotations

from kbroker.common.steps import at_once
from kbroker.controller.core import events
from kbroker.controller.core.effects import Effect
from kbroker.controller.core.state_machine import ControllerStateMachine


def new_machine(*, partitions_per_step: int = 250) -> ControllerStateMachine:
    """Return a machine of topics with min.insync.replicas=1 that may be deleted."""
    return ControllerStateMachine(
        lambda _topic: 1, partitions_per_step=partitions_per_step, delete_topic_enable=True
    )


def handle(machine: ControllerStateMachine, event: events.Event) -> list[Effect]:
    """Have *machine* process *event*; return the effects."""
    return at_once(machine.process(event))
