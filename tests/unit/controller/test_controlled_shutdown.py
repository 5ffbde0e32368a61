"""The steps of a controlled shutdown: when the next one begins, and when the broker is answered."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.controller import controlled_shutdown
from kclient.wire.errors import NotController
from kclient.wire.interbroker import LeaderAndIsrResponse
from kclient.wire.versions import ApiKey
from tests.unit.controller.test_controller_turns import (
    PARTITIONS,
    PER_STEP,
    World,
    create_topic,
)
from tests.unit.controller.test_event_processor import outcome_of


class Leaving:
    """Broker 3 of a world shuts down; broker 2 answers LeaderAndIsr only by `acknowledge`."""

    def __init__(self) -> None:
        self.world = World()
        create_topic(self.world)
        self.waiting: list[tuple[Any, Deferred[LeaderAndIsrResponse]]] = []
        self.world.cluster[2].answer = self._answer
        epoch = self.world.controller.context.brokers[3].epoch
        self.outcome = outcome_of(self.world.controller.controlled_shutdown(3, epoch))

    def _answer(self, api: ApiKey, request: Any) -> Deferred[LeaderAndIsrResponse] | None:
        if api is not ApiKey.LEADER_AND_ISR:
            return None
        self.waiting.append((request, Deferred()))
        return self.waiting[-1][1]

    @property
    def still_led(self) -> int:
        """The partitions that broker 3 leads by its own state."""
        return len(self.world.cluster[3].leads)

    def acknowledge(self) -> None:
        """Answer the request that broker 2 has received."""
        self.world.until(lambda: bool(self.waiting))
        self.waiting.pop(0)[1].callback(LeaderAndIsrResponse(0))


@pytest.fixture
def leaving() -> Leaving:
    """The shutdown in a world of its own."""
    return Leaving()


def test_no_partition_loses_its_leader_before_the_earlier_ones_have_theirs(
    leaving: Leaving,
) -> None:
    led = PARTITIONS // 3
    leaving.world.until(lambda: leaving.still_led == led - PER_STEP)
    began = leaving.world.scheduler.now
    leaving.world.until(lambda: leaving.world.scheduler.now > began + 0.5)
    assert leaving.still_led == led - PER_STEP
    leaving.acknowledge()
    leaving.acknowledge()
    leaving.world.until(lambda: leaving.still_led == 0)
    assert leaving.outcome == []


def test_a_broker_that_does_not_acknowledge_delays_the_others_once(leaving: Leaving) -> None:
    led = PARTITIONS // 3
    leaving.world.until(lambda: leaving.still_led == led - PER_STEP)
    began = leaving.world.scheduler.now
    leaving.world.until(lambda: leaving.still_led == 0)
    assert leaving.world.scheduler.now - began < controlled_shutdown.STEP_SECONDS + 0.5
    leaving.world.until(lambda: bool(leaving.outcome))
    assert leaving.outcome == [()]


def test_a_shutdown_between_two_steps_is_answered_when_the_controller_resigns(
    leaving: Leaving,
) -> None:
    leaving.world.until(lambda: bool(leaving.waiting))
    leaving.world.controller.stop()
    assert leaving.outcome == [NotController]
