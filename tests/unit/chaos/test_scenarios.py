"""tests/SCENARIOS.md is true: every scenario is in it, every test and script that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.chaos.__main__ import MIRROR
from tests.chaos.scenarios import SCENARIOS

TESTS = Path(__file__).parents[2]
ROWS = {
    match[1]: match[2]
    for match in re.finditer(r"^\| (S\d+) \| (.+) \|$", (TESTS / "SCENARIOS.md").read_text(), re.M)
}


def named_tests(row: str) -> list[tuple[str, str]]:
    """Return (file, test) of what a row names; ``::test`` alone is of the file before."""
    found, file = [], ""
    for name in re.findall(r"`([^`]*::[^`]+)`", row):
        path, _, test = name.partition("::")
        file = path or file
        found.append((file, test))
    return found


@cache
def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, defined)}
    assigned = (node for node in ast.walk(tree) if isinstance(node, ast.Assign))
    return names | {t.id for node in assigned for t in node.targets if isinstance(t, ast.Name)}


def test_every_scenario_has_its_row() -> None:
    assert list(ROWS) == [f"S{n}" for n in range(1, 48)]


@pytest.mark.parametrize("name", ROWS)
def test_what_a_row_names_exists(name: str) -> None:
    row = ROWS[name]
    tests = named_tests(row)
    for file, test in tests:
        assert (TESTS / file).exists(), file
        assert test in names_in(TESTS / file), f"{file} has no {test}"
    scripts = re.findall(r"\bchaos (S\d+)", row)
    for script in scripts:
        assert script == name
        assert script in (*SCENARIOS, MIRROR)
    assert tests or scripts or "open" in row


def test_every_script_is_named() -> None:
    scripts = {name for name in (*SCENARIOS, MIRROR) if name.startswith("S")}
    assert {name for name in scripts if f"chaos {name}" in ROWS[name]} == scripts
