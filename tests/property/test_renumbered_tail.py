"""The tail of a renumbered target, drawn: one alignment, parts of any size with runs of findings, and what is true.

The truth is what was written, copied, lost and cleaned. No offset of the target is used for it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
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

pytestmark = pytest.mark.slow

TP = TopicPartition("t", 0)
MARKER = Rec(b"", b"", 1, control=True)


@dataclass
class Drawn:
    """Two logs, and what happened to them."""

    source: Log = field(default_factory=Log)
    target: Log = field(default_factory=Log)
    lag: list[Rec] = field(default_factory=list)
    """Records that were not copied yet."""
    lost: list[Rec] = field(default_factory=list)
    strangers: int = 0
    repeated: int = 0
    damaged: int = 0
    """How many of the last copies have another value."""
    cleans: tuple[bool, bool] = (False, False)
    complete: bool = False
    window: int = 10

    @property
    def is_healthy(self) -> bool:
        """Whether the mirror copied everything in order, and maybe some of it twice."""
        return not self.lost and not self.strangers and not self.damaged


LIKE_EACH_OTHER = 5_000
"""The timestamp of records that differ in their values only."""


def drawn(rng: random.Random, *, alike: bool = False) -> Drawn:
    """Draw two logs; *alike*: their records have no keys and one timestamp, and the last copy may be damaged."""
    made = Drawn(complete=rng.random() < 0.3, window=rng.choice([7, 10, 50]))
    made.cleans = rng.choice([(False, False), (False, True), (True, False), (True, True)])
    if alike:
        made.cleans = False, False
    keys = rng.choice([3, 10, 1 << 30]) if any(made.cleans) else 1 << 30
    markers = rng.choice([0.0, 0.0, 0.2])
    for number in range(rng.choice([20, 60, 200])):
        deletes = any(made.cleans) and rng.random() < 0.15
        value = None if deletes else b"v%d" % number
        record = Rec(b"k%d" % (number % min(keys, rng.randrange(1, 300))), value, number)
        made.source.append(Rec(None, value, LIKE_EACH_OTHER) if alike else record)
        if rng.random() < markers:
            made.source.append(MARKER)
    written = [each for _, each in sorted(made.source.records.items()) if not each.control]
    copied = rng.choice([0, len(written), *[rng.randrange(len(written)) for _ in range(6)]])
    made.lag = written[copied:]
    lost = {rng.randrange(copied) for _ in range(rng.choice([0, 0, 0, 1, 3]))} if copied else set()
    made.lost = [written[at] for at in sorted(lost)]
    if rng.random() < 0.25:
        made.strangers = rng.choice([1, 4, 30])
    elif not lost and rng.random() < 0.3:
        made.repeated = min(copied, rng.choice([1, 3, 20]))
    target = copies(rng, made, written[:copied], lost, alike=alike)
    ends = rng.choice([0.0, 0.1])
    for each in target:
        made.target.append(each)
        if rng.random() < ends:
            made.target.append(MARKER)
    for _ in range(rng.choice([0, 1, 1, 2, 8])):
        made.target.end += rng.choice([0, 0, 1, 3])  # An aborted transaction.
        made.target.append(MARKER)
    for log, cleans in zip((made.source, made.target), made.cleans, strict=True):
        if cleans:
            clean(rng, log, rng.choice([log.end // 2, log.end - 1]), set(written[:copied]))
    return made


def copies(
    rng: random.Random, made: Drawn, written: list[Rec], lost: set[int], *, alike: bool
) -> list[Rec]:
    """Return the records of the target: those *written* that were copied and not *lost*, and others behind them."""
    target = [each for at, each in enumerate(written) if at not in lost]
    if alike and target and made.is_healthy and rng.random() < 0.5:
        damage(rng, made, target)
    elif made.repeated:
        target += target[-made.repeated :]
    return [*target, *(Rec(b"stranger", b"%d" % n, n) for n in range(made.strangers))]


def damage(rng: random.Random, made: Drawn, target: list[Rec]) -> None:
    """Change the values of the last copies in *target*, and maybe repeat the copies before them."""
    made.damaged = rng.randrange(1, min(len(target), 4) + 1)
    intact = target[: -made.damaged]
    made.repeated = min(len(intact), rng.choice([0, 0, 1, 3]))
    last = [
        each._replace(value=b"damaged %d" % n) for n, each in enumerate(target[-made.damaged :])
    ]
    target[:] = [*intact, *intact[len(intact) - made.repeated :], *last]


def clean(rng: random.Random, log: Log, below: int, copied: set[Rec]) -> None:
    """Compact the records below *below*, only among themselves; tombstones stay until they were *copied*."""
    last = {
        each.key: at for at, each in sorted(log.records.items()) if at < below and not each.control
    }
    drops_tombstones = rng.random() < 0.5
    for at, each in list(log.records.items()):
        if at >= below or each.control:
            continue
        if at < last[each.key] or (each.value is None and drops_tombstones and each in copied):
            del log.records[at]


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
