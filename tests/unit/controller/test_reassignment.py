"""Other replicas for a partition, step by step. (The invariants over random schedules: property/test_controller.py.)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.controller.core import effects as fx
from kbroker.controller.core import events, reassignment
from kbroker.controller.core.context import Broker, ReplicaAssignment, Topic
from kbroker.controller.core.effects import ReassignmentOutcome
from kbroker.controller.core.state_machine import ControllerStateMachine
from kclient.wire.interbroker import EPOCH_DURING_DELETE, NO_LEADER
from tests.kit.state_machine import handle, new_machine

T0 = ("t", 0)
ID = UUID(int=1)


class World:
    """A controller of topic t, one partition, and a ZooKeeper that accepts every write."""

    def __init__(
        self,
        *replicas: int,
        live: tuple[int, ...] = (1, 2, 3, 4, 5, 6),
        isr: tuple[int, ...] | None = None,
        leader: int | None = None,
        being_reassigned: ReplicaAssignment | None = None,
    ) -> None:
        self.machine = new_machine()
        self.state = LeaderAndIsr(
            replicas[0] if leader is None else leader, 5, isr or replicas, 1, 10
        )
        self.assignment = being_reassigned or ReplicaAssignment(replicas)
        self.sent: list[fx.Effect] = []
        self.order: list[str] = []
        self.live = live
        topic = Topic(
            "t",
            ID,
            {0: self.assignment.replicas},
            {0: being_reassigned} if being_reassigned else {},
        )
        brokers = {n: Broker(n, 100 + n, ()) for n in live}
        self.feed(events.BecameController(2, brokers, {"t": topic}, {T0: self.state}))

    def feed(self, event: events.Event) -> None:
        """Have the machine process *event*, and answer its writes until there is none."""
        pending = [event]
        while pending:
            for effect in handle(self.machine, pending.pop()):
                if isinstance(effect, fx.WriteStates):
                    (write,) = effect.writes
                    assert write.expected_version == self.state.zk_version
                    self.state = replace(write.state, zk_version=self.state.zk_version + 1)
                    self.order.append("state")
                    pending.append(events.StatesWritten({T0: self.state.zk_version}))
                elif isinstance(effect, fx.WriteAssignments):
                    self.assignment = effect.assignments[T0]
                    self.order.append("assignment")
                    pending.append(events.AssignmentsWritten())
                else:
                    self.sent.append(effect)

    def ask(self, *target: int) -> ReassignmentOutcome:
        return self._ask(target)

    def cancel(self) -> ReassignmentOutcome:
        return self._ask(None)

    def _ask(self, target: tuple[int, ...] | None) -> ReassignmentOutcome:
        self.sent, self.order = [], []
        self.feed(events.ReassignmentRequested({T0: target}))
        (answer,) = self.all_sent(fx.AnswerReassignment)
        self.why = answer.results[T0].why
        return ReassignmentOutcome(answer.results[T0].outcome)

    def isr_becomes(self, *isr: int) -> None:
        """The leader changes the ISR and announces it."""
        self.sent, self.order = [], []
        version = self.state.zk_version + 1
        self.state = replace(self.state, isr=isr, isr_epochs=(), zk_version=version)
        self.feed(events.IsrChanged({T0: self.state}))

    def brokers_become(self, *live: int) -> None:
        self.sent, self.order = [], []
        self.feed(events.BrokersChanged({n: Broker(n, 100 + n, ()) for n in live}))

    def all_sent(self, kind: type) -> list[Any]:
        return [effect for effect in self.sent if isinstance(effect, kind)]

    @property
    def updates(self) -> dict[int, fx.PartitionUpdate]:
        """The last LeaderAndIsr to each broker."""
        return {e.broker_id: e.partitions[0] for e in self.all_sent(fx.SendLeaderAndIsr)}

    @property
    def deleted(self) -> dict[int, int]:
        """Leader epoch of the StopReplica with delete, by broker."""
        return {
            e.broker_id: stop.leader_epoch
            for e in self.all_sent(fx.SendStopReplica)
            for stop in e.stops
            if stop.delete
        }


def test_the_assignment_of_a_reassignment_has_the_replicas_to_add_and_to_remove() -> None:
    moving = ReplicaAssignment((1, 2, 3)).reassign_to((4, 2, 5))
    assert moving == ReplicaAssignment((4, 2, 5, 1, 3), (4, 5), (1, 3))
    assert moving.target_replicas == (4, 2, 5)
    assert set(moving.origin_replicas) == {1, 2, 3}
    assert moving.reassign_to((6,)) == ReplicaAssignment((6, 2, 1, 3), (6,), (2, 1, 3))
    assert not moving.reassign_to(moving.origin_replicas).is_being_reassigned


def test_new_replicas_follow_when_the_znode_has_them() -> None:
    world = World(1, 2, 3)
    assert world.ask(4, 5, 6) is ReassignmentOutcome.ACCEPTED
    assert world.assignment == ReplicaAssignment((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert (world.state.leader, world.state.leader_epoch, world.state.isr) == (1, 6, (1, 2, 3))
    assert world.updates.keys() == {1, 2, 3, 4, 5, 6}
    update = world.updates[4]
    assert update.replicas == (4, 5, 6, 1, 2, 3)
    assert (update.adding_replicas, update.removing_replicas) == ((4, 5, 6), (1, 2, 3))
    assert world.deleted == {}
    assert world.order == ["state", "assignment"]


def test_it_is_completed_when_all_of_the_target_are_in_sync() -> None:
    world = World(1, 2, 3)
    world.ask(4, 5, 6)
    world.isr_becomes(1, 2, 3, 4, 6)
    assert world.assignment.is_being_reassigned
    world.isr_becomes(1, 2, 3, 4, 5, 6)
    assert world.order == ["state", "assignment"]
    assert world.assignment == ReplicaAssignment((4, 5, 6))
    assert (world.state.leader, world.state.isr, world.state.leader_epoch) == (4, (4, 5, 6), 7)
    assert world.updates.keys() == {4, 5, 6}
    assert world.deleted == {1: 7, 2: 7, 3: 7}
    assert world.machine.context.being_reassigned == set()


def test_the_leader_stays_if_it_is_in_the_target() -> None:
    world = World(1, 2, 3)
    world.ask(4, 1)
    world.isr_becomes(1, 2, 3, 4)
    assert (world.state.leader, world.state.isr) == (1, (1, 4))
    assert world.assignment == ReplicaAssignment((4, 1))
    assert world.deleted.keys() == {2, 3}


def test_fewer_replicas_need_one_step() -> None:
    world = World(1, 2, 3)
    assert world.ask(2, 3) is ReassignmentOutcome.ACCEPTED
    assert world.order == ["state", "assignment"]
    assert world.assignment == ReplicaAssignment((2, 3))
    assert (world.state.leader, world.state.isr, world.state.leader_epoch) == (2, (2, 3), 6)
    assert world.deleted == {1: 6}


def test_more_replicas_delete_nothing() -> None:
    world = World(1)
    world.ask(1, 2, 3)
    world.isr_becomes(1, 2, 3)
    assert world.assignment == ReplicaAssignment((1, 2, 3))
    assert world.deleted == {}


def test_another_order_of_the_same_replicas_moves_no_leader() -> None:
    world = World(1, 2, 3)
    world.ask(3, 2, 1)
    assert world.assignment == ReplicaAssignment((3, 2, 1))
    assert (world.state.leader, world.state.leader_epoch) == (1, 6)


def test_the_same_replicas_again_change_nothing() -> None:
    world = World(1, 2, 3)
    assert world.ask(1, 2, 3) is ReassignmentOutcome.ACCEPTED
    assert world.order == []
    world.ask(4, 5)
    assert world.ask(4, 5) is ReassignmentOutcome.ACCEPTED
    assert world.order == []


def test_calling_it_off_restores_the_replicas_and_deletes_the_new_ones() -> None:
    world = World(1, 2, 3)
    world.ask(4, 5)
    world.isr_becomes(1, 2, 3, 4)
    assert world.cancel() is ReassignmentOutcome.ACCEPTED
    assert world.assignment == ReplicaAssignment((1, 2, 3))
    assert world.state.isr == (1, 2, 3)
    assert world.deleted == {4: world.state.leader_epoch, 5: world.state.leader_epoch}
    assert world.updates.keys() == {1, 2, 3}


def test_leadership_comes_back_from_a_new_replica_when_it_is_called_off() -> None:
    world = World(1, 2)
    world.ask(4, 2)
    world.isr_becomes(1, 4)
    world.brokers_become(2, 3, 4, 5, 6)
    assert (world.state.leader, world.state.isr) == (4, (4,))
    world.brokers_become(1, 2, 3, 4, 5, 6)
    world.isr_becomes(4, 1)
    assert world.cancel() is ReassignmentOutcome.ACCEPTED
    assert (world.state.leader, world.state.isr) == (1, (1,))


def test_the_last_in_sync_replicas_are_not_taken_away() -> None:
    world = World(1, 2)
    world.ask(4, 5)
    world.isr_becomes(1, 4)
    world.brokers_become(4, 5, 6)
    assert world.state.isr == (4,)
    assert world.cancel() is ReassignmentOutcome.INVALID
    assert "only brokers 4 are in sync" in world.why
    assert world.order == []
    assert world.ask(5, 6) is ReassignmentOutcome.INVALID


def test_another_target_replaces_the_one_under_way() -> None:
    world = World(1, 2)
    world.ask(3, 4)
    world.isr_becomes(1, 2, 3)
    assert world.ask(3, 5) is ReassignmentOutcome.ACCEPTED
    assert world.assignment == ReplicaAssignment((3, 5, 1, 2), (3, 5), (1, 2))
    assert world.state.isr == (1, 2, 3)
    assert world.deleted.keys() == {4}
    world.isr_becomes(1, 2, 3, 5)
    assert world.assignment == ReplicaAssignment((3, 5))
    assert world.deleted.keys() == {1, 2}


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ((), "empty"),
        ((4, 4), "more than once"),
        ((4, -1), "no broker id"),
        ((4, 9), "not alive"),
    ],
)
def test_what_cannot_be_is_refused(target: tuple[int, ...], why: str) -> None:
    world = World(1, 2)
    assert world.ask(*target) is ReassignmentOutcome.INVALID
    assert why in world.why
    assert world.order == []


def test_what_is_not_there_cannot_be_moved_or_called_off() -> None:
    world = World(1, 2)
    assert world.cancel() is ReassignmentOutcome.NOTHING_TO_CANCEL
    sent = handle(
        world.machine, events.ReassignmentRequested({("u", 0): (1,), ("t", 9): None, T0: (2, 1)})
    )
    assert [type(e) for e in sent] == [fx.WriteStates]
    handle(world.machine, events.StatesWritten({T0: 11}))
    sent = handle(world.machine, events.AssignmentsWritten())
    (answer,) = [e for e in sent if isinstance(e, fx.AnswerReassignment)]
    assert {p: r.outcome for p, r in answer.results.items()} == {
        ("u", 0): ReassignmentOutcome.UNKNOWN,
        ("t", 9): ReassignmentOutcome.UNKNOWN,
        T0: ReassignmentOutcome.ACCEPTED,
    }


def test_a_race_with_the_leader_is_judged_again() -> None:
    """The target left the ISR while its completion was being written."""
    world = World(1, 2)
    world.ask(3)
    lost = replace(world.state, isr=(1, 2, 3), isr_epochs=(), zk_version=world.state.zk_version + 1)
    handle(world.machine, events.IsrChanged({T0: lost}))
    found = replace(lost, isr=(1, 2), zk_version=lost.zk_version + 1)
    effects = handle(world.machine, events.StatesWritten(conflicts={T0: found}))
    assert not [e for e in effects if isinstance(e, fx.WriteStates | fx.WriteAssignments)]
    assert world.machine.context.assignment(T0).is_being_reassigned


def test_a_request_that_a_race_made_dangerous_is_rejected() -> None:
    """Called off while the ISR shrank to the new replica alone."""
    world = World(1, 2)
    world.ask(3, 4)
    world.isr_becomes(1, 2, 3)
    asked = handle(world.machine, events.ReassignmentRequested({T0: None}))
    assert [type(e) for e in asked] == [fx.WriteStates]
    found = replace(
        world.state, leader=3, isr=(3,), isr_epochs=(), zk_version=world.state.zk_version + 1
    )
    effects = handle(world.machine, events.StatesWritten(conflicts={T0: found}))
    (answer,) = [e for e in effects if isinstance(e, fx.AnswerReassignment)]
    assert answer.results[T0].outcome is ReassignmentOutcome.INVALID
    assert not [e for e in effects if isinstance(e, fx.SendStopReplica)]


def test_the_next_controller_goes_on_where_the_last_one_died() -> None:
    moving = ReplicaAssignment((3, 4, 1, 2), (3, 4), (1, 2))
    begun = World(1, 2, being_reassigned=moving)
    begun.isr_becomes(1, 2, 3, 4)
    assert begun.assignment == ReplicaAssignment((3, 4))
    in_sync = World(1, 2, being_reassigned=moving, isr=(1, 2, 3, 4))
    assert in_sync.order == ["state", "assignment"]
    assert in_sync.deleted.keys() == {1, 2}
    state_written = World(3, 4, being_reassigned=moving)
    assert state_written.assignment == ReplicaAssignment((3, 4))


def test_a_target_that_is_down_is_waited_for() -> None:
    world = World(1, 2)
    world.ask(3, 4)
    world.isr_becomes(1, 2, 3, 4)
    world = World(1, 2)
    world.ask(3, 4)
    world.brokers_become(1, 2, 3)
    world.isr_becomes(1, 2, 3)
    assert world.assignment.is_being_reassigned
    world.brokers_become(1, 2, 3, 4)
    assert world.updates[4].replicas == (3, 4, 1, 2)
    world.isr_becomes(1, 2, 3, 4)
    assert world.assignment == ReplicaAssignment((3, 4))


def test_a_replica_to_go_that_is_down_holds_nothing_up() -> None:
    world = World(1, 2)
    world.brokers_become(2, 3, 4)
    world.ask(3, 4)
    world.isr_becomes(2, 3, 4)
    assert world.assignment == ReplicaAssignment((3, 4))
    assert world.deleted.keys() == {2}
    world.brokers_become(1, 2, 3, 4)
    full = [e for e in world.all_sent(fx.SendUpdateMetadata) if e.full]
    assert [e.broker_ids for e in full] == [(1,)]
    assert full[0].partitions[0].replicas == (3, 4)  # by which broker 1 sees what is left over


def test_a_partition_without_a_leader_gets_one_from_new_replicas_only_if_it_never_had_one() -> None:
    world = World(1, 2, live=(3, 4), leader=NO_LEADER)
    assert world.ask(3, 4) is ReassignmentOutcome.ACCEPTED
    assert world.state.leader == NO_LEADER
    assert world.assignment.is_being_reassigned
    assert world.state.isr == (1, 2)


def test_a_topic_is_deleted_from_old_and_new_replicas() -> None:
    world = World(1, 2)
    world.ask(3)
    world.sent = []
    world.feed(events.TopicDeletionRequested(frozenset({"t"})))
    assert world.deleted == dict.fromkeys((1, 2, 3), EPOCH_DURING_DELETE)
    assert world.ask(4) is ReassignmentOutcome.UNKNOWN
    gone = frozenset({T0})
    for broker in (1, 2):
        world.feed(events.StopReplicaAcked(broker, 100 + broker, gone))
    assert not world.all_sent(fx.DeleteTopicZnodes)
    world.feed(events.StopReplicaAcked(3, 103, gone))
    assert world.all_sent(fx.DeleteTopicZnodes) == [fx.DeleteTopicZnodes("t", ID)]


def test_leaders_are_not_balanced_while_replicas_move() -> None:
    world = World(1, 2)
    world.ask(3, 2)
    world.isr_becomes(1, 3)
    world.sent, world.order = [], []
    world.feed(events.PreferredLeaderElectionDue(0))
    assert world.order == []
    world.isr_becomes(1, 2, 3)
    assert (world.state.leader, world.assignment) == (3, ReplicaAssignment((3, 2)))


def test_a_partition_that_never_had_a_leader_gets_one_from_its_new_replicas() -> None:
    machine = new_machine()
    topic = Topic("t", ID, {0: (8, 9)})
    handle(machine, events.BecameController(2, {1: Broker(1, 101, ())}, {"t": topic}, {}))
    (order,) = handle(machine, events.ReassignmentRequested({T0: (1,)}))
    assert isinstance(order, fx.WriteAssignments)
    assert order.assignments[T0] == ReplicaAssignment((1, 8, 9), (1,), (8, 9))
    (write,) = handle(machine, events.AssignmentsWritten())
    assert isinstance(write, fx.WriteStates)
    assert (write.writes[0].state.leader, write.writes[0].expected_version) == (1, None)


def test_an_election_that_comes_between_is_not_taken_for_the_changes_own_write() -> None:
    """The write lost a race, and the partition's leader has to go for another reason first."""
    machine = new_machine()
    brokers = {n: Broker(n, 100 + n, ()) for n in (1, 2, 4)}
    before = LeaderAndIsr(1, 5, (1,), 1, 10)
    topic = Topic("t", ID, {0: (1, 2)})
    handle(machine, events.BecameController(2, brokers, {"t": topic}, {T0: before}))
    handle(machine, events.ControlledShutdownRequested(1, 101))
    (order,) = handle(machine, events.ReassignmentRequested({T0: (4, 1)}))
    assert isinstance(order, fx.WriteStates)
    found = replace(before, isr=(1, 2), zk_version=11)
    (order,) = handle(machine, events.StatesWritten(conflicts={T0: found}))
    assert order.writes[0].state.isr == (2,)  # broker 1 is on its way out
    effects = handle(machine, events.StatesWritten({T0: 12}))
    assert not [e for e in effects if isinstance(e, fx.WriteAssignments)]
    (order,) = [e for e in effects if isinstance(e, fx.WriteStates)]
    assert (order.writes[0].state.isr, order.writes[0].expected_version) == ((2,), 12)
    (done,) = handle(machine, events.StatesWritten({T0: 13}))
    assert isinstance(done, fx.WriteAssignments)


