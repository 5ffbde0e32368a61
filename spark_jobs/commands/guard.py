"""Exit codes of commands that end early: never 1, which is about the logs or their latencies."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import click

from kclient.errors import ConfigError
from kclient.extras import what_to_install
from spark_jobs.verdict import ExitCode


class DoesNotFit(Exception):
    """The options do not fit what the clusters or the kept files have: there is no result."""


class OtherClusters(DoesNotFit):
    """The kept run of `--since`, or the checkpoint, is one of other clusters."""


def guarded(work: Callable[[], int], on_error: Callable[[int, str], None] | None = None) -> int:
    """Run *work* and return its exit code; 1 only if *work* returned it.

    A crash, or a Spark that does not start, is 70; an unreadable cluster 4; options that do not fit the clusters 2.
    *on_error* receives the exit code and the cause of a run that ended without a report.
    """
    from spark_jobs.cluster import ClusterUnreadable
    from spark_jobs.session import SparkNotStarted

    try:
        return int(work())
    except ClusterUnreadable as problem:
        # A setting of the client is no fault of the cluster, and stays wrong: an address in a report, for example.
        wrong = isinstance(problem.__cause__, ConfigError)
        code, cause = ExitCode.USAGE if wrong else ExitCode.UNREADABLE, str(problem)
    except DoesNotFit as problem:
        code, cause = ExitCode.USAGE, str(problem)
    except SparkNotStarted as problem:
        code, cause = ExitCode.INTERNAL, f"{problem}; this is not a verdict"
    except Exception as problem:
        missing = isinstance(problem, ModuleNotFoundError) and what_to_install(
            problem, "this command", "audit"
        )
        if missing:
            code, cause = ExitCode.INTERNAL, missing
        elif isinstance(problem, OSError):
            code, cause = ExitCode.INTERNAL, f"{problem}; this is not a verdict"
        elif "RangeUnreadable" in str(problem):
            code, cause = ExitCode.UNREADABLE, _cause(str(problem))
        else:
            import traceback

            with suppress(OSError):
                traceback.print_exc()
            code, cause = ExitCode.INTERNAL, "internal error; this is not a verdict"
    except KeyboardInterrupt:
        # Click would exit with 1, which means DIVERGED.
        code, cause = ExitCode.INTERRUPTED, "interrupted; this is not a verdict"
    if on_error is not None:
        with suppress(OSError):
            on_error(code, cause)
    with suppress(OSError):  # a closed pipe
        click.echo(f"kaudit: {cause}", err=True)
    return code


def not_done(cause: str) -> NoReturn:
    """Print why a command without a verdict has no result, and end with 70: its options were right."""
    with suppress(OSError):  # a closed pipe
        click.echo(f"kaudit: {cause}", err=True)
    sys.exit(ExitCode.INTERNAL)


def _cause(text: str) -> str:
    """Return the line of Spark's long message that holds the error of the task."""
    lines = [line for line in text.splitlines() if "RangeUnreadable: " in line]
    return lines[-1].partition("RangeUnreadable: ")[2] if lines else text.splitlines()[0]
