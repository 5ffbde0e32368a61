"""Entry point of `kaudit` and `python -m spark_jobs`."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from spark_jobs.cli import kaudit

    kaudit(prog_name="kaudit")


if __name__ == "__main__":
    main()
