"""What the tests of a foreign suite lead to: the rows of SUITES.md, pytest's outcomes, and where they differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

TABLE: Final = Path(__file__).parents[1] / "SUITES.md"
NOT_RUN, FAILS, RACES = "not run", "fails", "races"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Row:
    """A row of the table: a test, or a file of tests, that does not pass each time."""

    test: str
    how: str
    """`NOT_RUN`; `FAILS` each time; `RACES`: its outcome depends on timing."""
    reason: str


@dataclass(frozen=True)
class Outcome:
    """How a test ended."""

    kind: str
    message: str = ""


def rows(text: str, suite: str) -> dict[str, Row]:
    """Return the rows of a suite, by test. Raise ValueError for a line of its table that is none."""
    section = text.partition(f"\n## {suite}\n")[2].partition("\n## ")[0]
    found: dict[str, Row] = {}
    for line in section.splitlines():
        if not line.startswith("| ") or line.startswith("| test "):
            continue
        match = re.fullmatch(r"\| `([^`]+)` \| (not run|fails|races) \| (.+) \|", line)
        if match is None:
            raise ValueError(f"not a row: {line}")
        found[match[1]] = Row(match[1], match[2], match[3])
    return found


def outcomes(report: Path) -> dict[str, Outcome]:
    """Return the outcomes in a JUnit report of pytest, by test; an error of a fixture is a failure, too."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        *modules, last = case.attrib["classname"].split(".")
        path = [*modules, last] if last.islower() else modules
        classes = [] if last.islower() else [last]
        test = "::".join(["/".join(path) + ".py", *classes, case.attrib["name"]])
        outcome = Outcome(PASSED)
        for child in case:
            message = child.attrib.get("message", "").partition("\n")[0]
            if child.tag in ("failure", "error"):
                outcome = Outcome(FAILED, message)
            elif child.tag == "skipped" and outcome.kind == PASSED:
                outcome = Outcome(SKIPPED, message)
        if test not in found or found[test].kind == PASSED:
            found[test] = outcome
    return found


def differences(found: Mapping[str, Outcome], known: Mapping[str, Row]) -> Iterable[str]:
    """Return a line for each outcome that the table does not have."""
    for test, outcome in sorted(found.items()):
        how = known[test].how if test in known else ""
        if outcome.kind == FAILED and how not in (FAILS, RACES):
            yield f"FAILED {test}: {outcome.message}"
        elif outcome.kind == PASSED and how == FAILS:
            yield f"PASSED {test}, for which SUITES.md has a failure: {known[test].reason}"
