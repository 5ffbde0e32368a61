"""The comparison of two clusters at one cut: which offsets are read, and what the results mean.

A `Comparison` has the cut and makes one `Look`. It reads digests, compares windows, drills into those that differ, and
puts each offset into one class. It decides what is read; pure modules decide what the results mean; an `Engine` only
reads and hashes. `spark_jobs.reconcile` has the steps of a run, `spark_jobs.later_looks` compares again at a later cut.

In: both clusters at the cut, options   Out: a `Look`   Owner: the caller
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from kclient.types import TopicPartition
from spark_jobs.accounting import (
    AcceptedGap,
    Account,
    Evidence,
    KeyLookup,
    Ledger,
)
from spark_jobs.align import Alignment
from spark_jobs.compaction import ONLY_TARGET, KeySpans
from spark_jobs.cut import LogRange, OffsetRange, PartitionCut, freeze
from spark_jobs.engine import (
    Copies,
    Engine,
    Failure,
    FailureKind,
    KeysFound,
    Modes,
    Place,
    SpanRanges,
    by_partition,
    joined,
    offsets_of,
)
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.folding import in_order
from spark_jobs.gap_ledger import CheckedEntries, LedgerRead, check_entries
from spark_jobs.hash_key import PUBLIC, HashKey
from spark_jobs.kept import DEFAULT_RECHECK, Kept, KeptWindow, Lineage, Plan, changed
from spark_jobs.kept import plan as plan_kept
from spark_jobs.looks import Held, Look
from spark_jobs.ranges import Ranges, merged, subtract
from spark_jobs.recreated_topics import RecreatedTopic
from spark_jobs.settle import Patience
from spark_jobs.snapshot import WHOLE_TOPIC, ClusterSnapshot
from spark_jobs.verdict import Limits
from spark_jobs.windows import (
    WindowResult,
    WindowState,
    by_window,
    compare_windows,
    offset_ranges,
)

DEFAULT_WINDOW_OFFSETS = 10_000

NO_END = 1 << 63

NEWER_READS = 5
"""Reads of what the logs received since the cut, at most: each may find what the one before was too early for."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the caller."""

    window: int = DEFAULT_WINDOW_OFFSETS
    complete: bool = False
    """The mirror has caught up and stopped: records that the target lacks at its end are TRUNCATED, not lag."""
    limits: Limits = field(default_factory=Limits)
    renumbered: bool = False
    """The target's offsets are its own: a shift is no finding, and holes in its offsets are no gaps."""
    accepted: tuple[AcceptedGap, ...] = ()
    """Gaps that the operator accepted."""
    accepted_if: tuple[tuple[AcceptedGap, str], ...] = ()
    """The same, each for a topic id at the target. The first look knows no topic id there, a later one may."""
    ledger: LedgerRead | None = None
    """The mirror's gap ledger; None to ignore it."""
    kept: Kept | None = None
    """What an earlier run has proven; None to compare everything."""
    recheck: float = DEFAULT_RECHECK
    """The share of the kept windows that is read again."""
    lineage: Lineage = field(default_factory=Lineage)
    recreated: tuple[RecreatedTopic, ...] = ()
    """Topics that are copied to another topic of the target since they were created again."""
    hash_key: HashKey = PUBLIC
    patience: Patience = field(default_factory=Patience)


