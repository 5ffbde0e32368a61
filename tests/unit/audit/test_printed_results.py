"""A result that cannot be printed: what the files have stays, and so does its exit code."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_jobs.__main__
from spark_jobs import cli, packed_environment
from spark_jobs.commands.guard import guarded
from spark_jobs.commands.options import progress_on_stderr, show, show_kept
from spark_jobs.report.files import FILES
from spark_jobs.verdict import ExitCode
from tests.kit.audit_reports import audited

RECONCILE = ("reconcile", "--source", "a:1", "--target", "b:1", "--topics", "t")


@contextmanager
def full_disk() -> Iterator[IO[str]]:
    """Yield a stream that takes no byte."""
    with open("/dev/full", "wb", buffering=0) as raw:
        yield io.TextIOWrapper(raw, write_through=True)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_finished_report_stays_if_it_cannot_be_printed(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = _reconciled(monkeypatch, tmp_path, "--format", form)
    with full_disk() as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert spark_jobs.__main__._run() == code
        monkeypatch.undo()
    _assert_finished(tmp_path, code)
    stderr = capsys.readouterr().err.splitlines()
    assert len(stderr) == 1
    assert "No space left on device" in stderr[0]
    assert str(tmp_path) in stderr[0]


def test_ctrl_c_while_a_report_is_printed_leaves_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader such as `less` may take nothing for long."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    code = _reconciled(monkeypatch, tmp_path)
    monkeypatch.setattr(cli, "show_kept", interrupted)
    assert spark_jobs.__main__._run() == ExitCode.INTERRUPTED
    _assert_finished(tmp_path, code)


def test_a_stdout_without_a_character_prints_its_escape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sΔd"
    code = _reconciled(monkeypatch, out)
    printed = io.BytesIO()
    stream = io.TextIOWrapper(printed, "latin-1", write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    assert spark_jobs.__main__._run() == code
    monkeypatch.undo()
    _assert_finished(out, code)
    assert b"/s\\u0394d/report.html" in printed.getvalue()


def _reconciled(monkeypatch: pytest.MonkeyPatch, out: Path, *more: str) -> ExitCode:
    """Have `kaudit reconcile` end with an audit in memory; return its exit code."""
    run = audited(1, "corrupt")

    def reconciled(self: cli._Run) -> int:
        self._report(run)
        return int(run.outcome.exit_code)

    monkeypatch.setattr(cli._Run, "_reconcile", reconciled)
    monkeypatch.setattr(sys, "argv", ["kaudit", *RECONCILE, "--out", str(out), *more])
    return run.outcome.exit_code


def _assert_finished(out: Path, code: ExitCode) -> None:
    assert set(FILES) <= {each.name for each in out.iterdir()}
    document = json.loads((out / "report.json").read_text())
    assert (document["verdict"], document["exit_code"]) == ("DIVERGED", code)


@pytest.mark.parametrize(("kept", "code"), [(None, 70), (Path("out"), 1)])
def test_without_files_a_lost_result_is_no_verdict(
    kept: Path | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work() -> int:
        show_kept("a result", kept)
        return 1

    with full_disk() as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert guarded(work) == code
        monkeypatch.undo()
    stderr = capsys.readouterr().err.splitlines()
    assert (len(stderr), "No space left on device" in stderr[0]) == (1, True)


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("reconcile", "--help")])
def test_help_that_a_full_disk_does_not_take_ends_with_one_line_of_cause(
    words: tuple[str, ...],
) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        program = [sys.executable, "-m", "spark_jobs", *words]
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == ExitCode.INTERNAL
    assert done.stderr == "kaudit: [Errno 28] No space left on device; this is not a verdict\n"


def test_progress_that_cannot_be_printed_ends_no_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    with full_disk() as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        progress_on_stderr(quiet=False)("reading")
        monkeypatch.undo()


def test_an_archive_that_was_written_is_there_although_its_size_is_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_environment, "required", lambda *_: set())
    monkeypatch.setattr(sys, "argv", ["kaudit", "pack", str(tmp_path / "e.tar.gz")])
    with full_disk() as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert spark_jobs.__main__._run() == ExitCode.CONSISTENT
        monkeypatch.undo()
    assert (tmp_path / "e.tar.gz").exists()


@given(st.text(st.characters(codec=None)), st.sampled_from(["latin-1", "utf-8", "cp1252"]))
def test_every_text_can_be_printed(text: str, encoding: str) -> None:
    printed = io.BytesIO()
    stream = io.TextIOWrapper(printed, encoding, newline="", write_through=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        show(text)
    plain = text.encode(encoding, "backslashreplace")
    assert printed.getvalue() == plain + b"\n"


@pytest.mark.parametrize("closed", [1, 2])
@pytest.mark.parametrize(("words", "code"), [(("--version",), 0), (("nonsense",), 2)])
def test_a_closed_stream_does_not_change_the_exit_code(
    closed: int, words: tuple[str, ...], code: int
) -> None:
    """Python has None for such a stream, and ends with 1 for any exception: that is DIVERGED."""
    line = f'exec "$0" -m spark_jobs "$@" {closed}>&-'
    done = subprocess.run(["sh", "-c", line, sys.executable, *words], capture_output=True)
    assert done.returncode == code, done


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_process_that_kaudit_starts_has_no_closed_stream(closed: str) -> None:
    """Spark's JVM is one: it would give the number of a closed stream to its next file or connection."""
    child = "import os; [os.fstat(number) for number in range(3)]"
    program = (
        "import subprocess, sys; from spark_jobs.__main__ import main; "
        "main(lambda: subprocess.call([sys.executable, '-c', sys.argv[1]]))"
    )
    line = f'exec "$0" -c "$@" {closed}'
    words = ["sh", "-c", line, sys.executable, program, child]
    done = subprocess.run(words, capture_output=True)
    assert done.returncode == 0, done
