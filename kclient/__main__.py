"""Entry point of `kclient` and `python -m kclient`."""

from __future__ import annotations

import gc
import sys

from kclient.process_end import run_and_end
from kclient.standard_streams import open_standard_streams

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback, also before the command has begun."""
    try:
        import click

        from kclient.lazy import defer_import

        # Twisted imports it for its web client, and with it urllib, http and email: a tenth of a short command.
        defer_import("http.cookiejar")
        from kclient.cli.commands import kclient

        try:
            code = kclient.main(prog_name="kclient", standalone_mode=False)
        except click.Abort:
            click.echo("kclient: interrupted", err=True)
            code = _INTERRUPTED
        except click.ClickException as problem:
            problem.show()
            code = problem.exit_code
    except KeyboardInterrupt:
        code = _INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


def process() -> None:
    """Be a process of the command line. Imports make objects that stay: the collector waits until a command runs."""
    open_standard_streams()
    gc.disable()
    run_and_end(main)


if __name__ == "__main__":
    process()
