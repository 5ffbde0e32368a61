"""One reconciliation: freeze the cut, compare window digests, drill into what differs, decide.

    1  topics         list the topics of both clusters that match: they are the scope
    2  freeze         read the log ranges of the target, then of the source: `spark_jobs.cut`
    3  digests        read every record of the scope once on each side, hash it, sum by window;
                      with a kept run only what that has not proven, and a share of the rest: `spark_jobs.kept`
    4  compare        equal windows are proven equal: `spark_jobs.windows`
    5  drill          align the records of the other windows one by one: `spark_jobs.align`
    6  account        put each offset into one class: `spark_jobs.accounting`
    7  look again     wait, then steps 2 to 6 for what differs, some times at most: `spark_jobs.later_looks`
    8  decide         counts -> verdict and exit code: `spark_jobs.verdict`

`spark_jobs.cli` does steps 1 and 2. A clean run ends after step 4 and reads every record once. Offsets that were not
compared are counted; the audit never assumes that they are equal. Which offsets are read, and what the results mean, is
decided in `spark_jobs.comparison` and in pure modules; an `Engine` only reads and hashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kclient.types import TopicPartition
from spark_jobs.accounting import Account
from spark_jobs.attribution import Attributed
from spark_jobs.comparison import Comparison, Cost, Options, Progress, checked_entries
from spark_jobs.cut import PartitionCut
from spark_jobs.engine import Engine
from spark_jobs.findings import Finding
from spark_jobs.gap_ledger import CheckedEntries
from spark_jobs.kept import Plan
from spark_jobs.later_looks import Again, LaterLooks
from spark_jobs.looks import Held
from spark_jobs.settle import Settled
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.verdict import Counts, Outcome, decide
from spark_jobs.windows import WindowResult, WindowState, by_bucket

BUCKETS = 60
"""Time buckets of the charts."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The result of one run, input of every report."""

    source: ClusterSnapshot
    target: ClusterSnapshot
    options: Options
    cuts: Sequence[PartitionCut]
    windows: Sequence[WindowResult]
    account: Account
    source_buckets: Mapping[str, Sequence[int]]
    target_buckets: Mapping[str, Sequence[int]]
    first_ms: int
    bucket_ms: int
    outcome: Outcome
    cost: Cost
    carried: Plan = field(default_factory=Plan)
    """What the run uses of an earlier one."""
    attributed: Attributed | None = None
    """What the mirror's evidence shows; None if it was not asked."""
    settled: Settled = field(default_factory=Settled)
    unknown: frozenset[TopicPartition] = frozenset()
    """Partitions of which one side has no known range: nothing of them was read."""

    @property
    def ledger_entries(self) -> CheckedEntries:
        """The entries of the mirror's ledger that concern the run."""
        return checked_entries(self.options, self.source, self.target)

    @property
    def findings(self) -> Sequence[Finding]:
        """All findings, sorted."""
        return self.account.findings

    @property
    def counts(self) -> Counts:
        """The class of each offset, summed over all partitions."""
        return self.account.total


@dataclass(frozen=True, slots=True)
class TimeBuckets:
    """The time axis of the charts: `BUCKETS` buckets of *width_ms* from *first_ms* on."""

    first_ms: int
    width_ms: int

    @classmethod
    def over(cls, span_ms: tuple[int, int]) -> TimeBuckets:
        """Divide *span_ms*, the first and the last record timestamp."""
        return cls(span_ms[0], max(1, (span_ms[1] - span_ms[0]) // BUCKETS + 1))


def reconcile(
    engine: Engine,
    source: ClusterSnapshot,
    target: ClusterSnapshot,
    options: Options,
    *,
    buckets: TimeBuckets,
    progress: Progress = lambda _: None,
    self_test_failed: bool = False,
    again: Again | None = None,
) -> Reconciliation:
    """Compare *target* with *source*. *self_test_failed* makes the verdict ERROR; without *again* there is one look."""
    cost = Cost()
    run = Comparison.at_cut(engine, source, target, options, cost, progress)
    kept, rows = run.recheck()
    look = run.look(kept, Held(rows=(rows[0], rows[1])), kept.recheck)
    settled = Settled(options.patience)
    if again is not None:
        run, look, settled = LaterLooks(run, look, again).done()
    cost.windows = len(look.windows)
    cost.windows_drilled = sum(each.state is not WindowState.EQUAL for each in look.windows)
    return Reconciliation(
        run.source,
        run.target,
        run.options,
        list(look.cuts.values()),
        look.windows,
        look.account,
        by_bucket(look.rows[0], BUCKETS),
        by_bucket(look.rows[1], BUCKETS),
        buckets.first_ms,
        buckets.width_ms,
        decide(look.account.total, options.limits, self_test_failed=self_test_failed),
        cost,
        look.kept,
        settled=settled,
        unknown=run.unknown,
    )
