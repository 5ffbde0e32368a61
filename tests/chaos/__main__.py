"""``python -m tests.chaos --seed S --minutes M --out DIR [--scenario S1]``: run a cluster under faults, and judge it.

The scenario S47 runs two clusters and a mirror (`tests.chaos.mirror_run`), with --workers 3 three that share the
partitions. The scenario bank has transactions (`tests.chaos.bank_run`).

Exit code 0: clean, or skipped where the machine does not allow it; 1: not clean. Everything
(history, logs, data, ZooKeeper's journal, verdict) stays under DIR.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from tests.chaos import bank_run, mirror_run, namespaces
from tests.chaos.bank_run import BankRun
from tests.chaos.mirror_run import MirrorRun
from tests.chaos.run import Run
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.skipped import Skipped

MIRROR = "S47"
BANK = "bank"


def main() -> int:
    """Play one scenario."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--scenario", choices=[*SCENARIOS, MIRROR, BANK, "list"], default="mixed")
    parser.add_argument("--zookeepers", type=int, choices=(1, 3), default=0)
    parser.add_argument("--workers", type=int, choices=(0, 2, 3), default=0)
    arguments = parser.parse_args()
    if arguments.scenario == "list":
        for name, one in SCENARIOS.items():
            print(f"{name:6} {one.about}")
        print(f"{MIRROR:6} {mirror_run.ABOUT}")
        print(f"{BANK:6} {bank_run.ABOUT}")
        return 0
    if arguments.scenario == MIRROR:
        return _play_mirror(arguments)
    if arguments.scenario == BANK:
        return _play_bank(arguments)
    scenario = SCENARIOS[arguments.scenario]
    if scenario.namespaces:
        try:
            namespaces.enter("tests.chaos", sys.argv[1:])
        except Skipped as reason:
            print(f"SKIPPED: {reason}")
            return 0
    out = _begin(arguments, scenario.about)
    run = Run(
        scenario, arguments.seed, arguments.minutes * 60, out, zookeepers=arguments.zookeepers
    )
    try:
        result = run.play()
    except Skipped as reason:
        print(f"SKIPPED: {reason}")
        return 0
    print(result.to_text())
    return 0 if result.clean and result.figures.elects_in_time else 1


def _play_mirror(arguments: argparse.Namespace) -> int:
    out = _begin(arguments, mirror_run.ABOUT)
    seconds = arguments.minutes * 60
    result = MirrorRun(arguments.seed, seconds, out, arguments.workers).play()
    print(result.to_text())
    return 0 if result.clean else 1


def _play_bank(arguments: argparse.Namespace) -> int:
    out = _begin(arguments, bank_run.ABOUT)
    result = BankRun(arguments.seed, arguments.minutes * 60, out).play()
    print(result.to_text())
    return 0 if result.clean else 1


def _begin(arguments: argparse.Namespace, about: str) -> Path:
    """Print what is played; return the directory of the run."""
    for library in ("kazoo", "kafka"):  # they log every lost connection, which the faults cause
        logging.getLogger(library).setLevel(logging.CRITICAL)
    name = f"{arguments.scenario}-{arguments.seed}-{time.time():.0f}"
    out: Path = arguments.out or Path("chaos-out", name)
    print(f"{arguments.scenario}: {about}; seed {arguments.seed}, {out}", flush=True)
    return out


if __name__ == "__main__":
    sys.exit(main())
