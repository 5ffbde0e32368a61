"""One reconciliation: freeze the cut, compare window digests, drill into what differs, decide.

    1  topics         list the topics of both clusters that match: they are the scope
    2  freeze         read the log ranges of the target, then of the source: `spark_jobs.cut`
    3  digests        read every record of the scope once on each side, hash it, sum by window;
                      with a kept run only what that has not proven, and a share of the rest: `spark_jobs.kept`
    4  compare        equal windows are proven equal: `spark_jobs.windows`
    5  drill          align the records of the other windows one by one: `spark_jobs.align`
    6  account        put each offset into one class: `spark_jobs.accounting`
    7  look again     wait, then steps 2 to 6 for what differs, at most `Patience.rounds` times: `spark_jobs.settle`
    8  decide         counts -> verdict and exit code: `spark_jobs.verdict`

`spark_jobs.cli` does steps 1 and 2. A clean run ends after step 4 and reads every record once. Offsets that were not
compared are counted; the audit never assumes that they are equal. Which offsets are read, and what the results mean, is
decided here and in pure modules; an `Engine` only reads and hashes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kclient.types import TopicPartition
from spark_jobs.accounting import AcceptedGap, Account, Evidence, KeySpans, Ledger
from spark_jobs.align import Alignment
from spark_jobs.attribution import Attributed
from spark_jobs.cut import LogRange, OffsetRange, PartitionCut, freeze
from spark_jobs.engine import (
    Copies,
    Engine,
    Failure,
    FailureKind,
    KeySpan,
    Modes,
    Place,
    by_partition,
    joined,
    offsets_of,
)
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.gap_ledger import Believed, LedgerRead, believed
from spark_jobs.hash_key import PUBLIC, HashKey
from spark_jobs.kept import DEFAULT_RECHECK, Kept, KeptWindow, Lineage, Plan, Refusal, changed
from spark_jobs.kept import plan as plan_kept
from spark_jobs.looks import Held, Look, held, only, with_ranges
from spark_jobs.ranges import Ranges, merged, subtract
from spark_jobs.settle import (
    NotReplaced,
    Patience,
    Settled,
    cut_objection,
    is_stable,
    replaced,
    same_logs,
    suspects,
    vanished,
)
from spark_jobs.snapshot import ClusterSnapshot
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
    """The mirror has caught up and stopped: records that the target lacks at its end are TRUNCATED, not lag."""
    limits: Limits = field(default_factory=Limits)
    renumbered: bool = False
    """The target's offsets are its own: a shift is no finding, and holes in its offsets are no gaps."""
    accepted: tuple[AcceptedGap, ...] = ()
    """Gaps that the operator accepted."""
    ledger: LedgerRead | None = None
    """The mirror's gap ledger; None to ignore it."""
    kept: Kept | None = None
    """What an earlier run has proven; None to compare everything."""
    recheck: float = DEFAULT_RECHECK
    """The share of the kept windows that is read again."""
    lineage: Lineage = field(default_factory=Lineage)
    hash_key: HashKey = PUBLIC
    patience: Patience = field(default_factory=Patience)


class Moment(NamedTuple):
    """Both clusters at a later cut."""

    source: ClusterSnapshot
    target: ClusterSnapshot
    lineage: Lineage = Lineage()
    """`Lineage.at_proof` is at the offset before the earlier cut."""
    ledger: LedgerRead | None = None


Again = Callable[[Sequence[PartitionCut]], Moment | str]
"""Waits for the settle time, then reads the log ranges of the partitions again; a text is why that was not possible."""


@dataclass(slots=True)
class Cost:
    """Time and data volume of one run."""

    seconds: dict[str, float] = field(default_factory=dict)
    records_read: int = 0
    bytes_read: int = 0
    windows: int = 0
    windows_drilled: int = 0

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Record the duration of *step*."""
        started = time.monotonic()
        yield
        spent = self.seconds.get(step, 0.0) + time.monotonic() - started
        self.seconds[step] = round(spent, 3)


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

    @property
    def believed(self) -> Believed:
        """The entries of the mirror's ledger that concern the run."""
        return believed_of(self.options, self.source, self.target)

    @property
    def findings(self) -> Sequence[Finding]:
        """All findings, sorted."""
        return self.account.findings

    @property
    def counts(self) -> Counts:
        """The class of each offset, summed over all partitions."""
        return self.account.total


Progress = Callable[[str], None]


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
    run = _Run.at_cut(engine, source, target, options, cost, progress)
    kept, rows = run.recheck()
    look = run.look(kept, Held(rows=(rows[0], rows[1])), kept.recheck)
    settled = Settled(options.patience)
    if again is not None:
        run, look, settled = _Settling(run, look, again).done()
    cost.windows = len(look.windows)
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
    )


