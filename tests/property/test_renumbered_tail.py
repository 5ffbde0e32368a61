"""The tail of a renumbered target, drawn: one alignment, parts of any size with runs of findings, and what is true.

The truth is what was written, copied, lost and cleaned. No offset of the target is used for it.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import pytest

from kclient.types import TopicPartition
from spark_jobs.comparison import Options
from spark_jobs.digest import WindowShape
from spark_jobs.engine import Engine
from spark_jobs.in_step import Sizes
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.verdict import Verdict
from tests.kit.audit_batches import BatchEngine, Layout
from tests.kit.audit_logs import Log, MemoryEngine, Rec, snapshot
from tests.kit.property_tests import examples
from tests.kit.renumbered_tails import Drawn, drawn

pytestmark = pytest.mark.slow

TP = TopicPartition("t", 0)


def audit(drawn: Drawn, engine: Engine) -> Reconciliation:
    source, target = (
        snapshot(name, {TP: log}, frozenset(["t"] if cleans else []))
        for name, log, cleans in zip(
            ("source", "target"), (drawn.source, drawn.target), drawn.cleans, strict=True
        )
    )
    options = Options(drawn.window, drawn.complete, renumbered=True)
    return reconcile(engine, source, target, options, buckets=TimeBuckets(0, 60))


def seen(run: Reconciliation) -> tuple[dict[str, int], int, int, Verdict]:
    """Return the records of the findings by class, the lag, what compaction explains, and the verdict."""
    records: Counter[str] = Counter()
    for each in run.findings:
        records[each.finding_class.value] += each.records
    return dict(records), run.counts.lagging, run.counts.explained, run.outcome.verdict


def lacking(run: Reconciliation) -> tuple[int, int, int]:
    """Return how many records are missing, lag, and are truncated."""
    records, lagging, *_ = seen(run)
    return records.get("missing", 0), lagging, records.get("truncated", 0)


def data(log: Log) -> dict[int, Rec]:
    return {at: each for at, each in sorted(log.records.items()) if not each.control}


def check(made: Drawn, run: Reconciliation, *, in_parts: bool = False) -> None:
    """Compare with what is true."""
    records, lagging, _, verdict = seen(run)
    source, target = data(made.source), list(data(made.target).values())
    final = {each.key: each for each in source.values()}
    behind = sum(each in made.lag for each in source.values())
    if made.is_healthy and made.target.end:
        # Of a copy that was repeated, compaction may remove the one in its place.
        moved = {"reordered"} if made.repeated and made.cleans[1] else set()
        assert set(records) <= {"duplicate", "truncated"} | moved, records
        assert records.get("duplicate", 0) <= made.repeated
        left = lagging + records.get("truncated", 0)
        if made.cleans[1]:
            # What the target has cleaned and what lags look the same if the last record of the key lags.
            assert left <= sum(final[each.key] in made.lag for each in source.values())
        else:
            assert left == behind
    if made.damaged:
        check_damaged(made, records, lagging, in_parts=in_parts)
    elif not any(made.cleans) and made.target.end:
        last = max((at for at, each in source.items() if each in target), default=-1)
        alone = [at for at, each in source.items() if each not in target]
        tail = [at for at in alone if at > last + made.strangers]
        expected = {
            "missing": len(alone) - len(tail),
            "extra": made.strangers,
            "duplicate": made.repeated,
            "truncated": len(tail) if made.complete else 0,
        }
        assert records == {name: count for name, count in expected.items() if count}
        assert lagging == (0 if made.complete else len(tail))
    if any(each.value is not None and each not in target for each in final.values()):
        assert verdict is not Verdict.CONSISTENT
        assert not made.complete or verdict is Verdict.DIVERGED


def check_damaged(made: Drawn, records: dict[str, int], lagging: int, *, in_parts: bool) -> None:
    """Compare with what is true of damaged last copies: beside repeated ones nothing shows which records they were."""
    behind = records.pop("truncated", 0) if made.complete else lagging
    if made.repeated:
        # An EXTRA record stands for an offset, which may be that of a marker.
        missing = records.pop("missing", 0)
        assert missing <= made.damaged
        assert missing + behind == made.damaged + len(made.lag)
        assert records == {"duplicate": made.repeated, "extra": made.damaged}
    else:
        # What is opposite is known within a part only: beyond it a damaged record is EXTRA, and MISSING or lag.
        corrupt = records.pop("corrupt", 0)
        extra, missing = records.pop("extra", 0), records.pop("missing", 0)
        assert (records, corrupt + extra) == ({}, made.damaged)
        assert missing <= extra
        assert missing + behind == extra + len(made.lag)
        assert in_parts or not extra


@pytest.mark.parametrize("seed", range(examples(1_500)))
def test_each_way_to_compare_finds_the_same_and_what_is_true(seed: int) -> None:
    rng = random.Random(f"renumbered tail {seed}")
    check_each_way(rng, drawn(rng))


@pytest.mark.parametrize("seed", range(examples(500)))
def test_each_way_is_true_of_records_that_are_like_each_other(seed: int) -> None:
    rng = random.Random(f"renumbered tail of like records {seed}")
    check_each_way(rng, drawn(rng, alike=True))


def check_each_way(rng: random.Random, made: Drawn) -> None:
    logs = {TP: made.source}, {TP: made.target}
    whole = audit(made, MemoryEngine(*logs, made.window))
    check(made, whole)
    in_step = partial(
        BatchEngine,
        *logs,
        WindowShape(made.window, 0, 60, 4),
        (Layout(records=rng.choice([1, 8, 30])), Layout(records=rng.choice([1, 8, 30]))),
    )
    for part, reach in ((1 << 30, 1 << 30), (rng.randrange(1, 10), 30), (50, 60)):
        sizes = Sizes(part, rng.randrange(1, 5), rng.randrange(1, 20), rng.randrange(3, 9), reach)
        # A copy that is in a run is EXTRA, and so is a damaged last one.
        keep = 1_000 if made.repeated or made.damaged else rng.choice([0, 2, 5, 1_000])
        # Of what compaction explains in a Spark task no copies are looked up.
        looked_up = rng.choice([0, 3, 20, 1_000])
        compacted = 1_000 if made.repeated and made.cleans[0] else looked_up
        run = audit(made, in_step(keep=keep, keep_compacted=compacted, sizes=sizes))
        if run.counts.verified != whole.counts.verified:
            continue  # A pair was not in reach.
        if made.damaged:
            check(made, run, in_parts=part < 1 << 30)
        elif made.repeated and made.cleans[0]:
            # Another copy may be the pair: compaction explains others of what the target has twice.
            assert lacking(run) == lacking(whole), (sizes, keep, compacted)
        else:
            assert seen(run) == seen(whole), (sizes, keep, compacted)
