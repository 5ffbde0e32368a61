"""`kaudit` in the process of the tests: Spark's JVM starts once for all commands of a worker.

`tests/integration/test_audit_exit_codes.py` and `test_audit.py` show the process itself: its exit codes and its output.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from spark_jobs.cli import kaudit as command
from tests.kit.mirrors import HasBootstrap


def kaudit(*words: str) -> Result:
    """Run a command to its end. It stops the Spark session of this process, if there is one."""
    return CliRunner().invoke(command, words)


def reconciled(
    source: HasBootstrap, target: HasBootstrap, topics: str, out: Path, *options: str
) -> tuple[int, dict[str, Any]]:
    """Compare two clusters, without the self-test; return the exit code and report.json."""
    done = kaudit(
        *("reconcile", "--source", source.bootstrap, "--target", target.bootstrap),
        *("--topics", topics, "--out", str(out), "--master", "local[2]"),
        *("--no-self-test", "--quiet", *options),
    )
    assert done.exit_code < 64, (done.stdout, done.stderr)
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return done.exit_code, report
