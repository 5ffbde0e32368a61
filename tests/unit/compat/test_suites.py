"""SUITES.md and the outcomes of a foreign suite: what differs from the table is listed."""

from pathlib import Path

import pytest

from tests.compat.suites.expected import (
    FAILED,
    FAILS,
    NOT_RUN,
    PASSED,
    RACES,
    SKIPPED,
    TABLE,
    Outcome,
    Row,
    differences,
    outcomes,
    rows,
)
from tests.compat.suites.running import SUITES

REPORT = """<testsuites><testsuite>
<testcase classname="test.a.b" name="c[1]"/>
<testcase classname="tests.b.TestC" name="d"><failure message="no&#10;more"/></testcase>
<testcase classname="tests.b.TestC" name="e"><skipped message="old"/></testcase>
<testcase classname="tests.b.TestC" name="f"/>
<testcase classname="tests.b.TestC" name="f"><error message="teardown"/></testcase>
</testsuite></testsuites>"""


def test_the_outcomes_of_a_report_have_the_names_of_pytest(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    assert outcomes(path) == {
        "test/a/b.py::c[1]": Outcome(PASSED),
        "tests/b.py::TestC::d": Outcome(FAILED, "no"),
        "tests/b.py::TestC::e": Outcome(SKIPPED, "old"),
        "tests/b.py::TestC::f": Outcome(FAILED, "teardown"),
    }


def test_failures_without_a_row_and_passes_with_one_differ() -> None:
    known = {name: Row(name, how, "because") for name, how in (("a", FAILS), ("b", RACES))}
    found = {name: Outcome(FAILED, "no") for name in "abc"}
    assert list(differences(found, known)) == ["FAILED c: no"]
    found = {name: Outcome(PASSED) for name in "abc"}
    assert list(differences(found, known)) == [
        "PASSED a, for which SUITES.md has a failure: because"
    ]


@pytest.mark.parametrize("suite", SUITES)
def test_each_row_of_the_table_has_a_reason(suite: str) -> None:
    found = rows(TABLE.read_text(), suite)
    assert any(row.how == NOT_RUN for row in found.values())
    assert all(row.reason.endswith(".") for row in found.values())


def test_a_line_that_is_no_row_is_refused() -> None:
    with pytest.raises(ValueError, match="not a row"):
        rows("\n## s\n\n| test | how | reason |\n|---|---|---|\n| `t` | dies | so. |\n", "s")
