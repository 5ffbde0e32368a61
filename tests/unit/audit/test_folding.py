"""Runs of findings: how many findings there are at most, and what no run may join."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from kclient.types import TopicPartition
from spark_jobs.accounting import AcceptedGap
from spark_jobs.align import Alignment
from spark_jobs.comparison import Options
from spark_jobs.cut import LogRange, freeze
from spark_jobs.digest import WindowShape
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.folding import FindingBudget, Folded, Folding, folded
from spark_jobs.ranges import Ranges
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.settle import Seen, is_stable, objection, vanished
from spark_jobs.verdict import Verdict
from tests.kit.audit_batches import BatchEngine, Layout
from tests.kit.audit_logs import Log, Logs, Rec, classes, log_of, snapshot

TP = TopicPartition("t", 0)
SHAPE = WindowShape(50, 0, 1_000, 4)
BOTH = frozenset({"t"})


def full(count: int = 400, first: int = 0) -> Log:
    return log_of(*(Rec(b"k%d" % (n % 9), b"v%d" % (first + n), n * 10) for n in range(count)))


def audit(
    source: Logs,
    target: Logs,
    options: Options | None = None,
    *,
    keep: int = 3,
    compacted: frozenset[str] = frozenset(),
) -> Reconciliation:
    engine = BatchEngine(
        source, target, SHAPE, (Layout(), Layout()), keep=keep, keep_compacted=keep
    )
    return reconcile(
        engine,
        snapshot("source", source, compacted),
        snapshot("target", target, compacted),
        options or Options(window=50),
        buckets=TimeBuckets(0, 1_000),
    )


def records(run: Reconciliation) -> Counter[str]:
    counts: Counter[str] = Counter()
    for each in run.findings:
        counts[each.finding_class.value] += each.records
    return counts


def without(log: Log, low: int, high: int) -> Log:
    return Log({at: r for at, r in log.records.items() if not low <= at < high}, log.start, log.end)


def test_records_that_are_missing_in_a_row_are_few_findings_with_exact_counts() -> None:
    run = audit({TP: full()}, {TP: without(full(), 50, 350)})
    assert records(run) == {"missing": 300}
    assert classes(run) == {"verified": 100, "missing": 300}
    assert [f.source_offset for f in run.findings if f.records == 1] == [50, 51, 52]
    assert 4 <= len(run.findings) <= 3 + SHAPE.buckets
    assert run.findings[-1].last_offset == 349
    assert run.outcome.verdict is Verdict.DIVERGED


def test_foreign_records_and_copies_are_few_findings_too() -> None:
    source = without(full(), 50, 350)
    foreign = audit({TP: source}, {TP: full()})
    assert records(foreign) == {"extra": 300}
    copies = source.copy()
    for at in range(50, 350):
        copies.records[at] = copies.records[at % 50]
    repeated = audit({TP: source}, {TP: copies})
    # In a run it is not known that a window without a difference has the other copy.
    assert records(repeated) == {"duplicate": 253, "extra": 47}
    for run in (foreign, repeated):
        assert len(run.findings) <= 2 * (3 + SHAPE.buckets)
        assert sum(run.counts.different.values()) == 300


def test_records_in_another_order_are_few_findings_without_a_distance() -> None:
    order = list(range(400))
    random.Random(1).shuffle(order)
    target = Log({at: full().records[n] for at, n in enumerate(order)}, 0, 400)
    single = audit({TP: full()}, {TP: target}, keep=1 << 30)
    run = audit({TP: full()}, {TP: target})
    assert records(run) == records(single)
    assert classes(run) == classes(single)
    assert len(run.findings) <= 2 * (3 + SHAPE.buckets)
    assert all(f.distance is None for f in run.findings if f.records > 1)


def test_records_that_are_damaged_at_other_offsets_are_few_findings() -> None:
    target = log_of(Rec(b"s", b"foreign!", 0), *full().records.values())
    for at in range(100, 300):
        target.records[at] = target.records[at]._replace(value=b"damaged %d" % at)
    single = audit({TP: full()}, {TP: target}, keep=1 << 30)
    run = audit({TP: full()}, {TP: target})
    assert records(run) == records(single) == {"extra": 1, "corrupt": 200}
    assert classes(run) == classes(single)
    assert len(run.findings) <= 1 + 3 + SHAPE.buckets


def test_the_offsets_of_a_run_are_those_of_the_first_difference() -> None:
    """The first record that is elsewhere is the last of the run, by its place in the target."""
    source = full(60)
    order = list(range(60))
    order.insert(45, order.pop(5))
    order.insert(20, order.pop(50))
    target = Log({at: source.records[n] for at, n in enumerate(order)}, 0, 60)
    single, run = (audit({TP: source}, {TP: target}, keep=keep) for keep in (1 << 30, 0))
    assert [f.first_difference for f in single.findings] == [20, 5]
    assert [(f.first_difference, f.records) for f in run.findings] == [(5, 2)]


@pytest.mark.parametrize("keep", [0, 10])
def test_in_a_compacted_topic_a_record_with_another_in_its_place_is_a_finding_of_a_run(
    keep: int,
) -> None:
    """The target's log closed up behind 100 lost records: its other records are in their places."""
    kept = [record for at, record in full().records.items() if not 50 <= at < 150]
    run = audit({TP: full()}, {TP: log_of(*kept)}, keep=keep, compacted=BOTH)
    assert run.outcome.verdict is Verdict.DIVERGED
    assert records(run)["missing"] == 100