@dataclass(slots=True)
class Cost:
    """Time and data volume of one run."""

    seconds: dict[str, float] = field(default_factory=dict)
    records_read: int = 0
    bytes_read: int = 0
    windows: int = 0
    """Of the look that counts."""
    windows_drilled: int = 0
    """Those of `windows` that differ: they were compared record by record."""

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Record the duration of *step*."""
        started = time.monotonic()
        yield
        spent = self.seconds.get(step, 0.0) + time.monotonic() - started
        self.seconds[step] = round(spent, 3)


def checked_entries(
    options: Options, source: ClusterSnapshot, target: ClusterSnapshot
) -> CheckedEntries:
    """Return the entries of the ledger in *options* that concern these clusters."""
    return (
        CheckedEntries()
        if options.ledger is None
        else check_entries(options.ledger.entries, source, target)
    )


_Logs = Mapping[TopicPartition, LogRange]


def known_ranges(
    source: ClusterSnapshot, target: ClusterSnapshot
) -> tuple[tuple[_Logs, _Logs], list[Failure]]:
    """Return the log ranges of source and target, and failures for partitions without a known range on a side.

    Such a partition gets the range of the other side: all its offsets were not read.
    """
    ranges = dict(source.ranges), dict(target.ranges)
    failures = []
    for side, cluster in enumerate((source, target)):
        for topic, number in cluster.unreadable:
            cause = cluster.unreadable[TopicPartition(topic, number)]
            known = [tp for tp in (*ranges[0], *ranges[1]) if tp.topic == topic]
            one = TopicPartition(topic, max(number, 0))
            for tp in sorted(set(known)) if number == WHOLE_TOPIC and known else [one]:
                span = ranges[1 - side].get(tp, LogRange(0, 0))
                ranges[side][tp] = span
                ranges[1 - side][tp] = span
                failures.append(
                    Failure(cluster.name, *tp, span.start, span.end, FailureKind.UNREADABLE, cause)
                )
    return ranges, failures


class Drilled(NamedTuple):
    """What a comparison record by record shows."""

    alignments: Mapping[TopicPartition, Alignment]
    tails: frozenset[TopicPartition]
    """See `DrillPlan`."""
    compacted_away: Mapping[TopicPartition, int] = {}
    """Offsets that compaction explains and that are in no alignment."""


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """The offsets to compare record by record, per cluster."""

    source: list[OffsetRange]
    target: list[OffsetRange]
    tails: frozenset[TopicPartition]
    """Partitions in which the source is read to its end: only there can lag and loss be distinguished."""
    breaks: Mapping[TopicPartition, Sequence[int]]
    """See `Modes`."""


def plan_drill(
    cuts: Sequence[PartitionCut],
    windows: Sequence[WindowResult],
    options: Options,
    failed: Mapping[TopicPartition, Ranges] | None = None,
) -> DrillPlan:
    """Return the offsets to compare record by record, without those that a cluster *failed* to return.

    The offsets of a renumbered target show nothing about those of the source: if a window differs, both logs are
    compared whole. In a target with other offsets a difference shifts all records after it. So if the last window below
    the cut differs, the source's records above the cut are compared too.
    """
    bad = offset_ranges(windows, options.window)
    equal = _equal_windows(windows, options.window)
    source: list[OffsetRange] = []
    target: list[OffsetRange] = []
    tails = set()
    breaks = {}
    for cut in cuts:
        tp = cut.topic_partition
        ranges = bad.get(tp, [])
        last_differs = bool(ranges) and ranges[-1][1] >= cut.high
        without = (failed or {}).get(tp, [])
        if options.renumbered and ranges:
            tails.add(tp)
            source.append(OffsetRange(*tp, cut.low, cut.source_end))
            target.append(OffsetRange(*tp, cut.target_low, cut.target_end))
            continue
        of_source = [(max(low, cut.low), min(high, cut.high)) for low, high in ranges]
        of_target = [(max(low, cut.target_low), min(high, cut.target_end)) for low, high in ranges]
        if cut.lagging > 0 and (last_differs or options.complete):
            tails.add(tp)
            of_source.append((cut.high, cut.source_end))
        breaks[tp] = _breaks(merged([*of_source, *of_target]), equal[tp])
        source += [OffsetRange(*tp, *each) for each in subtract(of_source, without)]
        target += [OffsetRange(*tp, *each) for each in subtract(of_target, without)]
    return DrillPlan(source, target, frozenset(tails), breaks)


def _equal_windows(
    windows: Iterable[WindowResult], size: int
) -> Mapping[TopicPartition, Sequence[int]]:
    """Return the first offsets of the windows that are equal and have records, ascending, by partition."""
    found: dict[TopicPartition, list[int]] = defaultdict(list)
    for each in windows:
        if each.state is WindowState.EQUAL and each.source.records:
            found[TopicPartition(*each.key[:2])].append(each.key.window * size)
    return found


def _breaks(ranges: Ranges, equal: Sequence[int]) -> list[int]:
    """Return the starts of those of *ranges* that are behind *equal* windows, and another range before these."""
    return [
        low
        for (_, before), (low, _) in pairwise(ranges)
        if bisect_left(equal, before) < bisect_left(equal, low)
    ]


@dataclass(slots=True)
class Comparison:
    """Two clusters at one cut, and what could not be read of them so far."""

    engine: Engine
    source: ClusterSnapshot
    target: ClusterSnapshot
    options: Options
    cuts: Sequence[PartitionCut]
    cost: Cost
    progress: Progress
    failures: list[Failure]
    unknown: frozenset[TopicPartition]
    """Partitions of which one side has no known range."""

    @classmethod
    def at_cut(
        cls,
        engine: Engine,
        source: ClusterSnapshot,
        target: ClusterSnapshot,
        options: Options,
        cost: Cost,
        progress: Progress,
    ) -> Comparison:
        """Freeze the cut of both clusters."""
        ranges, failures = known_ranges(source, target)
        cuts = freeze(ranges[1], ranges[0], renumbered=options.renumbered)
        unknown = frozenset(by_partition(failures))
        if not options.renumbered:
            decided = {each.topic_partition: each.decided for each in cuts}
            source, target = (replace(each, decided=decided) for each in (source, target))
        return cls(engine, source, target, options, cuts, cost, progress, failures, unknown)

    def only(self, partitions: frozenset[TopicPartition]) -> Comparison:
        """Return the run of *partitions*, of which nothing was read."""
        cuts = [each for each in self.cuts if each.topic_partition in partitions]
        return replace(self, cuts=cuts, failures=[], unknown=frozenset())

    def look(
        self, kept: Plan, held: Held, rechecked: Mapping[TopicPartition, Sequence[KeptWindow]]
    ) -> Look:
        """Read what is neither carried nor *held* nor *rechecked* already, and classify everything."""
        rows: list[list[Mapping[str, int]]] = []
        for side, cluster in enumerate((self.source, self.target)):
            wanted = [
                OffsetRange(*cut.topic_partition, *span)
                for cut in self.cuts
                for span in subtract(
                    [(cut.target_low, cut.target_end) if side else (cut.low, cut.high)],
                    [
                        *kept.spans(cut.topic_partition),
                        *(each.span[2:] for each in rechecked.get(cut.topic_partition, ())),
                        *held.spans.get(cut.topic_partition, ()),
                    ],
                )
            ]
            rows.append([*held.rows[side], *self.window_rows(cluster, wanted)])
        sums = (kept.add_to(by_window(each), self.options.window) for each in rows)
        windows = compare_windows(*sums)
        holes = self._holes(kept, held)
        return Look(
            {cut.topic_partition: cut for cut in self.cuts},
            (rows[0], rows[1]),
            windows,
            self._account(windows, holes),
            kept,
            holes,
        )

    def window_rows(
        self, cluster: ClusterSnapshot, ranges: list[OffsetRange]
    ) -> Sequence[Mapping[str, int]]:
        """Return the window digests of *ranges*; record what could not be read."""
        ranges = self._not_failed(ranges)
        self.progress(
            f"reading {cluster.name}: {sum(r.high - r.low for r in ranges):,} offsets of {len(ranges):,} partitions"
        )
        if not ranges:
            return []
        with self.cost.timed(f"read {cluster.name}"):
            answer = self.engine.window_rows(cluster, ranges)
        self.failures += answer.failures
        self.cost.records_read += sum(row["records"] for row in answer.rows)
        self.cost.bytes_read += sum(row["bytes"] for row in answer.rows)
        return answer.rows

    def recheck(self) -> tuple[Plan, list[list[Mapping[str, int]]]]:
        """Return what is carried, and per side the rows of the kept windows that were read again."""
        kept, rows = self._plan(), []
        spans = [
            OffsetRange(*tp, *span) for tp in kept.recheck for span in merged(kept.rechecked(tp))
        ]
        if spans:
            self.progress(f"reading {sum(map(len, kept.recheck.values())):,} kept windows again")
        for cluster in (self.source, self.target):
            rows.append(list(self.window_rows(cluster, spans)) if spans else [])
        refused = changed(
            kept.recheck,
            (by_window(rows[0]), by_window(rows[1])),
            (self.source.name, self.target.name),
            self.failures,
            self.options.window,
        )
        return kept.without(refused), rows

    def _plan(self) -> Plan:
        options = self.options
        if options.kept is None:
            return Plan()
        return plan_kept(
            options.kept,
            self.cuts,
            (self.source, self.target),
            options.lineage,
            compacted=compacted_topics(self.source) | compacted_topics(self.target),
            unknown=self.unknown,
            share=options.recheck,
        )

    def _account(self, windows: Sequence[WindowResult], holes: Sequence[OffsetRange]) -> Account:
        """Drill into *windows* that differ, and classify everything."""
        drilled = self._drill(windows)
        source_compacted, target_compacted = (
            compacted_topics(self.source),
            compacted_topics(self.target),
        )
        ledger = Ledger(
            Evidence(
                self.source.name,
                self.options.window,
                self.cuts,
                windows,
                drilled.alignments,
                drilled.tails,
                # The order in which Spark's tasks end is not the order of the report.
                joined(self.failures),
                holes,
                self.options.complete,
                self.options.renumbered,
                source_compacted,
                target_compacted,
                (
                    *checked_entries(self.options, self.source, self.target).gaps,
                    *self._accepted(),
                ),
                drilled.compacted_away,
                self.unknown,
            )
        )
        ledger.classify()
        lookup = ledger.key_lookup()
        if lookup.findings:
            with self.cost.timed("explain compaction"):
                self._explain_compaction(ledger, lookup)
        ledger.find_left_lag()
        ledger.explain_accepted()
        ledger.settle_duplicates(self._copies(ledger.extras()))
        ledger.find_left_lag()
        ledger.find_misrouted()
        ledger.settle_damaged()
        ledger.find_left_lag()
        ledger.fold_tails()
        ledger.fold_foreign()
        return ledger.account()

    def _not_failed(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return *ranges* without empty ones and without partitions that have no known range."""
        return [
            each
            for each in ranges
            if each.high > each.low and each.topic_partition not in self.unknown
        ]

    def _holes(self, kept: Plan, held: Held) -> Sequence[OffsetRange]:
        """Return the offsets without a record where only the target still has the log.

        Offsets that an earlier run compared are left out: when both logs had them, they were equal.
        """
        ranges = [
            OffsetRange(*c.topic_partition, *span)
            for c in self.cuts
            for span in subtract(
                [c.only_target],
                [*kept.known_equal(c.topic_partition), *held.searched.get(c.topic_partition, ())],
            )
        ]
        ranges = self._not_failed(ranges)
        if self.options.renumbered or not ranges:
            return held.holes
        self.progress(f"looking for gaps where the source is deleted: {len(ranges):,} partitions")
        with self.cost.timed("gaps"):
            answer = self.engine.holes(self.target, ranges)
        self.failures += answer.failures
        return [*held.holes, *answer.ranges]

    def _drill(self, windows: Sequence[WindowResult]) -> Drilled:
        failed = {tp: offsets_of(each) for tp, each in by_partition(self.failures).items()}
        plan = plan_drill(self.cuts, windows, self.options, failed)
        source = self._readable(self.source, plan.source)
        target = self._readable(self.target, plan.target)
        if not source and not target:
            return Drilled({}, plan.tails)
        differing = sum(each.state is not WindowState.EQUAL for each in windows)
        self.progress(
            f"comparing record by record: {differing:,} of {len(windows):,} windows differ"
        )
        modes = Modes(
            compacted_topics(self.source) | compacted_topics(self.target),
            self.options.renumbered,
            self._unread_of_renumbered(),
            self._edges(),
            self._ends(),
            explainable(self.source, self.target),
            plan.breaks,
        )
        with self.cost.timed("compare records"):
            answer = self.engine.differences((self.source, source), (self.target, target), modes)
        self.failures += answer.failures
        if not answer.undecided:
            return Drilled(answer.alignments, plan.tails)
        with self.cost.timed("explain compaction"):
            found = self.engine.explain_undecided(
                self.source, self.target, self._span_ranges(answer.undecided), modes
            )
        alignments = {
            tp: replace(each, findings=in_order([*each.findings, *found.left.get(tp, ())]))
            for tp, each in answer.alignments.items()
        }
        return Drilled(alignments, plan.tails, found.offsets)

    def _accepted(self) -> list[AcceptedGap]:
        """Return the gaps that the operator accepted, without those of another topic id than the target's topic has."""
        ids = self.target.topic_ids
        same = [gap for gap, of in self.options.accepted_if if ids.get(gap.topic, of) in ("", of)]
        return [*self.options.accepted, *same]

    def _edges(self) -> Mapping[TopicPartition, Sequence[int]]:
        """Return for each partition the ends of accepted gaps and of the cut."""
        edges = {cut.topic_partition: {cut.high, cut.target_end} for cut in self.cuts}
        for gap in self._accepted():
            edges.get(gap.topic_partition, set()).update((gap.low, gap.high))
        return {tp: sorted(each) for tp, each in edges.items()}

    def _ends(self) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
        """Return where the logs end; a renumbered target may have records of the source at any offset."""
        source = {
            cut.topic_partition: NO_END if self.options.renumbered else cut.source_end
            for cut in self.cuts
        }
        return source, {cut.topic_partition: cut.target_end for cut in self.cuts}

    def _unread_of_renumbered(self) -> Mapping[TopicPartition, tuple[Ranges, Ranges]]:
        """Return what source and target have deleted or did not return, by partition; none unless renumbered."""
        if not self.options.renumbered:
            return {}
        failures = by_partition(self.failures)
        unread: dict[TopicPartition, tuple[Ranges, Ranges]] = {}
        for cut in self.cuts:
            sides: list[Ranges] = []
            for cluster, start in ((self.source, cut.low), (self.target, cut.target_low)):
                own = [f for f in failures[cut.topic_partition] if f.cluster == cluster.name]
                sides.append([*([(-1, start)] if start > 0 else []), *offsets_of(own)])
            unread[cut.topic_partition] = sides[0], sides[1]
        return unread

    def _readable(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]
    ) -> list[OffsetRange]:
        """Return *ranges* without what the cluster failed to return before."""
        failures = by_partition(f for f in self.failures if f.cluster == cluster.name)
        return [
            each._replace(low=low, high=high)
            for each in self._not_failed(ranges)
            for low, high in subtract([each[2:]], offsets_of(failures[each.topic_partition]))
        ]

    def _copies(self, extras: Sequence[Finding]) -> dict[Place, Copies]:
        if not extras:
            return {}
        partitions = {f.topic_partition for f in extras}
        ranges = [
            OffsetRange(*c.topic_partition, c.only_target[0], c.target_end)
            for c in self.cuts
            if c.topic_partition in partitions
        ]
        contents = frozenset(f.target_hash for f in extras if f.target_hash is not None)
        with self.cost.timed("copies"):
            return self.engine.copies(self.target, ranges, contents)

    def _explain_compaction(self, ledger: Ledger, lookup: KeyLookup) -> None:
        """Explain what compaction removes, also with records that are newer than the cut.

        A log may compact what it receives during the run: then only a record behind the cut shows why another one is
        gone. Of each key the last record stays in the log. So it is found in what the log has received since the
        reads before, or replaced by one that the next read finds.
        """
        spans = self._spans_of_keys(lookup)
        left = ledger.explain_compaction(lookup, spans)
        read = (
            {cut.topic_partition: cut.source_end for cut in self.cuts},
            {cut.topic_partition: cut.target_end for cut in self.cuts},
        )
        for _ in range(NEWER_READS):
            if not left.findings:
                return
            newer, grew = [], False
            for cluster, until in zip((self.source, self.target), read, strict=True):
                ends = self.engine.log_ends(cluster, left.partitions)
                ranges = [OffsetRange(*tp, until[tp], ends[tp]) for tp in sorted(ends)]
                newer.append(self._spans(cluster, ranges, left.keys).spans)
                grew = grew or any(each.high > each.low for each in ranges)
                until.update({tp: max(until[tp], end) for tp, end in ends.items()})
            if not grew:
                return
            spans = spans.newer(*newer)
            left = ledger.explain_compaction(left, spans)

    def _spans(
        self, cluster: ClusterSnapshot, ranges: Iterable[OffsetRange], keys: frozenset[int]
    ) -> KeysFound:
        known = self._not_failed(list(ranges))
        return self.engine.spans_of_keys(cluster, known, keys) if known else KeysFound()

    def _spans_of_keys(self, lookup: KeyLookup) -> KeySpans:
        """Return where the logs have the keys of *lookup*, up to the ends of the cut."""
        ranges = self._span_ranges(lookup.partitions)
        clusters = (self.source, self.target, self.source, self.target)
        return KeySpans.of(
            *(
                self._spans(cluster, each, lookup.keys)
                for cluster, each in zip(clusters, ranges, strict=True)
            )
        )

    def _span_ranges(self, partitions: AbstractSet[TopicPartition]) -> SpanRanges:
        """Return where keys of *partitions* are looked for, up to the ends of the cut."""
        cuts = [c for c in self.cuts if c.topic_partition in partitions]
        renumbered = self.options.renumbered

        def span(cut: PartitionCut, low: int, high: int) -> OffsetRange:
            return OffsetRange(*cut.topic_partition, low, high)

        return SpanRanges(
            [span(c, c.low, c.high) for c in cuts],
            [span(c, c.target_low, c.target_end if renumbered else c.high) for c in cuts],
            [span(c, c.high, c.source_end) for c in cuts],
            [] if renumbered else [span(c, c.high, c.target_end) for c in cuts],
        )


def compacted_topics(cluster: ClusterSnapshot) -> frozenset[str]:
    """Return the topics that *cluster* compacts."""
    return frozenset(
        topic
        for topic, configs in cluster.configs.items()
        if "compact" in configs.get("cleanup.policy", "")
    )


def explainable(
    source: ClusterSnapshot, target: ClusterSnapshot
) -> Mapping[str, frozenset[FindingClass]]:
    """Return by topic the classes of findings that compaction of one of the logs may explain."""
    of_target, of_source = compacted_topics(target), compacted_topics(source)
    return {
        topic: frozenset(
            [
                *([FindingClass.MISSING] if topic in of_target else []),
                *(ONLY_TARGET if topic in of_source else []),
            ]
        )
        for topic in of_target | of_source
    }
