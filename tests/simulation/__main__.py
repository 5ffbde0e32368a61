"""Run schedules: `python -m tests.simulation --seed 17`, `--seeds 1..1000 --jobs 2`, `--script FILE`.

A schedule that fails is made shorter and printed; save what is printed and run it again with --script. With
--mutant NAME a known bug is put in first (tests.simulation.mutants). With --mirror the seeds are
of two clusters and the mirror between them, with --workers of two workers that share the partitions. With --state FILE
a run of many seeds may be stopped, and continued with the same code.
Exit code 1: something was broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.simulation.batch import Draw, all_outcomes
from tests.simulation.mirror_script import draw_mirror, draw_workers
from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.run import simulation_of
from tests.simulation.run_in_parts import NotThisRun, RunInParts, begin_or_continue, code_hash
from tests.simulation.script import Script, draw, parse
from tests.simulation.shrink import shrink
from tests.simulation.simulation import Result

PROGRESS_SECONDS = 10.0
"""Between two lines of progress."""


def explain(failed: Result, mutant: str | None, *, shorter: bool = True) -> None:
    """Print a failed schedule, shrunk."""
    with planted(mutant):
        found = shrink(failed) if shorter else failed
    print(f"seed {failed.script.seed}: {found.failure}\n\n{found.script}")


def _seeds(text: str) -> range:
    first, dots, last = text.partition("..")
    return range(int(first), int(last if dots else first) + 1)


def _one(script: Script, mutant: str | None, *, log: bool, shorter: bool) -> int:
    with planted(mutant):
        result = simulation_of(script, keep_trace=True, log=log).run()
    print(script)
    print("\n".join(result.trace))
    print(
        f"\n{result.steps} steps, {result.seconds:.1f} s, whole after {result.whole_after:g} s,"
        f" {result.acknowledged} acknowledged, digest {result.digest:08x}"
    )
    if result.failure is None:
        return 0
    if shorter:
        explain(result, mutant)
    return 1


def _many(
    played: RunInParts,
    jobs: int,
    mutant: str | None,
    drawn: Draw,
    *,
    keep_going: bool,
    state: Path | None,
) -> int:
    began = printed = time.monotonic()
    earlier, tally = played.seconds, played.tally
    failed: list[Result] = []
    for result in all_outcomes(played.left, jobs, mutant, drawn):
        played.take(result)
        if result.failure is not None:
            failed.append(result)
            print(f"seed {result.script.seed}: {result.failure[:400]}", flush=True)
            if not keep_going:
                break
        if time.monotonic() - printed > PROGRESS_SECONDS:
            printed = time.monotonic()
            print(tally.line(earlier + printed - began), flush=True)
            if state is not None:
                played.save(state, printed - began)
    lasted = time.monotonic() - began
    if state is not None:
        played.save(state, lasted)
    print(tally.page(earlier + lasted), flush=True)
    print(f"digest           {played.digest:08x}; played in {played.parts} part(s)", flush=True)
    shown: set[str] = set()
    for result in failed:
        if result.kind not in shown:
            shown.add(result.kind)
            explain(result, mutant)
    return 1 if tally.failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="one seed, with its trace")
    what.add_argument("--seeds", type=_seeds, help="FIRST..LAST")
    what.add_argument("--script", type=Path, help="a file as printed here")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="put a known bug in")
    parser.add_argument("--mirror", action="store_true", help="two clusters and a mirror")
    parser.add_argument("--workers", action="store_true", help="two clusters and two workers")
    parser.add_argument("--log", action="store_true", help="with what the brokers log")
    parser.add_argument("--keep-going", action="store_true", help="after a failure, too")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="with --seeds: continue the run in FILE, or begin it; it may be stopped at any time",
    )
    given = parser.parse_args()
    drawn = draw_workers if given.workers else draw_mirror if given.mirror else draw
    if given.seeds is not None:
        with_bug = f" with {given.mutant}" if given.mutant else ""
        try:
            played = begin_or_continue(
                given.state, given.seeds, drawn.__name__ + with_bug, code_hash()
            )
        except NotThisRun as problem:
            parser.error(str(problem))
        return _many(
            played,
            given.jobs,
            given.mutant,
            drawn,
            keep_going=given.keep_going,
            state=given.state,
        )
    script = drawn(given.seed) if given.script is None else parse(given.script.read_text())
    return _one(script, given.mutant, log=given.log, shorter=not given.no_shrink)


if __name__ == "__main__":
    sys.exit(main())
