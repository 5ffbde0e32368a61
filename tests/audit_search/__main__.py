"""Search for wrong verdicts: `python -m tests.audit_search --seeds 0..999`; `--pairs`, or `--kinds missing+extra`.

Every seed of every kind of fault, or of every pair of kinds, is audited without Spark and judged. Exit code 1: the
audit and the judge disagree.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tests.audit_search.kinds import KINDS
from tests.audit_search.search import PAIRS, Outcome, outcome

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


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.audit_search", description=__doc__)
    parser.add_argument("--seeds", type=_range, required=True, help="FIRST..LAST")
    parser.add_argument("--pairs", action="store_true", help="all pairs of kinds, not each alone")
    parser.add_argument("--kinds", type=_kinds, action="append", help="only these; A+B together")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--show", type=int, default=3, help="failures shown per combination")
    given = parser.parse_args()
    chosen = given.kinds or (PAIRS if given.pairs else [(kind,) for kind in KINDS])
    began = printed = time.monotonic()
    done, failed = 0, Counter[tuple[str, ...]]()
    with contextlib.ExitStack() as stack:
        found: Iterable[Outcome] = map(outcome, _tasks(given.seeds, chosen))
        if given.jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(given.jobs))
            found = pool.imap_unordered(outcome, _tasks(given.seeds, chosen), chunksize=8)
        for seed, kinds, wrong in found:
            done += 1
            if wrong:
                failed[kinds] += 1
                if failed[kinds] <= given.show:
                    print(f"{'+'.join(kinds)} seed {seed}: {'; '.join(wrong)[:3000]}", flush=True)
            if time.monotonic() - printed > PROGRESS_S:
                printed = time.monotonic()
                print(
                    f"{done} cases in {printed - began:.0f} s, {failed.total()} failed", flush=True
                )
    print(f"{done} cases of {len(chosen)} combinations: {failed.total()} disagreements")
    for kinds, count in failed.most_common(40):
        print(f"{count:7} {'+'.join(kinds)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
