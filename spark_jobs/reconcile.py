"""One reconciliation: freeze the cut, compare window digests, drill into what differs, decide.

    1  topics         both clusters are asked for the topics that match; the source decides what is in scope
    2  freeze         log ranges of the target, then of the source: `spark_jobs.cut`
    3  digests        every record below the cut is read once on each side, hashed in the JVM and summed by window
    4  compare        windows that are equal are proven; the others say where to look
    5  drill          records of the others are aligned one by one: exact findings
    6  decide         counts -> verdict and exit code: `spark_jobs.verdict`

A clean run ends after step 4 and has read everything once. What was not looked at is counted, never assumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_jobs.cut import LogRange, PartitionCut, TopicPartition, freeze
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.source import OffsetRange
from spark_jobs.verdict import Counts, Limits, Outcome, decide
from spark_jobs.windows import (
    WindowResult,
    WindowState,
    by_bucket,
    by_window,
    compare_windows,
    offset_ranges,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_WINDOW_OFFSETS = 10_000
BUCKETS = 60
"""Time buckets of the pictures."""


@dataclass(frozen=True, slots=True)
class Side:
    """One cluster as the audit sees it, read once."""

    name: str
    bootstrap: str
    cluster_id: str
    ranges: Mapping[TopicPartition, LogRange]
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Per topic, its settings as they are in effect."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asks for."""

    window: int = DEFAULT_WINDOW_OFFSETS
    complete: bool = False
    """The mirror has caught up and stopped: what the target lacks at its tail is missing, not lag."""
    limits: Limits = field(default_factory=Limits)


@dataclass(slots=True)
class Cost:
    """What the run took."""

    seconds: dict[str, float] = field(default_factory=dict)
    records_read: int = 0
    bytes_read: int = 0
    windows: int = 0
    windows_drilled: int = 0


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Everything a report is made from."""

    source: Side
    target: Side
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

Reader = Callable[[Side, Sequence[OffsetRange]], "DataFrame"]
"""How a side's records are read: the brokers (`spark_jobs.source.kafka_reader`), or made-up logs (the self-test)."""


def reconcile(
    read: Reader,
    source: Side,
    target: Side,
    options: Options,
    *,
    span_ms: tuple[int, int],
    progress: Progress = lambda _: None,
    self_test_failed: bool = False,
) -> Reconciliation:
    """Compare *target* with *source*; *span_ms* is (first, last) record timestamp, for the time pictures."""
    cost = Cost()
    cuts = freeze(target.ranges, source.ranges)
    first_ms, bucket_ms = span_ms[0], max(1, (span_ms[1] - span_ms[0]) // BUCKETS + 1)

    def digests(side: Side, ranges: list[OffsetRange]) -> list[dict[str, int]]:
        from spark_jobs.digest import window_digests

        progress(f"reading {side.name}: {sum(r.high - r.low for r in ranges):,} offsets")
        started = time.monotonic()
        frame = window_digests(
            read(side, ranges),
            window=options.window,
            first_ms=first_ms,
            bucket_ms=bucket_ms,
            buckets=BUCKETS,
        )
        rows = [row.asDict() for row in frame.collect()]
        cost.seconds[f"read {side.name}"] = round(time.monotonic() - started, 3)
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
    """The offsets to compare record by record, per side."""

    source: list[OffsetRange]
    target: list[OffsetRange]
    tails: frozenset[TopicPartition]
    """Partitions whose source is read to its end: only there can the lag be told from a loss."""


def plan_drill(
    cuts: Sequence[PartitionCut], windows: Sequence[WindowResult], options: Options
) -> DrillPlan:
    """Decide which offsets have to be looked at one by one.

    A difference shifts what follows it where the target was renumbered. So where the last window below the cut
    differs, what the source holds above the cut belongs to the comparison too.
    """
    bad = offset_ranges(windows, options.window)
    source: list[OffsetRange] = []
    target: list[OffsetRange] = []
    tails = set()
    for cut in cuts:
        place = (cut.topic, cut.partition)
        ranges = bad.get(place, [])
        last_differs = bool(ranges) and ranges[-1][1] >= cut.high
        with_tail = cut.lagging > 0 and (last_differs or options.complete)
        for low, high in ranges:
            source.append(OffsetRange(*place, max(low, cut.low), min(high, cut.high)))
            target.append(OffsetRange(*place, max(low, cut.low), min(high, cut.target_end)))
        if with_tail:
            tails.add(place)
            source.append(OffsetRange(*place, cut.high, cut.source_end))
    return DrillPlan(
        [each for each in source if each.high > each.low],
        [each for each in target if each.high > each.low],
        frozenset(tails),
    )


def split_lag(
    findings: Sequence[Finding], cut: PartitionCut, *, complete: bool
) -> tuple[list[Finding], int]:
    """Separate what *cut*'s target has not received yet from what it lost.

    Records missing without a gap up to the source's end are lag, unless the mirror is complete.
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
    read: Reader,
    source: Side,
    target: Side,
    cuts: Sequence[PartitionCut],
    windows: Sequence[WindowResult],
    options: Options,
    cost: Cost,
    progress: Progress,
) -> tuple[list[Finding], dict[TopicPartition, int]]:
    plan = plan_drill(cuts, windows, options)
    lagging = {(c.topic, c.partition): c.lagging for c in cuts}
    if not plan.source and not plan.target:
        return [], lagging
    from spark_jobs.drill import find_differences, first_copies, settle_duplicates

    progress(f"comparing record by record: {cost.windows_drilled} of {cost.windows} windows differ")
    started = time.monotonic()
    found = find_differences(read(source, plan.source), read(target, plan.target))
    extras = {(f.topic, f.partition) for f in found if f.finding_class is FindingClass.EXTRA}
    if extras:
        whole = [
            OffsetRange(c.topic, c.partition, c.low, c.target_end)
            for c in cuts
            if (c.topic, c.partition) in extras
        ]
        found = settle_duplicates(found, first_copies(read(target, whole), found))
    settled = []
    for cut in cuts:
        place = (cut.topic, cut.partition)
        of_partition = [f for f in found if (f.topic, f.partition) == place]
        if place in plan.tails:
            of_partition, lagging[place] = split_lag(of_partition, cut, complete=options.complete)
        settled.extend(of_partition)
    cost.seconds["compare records"] = round(time.monotonic() - started, 3)
    return settled, lagging