@dataclass(slots=True)
class _Settling:
    """The later looks of one run."""

    run: _Run
    look: Look
    again: Again
    rounds: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    gone: Counter[FindingClass] = field(default_factory=Counter)
    read_later: set[TopicPartition] = field(default_factory=set)
    standing: dict[TopicPartition, str] = field(default_factory=dict)
    problem: str = ""

    def done(self) -> tuple[_Run, Look, Settled]:
        """Look again until nothing changes any more, or the rounds are used up; return what counts then."""
        patience, cost = self.run.options.patience, self.run.cost
        read_before = cost.records_read
        todo = suspects(self.look.seen()) - self.look.kept.aside.keys()
        while todo and self.rounds < patience.rounds and not self.problem:
            todo = self._look_again(todo)
        settled = Settled(
            patience,
            self.rounds,
            len(self.partitions),
            cost.records_read - read_before,
            self.gone,
            len(self.read_later),
            [NotReplaced(*tp, reason) for tp, reason in sorted(self.standing.items())],
            self.problem,
        )
        return self.run, self.look, settled

    def _look_again(self, todo: set[TopicPartition]) -> set[TopicPartition]:
        """Look at *todo*; return what to look at after that."""
        run, before = self.run, self.look.seen()
        run.progress(
            f"{len(todo):,} partitions differ: looking again after {run.options.patience.settle_s:g} s"
        )
        moment = self.again([self.look.cuts[tp] for tp in sorted(todo)])
        if isinstance(moment, str):
            self.problem = moment
            return set()
        self.rounds += 1
        self.partitions |= todo
        reasons, later = self._later(moment, todo)
        after = {} if later is None else later.seen()
        reasons |= replaced(before, after, renumbered=run.options.renumbered)
        accepted = {tp for tp, reason in reasons.items() if not reason}
        for tp in accepted:
            self.gone += vanished(before[tp], after[tp])
            if before[tp].unread and not after[tp].unread:
                self.read_later.add(tp)
        self.standing = {tp: why for tp, why in self.standing.items() if tp not in accepted}
        self.standing |= {tp: reason for tp, reason in reasons.items() if reason}
        if later is not None and accepted:
            self.look = self.look.replaced_by(later, accepted)
            self.run = run.at_moment(moment, accepted)
        now = self.look.seen()
        unsettled = {
            tp: now[tp] for tp in todo if tp not in accepted or not is_stable(before[tp], after[tp])
        }
        return suspects(unsettled)

    def _later(
        self, moment: Moment, todo: set[TopicPartition]
    ) -> tuple[dict[TopicPartition, str], Look | None]:
        """Look at *todo* as they are at *moment*, without those that the moment itself excludes, with the reason."""
        run, look = self.run, self.look
        cuts = _Run.at_cut(
            run.engine,
            only(moment.source, todo),
            only(moment.target, todo),
            replace(run.options, ledger=moment.ledger),
            run.cost,
            run.progress,
        )
        found = {
            cut.topic_partition: cut for cut in cuts.cuts if cut.topic_partition not in cuts.unknown
        }
        reasons = {tp: _moment_objection(run, moment, found.get(tp), look.cuts[tp]) for tp in todo}
        possible = frozenset(tp for tp, reason in reasons.items() if not reason)
        refused = {tp: reason for tp, reason in reasons.items() if reason}
        if not possible:
            return refused, None
        later = cuts.only(possible)
        then, now = run.options.lineage.at_cut, moment.lineage.at_proof
        compared = {tp for tp in possible if look.cuts[tp].compared and not run.options.renumbered}
        whole = {tp for tp in compared if not same_logs(then, now, tp)}
        kept = look.kept.at_later(later.cuts, run.options.kept)
        kept = kept.without(
            [
                Refusal(*tp, "a log may have been written again during the run")
                for tp in sorted(whole & kept.carried.keys())
            ]
        )
        whole |= possible - compared
        return refused, later.look(kept, held(look, later.cuts, run.options.window, whole), {})


def _moment_objection(
    run: _Run, moment: Moment, cut: PartitionCut | None, old: PartitionCut
) -> str:
    """Return why a partition, with its later *cut* if that is known, cannot be looked at again; "" if it can."""
    tp = old.topic_partition
    if cut is None:
        return "a cluster did not report its log range"
    for before, now in ((run.source, moment.source), (run.target, moment.target)):
        then, found = before.topic_ids.get(tp.topic, ""), now.topic_ids.get(tp.topic, "")
        if then != found and tp in before.ranges:
            return f"the topic was created again in {now.name}"
    return cut_objection(old, cut)


