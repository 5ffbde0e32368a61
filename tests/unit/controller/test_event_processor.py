"""Requests on their way through the queue of an active controller, on the simulated ZooKeeper."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from kbroker.controller.core.effects import ElectionOutcome, ReassignmentOutcome
from kbroker.controller.core.events import ElectionType
from kbroker.zk import znodes
from kclient.types import TopicPartition
from kclient.wire.errors import BrokerNotAvailable, NotController, StaleBrokerEpoch
from tests.unit.controller.test_controller_turns import World, create_topic

T0 = ("many", 0)


def outcome_of(answer: Deferred[Any]) -> list[Any]:
    """Return a list that gets the result of *answer*, or the type of its error."""
    found: list[Any] = []
    answer.addCallbacks(found.append, lambda failure: found.append(failure.type))
    return found


def a_world() -> World:
    world = World()
    create_topic(world)
    return world


def test_requests_are_answered_in_the_order_of_their_arrival() -> None:
    world = a_world()
    done: list[str] = []
    moved = world.controller.reassign({T0: (2, 1)})
    moved.addCallback(lambda results: done.append(results[T0].outcome.value))
    elected = world.controller.elect_leaders(ElectionType.PREFERRED, frozenset({T0, ("many", 1)}))
    elected.addCallback(lambda results: done.append(results["many", 1].outcome.value))
    world.until(lambda: len(done) == 2)
    assert done == [ReassignmentOutcome.ACCEPTED.value, ElectionOutcome.NOT_NEEDED.value]


def test_a_resignation_during_a_write_answers_all_requests_with_not_controller() -> None:
    world = a_world()
    in_process = outcome_of(world.controller.reassign({T0: (2, 1)}))
    waiting = outcome_of(world.controller.elect_leaders(ElectionType.PREFERRED, None))
    epoch = world.controller.context.brokers[3].epoch
    leaving = outcome_of(world.controller.controlled_shutdown(3, epoch))
    assert [in_process, waiting, leaving] == [[], [], []]
    world.controller.stop()
    assert [in_process, waiting, leaving] == [[NotController]] * 3
    assert outcome_of(world.controller.reassign({T0: (2, 1)})) == [NotController]


def test_a_write_that_was_sent_before_a_resignation_causes_no_request_to_a_broker() -> None:
    world = a_world()
    outcome_of(world.controller.reassign({T0: (2, 1)}))
    world.controller.stop()
    before = [len(world.cluster[n].received) for n in (1, 2, 3)]
    deadline = world.scheduler.now + 2
    world.process.callLater(2.5, lambda: None)
    world.until(lambda: world.scheduler.now > deadline)
    assert [len(world.cluster[n].received) for n in (1, 2, 3)] == before


def test_a_controlled_shutdown_of_another_registration_is_rejected() -> None:
    world = a_world()
    stale = outcome_of(world.controller.controlled_shutdown(3, 1))
    without = outcome_of(world.controller.controlled_shutdown(3, -1))
    unknown = outcome_of(world.controller.controlled_shutdown(9, 1))
    world.until(lambda: bool(stale and without and unknown))
    assert (stale, without) == ([StaleBrokerEpoch], [StaleBrokerEpoch])
    assert unknown == [BrokerNotAvailable]
    assert not world.controller.context.shutting_down


def test_a_request_to_delete_an_unknown_topic_is_removed() -> None:
    world = a_world()
    world.create(znodes.delete_topic_path("unknown"))
    world.until(lambda: znodes.delete_topic_path("unknown") not in world.ensemble.tree)
    assert znodes.topic_path("many") in world.ensemble.tree


def test_a_completed_reassignment_is_removed_from_the_znode_that_requested_it() -> None:
    world = a_world()
    world.register(4)
    world.until(lambda: 4 in world.cluster[2].cache.brokers)
    targets = {TopicPartition("many", 0): (1, 2, 4), TopicPartition("many", 1): (2, 3, 4)}
    world.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(targets))
    world.until(lambda: 4 in world.replicas_of(0) and 4 in world.replicas_of(1))

    def listed() -> set[int]:
        found = world.ensemble.tree.get(znodes.REASSIGN_PARTITIONS)
        return set() if found is None else {p for _, p in znodes.decode_reassignment(found.data)}

    assert listed() == {0, 1}
    world.joins_the_isr(4, "many", 0)
    world.until(lambda: listed() == {1})
    world.joins_the_isr(4, "many", 1)
    world.until(lambda: znodes.REASSIGN_PARTITIONS not in world.ensemble.tree)


def test_a_request_to_delete_a_name_that_no_topic_can_have_is_removed() -> None:
    world = a_world()
    path = f"{znodes.DELETE_TOPICS}/no topic"
    world.create(path)
    world.until(lambda: path not in world.ensemble.tree)
    assert world.controller.epoch is not None
    assert world.controller.epoch.number == 1


def test_an_isr_notification_with_a_name_that_no_topic_can_have_is_removed() -> None:
    world = a_world()
    path = f"{znodes.ISR_CHANGES}/isr_change_0000000007"
    world.create(path, znodes.encode_partitions([TopicPartition("no topic", 0)]))
    world.until(lambda: path not in world.ensemble.tree)
    assert world.controller.epoch is not None
    assert world.controller.epoch.number == 1
