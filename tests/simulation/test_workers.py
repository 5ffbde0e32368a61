"""Two workers share the partitions of a flow: nothing is copied twice, and each partition has one worker in the end."""

from __future__ import annotations

import pytest

from tests.simulation.mirror import MirrorSimulation
from tests.simulation.mirror_script import MIRRORS, draw_workers
from tests.simulation.run import run, simulation_of
from tests.simulation.script import Event, Script, parse

SEEDS = range(1, 8)
CREATE = Event(1.0, "create", ("a", "4"))
STARTS = tuple(Event(1.5, "start", (str(number),)) for number in MIRRORS)


def produce(time: float) -> list[Event]:
    return [Event(time, "produce", ("a", str(n), "idempotent", "4")) for n in range(4)]


def play(*events: Event, seed: int = 1) -> tuple[MirrorSimulation, str]:
    """Play a schedule with two workers, and return its trace; nothing may break."""
    ordered = sorted((CREATE, *STARTS, *events), key=lambda event: event.time)
    played = simulation_of(Script(seed, tuple(ordered), mirror=2), keep_trace=True)
    assert isinstance(played, MirrorSimulation)
    result = played.run()
    assert result.failure is None
    return played, "\n".join(result.trace)


@pytest.mark.timeout(240)
def test_the_target_is_a_prefix_at_every_step_and_each_partition_has_one_worker_at_the_end() -> (
    None
):
    acknowledged = 0
    for seed in SEEDS:
        result = run(draw_workers(seed))
        assert result.failure is None, f"seed {seed}: {result.failure}"
        acknowledged += result.acknowledged
    assert acknowledged > 10 * len(SEEDS)  # else nothing was copied


def test_both_workers_copy_a_part() -> None:
    played, trace = play(*produce(9.0), Event(14.0, "copied"))
    assert played.shares == set(MIRRORS)
    assert "another worker copies it" not in trace


def test_a_worker_that_is_cut_off_is_replaced_and_yields() -> None:
    """Its session expires after 4 s, and then both copy what they can: the worker that is late for a batch yields."""
    cut, heal = (Event(at, verb, ("8",)) for at, verb in ((9.0, "zkcut"), (40.0, "zkheal")))
    yielded = 0
    for seed in SEEDS:
        played, trace = play(
            cut, *produce(15.0), Event(19.0, "copied"), *produce(25.0), heal, seed=seed
        )
        assert played.shares == set(MIRRORS)
        yielded += "mirror 8: a-" in trace and "another worker copies it" in trace
    assert yielded


def test_a_worker_that_cannot_reach_the_source_leaves_its_partitions_to_the_other() -> None:
    """Its session with ZooKeeper is alive: without leaving it would keep partitions that it cannot copy."""
    brokers = ("1", "2", "3")
    blocked = [Event(9.0, "block", ("8", broker)) for broker in brokers]
    unblocked = [Event(60.0, "unblock", ("8", broker)) for broker in brokers]
    played, trace = play(*blocked, *produce(50.0), Event(58.0, "copied"), *unblocked)
    assert played.shares == set(MIRRORS)
    assert "this worker leaves" in trace


def test_a_script_of_workers_is_read_as_it_was_written() -> None:
    for seed in range(20):
        assert parse(str(draw_workers(seed))) == draw_workers(seed)