def believed_of(options: Options, source: ClusterSnapshot, target: ClusterSnapshot) -> Believed:
    """Return the entries of the ledger in *options* that concern these clusters."""
    return (
        Believed() if options.ledger is None else believed(options.ledger.entries, source, target)
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
            for tp in sorted(set(known)) if number < 0 and known else [one]:
                span = ranges[1 - side].get(tp, LogRange(0, 0))
                ranges[side][tp] = span
                ranges[1 - side][tp] = span
                failures.append(
                    Failure(cluster.name, *tp, span.start, span.end, FailureKind.UNREADABLE, cause)
                )
    return ranges, failures


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """The offsets to compare record by record, per cluster."""

    source: list[OffsetRange]
    target: list[OffsetRange]
    tails: frozenset[TopicPartition]
    """Partitions in which the source is read to its end: only there can lag and loss be distinguished."""


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
    source: list[OffsetRange] = []
    target: list[OffsetRange] = []
    tails = set()
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
        source += [OffsetRange(*tp, *each) for each in subtract(of_source, without)]
        target += [OffsetRange(*tp, *each) for each in subtract(of_target, without)]
    return DrillPlan(source, target, frozenset(tails))


@dataclass(slots=True)
class _Run:
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
    ) -> _Run:
        """Freeze the cut of both clusters."""
        ranges, failures = known_ranges(source, target)
        cuts = freeze(ranges[1], ranges[0], renumbered=options.renumbered)
        unknown = frozenset(by_partition(failures))
        return cls(engine, source, target, options, cuts, cost, progress, failures, unknown)

    def only(self, partitions: frozenset[TopicPartition]) -> _Run:
        """Return the run of *partitions*, of which nothing was read."""
        cuts = [each for each in self.cuts if each.topic_partition in partitions]
        return replace(self, cuts=cuts, failures=[], unknown=frozenset())

    def at_moment(self, moment: Moment, partitions: Collection[TopicPartition]) -> _Run:
        """Return the run with *partitions* as they are at *moment*."""
        at_cut = [
            {tp: each for tp, each in of_side.items() if tp not in partitions}
            | {tp: each for tp, each in later.items() if tp in partitions}
            for of_side, later in zip(
                self.options.lineage.at_cut, moment.lineage.at_cut, strict=True
            )
        ]
        lineage = replace(self.options.lineage, at_cut=(at_cut[0], at_cut[1]))
        return replace(
            self,
            source=with_ranges(self.source, moment.source, partitions),
            target=with_ranges(self.target, moment.target, partitions),
            options=replace(self.options, lineage=lineage, ledger=moment.ledger),
        )

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
        self.cost.windows_drilled += sum(each.state is not WindowState.EQUAL for each in windows)
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
        alignments, tails = self._drill(windows)
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
                alignments,
                tails,
                # The order in which Spark's tasks end is not the order of the report.
                joined(self.failures),
                holes,
                self.options.complete,
                self.options.renumbered,
                source_compacted,
                target_compacted,
                (
                    *believed_of(self.options, self.source, self.target).gaps,
                    *self.options.accepted,
                ),
            )
        )
        ledger.classify()
        question = ledger.key_question()
        if question.findings:
            with self.cost.timed("explain compaction"):
                spans = self._spans_of_keys(question.keys, question.partitions)
            ledger.explain_compaction(question, spans)
        ledger.fold_tails()
        ledger.settle_duplicates(self._copies(ledger.extras()))
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

    def _drill(
        self, windows: Sequence[WindowResult]
    ) -> tuple[Mapping[TopicPartition, Alignment], frozenset[TopicPartition]]:
        failed = {tp: offsets_of(each) for tp, each in by_partition(self.failures).items()}
        plan = plan_drill(self.cuts, windows, self.options, failed)
        source = self._readable(self.source, plan.source)
        target = self._readable(self.target, plan.target)
        if not source and not target:
            return {}, plan.tails
        differing = sum(each.state is not WindowState.EQUAL for each in windows)
        self.progress(
            f"comparing record by record: {differing:,} of {len(windows):,} windows differ"
        )
        modes = Modes(
            compacted_topics(self.source) | compacted_topics(self.target),
            self.options.renumbered,
            self._unread_of_renumbered(),
        )
        with self.cost.timed("compare records"):
            answer = self.engine.differences((self.source, source), (self.target, target), modes)
        self.failures += answer.failures
        return answer.alignments, plan.tails

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

    def _spans_of_keys(self, keys: frozenset[int], partitions: set[TopicPartition]) -> KeySpans:
        cuts = [c for c in self.cuts if c.topic_partition in partitions]

        def spans(
            cluster: ClusterSnapshot, ranges: Iterable[OffsetRange]
        ) -> Mapping[Place, KeySpan]:
            known = self._not_failed(list(ranges))
            return self.engine.spans_of_keys(cluster, known, keys) if known else {}

        def below(cut: PartitionCut) -> OffsetRange:
            return OffsetRange(*cut.topic_partition, cut.low, cut.high)

        def below_at_target(cut: PartitionCut) -> OffsetRange:
            end = cut.target_end if self.options.renumbered else cut.high
            return OffsetRange(*cut.topic_partition, cut.target_low, end)

        def beyond(cut: PartitionCut, end: int) -> OffsetRange:
            return OffsetRange(*cut.topic_partition, cut.high, end)

        return KeySpans(
            spans(self.source, map(below, cuts)),
            spans(self.target, map(below_at_target, cuts)),
            spans(self.source, (beyond(cut, cut.source_end) for cut in cuts)),
            {}
            if self.options.renumbered
            else spans(self.target, (beyond(cut, cut.target_end) for cut in cuts)),
        )


def compacted_topics(cluster: ClusterSnapshot) -> frozenset[str]:
    """Return the topics that *cluster* compacts."""
    return frozenset(
        topic
        for topic, configs in cluster.configs.items()
        if "compact" in configs.get("cleanup.policy", "")
    )
