"""`python -m benchmarks [SUITE ...] [--rounds N] [--quick]`: runs suites, writes results and the table.

Suites: broker (one kbroker beside Apache Kafka), clients (kclient beside other Python clients), groups (offset
commits), mirror, audit (kaudit beside a full outer join in Spark), growth (partitions, connections), replication
(three brokers: acks=all, many partitions, a killed broker, a rolling restart), transactions (three brokers, 100 records
each). Contenders alternate inside each round, so that other load on the machine affects all alike; compare medians and
ratios.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
from pathlib import Path

from benchmarks import results
from benchmarks.suites import SUITES

RECORD = Path(__file__).parent / "results"


def main() -> int:
    """Run the chosen suites; return 0 when all have run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)} (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="a fifth of the work, to check that it runs"
    )
    parser.add_argument(
        "--out", type=Path, default=RECORD, help="elsewhere: the table of README.md stays as it is"
    )
    arguments = parser.parse_args()
    names = arguments.suites or list(SUITES)
    unknown = sorted(set(names) - set(SUITES))
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)} (suites are {', '.join(SUITES)})")
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    today = datetime.date.today().isoformat()
    for name in names:
        print(f"== {name}", file=sys.stderr, flush=True)
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="kbroker-bench-") as directory:
            figures, notes = SUITES[name](
                Path(directory), arguments.rounds, 5 if arguments.quick else 1
            )
        result = results.SuiteResult(name, today, machine, arguments.rounds, load, figures, notes)
        print(results.as_text(figures), flush=True)
        for note in notes:
            print(f"note: {note}", flush=True)
        if not arguments.quick:
            results.write(arguments.out / f"{today}.json", [result])
            if arguments.out.resolve() == RECORD.resolve():
                every = results.newest(RECORD)
                results.write_table(
                    RECORD.parent / "README.md", [every[n] for n in SUITES if n in every]
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
