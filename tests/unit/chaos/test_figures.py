"""Figures of a run, on a history written by hand: times in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.audits.zookeeper_rules import State, StateChange
from tests.chaos.figures import figures
from tests.chaos.recorder import Recorder

SECOND = 1_000_000_000
KEY = "t-0"


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "history.jsonl")
    recorder.wall_minus_monotonic_ns = 0
    yield recorder
    recorder.close()


def state(at: int, leader: int, epoch: int, isr: set[int], *, elected: bool = True) -> StateChange:
    return StateChange(at * 1000, at, KEY, State(leader, epoch, frozenset(isr), 1), elected)


def acknowledge(recorder: Recorder, at: float) -> None:
    recorder.event(1, "ok", "send", [["send", KEY, [0, 1]]], t=int(at * SECOND))


def do(recorder: Recorder, at: float, **what: object) -> None:
    recorder.event("nemesis", "info", "nemesis", what, t=int(at * SECOND))


STATES = [
    state(0, 1, 0, {1, 2, 3}),
    state(14, 2, 1, {2, 3}),
    state(22, 2, 1, {1, 2, 3}, elected=False),
]


def test_a_failover_is_timed_from_the_kill_to_the_next_leaders_acknowledgement(
    recorder: Recorder,
) -> None:
    acknowledge(recorder, 1)
    do(recorder, 10, kill=1)
    acknowledge(recorder, 10.1)  # the old leader's answer, received late
    acknowledge(recorder, 15)
    do(recorder, 20, ready=1)
    acknowledge(recorder, 15.5)
    found = figures(recorder, STATES, [KEY], 3)
    assert found.first_acks == [5.0]
    assert found.first_acks_of_few == []
    assert found.full_isrs == [2.0]
    assert found.windows == {KEY: pytest.approx([9.1, 4.9])}
    assert found.acknowledged == 4


def test_two_kills_at_once_are_a_figure_of_their_own(recorder: Recorder) -> None:
    acknowledge(recorder, 1)
    do(recorder, 10, kill=1)
    do(recorder, 10.1, kill=3)
    acknowledge(recorder, 17)
    found = figures(recorder, STATES, [KEY], 3)
    assert found.first_acks == []
    assert found.first_acks_of_few == [7.0]


def test_a_return_that_was_disturbed_is_not_timed(recorder: Recorder) -> None:
    acknowledge(recorder, 1)
    do(recorder, 20, ready=1)
    do(recorder, 21, kill=3)
    assert figures(recorder, STATES, [KEY], 3).full_isrs == []


def test_a_leader_that_is_cut_from_zookeeper_leaves_its_partition_without_one_until_the_election(
    recorder: Recorder,
) -> None:
    acknowledge(recorder, 1)
    do(recorder, 9, cut=["broker-1", "zk"])
    do(recorder, 18, heal="network")
    assert figures(recorder, STATES, [KEY], 3).leaderless == [5.0]


def test_a_cut_that_heals_before_the_election_gives_no_figure(recorder: Recorder) -> None:
    acknowledge(recorder, 1)
    do(recorder, 9, cut=["broker-1", "zk"])
    do(recorder, 13, heal="network")
    assert figures(recorder, STATES, [KEY], 3).leaderless == []


def test_a_second_fault_at_the_same_time_gives_no_figure(recorder: Recorder) -> None:
    acknowledge(recorder, 1)
    do(recorder, 8, pause_zookeeper=[1])
    do(recorder, 9, kill=1)
    assert figures(recorder, STATES, [KEY], 3).leaderless == []


@pytest.mark.parametrize(("died", "figures_found"), [(3, [5.0]), (5, []), (8, [])])
def test_one_zookeeper_server_may_be_dead_for_longer_than_a_session(
    recorder: Recorder, died: float, figures_found: list[float]
) -> None:
    acknowledge(recorder, 1)
    do(recorder, died, kill_zookeeper=[2])
    do(recorder, 9, kill=1)
    assert figures(recorder, STATES, [KEY], 3).leaderless == figures_found


@pytest.mark.parametrize("servers", [([2, 3],), ([2], [3])])
def test_without_a_majority_of_zookeeper_there_is_no_figure(
    recorder: Recorder, servers: tuple[list[int], ...]
) -> None:
    acknowledge(recorder, 1)
    for each in servers:
        do(recorder, 1, kill_zookeeper=each)
    do(recorder, 9, kill=1)
    assert figures(recorder, STATES, [KEY], 3).leaderless == []


@pytest.mark.parametrize(("killed", "is_in_time"), [(9, True), (8.9, False)])
def test_an_election_later_than_a_session_and_a_second_is_late(
    recorder: Recorder, killed: float, is_in_time: bool
) -> None:
    acknowledge(recorder, 1)
    do(recorder, killed, kill=1)
    found = figures(recorder, STATES, [KEY], 3)
    assert found.elects_in_time is is_in_time
    assert ("ABOVE 5 s" in found.to_text()) is not is_in_time
