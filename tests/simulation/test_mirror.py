"""The mirror always copies a prefix; the simulation finds known bugs that break this."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.batch import outcomes
from tests.simulation.mirror_script import draw_mirror
from tests.simulation.mutants import planted
from tests.simulation.mutants.mirror import MIRROR_MUTANTS
from tests.simulation.run import run
from tests.simulation.script import parse

SEEDS = range(1, 26)
SEEDS_FOR_MUTANTS = range(1, 100)
FOUND_BY = {"lost_append_sent_again_unconditionally": 145}
"""As in test_mutants.py: the seed that is tried first."""
NO_FINDING = ("", "NoErrors", "Crashed")


@pytest.mark.timeout(240)
def test_the_target_is_a_prefix_of_the_source_at_every_step_and_equal_at_the_end() -> None:
    acknowledged = 0
    for result in outcomes(SEEDS, drawn=draw_mirror):
        assert result.failure is None, f"seed {result.script.seed}: {result.failure}"
        acknowledged += result.acknowledged
    assert acknowledged > 10 * len(SEEDS)  # else nothing was copied


@pytest.mark.parametrize("name", MIRROR_MUTANTS)
@pytest.mark.timeout(240)
def test_a_known_bug_of_the_mirror_is_found(name: str) -> None:
    with planted(name):
        failed = (run(draw_mirror(seed)) for seed in [FOUND_BY.get(name, 1), *SEEDS_FOR_MUTANTS])
        found = next(result for result in failed if result.kind not in NO_FINDING)
    assert run(found.script).failure is None


@pytest.mark.timeout(300)
def test_one_seed_of_the_mirror_is_one_trace() -> None:
    one, other = (run(draw_mirror(3), keep_trace=True) for _ in range(2))
    assert one.trace == other.trace
    assert one.digest == other.digest != 0


@pytest.mark.timeout(300)
def test_the_order_of_hashes_changes_nothing_in_the_mirror() -> None:
    program = (
        "from tests.simulation.batch import outcomes\n"
        "from tests.simulation.mirror_script import draw_mirror\n"
        "print([(r.steps, r.digest) for r in outcomes(range(3, 8), drawn=draw_mirror)])\n"
    )
    root = Path(__file__).parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)},
            cwd=root,
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(outputs) == 1


def test_a_script_of_the_mirror_is_read_as_it_was_written() -> None:
    for seed in range(50):
        assert parse(str(draw_mirror(seed))) == draw_mirror(seed)


@pytest.mark.timeout(300)
def test_nothing_is_appended_behind_a_record_of_another_client() -> None:
    scripts = Path(__file__).parent / "scripts" / "mutants"
    script = parse((scripts / "previous_crc_unchecked.txt").read_text())
    for seed in range(1, 4):
        assert run(replace(script, seed=seed)).failure is None
