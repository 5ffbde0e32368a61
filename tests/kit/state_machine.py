"""The controller's state machine as tests use it: an event in all its steps at once."""

from __future__ import annotations

from kbroker.common.steps import at_once
from kbroker.controller.core import events
from kbroker.controller.core.effects import Effect
from kbroker.controller.core.state_machine import ControllerStateMachine


def handle(machine: ControllerStateMachine, event: events.Event) -> list[Effect]:
    """Have *machine* process *event*; return the effects."""
    return at_once(machine.process(event))
