"""Elections that an operator requests: the replicas that may be elected, and the answer for each partition."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.controller.core import effects as fx
from kbroker.controller.core import events
from kbroker.controller.core.context import Broker, Topic
from kbroker.controller.core.effects import ElectionOutcome, ElectionResult
from kbroker.controller.core.events import ElectionType
from kbroker.controller.core.state_machine import ControllerStateMachine
from kclient.wire.interbroker import NO_LEADER
from tests.kit.state_machine import handle, new_machine

T0, T1 = ("t", 0), ("t", 1)


def controller(*states: LeaderAndIsr, live: tuple[int, ...] = (1, 2, 3)) -> ControllerStateMachine:
    """Topic t on brokers 1, 2 and 3, the first preferred, with a partition per state."""
    made = new_machine()
    topic = Topic("t", UUID(int=1), dict.fromkeys(range(len(states)), (1, 2, 3)))
    handle(
        made,
        events.BecameController(
            2,
            {n: Broker(n, 100 + n, ()) for n in live},
            {"t": topic},
            {("t", n): state for n, state in enumerate(states)},
        ),
    )
    return made


def state(leader: int, *isr: int, version: int = 10) -> LeaderAndIsr:
    return LeaderAndIsr(leader, 5, isr, 1, version)


def writes(effects: list[fx.Effect]) -> dict[tuple[str, int], tuple[int, tuple[int, ...]]]:
    return {
        write.partition: (write.state.leader, write.state.isr)
        for effect in effects
        if isinstance(effect, fx.WriteStates)
        for write in effect.writes
    }


def answer(effects: list[fx.Effect]) -> dict[tuple[str, int], ElectionResult]:
    (found,) = [e for e in effects if isinstance(e, fx.AnswerElection)]
    return dict(found.results)


def ask(
    machine: ControllerStateMachine, election: ElectionType, *partitions: tuple[str, int]
) -> list[fx.Effect]:
    return handle(machine, events.ElectionRequested(election, frozenset(partitions)))


def test_the_preferred_replica_is_elected_and_answered_when_that_is_written() -> None:
    machine = controller(state(2, 1, 2))
    asked = ask(machine, ElectionType.PREFERRED, T0)
    assert writes(asked) == {T0: (1, (1, 2))}
    assert not [e for e in asked if isinstance(e, fx.AnswerElection)]
    done = handle(machine, events.StatesWritten({T0: 11}))
    assert answer(done) == {T0: ElectionResult(ElectionOutcome.ELECTED, 1)}


def test_each_partition_is_answered_for_itself() -> None:
    machine = controller(state(1, 1, 2), state(2, 2, 3))
    results = answer(ask(machine, ElectionType.PREFERRED, T0, T1, ("t", 9), ("u", 0)))
    assert {p: r.outcome for p, r in results.items()} == {
        T0: ElectionOutcome.NOT_NEEDED,
        T1: ElectionOutcome.NOT_AVAILABLE,
        ("t", 9): ElectionOutcome.UNKNOWN,
        ("u", 0): ElectionOutcome.UNKNOWN,
    }


def test_without_a_list_all_partitions_are_meant() -> None:
    machine = controller(state(2, 1, 2), state(3, 1, 3))
    asked = handle(machine, events.ElectionRequested(ElectionType.PREFERRED))
    assert writes(asked) == {T0: (1, (1, 2)), T1: (1, (1, 3))}


def test_a_preferred_replica_that_is_down_or_leaving_is_not_available() -> None:
    machine = controller(state(2, 2, 3), live=(2, 3))
    results = answer(ask(machine, ElectionType.PREFERRED, T0))
    assert results == {T0: ElectionResult(ElectionOutcome.NOT_AVAILABLE)}
    machine = controller(state(2, 1, 2, 3))
    machine.context.shutting_down.add(1)
    results = answer(ask(machine, ElectionType.PREFERRED, T0))
    assert results == {T0: ElectionResult(ElectionOutcome.NOT_AVAILABLE)}


def test_a_race_with_the_leaders_isr_change_is_run_again() -> None:
    machine = controller(state(2, 1, 2))
    ask(machine, ElectionType.PREFERRED, T0)
    again = handle(machine, events.StatesWritten(conflicts={T0: state(2, 1, 2, 3, version=11)}))
    assert writes(again) == {T0: (1, (1, 2, 3))}
    done = handle(machine, events.StatesWritten({T0: 12}))
    assert answer(done)[T0].outcome is ElectionOutcome.ELECTED


def test_a_preferred_replica_that_left_the_isr_meanwhile_is_not_elected() -> None:
    machine = controller(state(2, 1, 2))
    ask(machine, ElectionType.PREFERRED, T0)
    done = handle(machine, events.StatesWritten(conflicts={T0: state(2, 2, version=11)}))
    assert writes(done) == {}
    assert answer(done)[T0].outcome is ElectionOutcome.NOT_AVAILABLE


def test_races_do_not_go_on_for_ever() -> None:
    machine = controller(state(2, 1, 2))
    effects = ask(machine, ElectionType.PREFERRED, T0)
    for version in range(11, 30):
        if not writes(effects):
            break
        found = state(2, 1, 2, version=version)
        effects = handle(machine, events.StatesWritten(conflicts={T0: found}))
    assert answer(effects)[T0].outcome is ElectionOutcome.NOT_AVAILABLE


def test_an_unclean_election_reports_the_isr_that_it_passed_over() -> None:
    machine = controller(state(NO_LEADER, 1), live=(2, 3))
    asked = ask(machine, ElectionType.UNCLEAN, T0)
    assert writes(asked) == {T0: (2, (2,))}
    results = answer(handle(machine, events.StatesWritten({T0: 11})))
    assert results == {T0: ElectionResult(ElectionOutcome.ELECTED, 2, lost_isr=(1,))}


def test_an_unclean_election_prefers_the_isr() -> None:
    machine = controller(state(NO_LEADER, 1), live=(2, 3))
    handle(machine, events.UncleanElectionEnabled("other"))
    machine.context.brokers[1] = Broker(1, 200, ())  # back, but not looked at yet
    assert writes(ask(machine, ElectionType.UNCLEAN, T0)) == {T0: (1, (1,))}
    results = answer(handle(machine, events.StatesWritten({T0: 11})))
    assert results == {T0: ElectionResult(ElectionOutcome.ELECTED, 1)}


def test_an_unclean_election_takes_nothing_from_a_living_leader() -> None:
    machine = controller(state(3, 3))
    results = answer(ask(machine, ElectionType.UNCLEAN, T0))
    assert results == {T0: ElectionResult(ElectionOutcome.NOT_NEEDED)}


def test_no_replica_can_be_elected_where_none_is_alive() -> None:
    machine = controller(state(NO_LEADER, 1), live=(4,))
    results = answer(ask(machine, ElectionType.UNCLEAN, T0))
    assert results == {T0: ElectionResult(ElectionOutcome.NOT_AVAILABLE)}


def test_a_topic_that_is_being_deleted_gets_no_leader() -> None:
    machine = controller(state(2, 1, 2))
    handle(machine, events.TopicDeletionRequested(frozenset({"t"})))
    results = answer(ask(machine, ElectionType.PREFERRED, T0))
    assert results == {T0: ElectionResult(ElectionOutcome.BEING_DELETED)}


def test_the_answer_and_the_requests_to_brokers_come_with_the_outcome_of_the_write() -> None:
    machine = controller(state(2, 1, 2))
    assert not any(
        isinstance(effect, fx.AnswerElection | fx.SendLeaderAndIsr)
        for effect in ask(machine, ElectionType.PREFERRED, T0)
    )
    effects = handle(machine, events.StatesWritten({T0: 11}))
    assert answer(effects) == {T0: ElectionResult(ElectionOutcome.ELECTED, 1)}
    assert replace(state(1, 1, 2), leader_epoch=6, controller_epoch=2, zk_version=11) in [
        update.state
        for effect in effects
        if isinstance(effect, fx.SendLeaderAndIsr)
        for update in effect.partitions
    ]
