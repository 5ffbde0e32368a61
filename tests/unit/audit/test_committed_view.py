"""What consumers with isolation.level=read_committed get from two logs with equal records."""

from __future__ import annotations

import pytest

from kclient.types import TopicPartition
from spark_jobs.comparison import Options
from spark_jobs.cut import LogRange, OffsetRange, freeze
from spark_jobs.digest import WindowShape
from spark_jobs.findings import FindingClass
from spark_jobs.in_step import Sizes
from spark_jobs.kafka_reader import committed_part
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.report.digests import UNDECIDED, digest_rows
from spark_jobs.report.repair import VISIBLE
from spark_jobs.report.screen import finding_line, first_screen
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.verdict import ExitCode, Verdict
from tests.kit.audit_batches import BatchEngine, Layout
from tests.kit.audit_logs import Log, Rec, audit, classes, log_of, named, snapshot
from tests.kit.audit_reports import report_of, violations

TP = TopicPartition("t", 0)


def log(*aborted: int, end: int = 20, stable: int | None = None) -> Log:
    """Return a log of *end* records; those at the offsets *aborted* are of aborted transactions."""
    records = (Rec(b"k", b"v%d" % n, n, aborted=n in aborted) for n in range(end))
    made = log_of(*records)
    made.stable = stable
    return made


def run(source: Log, target: Log, **options: object) -> Reconciliation:
    return audit({TP: source}, {TP: target}, Options(window=10, **options))  # type: ignore[arg-type]


def test_equal_records_that_both_brokers_call_aborted_are_consistent() -> None:
    found = run(log(3, 4), log(3, 4))
    assert (found.outcome.verdict, classes(found)) == (Verdict.CONSISTENT, {"verified": 20})
    assert report_of(found).document["read_committed"]["undecided_offsets"] == 0


def test_records_that_one_broker_calls_aborted_are_one_finding_a_run() -> None:
    found = run(log(3, 4, 5, 17), log(5, 12, 17))
    assert found.outcome.exit_code is ExitCode.DIVERGED
    assert named(found) == [("visibility", 0, 3, 3, 2), ("visibility", 0, 12, 12, 1)]
    assert [f.field for f in found.findings] == ["aborted at the source", "aborted at the target"]
    assert classes(found) == {"verified": 17, "visibility": 3}
    report = report_of(found)
    assert violations("report", report.document) + violations("repair", report.repair) == []
    assert [row["reason"] for row in report.repair["not_repairable"]] == [VISIBLE, VISIBLE]
    assert report.repair["copy"] == []
    lines = [finding_line(each) for each in report.first_findings(2)]
    assert lines[0].endswith("target offset 3 to 4 (2 records): aborted at the source")


@pytest.mark.parametrize(
    "sizes",
    [None, Sizes(), Sizes(part=20), Sizes(shortest=3)],
    ids=["records", "in step", "arrays", "left out"],
)
def test_all_alignments_find_the_same_runs(sizes: Sizes | None) -> None:
    source, target = log(*range(10, 60), 70, 72, end=100), log(70, 71, end=100)
    target.records[80] = target.records[80]._replace(value=b"corrupt", aborted=True)
    logs = {TP: source}, {TP: target}
    engine = BatchEngine(*logs, WindowShape(50), (Layout(), Layout()), sizes=sizes, keep=2)
    found = reconcile(
        engine,
        snapshot("source", logs[0]),
        snapshot("target", logs[1]),
        Options(window=50),
        buckets=TimeBuckets.over((0, 1000)),
    )
    assert named(found) == [
        ("visibility", 0, 10, 10, 50),
        ("visibility", 0, 71, 71, 1),
        ("visibility", 0, 72, 72, 1),
        ("corrupt", 0, 80, 80, 1),
    ]
    assert classes(found) == {"verified": 47, "visibility": 52, "corrupt": 1}


def test_a_shift_is_found_beside_a_visibility_run() -> None:
    target = log(3)
    target.records = {at + (at > 10): record for at, record in target.records.items()}
    target.end += 1
    found = run(log(), target)
    assert [each[0] for each in named(found)] == ["visibility", "shifted"]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        # (stable, end) of both logs
        ((20, 20), (20, 20), None),
        ((8, 20), (8, 20), None),
        ((20, 20), (8, 20), ("in an open transaction at the target", 8, 12)),
        ((8, 20), (20, 20), ("in an open transaction at the source", 8, 12)),
        ((20, 20), (8, 15), None),
        ((12, 20), (8, 15), None),
        ((12, 20), (15, 15), ("in an open transaction at the source", 12, 3)),
        ((20, 20), (8, 22), ("in an open transaction at the target", 8, 12)),
        ((8, 20), (22, 22), None),
    ],
)
def test_a_transaction_is_open_in_one_log_for_a_reason_or_is_a_finding(
    source: tuple[int, int], target: tuple[int, int], expected: tuple[str, int, int] | None
) -> None:
    found = run(log(stable=source[0], end=source[1]), log(stable=target[0], end=target[1]))
    runs = [
        (f.field, f.source_offset, f.records)
        for f in found.findings
        if f.finding_class is FindingClass.VISIBILITY
    ]
    assert runs == ([expected] if expected else [])
    assert found.counts.different.get(FindingClass.VISIBILITY, 0) == 0
    assert sum(classes(found).values()) == max(source[1], target[1])


def test_what_the_mirror_has_not_decided_yet_is_counted_and_not_claimed() -> None:
    found = run(log(9, 16), log(9, 12, end=15, stable=10))
    assert (found.outcome.verdict, named(found)) == (Verdict.LAGGING, [])
    report = report_of(found)
    assert violations("report", report.document) + violations("repair", report.repair) == []
    undecided = {"undecided_offsets": 5, "undecided_partitions": 1}
    assert report.document["read_committed"] == undecided
    (partition,) = report.document["topics"][0]["partitions"]
    assert (partition["proven_up_to"], partition["last_stable"]) == (
        10,
        {"source": 20, "target": 10},
    )
    assert "5 offsets of 1 partitions" in first_screen(report.document, report="r", findings=[])
    assert {(row.first_offset, row.class_) for row in digest_rows(found)} == {
        (0, "equal"),
        (10, UNDECIDED),
    }


def test_only_decided_offsets_are_read_with_read_committed() -> None:
    west = ClusterSnapshot("west", "", "w", {TP: LogRange(0, 50)}, prefix="east.", decided={TP: 20})
    ranges = [OffsetRange("east.t", 0, low, low + 15) for low in (0, 15, 30)]
    stable, others = committed_part(west, ranges, marks_aborted=True)
    assert [each[2:] for each in stable] == [(0, 15), (15, 20)]
    assert [each[2:] for each in others] == [(20, 30), (30, 45)]
    assert committed_part(west, ranges, marks_aborted=False) == ([], ranges)


def test_a_log_without_a_last_stable_offset_is_decided_to_its_cut() -> None:
    (cut,) = freeze({TP: LogRange(0, 7)}, {TP: LogRange(2, 9)})
    assert (cut.low, cut.decided, cut.high, cut.undecided) == (2, 7, 7, 0)
    (alone,) = freeze({}, {TP: LogRange(2, 9, 4)})
    assert (alone.decided, alone.stable) == (alone.high, None)
