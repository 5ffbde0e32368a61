"""SCENARIOS.md is right about the simulation, and every known bug has a test."""

from __future__ import annotations

import re
from pathlib import Path

from tests.simulation.mutants import FREQUENT, MUTANTS
from tests.simulation.mutants.mirror import MIRROR_MUTANTS

TESTS = Path(__file__).parents[1]
SCRIPTED = {path.stem for path in (TESTS / "simulation" / "scripts" / "mutants").glob("*.txt")}
FOUND = {*FREQUENT, *MIRROR_MUTANTS, *SCRIPTED}
"""Bugs that seeds or a script find."""
OWN_TESTS = ("groups",)
"""Modules of bugs that have a test of their own."""


def test_the_page_of_scenarios_names_bugs_that_the_simulation_finds() -> None:
    page = (TESTS / "SCENARIOS.md").read_text()
    named = [
        name
        for names in re.findall(r"simulation \(([^)]*)\)", page)
        for name in re.findall(r"`(\w+)`", names)
    ]
    assert len(named) > 20
    assert set(named) <= MUTANTS.keys() & FOUND


def test_every_known_bug_has_seeds_or_a_script_that_find_it() -> None:
    assert MUTANTS.keys() >= SCRIPTED
    modules = {name: plant.__module__.rpartition(".")[2] for name, plant in MUTANTS.items()}
    assert [name for name in MUTANTS if name not in FOUND and modules[name] not in OWN_TESTS] == []