def test_thousands_are_moved_in_rounds_and_answered_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounds that are refused as a whole do not end the request, and nothing is forgotten."""
    monkeypatch.setattr(reassignment, "CHANGES_AT_ONCE", 2)
    machine = new_machine()
    brokers = {n: Broker(n, 100 + n, ()) for n in (1, 2, 3)}
    partitions = [("t", n) for n in range(9)]
    states = {p: LeaderAndIsr(1, 5, (1,), 1, 10) for p in partitions}
    handle(
        machine,
        events.BecameController(
            2, brokers, {"t": Topic("t", ID, dict.fromkeys(range(9), (1, 2)))}, states
        ),
    )
    asked = {p: (2, 3) if p[1] in (0, 5) else (3,) for p in partitions}
    effects = handle(machine, events.ReassignmentRequested(asked))
    rounds = []
    while not any(isinstance(e, fx.AnswerReassignment) for e in effects):
        (order,) = [e for e in effects if isinstance(e, fx.WriteStates | fx.WriteAssignments)]
        if isinstance(order, fx.WriteStates):
            versions = {w.partition: (w.expected_version or 0) + 1 for w in order.writes}
            effects = handle(machine, events.StatesWritten(versions))
        else:
            rounds.append(len(order.assignments))
            effects = handle(machine, events.AssignmentsWritten())
            sent = [e for e in effects if isinstance(e, fx.SendLeaderAndIsr)]
            assert sent, "a round is sent when it was written"
    assert rounds == [2, 2, 2, 2, 1]
    (answer,) = [e for e in effects if isinstance(e, fx.AnswerReassignment)]
    assert {r.outcome for r in answer.results.values()} == {ReassignmentOutcome.ACCEPTED}
    assert answer.results.keys() == set(partitions)
    assert machine.context.being_reassigned == set(partitions)


def moving_to_broker_3(
    count: int,
) -> tuple[ControllerStateMachine, dict[tuple[str, int], LeaderAndIsr]]:
    """A controller of partitions on their way from brokers 1 and 2 to 2 and 3, and their states."""
    states = {("t", n): LeaderAndIsr(2, 5, (1, 2), 1, 10) for n in range(count)}
    moving = ReplicaAssignment((1, 2)).reassign_to((2, 3))
    topic = Topic(
        "t", ID, dict.fromkeys(range(count), moving.replicas), dict.fromkeys(range(count), moving)
    )
    machine = new_machine()
    brokers = {n: Broker(n, 100 + n, ()) for n in (1, 2, 3)}
    handle(machine, events.BecameController(2, brokers, {"t": topic}, states))
    return machine, states


def rounds_of(machine: ControllerStateMachine, event: events.Event) -> list[int]:
    """Do what *event* has the machine write; of how many partitions it wrote the replicas, by round."""
    rounds = []
    effects = handle(machine, event)
    while True:
        for effect in effects:
            if isinstance(effect, fx.WriteStates):
                versions = {w.partition: (w.expected_version or 0) + 1 for w in effect.writes}
                effects = handle(machine, events.StatesWritten(versions))
                break
            if isinstance(effect, fx.WriteAssignments):
                rounds.append(len(effect.assignments))
                effects = handle(machine, events.AssignmentsWritten())
                break
        else:
            return rounds


def joined(
    states: dict[tuple[str, int], LeaderAndIsr], partition: tuple[str, int]
) -> events.IsrChanged:
    return events.IsrChanged({partition: replace(states[partition], isr=(1, 2, 3), zk_version=11)})


@pytest.mark.long
def test_what_ends_one_by_one_is_written_by_the_dozen() -> None:
    """The topic's znode names all its partitions: a write for each would be quadratic."""
    machine, states = moving_to_broker_3(400)
    rounds = [n for p in states for n in rounds_of(machine, joined(states, p))]
    assert sum(rounds) == 400
    assert len(rounds) < 30
    assert not machine.context.being_reassigned
    assert not machine.held_back


def test_few_that_ended_wait_until_they_are_due() -> None:
    machine, states = moving_to_broker_3(9)
    assert rounds_of(machine, joined(states, ("t", 4))) == []
    assert rounds_of(machine, joined(states, ("t", 7))) == []
    assert machine.held_back == 2
    assert rounds_of(machine, events.ReassignmentsDue()) == [2]
    assert machine.held_back == 0
    assert rounds_of(machine, joined(states, ("t", 0))) == []  # seven move: it waits again
    assert machine.held_back == 1


def test_what_ended_goes_along_with_what_is_written_anyway() -> None:
    machine, states = moving_to_broker_3(9)
    rounds_of(machine, joined(states, ("t", 4)))
    asked = events.ReassignmentRequested({("t", 0): None})
    assert rounds_of(machine, asked) == [2]
