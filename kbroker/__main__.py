"""`python -m kbroker`, and the console script `kbroker`."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from kbroker.cli import kbroker

    kbroker(prog_name="kbroker")


if __name__ == "__main__":
    main()
