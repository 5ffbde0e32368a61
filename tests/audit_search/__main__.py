"""Search for wrong verdicts: `python -m tests.audit_search --seeds 0..999`; `--pairs`, or `--kinds missing+extra`.

Every seed of every kind of fault, or of every pair of kinds, is audited without Spark and judged. Exit code 1: the
audit and the judge disagree.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.audit_search import on_spark
from tests.audit_search.cases import KINDS, MEANWHILE
from tests.audit_search.search import PAIRS, Outcome, Tally, outcome

PROGRESS_S = 30.0


def _tasks(
    seeds: range, chosen: Sequence[tuple[str, ...]]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    return ((seed, kinds) for seed in seeds for kinds in chosen)


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    return range(int(first), int(last if dots else first) + 1)


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split("+"))
    unknown = set(kinds) - set(KINDS)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no kind {', '.join(unknown)}; there are {' '.join(KINDS)}"
        )
    return kinds


def _on_spark(seeds: range, chosen: Sequence[tuple[str, ...]]) -> int:
    from spark_jobs.session import spark_session
    from spark_jobs.spark_settings import SparkSettings

    steady = [kinds for kinds in chosen if not set(kinds) & set(MEANWHILE)]
    failed = done = 0
    with spark_session("audit-search", SparkSettings("local[2]"), log=Path(os.devnull)) as spark:
        for seed in seeds:
            wrong = on_spark.seed_on_spark(spark, seed, steady)
            failed += len(wrong)
            done += len(steady)
            print("\n".join([f"{done} cases, {failed} disagreements", *wrong]), flush=True)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.audit_search", description=__doc__)
    parser.add_argument("--seeds", type=_range, required=True, help="FIRST..LAST")
    parser.add_argument("--pairs", action="store_true", help="all pairs of kinds, not each alone")
    parser.add_argument("--kinds", type=_kinds, action="append", help="only these; A+B together")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--spark", action="store_true", help="on Spark, a seed of all kinds a run")
    parser.add_argument("--show", type=int, default=3, help="failures shown per combination")
    given = parser.parse_args()
    chosen = given.kinds or (PAIRS if given.pairs else [(kind,) for kind in KINDS])
    if given.spark:
        return _on_spark(given.seeds, chosen)
    began = printed = time.monotonic()
    done, counted, total, failed = 0, 0, Tally(), Counter[tuple[str, ...]]()
    with contextlib.ExitStack() as stack:
        found: Iterable[Outcome] = map(outcome, _tasks(given.seeds, chosen))
        if given.jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(given.jobs))
            found = pool.imap_unordered(outcome, _tasks(given.seeds, chosen), chunksize=8)
        for seed, kinds, wrong, tally in found:
            done += 1
            if tally is not None:
                counted += 1
                total = total.plus(tally)
            if wrong:
                failed[kinds] += 1
                if failed[kinds] <= given.show:
                    print(f"{'+'.join(kinds)} seed {seed}: {'; '.join(wrong)[:3000]}", flush=True)
            if time.monotonic() - printed > PROGRESS_S:
                printed = time.monotonic()
                print(
                    f"{done} cases in {printed - began:.0f} s, {failed.total()} failed; {total.to_text()}",
                    flush=True,
                )
    print(
        f"{done} cases: {len(given.seeds):,} seeds of each of {len(chosen):,} "
        f"{'pairs of kinds' if given.pairs else 'combinations'}; {failed.total()} disagreements"
    )
    print(f"findings of the {counted} cases that do not change during the run: {total.to_text()}")
    for kinds, count in failed.most_common(40):
        print(f"{count:7} {'+'.join(kinds)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
