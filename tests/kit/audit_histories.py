"""Two clusters' logs that change between audits, and audits that build on the one before."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kclient.types import TopicPartition
from spark_jobs.accounting import AcceptedGap
from spark_jobs.comparison import Options
from spark_jobs.cut import freeze
from spark_jobs.kept import Kept, Lineage
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.report.contents import Report, build_report, json_text, lines_text
from spark_jobs.report.digests import DIGESTS
from spark_jobs.report.files import DIGESTS_REPORT, remove_report
from spark_jobs.report.kept_files import load_kept
from spark_jobs.snapshot import WHOLE_TOPIC, ClusterSnapshot
from tests.kit.audit_logs import Log, Logs, MemoryEngine, Rec, snapshot
from tests.kit.audit_reports import META

SIDES = ("source", "target")


@dataclass
class Replicated:
    """A cluster's logs, with the leader epoch of each offset and the topic's id."""

    logs: Logs
    topic_id: str = "first"
    epochs: dict[TopicPartition, dict[int, int]] = field(default_factory=dict)
    epoch: int = 0
    misjudged: set[tuple[TopicPartition, int]] = field(default_factory=set)
    """First offsets of transactions that the broker's index gets wrong."""
    never_ended: set[tuple[TopicPartition, int]] = field(default_factory=set)
    """First offsets of transactions of which the broker overlooks the marker."""

    def append(self, tp: TopicPartition, record: Rec | None) -> None:
        """Append *record*; None is an offset without a record."""
        log = self.logs[tp]
        self.epochs.setdefault(tp, {})[log.end] = self.epoch
        if record is None:
            log.end += 1
        else:
            log.append(record)

    def truncate(self, tp: TopicPartition, end: int) -> None:
        """Cut the log off at *end*, as an unclean election does."""
        log = self.logs[tp]
        log.records = {at: record for at, record in log.records.items() if at < end}
        log.end = end
        self.epoch += 1

    def epochs_before(self, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the leader epoch of the offset before each end, if the log has it."""
        return {
            tp: self.epochs[tp][end - 1]
            for tp, end in ends.items()
            if self.logs[tp].start < end <= self.logs[tp].end
        }


@dataclass
class Transaction:
    """A transaction of one partition; all records from its first to its marker belong to it."""

    first: int
    marker: int | None = None
    aborted: bool = False


def write_kept(out: Path, run: Reconciliation, number: int) -> Report:
    """Write the files of *run* that a later one reads, with the names that the command gives them."""
    earlier = remove_report(out)
    meta = {
        **META,
        "run_id": f"run-{number:03}",
        "ended_at": f"2026-01-01T00:00:{number % 60:02}Z",
        "previous": earlier,
        "previous_from": "out" if earlier else None,
    }
    report = build_report(run, meta)
    out.mkdir(parents=True, exist_ok=True)
    text = json_text(report.document)
    (out / DIGESTS).write_bytes(report.digests)
    (out / "findings.jsonl").write_text(lines_text(report.lines))
    (out / "repair.json").write_text(json_text(report.repair))
    (out / DIGESTS_REPORT).write_text(text)
    (out / "report.json").write_text(text)
    return report


class CountingEngine(MemoryEngine):
    """Counts the offsets of which digests are read."""

    digested = 0

    def window_rows(self, cluster: ClusterSnapshot, ranges: Any) -> Any:
        self.digested += sum(each.high - each.low for each in ranges)
        return super().window_rows(cluster, ranges)


def _without(cluster: ClusterSnapshot, gone: frozenset[TopicPartition]) -> ClusterSnapshot:
    """Return *cluster* without leaders of the partitions *gone*."""
    return replace(
        cluster,
        ranges={tp: each for tp, each in cluster.ranges.items() if tp not in gone},
        unreadable=dict.fromkeys(sorted(gone), "no leader"),
    )


def _undescribed(cluster: ClusterSnapshot) -> ClusterSnapshot:
    """Return *cluster* as it is read if it does not describe its topic."""
    whole = {TopicPartition("t", WHOLE_TOPIC): "UNKNOWN_TOPIC_OR_PARTITION"}
    return replace(cluster, ranges={}, configs={}, topic_ids={}, unreadable=whole)


@dataclass
class History:
    """A source, its mirror, and the directory of the audits."""

    out: Path
    rng: random.Random
    window: int = 10
    partitions: int = 2
    complete: bool = False
    compacted: frozenset[str] = frozenset()
    source: Replicated = field(init=False)
    target: Replicated = field(init=False)
    accepted: tuple[AcceptedGap, ...] = ()
    unreadable: frozenset[TopicPartition] = frozenset()
    """Partitions of which the target has no leader."""
    unreadable_source: frozenset[TopicPartition] = frozenset()
    """The same of the source."""
    undescribed: str = ""
    """The side that does not describe the topic: no partition, no setting and no topic id is known."""
    transactions: dict[TopicPartition, list[Transaction]] = field(default_factory=dict)
    runs: int = 0
    engine: CountingEngine = field(init=False)

    def __post_init__(self) -> None:
        self.tps = [TopicPartition("t", number) for number in range(self.partitions)]
        self.source, self.target = (Replicated({tp: Log() for tp in self.tps}) for _ in SIDES)

    def write(self, count: int, *, holes: float = 0.0) -> None:
        """Append *count* records to each partition of the source."""
        for tp in self.tps:
            for _ in range(count):
                number = self.rng.getrandbits(40)
                hole = self.rng.random() < holes
                record = Rec(b"k%d" % (number % 9), b"v%d" % number, number % 1000)
                self.source.append(tp, None if hole else record)

    def begin_transactions(self) -> None:
        """Begin a transaction in some partitions that have none open."""
        for tp in self.tps:
            of_tp = self.transactions.setdefault(tp, [])
            if self.rng.random() < 0.7 and not (of_tp and of_tp[-1].marker is None):
                of_tp.append(Transaction(self.source.logs[tp].end))

    def end_transactions(self) -> None:
        """Write markers for some open transactions; sometimes one broker gets one wrong, or overlooks it."""
        for tp, of_tp in self.transactions.items():
            if self.rng.random() < 0.7 and of_tp and of_tp[-1].marker is None:
                of_tp[-1].marker = self.source.logs[tp].end
                of_tp[-1].aborted = self.rng.random() < 0.5
                self.source.append(tp, Rec(b"marker", None, control=True))
                if self.rng.random() < 0.2:
                    side = self.rng.choice([self.source, self.target])
                    wrong = side.misjudged if self.rng.random() < 0.8 else side.never_ended
                    wrong.add((tp, of_tp[-1].first))

    def judge_transactions(self) -> None:
        """Set what each log knows of its transactions: last stable offsets, and which records are aborted."""
        for tp in self.tps:
            for side in (self.source, self.target):
                log = side.logs[tp]
                log.stable = None
                for at, record in log.records.items():
                    log.records[at] = record._replace(aborted=False)
                for each in self.transactions.get(tp, ()):
                    place = tp, each.first
                    is_open = each.marker is None or each.marker >= log.end
                    if is_open or (place in side.never_ended and each.first < log.end):
                        log.stable = min(each.first, log.end)
                        break
                    assert each.marker is not None
                    if each.aborted != (place in side.misjudged):
                        for at, record in log.records.items():
                            inside = each.first <= at < each.marker and not record.control
                            if inside:
                                log.records[at] = record._replace(aborted=True)

    def mirror(
        self, *, behind: int = 0, change: Callable[[int, Rec], Rec | None] | None = None
    ) -> None:
        """Copy what the target lacks, except the last *behind* offsets; *change* damages the copies."""
        for tp in self.tps:
            source, target = self.source.logs[tp], self.target.logs[tp]
            if not target.end:
                target.start = target.end = source.start
            for offset in range(target.end, max(target.end, source.end - behind)):
                record = source.records.get(offset)
                if record is not None and change is not None:
                    record = change(offset, record)
                self.target.append(tp, record)

    def clusters(self) -> tuple[ClusterSnapshot, ClusterSnapshot]:
        """Return what an audit reads before the records."""
        self.judge_transactions()
        source, target = (
            replace(
                snapshot(name, each.logs, self.compacted),
                topic_ids={"t": each.topic_id},
            )
            for name, each in zip(SIDES, (self.source, self.target), strict=True)
        )
        source, target = (
            _without(source, self.unreadable_source),
            _without(target, self.unreadable),
        )
        found = [
            _undescribed(each) if each.name == self.undescribed else each
            for each in (source, target)
        ]
        return found[0], found[1]

    def audit(self, kept: Kept | None = None, recheck: float = 0.0) -> Reconciliation:
        """Compare the clusters; with *kept* only what it has not proven."""
        source, target = self.clusters()
        at_cut = {
            cut.topic_partition: cut.high
            for cut in freeze(target.ranges, source.ranges)
            if cut.high > cut.low
        }
        at_proof = {
            tp: kept.partitions[tp].proof.end
            for tp in at_cut
            if kept is not None and tp in kept.partitions
        }
        lineage = Lineage(
            (self.source.epochs_before(at_cut), self.target.epochs_before(at_cut)),
            (self.source.epochs_before(at_proof), self.target.epochs_before(at_proof)),
        )
        self.engine = CountingEngine(self.source.logs, self.target.logs, self.window)
        options = Options(
            self.window,
            self.complete,
            accepted=self.accepted,
            kept=kept,
            recheck=recheck,
            lineage=lineage,
        )
        return reconcile(self.engine, source, target, options, buckets=TimeBuckets.over((0, 1000)))

    def report(self, run: Reconciliation) -> Report:
        """Write the files of *run* that a later one reads."""
        self.runs += 1
        return write_kept(self.out, run, self.runs)

    def start(self) -> Reconciliation:
        """Compare everything, and keep it."""
        run = self.audit()
        self.report(run)
        return run

    def go_on(self, recheck: float = 0.0) -> Reconciliation:
        """Compare what the run before has not proven, and keep it."""
        run = self.audit(load_kept(self.out), recheck)
        self.report(run)
        return run
