"""One reconciliation: freeze the cut, compare window digests, drill into what differs, decide.

    1  topics         list the topics of the source that match: they are the scope
    2  freeze         read the log ranges of the target, then of the source: `spark_jobs.cut`
    3  digests        read every record below the cut once on each side, hash it in the task, sum by window
    4  compare        equal windows are proven equal: `spark_jobs.windows`
    5  drill          align the records of the other windows one by one: `spark_jobs.drill`
    6  decide         counts -> verdict and exit code: `spark_jobs.verdict`

`spark_jobs.cli` does steps 1 and 2. A clean run ends after step 4 and reads every record once. Offsets that were not
compared are counted; the audit never assumes that they are equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kclient.types import TopicPartition
from spark_jobs.cut import OffsetRange, PartitionCut, freeze
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.snapshot import ClusterSnapshot, RecordReader
from spark_jobs.verdict import Counts, Limits, Outcome, decide
from spark_jobs.windows import (
    WindowResult,
    WindowState,
    by_bucket,
    by_window,
    compare_windows,
    offset_ranges,
)

DEFAULT_WINDOW_OFFSETS = 10_000
BUCKETS = 60
"""Time buckets of the charts."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the caller."""

    window: int = DEFAULT_WINDOW_OFFSETS
    complete: bool = False
    """The mirror has caught up and stopped: records that the target lacks at its end are MISSING, not lag."""
    limits: Limits = field(default_factory=Limits)


