"""Answers that were lost and events that describe an earlier state, on the simulated ZooKeeper.

Each test has another client act in the moment between a write of the controller and what the controller learns of it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.zk import znodes
from kclient.types import TopicPartition
from kclient.wire.errors import NotController
from kclient.wire.interbroker import LeaderAndIsrResponse
from kclient.wire.versions import ApiKey
from tests.simulation.zk_connection import ZkConnection
from tests.unit.controller.test_controller_turns import ANY, World
from tests.unit.controller.test_event_processor import outcome_of

OLD, NEW = UUID(int=11), UUID(int=12)


def topic_of(topic_id: UUID, *replicas: tuple[int, ...]) -> bytes:
    """Return the content of a topic's znode."""
    assigned = {p: znodes.ReplicaAssignment(r, (), ()) for p, r in enumerate(replicas)}
    return znodes.encode_topic(znodes.TopicAssignment(partitions=assigned, topic_id=topic_id))


def a_world_with(*replicas: tuple[int, ...]) -> World:
    """Return a world with a topic `t` that has leaders."""
    world = World()
    world.create(znodes.topic_path("t"), topic_of(OLD, *replicas))
    world.until(lambda: is_led(world, OLD))
    return world


def is_led(world: World, topic_id: UUID) -> bool:
    """Whether a broker has leaders of `t` in its metadata, and it is the topic with that id."""
    topic = world.cluster[2].cache.topics.get("t")
    if topic is None or topic.topic_id != topic_id:
        return False
    return all(partition.leader > 0 for partition in topic.partitions.values())


def lose_answers(world: World) -> None:
    """Break the controller's connection to ZooKeeper: answers that are on their way are lost."""
    (session,) = world.ensemble.sessions.values()
    connection = session.connection
    assert isinstance(connection, ZkConnection)
    connection.broken()


def wait(world: World, seconds: float) -> None:
    """Let time pass."""
    end = world.scheduler.now + seconds
    world.process.callLater(seconds + 0.01, lambda: None)
    world.until(lambda: world.scheduler.now > end)


def test_a_namesake_survives_when_the_answer_to_the_deletion_of_its_predecessor_is_lost() -> None:
    world = a_world_with((1, 2))
    world.create(znodes.delete_topic_path("t"))
    world.until(lambda: znodes.topic_path("t") not in world.ensemble.tree)
    lose_answers(world)
    world.ensemble.put(znodes.topic_path("t"), topic_of(NEW, (2, 3)))
    wait(world, 5)
    assert znodes.topic_path("t") in world.ensemble.tree
    assert is_led(world, NEW)


def test_a_namesake_is_deleted_after_the_answer_to_the_deletion_of_its_predecessor_was_lost() -> (
    None
):
    world = a_world_with((1, 2))
    world.create(znodes.delete_topic_path("t"))
    world.until(lambda: znodes.topic_path("t") not in world.ensemble.tree)
    lose_answers(world)
    world.ensemble.put(znodes.topic_path("t"), topic_of(NEW, (2, 3)))
    world.ensemble.put(znodes.delete_topic_path("t"))
    wait(world, 5)
    assert znodes.topic_path("t") not in world.ensemble.tree
    assert znodes.delete_topic_path("t") not in world.ensemble.tree
    assert "t" not in world.controller.context.topics
    assert ("t", 0) in world.cluster[3].deleted


def test_a_reassignment_that_is_cancelled_while_another_one_completes_does_not_begin_again() -> (
    None
):
    world = a_world_with((1, 2), (1, 2))
    targets = {TopicPartition("t", 0): (1, 3), TopicPartition("t", 1): (1, 3)}
    world.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(targets))
    world.until(lambda: len(world.controller.reassignments()) == 2)
    world.joins_the_isr(3, "t", 0)
    world.until(lambda: len(world.controller.reassignments()) == 1)
    outcome = outcome_of(world.controller.reassign({("t", 1): None}))
    wait(world, 3)
    assert outcome
    assert not world.controller.reassignments()
    assert world.controller.context.replicas(("t", 1)) == (1, 2)


