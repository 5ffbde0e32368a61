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
    cleans: tuple[bool, bool] = (False, False)
    complete: bool = False
    window: int = 10

    @property
    def is_healthy(self) -> bool:
        """Whether the mirror copied everything in order, and maybe some of it twice."""
        return not self.lost and not self.strangers


def drawn(rng: random.Random) -> Drawn:
    made = Drawn(complete=rng.random() < 0.3, window=rng.choice([7, 10, 50]))
    made.cleans = rng.choice([(False, False), (False, True), (True, False), (True, True)])
    keys = rng.choice([3, 10, 1 << 30]) if any(made.cleans) else 1 << 30
    markers = rng.choice([0.0, 0.0, 0.2])
    for number in range(rng.choice([20, 60, 200])):
        deletes = any(made.cleans) and rng.random() < 0.15
        value = None if deletes else b"v%d" % number
        made.source.append(Rec(b"k%d" % (number % min(keys, rng.randrange(1, 300))), value, number))
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
    target = [each for at, each in enumerate(written[:copied]) if at not in lost]
    target += target[-made.repeated :] if made.repeated else []
    target += [Rec(b"stranger", b"%d" % n, n) for n in range(made.strangers)]
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


def check(made: Drawn, run: Reconciliation) -> None:
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
    if not any(made.cleans) and made.target.end:
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


@pytest.mark.parametrize("seed", range(examples(1_500)))
def test_each_way_to_compare_finds_the_same_and_what_is_true(seed: int) -> None:
    rng = random.Random(f"renumbered tail {seed}")
    made = drawn(rng)
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
        # A copy that is in a run is EXTRA.
        keep = 1_000 if made.repeated else rng.choice([0, 2, 5, 1_000])
        # Of what compaction explains in a Spark task no copies are looked up.
        looked_up = rng.choice([0, 3, 20, 1_000])
        compacted = 1_000 if made.repeated and made.cleans[0] else looked_up
        run = audit(made, in_step(keep=keep, keep_compacted=compacted, sizes=sizes))
        if run.counts.verified != whole.counts.verified:
            continue  # A pair was not in reach.
        if made.repeated and made.cleans[0]:
            # Another copy may be the pair: compaction explains others of what the target has twice.
            assert lacking(run) == lacking(whole), (sizes, keep, compacted)
        else:
            assert seen(run) == seen(whole), (sizes, keep, compacted)