@dataclass(slots=True)
class Cost:
    """Time and data volume of one run."""

    seconds: dict[str, float] = field(default_factory=dict)
    records_read: int = 0
    bytes_read: int = 0
    windows: int = 0
    windows_drilled: int = 0


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The result of one run, input of every report."""

    source: ClusterSnapshot
    target: ClusterSnapshot
    options: Options
    cuts: Sequence[PartitionCut]
    windows: Sequence[WindowResult]
    findings: Sequence[Finding]
    lagging: Mapping[TopicPartition, int]
    source_buckets: Mapping[str, Sequence[int]]
    target_buckets: Mapping[str, Sequence[int]]
    first_ms: int
    bucket_ms: int
    counts: Counts
    outcome: Outcome
    cost: Cost


Progress = Callable[[str], None]


def reconcile(
    read: RecordReader,
    source: ClusterSnapshot,
    target: ClusterSnapshot,
    options: Options,
    *,
    span_ms: tuple[int, int],
    progress: Progress = lambda _: None,
    self_test_failed: bool = False,
) -> Reconciliation:
    """Compare *target* with *source*; *span_ms* is (first, last) record timestamp, for the charts.

    *self_test_failed* makes the verdict ERROR. Spark errors, RangeUnreadable among them, pass through.
    """
    cost = Cost()
    cuts = freeze(target.ranges, source.ranges)
    first_ms, bucket_ms = span_ms[0], max(1, (span_ms[1] - span_ms[0]) // BUCKETS + 1)

    def digests(cluster: ClusterSnapshot, ranges: list[OffsetRange]) -> list[dict[str, int]]:
        from spark_jobs.digest import WindowShape

        progress(f"reading {cluster.name}: {sum(r.high - r.low for r in ranges):,} offsets")
        started = time.monotonic()
        shape = WindowShape(options.window, first_ms, bucket_ms, BUCKETS)
        frame = read.digests(cluster, ranges, shape)
        rows = [row.asDict() for row in frame.collect()]
        cost.seconds[f"read {cluster.name}"] = round(time.monotonic() - started, 3)
        cost.records_read += sum(row["records"] for row in rows)
        cost.bytes_read += sum(row["bytes"] for row in rows)
        return rows

    source_rows = digests(source, [OffsetRange(c.topic, c.partition, c.low, c.high) for c in cuts])
    target_rows = digests(
        target, [OffsetRange(c.topic, c.partition, c.low, c.target_end) for c in cuts]
    )
    windows = compare_windows(by_window(source_rows), by_window(target_rows))
    cost.windows = len(windows)
    cost.windows_drilled = sum(result.state is not WindowState.EQUAL for result in windows)
    findings, lagging = _drill(read, source, target, cuts, windows, options, cost, progress)
    counts = Counts(
        in_scope=sum(c.compared + c.aged_out for c in cuts),
        verified=sum(c.compared for c in cuts),
        lagging=sum(lagging.values()),
        aged_out=sum(c.aged_out for c in cuts),
        findings={
            each: sum(f.finding_class is each for f in findings)
            for each in FindingClass
            if any(f.finding_class is each for f in findings)
        },
    )
    return Reconciliation(
        source,
        target,
        options,
        cuts,
        windows,
        findings,
        lagging,
        by_bucket(source_rows, BUCKETS),
        by_bucket(target_rows, BUCKETS),
        first_ms,
        bucket_ms,
        counts,
        decide(counts, options.limits, self_test_failed=self_test_failed),
        cost,
    )


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """The offsets to compare record by record, per cluster."""

    source: list[OffsetRange]
    target: list[OffsetRange]
    tails: frozenset[TopicPartition]
    """Partitions in which the source is read to its end: only there can lag and loss be distinguished."""


def plan_drill(
    cuts: Sequence[PartitionCut], windows: Sequence[WindowResult], options: Options
) -> DrillPlan:
    """Return the offsets to compare record by record.

    In a target with other offsets a difference shifts all records after it. So if the last window below the cut
    differs, the source's records above the cut are compared too.
    """
    bad = offset_ranges(windows, options.window)
    source: list[OffsetRange] = []
    target: list[OffsetRange] = []
    tails = set()
    for cut in cuts:
        tp = cut.topic_partition
        ranges = bad.get(tp, [])
        last_differs = bool(ranges) and ranges[-1][1] >= cut.high
        with_tail = cut.lagging > 0 and (last_differs or options.complete)
        for low, high in ranges:
            source.append(OffsetRange(*tp, max(low, cut.low), min(high, cut.high)))
            target.append(OffsetRange(*tp, max(low, cut.low), min(high, cut.target_end)))
        if with_tail:
            tails.add(tp)
            source.append(OffsetRange(*tp, cut.high, cut.source_end))
    return DrillPlan(
        [each for each in source if each.high > each.low],
        [each for each in target if each.high > each.low],
        frozenset(tails),
    )


def split_lag(
    findings: Sequence[Finding], cut: PartitionCut, *, complete: bool
) -> tuple[list[Finding], int]:
    """Return *findings* without lag, and the lag in records.

    Missing records that reach the source's end without a gap are lag, unless the mirror is *complete*.
    """
    if complete:
        return list(findings), 0
    missing = {f.source_offset for f in findings if f.finding_class is FindingClass.MISSING}
    end = cut.source_end
    while end - 1 in missing:
        end -= 1
    kept = [
        f
        for f in findings
        if f.finding_class is not FindingClass.MISSING or (f.source_offset or 0) < end
    ]
    return kept, cut.source_end - end


def _drill(
    read: RecordReader,
    source: ClusterSnapshot,
    target: ClusterSnapshot,
    cuts: Sequence[PartitionCut],
    windows: Sequence[WindowResult],
    options: Options,
    cost: Cost,
    progress: Progress,
) -> tuple[list[Finding], dict[TopicPartition, int]]:
    plan = plan_drill(cuts, windows, options)
    lagging = {c.topic_partition: c.lagging for c in cuts}
    if not plan.source and not plan.target:
        return [], lagging
    from spark_jobs.drill import find_differences, first_copies, settle_duplicates

    progress(f"comparing record by record: {cost.windows_drilled} of {cost.windows} windows differ")
    started = time.monotonic()
    found = find_differences(read.hashes(source, plan.source), read.hashes(target, plan.target))
    extras = {(f.topic, f.partition) for f in found if f.finding_class is FindingClass.EXTRA}
    if extras:
        whole = [
            OffsetRange(c.topic, c.partition, c.low, c.target_end)
            for c in cuts
            if (c.topic, c.partition) in extras
        ]
        found = settle_duplicates(found, first_copies(read.hashes(target, whole), found))
    settled = []
    for cut in cuts:
        tp = cut.topic_partition
        of_partition = [f for f in found if (f.topic, f.partition) == tp]
        if tp in plan.tails:
            of_partition, lagging[tp] = split_lag(of_partition, cut, complete=options.complete)
        settled.extend(of_partition)
    cost.seconds["compare records"] = round(time.monotonic() - started, 3)
    return settled, lagging
