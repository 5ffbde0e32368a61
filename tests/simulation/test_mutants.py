"""The simulation finds each known bug: by one of the first seeds, or by the script for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.mutants import FREQUENT, planted
from tests.simulation.run import Result, run
from tests.simulation.script import draw, parse

SEEDS = range(1, 150)

SCRIPTS_FOR_MUTANTS = sorted((Path(__file__).parent / "scripts" / "mutants").glob("*.txt"))
"""What brings a known bug to light, if the messages take their time as some seeds have it: one in four, or most."""

NO_FINDING = ("", "NoErrors", "Crashed")
"""Nothing was broken, or only the mutant itself."""


def first_found(name: str) -> Result:
    with planted(name):
        failed = (run(draw(seed)) for seed in SEEDS)
        return next(result for result in failed if result.kind not in NO_FINDING)


@pytest.mark.parametrize("name", FREQUENT)
@pytest.mark.timeout(120)
def test_a_known_bug_is_found(name: str) -> None:
    assert run(first_found(name).script).failure is None


@pytest.mark.parametrize("script", SCRIPTS_FOR_MUTANTS, ids=lambda path: path.stem)
@pytest.mark.timeout(240)
def test_a_rare_bug_is_found_by_the_script_for_it(script: Path) -> None:
    schedule = parse(script.read_text())
    with planted(script.stem):
        schedules = (replace(schedule, seed=seed) for seed in SEEDS)
        found = next(each for each in schedules if run(each).kind not in NO_FINDING)
    assert run(found).failure is None
