"""`kaudit` as a process, without clusters: however it ends early, the exit code is never 1, which means DIVERGED."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.verdict import ExitCode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


CLASS_ARCHIVE = Path(os.environ["KAUDIT_CLASS_ARCHIVE"])


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """Return the address of a listener that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "spark_jobs", *arguments]


def reconcile(broker: str, out: Path, *options: str) -> list[str]:
    clusters = ("--source", broker, "--target", broker, "--topics", "x", "--out", str(out))
    return command("reconcile", *clusters, *options)


def test_a_bug_is_70() -> None:
    program = (
        "from spark_jobs import __main__, cli; cli.kaudit.main = lambda **_: 1 / 0; __main__.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ZeroDivisionError" in done.stderr
    assert done.returncode == ExitCode.INTERNAL


def test_a_command_without_arguments_and_help_are_no_verdict() -> None:
    assert subprocess.run(command(), capture_output=True).returncode == ExitCode.USAGE
    done = subprocess.run(command("reconcile", "--help"), capture_output=True, text=True)
    assert done.returncode == 0
    assert "--max-findings" in done.stdout


@pytest.mark.skipif(
    not CLASS_ARCHIVE.exists(), reason="no archive of Spark's classes (tools/setup.sh writes it)"
)
def test_a_damaged_class_archive_is_named_as_the_cause(tmp_path: Path) -> None:
    archive = tmp_path / "spark-classes.jsa"
    with CLASS_ARCHIVE.open("rb") as whole:
        archive.write_bytes(whole.read(1 << 20))  # Java does without a file that has another head.
    done = subprocess.run(
        command("selftest", "--seeds", "1", "--master", "local[1]"),
        env=os.environ | {"KAUDIT_CLASS_ARCHIVE": str(archive)},
        cwd=tmp_path,  # An aborted JVM leaves its report.
        capture_output=True,
        text=True,
    )
    assert done.returncode == ExitCode.INTERNAL
    assert "if its archive of classes is damaged" in done.stderr
    assert "KAUDIT_CLASS_ARCHIVE=off" in done.stderr


def test_ctrl_c_is_130_and_leaves_the_verdict_error(tmp_path: Path, silent_broker: str) -> None:
    (tmp_path / "report.json").write_text("{}")
    with subprocess.Popen(
        reconcile(silent_broker, tmp_path),
        stderr=subprocess.PIPE,
        # A test run in the background of a shell inherits that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        await_file(tmp_path / "report.previous.json")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    document = json.loads((tmp_path / "report.json").read_text())
    assert (document["verdict"], document["exit_code"]) == ("ERROR", 130)


def test_a_ctrl_c_in_generated_code_is_130_too(tmp_path: Path) -> None:
    """An import runs generated code, as of dataclasses. CPython notes an interrupt there although it is caught."""
    (tmp_path / "interrupted.py").write_text(
        "from spark_jobs.__main__ import main\n"
        "def interrupted():\n"
        "    try:\n"
        "        exec('raise KeyboardInterrupt')\n"
        "    except KeyboardInterrupt:\n"
        "        return 130\n"
        "main(interrupted)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == ExitCode.INTERRUPTED


def test_a_closed_stderr_is_no_verdict_and_the_report_has_the_cause(tmp_path: Path) -> None:
    with subprocess.Popen(reconcile("127.0.0.1:1", tmp_path), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.close()
        process.wait(60)
    assert process.returncode not in (ExitCode.CONSISTENT, ExitCode.DIVERGED)
    assert json.loads((tmp_path / "report.json").read_text())["exit_code"] == ExitCode.UNREADABLE


def test_spark_that_does_not_start_is_70() -> None:
    done = subprocess.run(command("selftest", "--master", "nonsense"), capture_output=True)
    assert done.returncode == ExitCode.INTERNAL


def await_file(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.02)