@pytest.mark.parametrize("complete", [False, True])
def test_the_tail_of_a_mirror_that_stopped_is_lag_or_one_finding(complete: bool) -> None:
    target = full(60)
    target.records.pop(40)
    run = audit({TP: full()}, {TP: target}, Options(window=50, complete=complete))
    assert records(run) == ({"missing": 1, "truncated": 340} if complete else {"missing": 1})
    assert run.counts.lagging == (0 if complete else 340)
    if complete:
        assert (run.findings[-1].source_offset, run.findings[-1].last_offset) == (60, 399)


def test_a_run_ends_where_an_accepted_gap_does() -> None:
    gap = AcceptedGap("t", 0, 120, 205, "ticket")
    run = audit({TP: full()}, {TP: without(full(), 50, 350)}, Options(window=50, accepted=(gap,)))
    assert run.account.explained[TP] == {"ticket": 85}
    assert records(run) == {"missing": 215}


def test_a_topic_that_only_the_target_has_is_one_finding() -> None:
    run = audit({}, {TP: full()})
    assert [(f.finding_class.value, f.records, f.last_offset) for f in run.findings] == [
        ("extra", 400, 399)
    ]


@pytest.mark.parametrize("keep", [0, 60, 1_000])
@pytest.mark.parametrize("lost", ["source", "target"])
def test_compaction_explains_records_however_many(lost: str, keep: int) -> None:
    logs = {"source": full(), "target": full()}
    logs[lost] = without(logs[lost], 50, 150)
    run = audit({TP: logs["source"]}, {TP: logs["target"]}, keep=keep, compacted=BOTH)
    assert (run.outcome.verdict, list(run.findings)) == (Verdict.CONSISTENT, [])
    assert run.account.explained[TP] == {"compaction": 100}
    assert classes(run) == {"verified": 300, "explained": 100}


@pytest.mark.parametrize("keep", [0, 4, 1_000])
@pytest.mark.parametrize("lost", ["source", "target"])
def test_of_many_records_those_without_a_later_one_are_findings(lost: str, keep: int) -> None:
    """The last record of each of the nine keys is gone, too."""
    logs = {"source": full(), "target": full()}
    logs["source"].append(Rec(b"other", b"last", 1))
    logs["target"].append(Rec(b"other", b"last", 1))
    logs[lost] = without(logs[lost], 300, 400)
    run = audit({TP: logs["source"]}, {TP: logs["target"]}, keep=keep, compacted=BOTH)
    kind = "extra" if lost == "source" else "missing"
    assert records(run) == {kind: 9}
    assert run.account.explained[TP] == {"compaction": 91}
    assert min(f.position for f in run.findings) == 391


def test_whether_the_source_goes_on_is_seen_at_the_end() -> None:
    """Two parts end with missing records; only those of the last one are the source's end."""
    folded = Folded(Folding(0, SHAPE, ends=(500, 50)))
    for first in (100, 200):
        missing = [
            Finding(FindingClass.MISSING, *TP, at, None, source_hash=1, tail_position=at)
            for at in range(first, first + 10)
        ]
        assert not list(folded.add(missing))
    runs = folded.end(Alignment([], tail_begins=200))
    assert [(f.source_offset, f.last_offset, f.records, f.tail_position) for f in runs] == [
        (100, 109, 10, None),
        (200, 209, 10, 200),
    ]


def looked(
    *places: tuple[int, int | None], target_end: int = 50, failed: Ranges | None = None
) -> Seen:
    """Return a look that found these records, missing or moved, in one run."""
    (cut,) = freeze({TP: LogRange(0, target_end)}, {TP: LogRange(0, 50)})
    found = [
        Finding(FindingClass.MISSING if there is None else FindingClass.REORDERED, *TP, here, there)
        for here, there in places
    ]
    single = [replace(each, source_hash=7) for each in found]
    return Seen(cut, tuple(folded(single, Folding(0, SHAPE), Alignment([]))), failed or [])


def test_of_a_run_that_lost_a_record_one_has_vanished() -> None:
    before = looked(*((at, None) for at in range(20)))
    after = looked(*((at, None) for at in range(19)))
    assert vanished(before, after) == {FindingClass.MISSING: 1}
    assert vanished(before, before) == {}


def test_a_run_of_other_records_is_not_stable() -> None:
    before = looked((5, None), (20, None), (40, None))
    assert not is_stable(before, looked((5, None), (21, None), (41, None)))
    assert is_stable(before, looked((5, None), (20, None), (40, None)))


def test_no_record_of_a_run_vanishes_without_being_read_again() -> None:
    """The source's record at 45 moved to 3, and the later look reads no further than the target's end at 40."""
    before = looked((2, 5), (45, 3), target_end=40)
    assert objection(before, looked(target_end=40)) == (
        "offset 40 (reordered) is no longer in both logs"
    )
    assert objection(looked((2, 5), (35, 3), target_end=40), looked(target_end=40)) == ""


def test_what_no_look_could_read_is_no_objection_to_a_run_around_it() -> None:
    before = looked((5, None), (40, None), failed=[(20, 22)])
    assert objection(before, looked(failed=[(20, 22)])) == ""


@pytest.mark.parametrize("partitions", [1, 20, 2_000, 100_000])
def test_the_partitions_share_the_findings_that_stay_single(partitions: int) -> None:
    budget = FindingBudget.among(partitions, SHAPE, 10_000)
    assert 100 <= budget.keep <= 10_000
    assert budget.keep_compacted == 50_000 // partitions
    assert partitions > 2_000 or partitions * budget.keep <= 200_000
    assert FindingBudget.among(partitions, SHAPE, 5).keep == 5
