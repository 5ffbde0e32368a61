"""`python -m kbroker`, and the console script `kbroker`."""

from __future__ import annotations

import sys

from kclient.standard_streams import open_standard_streams

_EXTRA_OF = {"local": "local", "demo": "demo"}
"""The extra that a command needs; the others need `broker`."""


def main() -> None:
    """Run the command line; a missing extra is one line and exit code 1."""
    open_standard_streams()
    from kbroker.cli import kbroker
    from kclient.extras import what_to_install

    try:
        kbroker(prog_name="kbroker")
    except ModuleNotFoundError as problem:
        command = sys.argv[1] if len(sys.argv) > 1 else ""
        advice = what_to_install(problem, f"kbroker {command}", _EXTRA_OF.get(command, "broker"))
        if advice is None:
            raise
        sys.exit(advice)


if __name__ == "__main__":
    main()
