"""`kaudit` in the process of the tests: Spark's JVM starts once for all commands of a worker.

`tests/integration/test_audit_exit_codes.py` and `test_audit.py` show the process itself: its exit codes and its output.
"""

from __future__ import annotations

from click.testing import CliRunner, Result

from spark_jobs.cli import kaudit as command


def kaudit(*words: str) -> Result:
    """Run a command to its end. It stops the Spark session of this process, if there is one."""
    return CliRunner().invoke(command, words)
