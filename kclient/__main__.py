"""Entry point of `kclient` and `python -m kclient`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    from kclient.cli.commands import kclient

    sys.exit(kclient.main(prog_name="kclient", standalone_mode=True))


if __name__ == "__main__":
    main()