def test_a_reassignment_is_removed_from_the_znode_before_another_one_takes_its_place() -> None:
    """If the controller ended in between, the next one would begin the first reassignment again."""
    world = a_world_with((1, 2), (1, 2))
    targets = {TopicPartition("t", 0): (1, 3), TopicPartition("t", 1): (1, 3)}
    world.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(targets))
    world.until(lambda: len(world.controller.reassignments()) == 2)
    wait(world, 3)

    def is_undone() -> bool:
        found = world.ensemble.tree[znodes.topic_path("t")]
        return not znodes.decode_topic("t", found.data).partitions[1].adding

    assert not is_undone()
    outcome = outcome_of(world.controller.reassign({("t", 1): None}))
    world.until(is_undone)
    listed = znodes.decode_reassignment(world.ensemble.tree[znodes.REASSIGN_PARTITIONS].data)
    assert list(listed) == [("t", 0)]
    world.until(lambda: bool(outcome))


def test_a_reassignment_requested_while_the_answer_to_a_removal_is_lost_begins() -> None:
    world = a_world_with((1, 2))
    rejected = znodes.encode_reassignment({TopicPartition("t", 0): (1, 9)})
    world.create(znodes.REASSIGN_PARTITIONS, rejected)
    world.until(lambda: znodes.REASSIGN_PARTITIONS not in world.ensemble.tree)
    lose_answers(world)
    accepted = znodes.encode_reassignment({TopicPartition("t", 0): (1, 3)})
    world.ensemble.put(znodes.REASSIGN_PARTITIONS, accepted)
    wait(world, 3)
    assert world.controller.context.replicas(("t", 0)) == (1, 3, 2)


def test_a_broker_takes_part_in_the_next_election_when_the_winner_is_gone_at_once() -> None:
    world = World()
    write = world.ensemble.write

    def won_by_another(message: Any, session: Any) -> Any:
        world.ensemble.write = write  # type: ignore[method-assign]
        winner = znodes.encode_controller(znodes.ControllerRegistration(2, 1))
        world.ensemble.put(znodes.CONTROLLER, winner)
        answer = write(message, session)
        world.ensemble.remove(znodes.CONTROLLER)
        return answer

    world.ensemble.write = won_by_another  # type: ignore[method-assign]
    world.ensemble.remove(znodes.CONTROLLER)
    world.until(lambda: not world.controller.is_active)
    wait(world, 5)
    assert world.controller.is_active


def test_a_resignation_answers_a_shutdown_once_that_completed_a_reassignment() -> None:
    world = a_world_with((1, 2))
    targets = {TopicPartition("t", 0): (2, 3)}
    world.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(targets))
    world.until(lambda: len(world.controller.reassignments()) == 1)
    withheld: list[Deferred[LeaderAndIsrResponse]] = []

    def withhold(api: ApiKey, _request: Any) -> Deferred[LeaderAndIsrResponse] | None:
        if api is not ApiKey.LEADER_AND_ISR:
            return None
        withheld.append(Deferred())
        return withheld[-1]

    wait(world, 1)
    world.cluster[2].answer = world.cluster[3].answer = withhold
    path = znodes.partition_state_path("t", 0)
    state = znodes.decode_partition_state("t", 0, world.ensemble.tree[path].data, ANY)
    joined = LeaderAndIsr(state.leader, state.leader_epoch, (*state.isr, 3), state.controller_epoch)
    world._do(world.zk.set(path, znodes.encode_partition_state(joined), -1))  # not announced yet
    epoch = world.controller.context.brokers[1].epoch
    outcome = outcome_of(world.controller.controlled_shutdown(1, epoch))
    world.until(lambda: znodes.REASSIGN_PARTITIONS not in world.ensemble.tree)
    assert outcome == []
    world.controller.stop()
    assert outcome == [NotController]


def test_a_deletion_requested_while_the_answer_to_the_removal_of_another_is_lost_is_done() -> None:
    world = a_world_with((1, 2))
    world.ensemble.put(znodes.delete_topic_path("u"))
    world.until(lambda: znodes.delete_topic_path("u") not in world.ensemble.tree)
    lose_answers(world)
    world.ensemble.put(znodes.topic_path("u"), topic_of(NEW, (2, 3)))
    world.ensemble.put(znodes.delete_topic_path("u"))
    wait(world, 5)
    assert znodes.topic_path("u") not in world.ensemble.tree
