"""`kaudit` in the process of the tests: Spark starts once for all commands of a worker.

`tests/integration/test_audit_exit_codes.py` and `test_audit.py` show the process itself: its exit codes and its output.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from spark_jobs.cli import kaudit as command
from spark_jobs.session import held_application
from spark_jobs.spark_settings import SparkSettings
from tests.kit.mirrors import HasBootstrap

MASTER = "local[2]"
_running = ExitStack()


def kaudit(*words: str) -> Result:
    """Run a command to its end. Those with `MASTER` are sessions of one Spark application, others have their own."""
    if MASTER in words and "--conf" not in words:
        start_spark()
    else:
        stop_spark()
    return CliRunner().invoke(command, words)


def start_spark() -> None:
    """Start the Spark application of this process, unless one runs: to start one takes longer than most commands."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context is None:
        _running.close()
        _running.enter_context(held_application("kbroker-tests", SparkSettings(MASTER)))


def stop_spark() -> None:
    """Stop the Spark application of this process, if `start_spark` has started one."""
    _running.close()


def reconciled(
    source: HasBootstrap, target: HasBootstrap, topics: str, out: Path, *options: str
) -> tuple[int, dict[str, Any]]:
    """Compare two clusters, without the self-test; return the exit code and report.json."""
    done = kaudit(
        *("reconcile", "--source", source.bootstrap, "--target", target.bootstrap),
        *("--topics", topics, "--out", str(out), "--master", MASTER),
        *("--no-self-test", "--quiet", *options),
    )
    assert done.exit_code < 64, (done.stdout, done.stderr)
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return done.exit_code, report
