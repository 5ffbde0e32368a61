"""Entry point of `kaudit` and `python -m spark_jobs`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from kclient.standard_streams import open_standard_streams


def main(run: Callable[[], int] | None = None) -> None:
    """Run the command line, or *run*, and end with its exit code.

    The exit code 1 means DIVERGED. Click's own main function ends with 1 for Ctrl-C and for a closed pipe, and Python
    for any exception; here those are 130 and 70.
    """
    open_standard_streams()
    code = (run or _run)()
    # Python ends with 120 if it cannot flush: a closed pipe does not change what was found.
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    # CPython notes a KeyboardInterrupt that leaves exec() of a text, as of dataclasses in an import, although it is
    # caught. `python -m` then ends by SIGINT instead of with the exit code. The next exec() clears the note.
    exec("")  # noqa: S102 - constant
    sys.exit(code)


def _run() -> int:
    import click

    from kclient.extras import what_to_install
    from spark_jobs.verdict import ExitCode

    try:
        from spark_jobs.cli import kaudit

        return int(kaudit.main(prog_name="kaudit", standalone_mode=False) or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.INTERNAL
    except click.ClickException as problem:
        with suppress(OSError):
            problem.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except OSError as problem:
        # What Click prints itself, such as the help: a full disk did not take it.
        with suppress(OSError):
            click.echo(f"kaudit: {problem}; this is not a verdict", err=True)
        return ExitCode.INTERNAL
    except Exception as problem:
        if isinstance(problem, ModuleNotFoundError):
            advice = what_to_install(problem, "kaudit", "audit")
            if advice is not None:
                with suppress(OSError):
                    click.echo(advice, err=True)
                return ExitCode.INTERNAL
        import traceback

        with suppress(OSError):
            traceback.print_exc()
        return ExitCode.INTERNAL


if __name__ == "__main__":
    main()
