"""Run the integration suite of another client against kbroker: `python -m tests.compat.suites kafka-python`.

The suite's code is not in this repository: `--checkout` names a folder with it, `suites-SUITE` in the folder for
temporary files by default. Its tests are copied, so that they import the installed client, and run by pytest.
SUITES.md has a row with the reason for each test that does not pass. The exit code is 1 if other tests fail, or if
one passes for which the table has a failure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks import apache
from tests.compat.suites.expected import (
    FAILED,
    NOT_RUN,
    PASSED,
    SKIPPED,
    TABLE,
    differences,
    outcomes,
    rows,
)
from tests.compat.suites.running import SUITES, run


def main() -> int:
    """Run a suite, and print where its outcomes differ from the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.compat.suites",
        description="Run the integration suite of another client against kbroker.",
        usage="%(prog)s [-h] [--checkout FOLDER] [--apache] SUITE [-- TESTS AND OPTIONS OF PYTEST]",
    )
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--checkout", type=Path, help="a folder with the suite's repository")
    parser.add_argument(
        "--apache", action="store_true", help="start Apache Kafka 3.9.1 instead, to compare"
    )
    ours, words = sys.argv[1:], list[str]()
    if "--" in ours:
        ours, words = ours[: ours.index("--")], ours[ours.index("--") + 1 :]
    given = parser.parse_args(ours)
    suite = SUITES[given.suite]
    checkout = given.checkout or Path(tempfile.gettempdir(), f"suites-{given.suite}")
    if not all((checkout / name).is_dir() for name in suite.copied):
        print(f"skipped: {checkout} is no checkout of {given.suite}")
        return 0
    if given.apache and not apache.is_complete(apache.folder()):
        print(
            f"skipped: no Apache Kafka {apache.VERSION} in {apache.folder()} (make venv fetches it)"
        )
        return 0
    os.environ["KBROKER_SUITES_BROKER"] = "apache" if given.apache else "kbroker"
    known = rows(TABLE.read_text(), given.suite)
    left_out = [test for test, row in known.items() if row.how == NOT_RUN]
    home = Path(tempfile.mkdtemp(prefix="suites-run-"))
    report = run(suite, checkout, home, left_out, words)
    if not report.exists():
        print("pytest wrote no report")
        return 1
    found = outcomes(report)
    for test, outcome in sorted(found.items()):
        if outcome.kind == SKIPPED:
            print(f"skipped by the suite: {test}: {outcome.message}")
        elif outcome.kind == FAILED and test in known:
            print(f"{known[test].how}: {test}: {known[test].reason}")
    wrong = list(differences(found, known))
    for line in wrong:
        print(line)
    counts = (
        f"{sum(outcome.kind == kind for outcome in found.values())} {kind}"
        for kind in (PASSED, FAILED, SKIPPED)
    )
    print(f"{', '.join(counts)}; {len(left_out)} rows of the table were not run")
    if wrong or not found:
        print(f"the files of the run: {home}")
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
