"""Entry point of `kclient` and `python -m kclient`."""

from __future__ import annotations

import sys

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


if __name__ == "__main__":
    main()
