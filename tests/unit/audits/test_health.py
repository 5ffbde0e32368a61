"""Log lines that no broker should write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audits.health import audit_log_lines


@pytest.mark.parametrize(
    "line", ["Traceback (most recent call last):", "Unhandled error in Deferred:", "x FATAL y"]
)
def test_a_bad_line_is_found_with_what_is_around_it(tmp_path: Path, line: str) -> None:
    path = tmp_path / "broker.log"
    path.write_text(f"before\n{line}\nafter\n")
    (problem,) = audit_log_lines(path)
    assert "before" in problem.text
    assert "after" in problem.text


def test_ordinary_lines_and_what_a_test_provokes_are_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    path.write_text("an error was handled\nTraceback (most recent call last):\n  disk full\n")
    assert audit_log_lines(path, [r"disk full"]) == []
    assert audit_log_lines(tmp_path / "none.log") == []
