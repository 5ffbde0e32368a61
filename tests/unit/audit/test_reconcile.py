"""No verdict claims more than was compared: every class of offset, on logs in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kclient.types import TopicPartition
from spark_jobs.accounting import AcceptedGap
from spark_jobs.comparison import Options
from spark_jobs.digest import WindowShape
from spark_jobs.engine import FailureKind
from spark_jobs.findings import FindingClass
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.report.document import build_document
from spark_jobs.verdict import ExitCode, Limits, Verdict
from tests.kit.audit_batches import BatchEngine
from tests.kit.audit_logs import (
    Fault,
    Log,
    MemoryEngine,
    Rec,
    audit,
    classes,
    log_of,
    named,
    snapshot,
)
from tests.kit.audit_reports import META

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
SIDES = ["source", "target"]
COMPLETE = Options(window=10, complete=True)
BOTH = frozenset({"t"})


def rec(number: int, *, key: bytes | None = None, value: bytes | None = b"") -> Rec:
    key = b"k%d" % number if key is None else key
    return Rec(key, b"v%d" % number if value == b"" else value, 1000 + number)


def full(count: int = 40, start: int = 0) -> Log:
    return log_of(*(rec(start + n) for n in range(count)), start=start)


def test_equal_logs_are_consistent_and_every_record_is_verified() -> None:
    run = audit({TP: full()}, {TP: full()})
    assert (run.outcome.verdict, classes(run)) == (Verdict.CONSISTENT, {"verified": 40})


@pytest.mark.parametrize("window", [10, 1000])
@pytest.mark.parametrize("equal_parts", ["value", "timestamp"])
def test_a_copy_in_the_place_of_a_lost_record_is_named_so_in_any_window(
    window: int, equal_parts: str
) -> None:
    """With windows of 10 the copy of the record at 30 is in another one than the place of the lost record."""
    source = full()
    source.records[30] = source.records[30]._replace(
        **{equal_parts: getattr(source.records[14], equal_parts)}
    )
    target = source.copy()
    target.records[14] = source.records[30]
    run = audit({TP: source}, {TP: target}, Options(window=window))
    assert named(run) == [("duplicate", 0, None, 14, 1), ("missing", 0, 14, None, 1)]


LAGGING_OR_COMPLETE = pytest.mark.parametrize("options", [Options(window=10), COMPLETE])


@LAGGING_OR_COMPLETE
def test_a_partition_that_only_the_target_has_is_extra(options: Options) -> None:
    run = audit({TP: full()}, {TP: full(), OTHER: full(5)}, options)
    assert (run.outcome.verdict, run.outcome.exit_code) == (Verdict.DIVERGED, ExitCode.DIVERGED)
    assert named(run) == [("extra", 1, None, 0, 5)]
    assert classes(run) == {"verified": 40, "extra": 5}


def test_an_empty_partition_that_only_the_target_has_is_no_finding() -> None:
    run = audit({TP: full()}, {TP: full(), OTHER: Log()})
    assert (run.outcome.verdict, named(run)) == (Verdict.CONSISTENT, [])


@LAGGING_OR_COMPLETE
def test_a_topic_that_only_the_target_has_is_extra(options: Options) -> None:
    run = audit({TP: full()}, {TP: full(), TopicPartition("u", 0): full(3)}, options)
    assert (run.outcome.verdict, run.counts.findings) == (
        Verdict.DIVERGED,
        {FindingClass.EXTRA: 3},
    )


def test_what_the_source_removed_has_aged_out_and_the_audit_is_incomplete() -> None:
    source, target = full(), full()
    target.records[3] = rec(99)
    source.delete_below(30)
    run = audit({TP: source}, {TP: target})
    assert (run.outcome.verdict, run.outcome.exit_code) == (Verdict.INCOMPLETE, ExitCode.AGED_OUT)
    assert classes(run) == {"verified": 10, "aged out": 30}
    assert run.counts.coverage == 0.25


def test_a_coverage_that_the_caller_accepts_is_exit_code_0_and_still_incomplete() -> None:
    target = full()
    target.delete_below(10)
    limits = Limits(min_coverage=0.75)
    run = audit({TP: full()}, {TP: target}, Options(window=10, limits=limits))
    assert (run.outcome.verdict, run.outcome.exit_code) == (
        Verdict.INCOMPLETE,
        ExitCode.CONSISTENT,
    )


def test_a_gap_that_the_mirror_skipped_is_loss() -> None:
    target = full(20)
    for offset in range(60, 80):
        target.records[offset] = rec(offset)
    target.end = 80
    run = audit({TP: full(20, start=60)}, {TP: target})
    assert named(run) == [("gap", 0, 20, None, 40)]
    assert (run.outcome.verdict, run.outcome.exit_code) == (Verdict.DIVERGED, ExitCode.DIVERGED)
    assert classes(run) == {"verified": 20, "aged out": 20, "gap": 40}


def test_a_gap_that_was_accepted_is_explained_and_the_audit_incomplete() -> None:
    target = full(20)
    for offset in range(60, 80):
        target.records[offset] = rec(offset)
    target.end = 80
    accepted = AcceptedGap("t", 0, 20, 60, "retention")
    run = audit({TP: full(20, start=60)}, {TP: target}, Options(window=10, accepted=(accepted,)))
    assert (run.outcome.verdict, named(run)) == (Verdict.INCOMPLETE, [])
    assert run.account.explained[TP] == {"retention": 40}


def test_offsets_deleted_before_the_mirror_copied_them_are_loss() -> None:
    run = audit({TP: full(10, start=50)}, {TP: full(20)})
    assert named(run) == [("gap", 0, 20, None, 30)]
    assert classes(run) == {"aged out": 20, "gap": 30, "lagging": 10}


def test_a_mirror_that_began_late_has_no_gap() -> None:
    run = audit({TP: full(20, start=20)}, {TP: full(20, start=20)})
    assert (run.outcome.verdict, classes(run)) == (Verdict.CONSISTENT, {"verified": 20})


def test_a_hole_at_the_start_of_the_target_is_a_gap_like_any_other() -> None:
    target = Log({n: rec(n) for n in range(20, 40)}, 0, 40)
    run = audit({TP: full(20, start=20)}, {TP: target})
    assert named(run) == [("gap", 0, 0, None, 20)]


def test_nothing_compared_is_not_consistent_whatever_lag_is_accepted() -> None:
    run = audit({TP: full()}, {}, Options(window=10, limits=Limits(max_lag=100)))
    assert (run.outcome.verdict, run.outcome.exit_code) == (
        Verdict.LAGGING,
        ExitCode.NO_VERDICT_YET,
    )


def test_a_tail_that_a_complete_mirror_lacks_is_one_finding() -> None:
    run = audit({TP: full()}, {TP: full(33)}, COMPLETE)
    assert named(run) == [("truncated", 0, 33, None, 7)]
    run = audit({TP: full()}, {TP: full(33)})
    assert (classes(run), named(run)) == ({"verified": 33, "lagging": 7}, [])


def test_a_hole_below_the_targets_end_is_loss_and_not_lag() -> None:
    target = full(33)
    del target.records[32]
    run = audit({TP: full()}, {TP: target})
    assert named(run) == [("missing", 0, 32, None, 1)]
    assert classes(run) == {"verified": 32, "missing": 1, "lagging": 7}


def test_records_at_other_offsets_are_one_shifted_run() -> None:
    source, target = full(), full()
    target.records = {n if n < 20 else n + 5: record for n, record in target.records.items()}
    target.end = 45
    run = audit({TP: source}, {TP: target})
    assert named(run) == [("shifted", 0, 20, 25, 20)]
    assert run.outcome.verdict is Verdict.DIVERGED
    assert run.counts.verified == 20


def test_a_shift_in_a_renumbered_target_is_no_finding() -> None:
    source = full()
    del source.records[20]
    target = log_of(*(source.records[n] for n in sorted(source.records)))
    run = audit({TP: source}, {TP: target}, Options(window=10, renumbered=True))
    assert (run.outcome.verdict, named(run)) == (Verdict.CONSISTENT, [])
    assert classes(run) == {"verified": 39, "empty": 1}


def test_a_record_in_another_partition_is_misrouted() -> None:
    target, other = full(), full(20, start=0)
    del target.records[12]
    other = log_of(*(rec(100 + n) for n in range(20)))
    wrong = other.copy()
    wrong.append(rec(12))
    run = audit({TP: full(), OTHER: other}, {TP: target, OTHER: wrong})
    (finding,) = run.findings
    assert (finding.finding_class, finding.source_offset) == (FindingClass.MISROUTED, 12)
    assert (finding.target_partition, finding.target_offset) == (1, 20)


def in_two_partitions(*, superseded: tuple[bool, bool]) -> Reconciliation:
    """Audit a record that partition 0 of the target and partition 1 of the source lack; both topics are compacted.

    *superseded*: whether partition 0 and partition 1 have a later record with its key.
    """
    logs = []
    for later in superseded:
        source = log_of(*(rec(100 * later + n, key=b"k%d" % n) for n in range(20)))
        source.records[12] = rec(12)
        if later:
            source.append(rec(300, key=b"k12"))
        logs.append((source, source.copy()))
    del logs[0][1].records[12], logs[1][0].records[12]
    here, there = ({TP: logs[0][side], OTHER: logs[1][side]} for side in range(2))
    return audit(here, there, COMPLETE, source_compacted=BOTH, target_compacted=BOTH)


@pytest.mark.parametrize(
    ("superseded", "expected"),
    [
        ((False, False), ("misrouted", 0, 12, 12, 1)),
        ((True, False), ("extra", 1, None, 12, 1)),
        ((False, True), ("missing", 0, 12, None, 1)),
    ],
)
def test_a_record_is_misrouted_if_compaction_explains_neither_half(
    superseded: tuple[bool, bool], expected: tuple[str, int, int | None, int | None, int]
) -> None:
    run = in_two_partitions(superseded=superseded)
    assert (named(run), run.outcome.verdict) == ([expected], Verdict.DIVERGED)
    assert run.account.total.in_scope == 40 + sum(superseded)


def test_equal_records_that_compaction_removed_from_two_partitions_are_not_misrouted() -> None:
    run = in_two_partitions(superseded=(True, True))
    assert (named(run), run.outcome.verdict) == ([], Verdict.CONSISTENT)
    assert classes(run) == {"verified": 40, "explained": 2}


def test_a_misrouted_record_does_not_hide_that_compaction_explains_another() -> None:
    """The offset 5 at which the other partition has the misrouted record is free in its own."""
    source, other = compacted_log(), full(20)
    source.append(rec(99))
    target, wrong = source.copy(), other.copy()
    del target.records[40], target.records[5], other.records[5]
    wrong.records[5] = source.records[40]
    run = audit(
        {TP: source, OTHER: other}, {TP: target, OTHER: wrong}, COMPLETE, target_compacted=BOTH
    )
    assert named(run) == [("misrouted", 0, 40, 5, 1)]
    assert run.account.explained[TP] == {"compaction": 1}


def test_only_the_timestamp_type_differs() -> None:
    target = full()
    target.records[7] = target.records[7]._replace(timestamp_type=1)
    (finding,) = audit({TP: full()}, {TP: target}).findings
    assert (finding.finding_class, finding.field) == (FindingClass.CORRUPT, "timestamp type")


def test_a_record_moved_far_is_reordered_by_its_true_distance() -> None:
    target = full()
    target.records[5], target.records[25] = target.records[25], target.records[5]
    findings = audit({TP: full()}, {TP: target}).findings
    assert sorted((f.finding_class.value, f.distance) for f in findings) == [
        ("reordered", -20),
        ("reordered", 20),
    ]


def test_a_record_that_moved_over_equal_windows_alone_is_reordered() -> None:
    """It is the last record of its window, and then the first one of another: between them is nothing to align."""
    source = full()
    del source.records[30]
    target = source.copy()
    target.records[30] = target.records.pop(9)
    (finding,) = audit({TP: source}, {TP: target}).findings
    places = finding.source_offset, finding.target_offset
    assert (finding.finding_class, *places, finding.distance) == (FindingClass.REORDERED, 9, 30, 20)


def test_the_distance_over_equal_windows_has_the_direction_of_the_move() -> None:
    """The one at 1 is between the other two in both logs, and they change places."""
    source = full(46)
    source.records = {at: each for at, each in source.records.items() if at < 2 or 10 <= at < 40}
    source.records[45] = rec(45)
    target = source.copy()
    del target.records[1]
    target.records |= {0: rec(45), 44: source.records[1], 45: source.records[0]}
    findings = audit({TP: source}, {TP: target}).findings
    assert [(f.finding_class.value, f.source_offset, f.distance) for f in findings] == [
        ("reordered", 45, -32),
        ("reordered", 1, 30),
        ("reordered", 0, 32),
    ]


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("in_drill", [False, True])
def test_an_undecodable_batch_is_a_finding_and_everything_else_is_compared(
    side: str, in_drill: bool
) -> None:
    source, target = full(), full()
    failing = source if side == "source" else target
    failing.faults = [Fault(10, 15, FailureKind.UNDECODABLE)]
    failing.fails_in_drill = in_drill
    target.records[12], target.records[18] = rec(98), rec(99)
    run = audit({TP: source, OTHER: full()}, {TP: target, OTHER: full()})
    at = (10, None) if side == "source" else (None, 10)
    assert named(run) == [("undecodable", 0, *at, 5), ("corrupt", 0, 18, 18, 1)]
    assert classes(run) == {"verified": 74, "undecodable": 5, "corrupt": 1}
    assert run.outcome.verdict is Verdict.DIVERGED


def test_an_undecodable_batch_that_two_tasks_read_is_one_finding() -> None:
    target = full()
    target.faults = [
        Fault(12, 15, FailureKind.UNDECODABLE, "batch at offset 10"),
        Fault(10, 12, FailureKind.UNDECODABLE, "batch at offset 10"),
        Fault(15, 17, FailureKind.UNDECODABLE, "batch at offset 15"),
    ]
    run = audit({TP: full()}, {TP: target})
    assert named(run) == [("undecodable", 0, None, 10, 5), ("undecodable", 0, None, 15, 2)]


@pytest.mark.parametrize("side", ["source", "target"])
def test_offsets_that_a_broker_does_not_return_are_an_error_and_the_rest_is_reported(
    side: str,
) -> None:
    source, target = full(), full()
    (source if side == "source" else target).faults = [Fault(30, 40, FailureKind.UNREADABLE)]
    target.records[3] = rec(99)
    run = audit({TP: source}, {TP: target})
    assert (run.outcome.verdict, run.outcome.exit_code) == (Verdict.ERROR, ExitCode.UNREADABLE)
    assert ExitCode.DIVERGED in run.outcome.applicable
    assert classes(run) == {"verified": 29, "corrupt": 1, "not read": 10}
    assert run.counts.unreadable == (f"{side} t-0 offsets 30 to 39: a fault",)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("in_drill", [False, True])
def test_records_deleted_during_the_run_have_aged_out(side: str, in_drill: bool) -> None:
    source, target = full(), full()
    failing = source if side == "source" else target
    failing.faults = [Fault(0, 15, FailureKind.DELETED)]
    failing.fails_in_drill = in_drill
    if in_drill:
        target.records[3] = rec(99)
    run = audit({TP: source}, {TP: target})
    assert (run.outcome.verdict, run.outcome.exit_code) == (Verdict.INCOMPLETE, ExitCode.AGED_OUT)
    assert run.counts.aged_out in (10, 15)  # in the drill only the first window is read again
    assert run.counts.verified == 40 - run.counts.aged_out


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("number", [1, -1])
def test_a_partition_without_known_log_ends_is_an_error_and_others_are_compared(
    side: str, number: int
) -> None:
    u = TopicPartition("u", 1)
    logs = {TP: full(), u: full()}, {TP: full(), u: full()}
    logs[0][TP].records[3] = rec(99)
    options = Options(window=10)
    clusters = [snapshot(name, held) for name, held in zip(SIDES, logs, strict=True)]
    failing = SIDES.index(side)
    clusters[failing] = replace(
        clusters[failing],
        ranges={TP: clusters[failing].ranges[TP]},
        unreadable={TopicPartition("u", number): "no leader"},
    )
    engine = MemoryEngine(*logs, options.window)
    run = reconcile(engine, *clusters, options, buckets=TimeBuckets(0, 1))
    assert run.outcome.verdict is Verdict.ERROR
    assert classes(run) == {"verified": 39, "corrupt": 1, "not read": 40}
    assert run.counts.unreadable == (f"{side} u-1 offsets 0 to 39: no leader",)


def test_all_partitions_that_neither_cluster_has_a_known_range_of_are_counted_and_named() -> None:
    refused = {TopicPartition("u", number): "its settings: denied" for number in range(3)}
    source, target = (replace(snapshot(name, {TP: full()}), unreadable=refused) for name in SIDES)
    engine = MemoryEngine({TP: full()}, {TP: full()}, 10)
    run = reconcile(engine, source, target, Options(window=10), buckets=TimeBuckets(0, 1))
    assert run.counts.unknown == 3
    assert sorted(text.split(" without")[0] for text in run.counts.unreadable) == [
        f"{side} u-{number}" for side in SIDES for number in range(3)
    ]


def test_deletion_meanwhile_where_only_the_target_has_the_log_is_no_gap() -> None:
    source, target = full(20, start=20), full()
    target.faults = [Fault(0, 12, FailureKind.DELETED)]
    run = audit({TP: source}, {TP: target})
    assert (named(run), classes(run)) == ([], {"verified": 20, "aged out": 20})


def compacted_log() -> Log:
    return log_of(*(Rec(b"k%d" % (n % 4), b"v%d" % n, n) for n in range(40)))


@pytest.mark.parametrize("side", ["source", "target"])
def test_compaction_of_one_log_is_explained(side: str) -> None:
    source, target = compacted_log(), compacted_log()
    cleaned = source if side == "source" else target
    for offset in range(0, 30, 3):
        del cleaned.records[offset]
    run = audit(
        {TP: source},
        {TP: target},
        source_compacted=frozenset({"t"}),
        target_compacted=frozenset({"t"}),
    )
    assert (run.outcome.verdict, named(run)) == (Verdict.CONSISTENT, [])
    assert classes(run) == {"verified": 30, "explained": 10}
    assert run.account.explained[TP] == {"compaction": 10}


def test_a_hole_where_only_a_compacted_target_has_the_log_has_aged_out() -> None:
    source, target = compacted_log(), compacted_log()
    del target.records[3]
    source.delete_below(10)
    run = audit({TP: source}, {TP: target}, target_compacted=frozenset({"t"}))
    assert (run.outcome.verdict, named(run)) == (Verdict.INCOMPLETE, [])
    assert classes(run) == {"verified": 30, "aged out": 10}


@pytest.mark.parametrize("keep_compacted", [0, 10])
@pytest.mark.parametrize("unread", [False, True])
def test_compaction_explains_no_lost_tombstone_if_its_keys_could_not_be_looked_up(
    unread: bool, keep_compacted: int
) -> None:
    """Compaction removes a tombstone after the earlier records of its key. What was not read may have one."""
    source = log_of(rec(0, key=b"k"), *(rec(n) for n in range(1, 9)), rec(9, key=b"k", value=None))
    source.append(rec(10))
    target = source.copy()
    del target.records[9]

    def meanwhile(reads: int) -> None:
        if unread and reads == 3:  # both digests and the records of the window were read
            target.faults = [Fault(0, 11, FailureKind.UNREADABLE)]

    engine = BatchEngine(
        {TP: source},
        {TP: target},
        WindowShape(10),
        keep_compacted=keep_compacted,
        meanwhile=meanwhile,
    )
    run = reconcile(
        engine,
        snapshot("source", {TP: source}, BOTH),
        snapshot("target", {TP: target}, BOTH),
        Options(window=10),
        buckets=TimeBuckets.over((0, 1000)),
    )
    assert (run.outcome.verdict, named(run)) == (
        Verdict.DIVERGED,
        [("missing", 0, 9, None, 1)],
    )


def test_compaction_does_not_explain_the_last_record_of_a_key() -> None:
    source, target = compacted_log(), compacted_log()
    del source.records[38]
    del target.records[37]
    both = frozenset({"t"})
    run = audit({TP: source}, {TP: target}, source_compacted=both, target_compacted=both)
    assert named(run) == [("missing", 0, 37, None, 1), ("extra", 0, None, 38, 1)]


def test_a_tombstone_that_one_log_has_removed_is_explained() -> None:
    source, target = compacted_log(), compacted_log()
    target.records[39] = Rec(b"gone", None, 39)
    del source.records[39]
    run = audit({TP: source}, {TP: target}, source_compacted=frozenset({"t"}))
    assert (run.outcome.verdict, classes(run)) == (
        Verdict.CONSISTENT,
        {"verified": 39, "explained": 1},
    )


def audit_compacted(source: Log, target: Log, options: Options = COMPLETE) -> Reconciliation:
    return audit({TP: source}, {TP: target}, options, source_compacted=BOTH, target_compacted=BOTH)


@pytest.mark.parametrize(
    "last", [Rec(b"k0", None, 40), Rec(b"", b"", 40, control=True)], ids=["tombstone", "marker"]
)
def test_compaction_explains_no_record_behind_the_end_of_a_log(last: Rec) -> None:
    longer = compacted_log()
    longer.append(last)
    lost = audit_compacted(longer, compacted_log())
    assert (lost.outcome.verdict, named(lost)) == (
        Verdict.DIVERGED,
        [("truncated", 0, 40, None, 1)],
    )
    written = audit_compacted(compacted_log(), longer)
    assert (written.outcome.verdict, named(written)) == (
        Verdict.DIVERGED,
        [("extra", 0, None, 40, 1)],
    )


@pytest.mark.parametrize("at_source", [True, False])
def test_compaction_does_not_remove_a_tombstone_before_the_records_that_it_deletes(
    at_source: bool,
) -> None:
    logs = compacted_log(), compacted_log()
    for log in logs:
        log.records[39] = Rec(b"k3", None, 39)
    del logs[not at_source].records[39]
    run = audit_compacted(*logs)
    expected = ("extra", 0, None, 39, 1) if at_source else ("missing", 0, 39, None, 1)
    assert (run.outcome.verdict, named(run)) == (Verdict.DIVERGED, [expected])


@pytest.mark.parametrize("at_source", [True, False])
def test_a_record_that_a_log_has_not_received_does_not_compact_it(at_source: bool) -> None:
    logs = [log_of(*(Rec(b"k%d" % n, b"v", n) for n in range(40))) for _ in range(2)]
    logs[at_source].append(Rec(b"k5", b"newer", 40))
    del logs[not at_source].records[5]
    run = audit_compacted(*logs, Options(window=10, limits=Limits(max_lag=1)))
    expected = ("extra", 0, None, 5, 1) if at_source else ("missing", 0, 5, None, 1)
    assert expected in named(run)
    assert run.outcome.verdict is Verdict.DIVERGED


def test_records_that_close_up_behind_a_loss_in_an_accepted_gap_are_shifted() -> None:
    source = compacted_log()
    target = log_of(*(source.records[at] for at in range(40) if at != 15))
    gap = AcceptedGap("t", 0, 10, 20, "ticket")
    run = audit({TP: source}, {TP: target}, Options(window=10, complete=True, accepted=(gap,)))
    assert named(run) == [("shifted", 0, 16, 15, 24)]
    assert run.outcome.verdict is Verdict.DIVERGED
    assert classes(run) == {"verified": 15, "explained": 1, "shifted": 24}


@pytest.mark.parametrize("window", [7, 10, 100])
def test_a_difference_far_behind_a_shift_does_not_explain_it(window: int) -> None:
    source = log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(100)))
    copies = [source.records[at] for at in range(100)]
    copies[90] = copies[90]._replace(value=b"changed")
    del copies[50]
    gap = AcceptedGap("t", 0, 50, 51, "ticket")
    run = audit(
        {TP: source}, {TP: log_of(*copies)}, Options(window, complete=True, accepted=(gap,))
    )
    assert named(run) == [("shifted", 0, 51, 50, 48), ("corrupt", 0, 90, 89, 1)]
    (partition,) = build_document(run, META)["topics"][0]["partitions"]
    assert (partition["proven_up_to"], partition["first_bad_offset"]) == (50, 50)


@pytest.mark.parametrize("window", [7, 10, 100])
def test_a_record_of_another_partition_explains_the_shift_behind_it(window: int) -> None:
    other = TopicPartition("t", 1)
    source = {
        TP: log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(40))),
        other: log_of(*(Rec(b"k", b"w%d" % n, n) for n in range(40))),
    }
    here, there = ([log.records[at] for at in range(40)] for log in source.values())
    there.insert(10, here.pop(20))
    target = {TP: log_of(*here), other: log_of(*there)}
    run = audit(source, target, Options(window, complete=True))
    assert named(run) == [("misrouted", 0, 20, 10, 1)]
    document = build_document(run, META)["topics"][0]["partitions"]
    assert [each["proven_up_to"] for each in document] == [20, 10]
    assert [each["first_bad_offset"] for each in document] == [20, 10]


@pytest.mark.parametrize("window", [10, 100])
def test_where_the_log_closed_up_compaction_explains_no_loss(window: int) -> None:
    source = compacted_log()
    target = log_of(*(source.records[at] for at in range(40) if at != 15))
    run = audit_compacted(source, target, Options(window=window, complete=True))
    assert named(run) == [("missing", 0, 15, None, 1)]
    assert classes(run) == {"verified": 15, "missing": 1, "shifted": 24}


def test_records_that_close_up_elsewhere_than_in_the_place_of_an_explained_loss_are_shifted() -> (
    None
):
    """Neither log has a record at 16, so that the target has none at 15, where the source's was lost."""
    source = compacted_log()
    kept = [source.records[at] for at in range(40) if at != 15]
    target = Log({at + (at >= 15): each for at, each in enumerate(kept)}, 0, 40)
    source = Log({at + (at >= 16): each for at, each in source.records.items()}, 0, 41)
    run = audit_compacted(source, target)
    assert named(run) == [("shifted", 0, 17, 16, 24)]
    assert run.outcome.verdict is Verdict.DIVERGED


def test_a_later_record_that_cannot_be_read_explains_nothing() -> None:
    source = log_of(*(Rec(b"k%d" % (n % 20), b"v%d" % n, n) for n in range(40)))
    target = source.copy()
    del target.records[5]
    for log in (source, target):
        log.faults.append(Fault(24, 27, FailureKind.UNDECODABLE))
    run = audit_compacted(source, target)
    assert ("missing", 0, 5, None, 1) in named(run)


def test_compaction_does_not_put_another_record_in_the_place_of_one() -> None:
    target = compacted_log()
    target.records[5] = target.records[10]
    for window in (10, 100):
        run = audit_compacted(compacted_log(), target, Options(window=window))
        assert named(run) == [("duplicate", 0, None, 5, 1), ("missing", 0, 5, None, 1)]
        assert run.outcome.verdict is Verdict.DIVERGED


@pytest.mark.parametrize("window", [10, 100])
def test_a_copy_in_the_place_of_a_lost_record_is_both_in_windows_of_any_size(window: int) -> None:
    target = full()
    target.records[5] = rec(25)
    run = audit({TP: full()}, {TP: target}, Options(window=window))
    assert named(run) == [("duplicate", 0, None, 5, 1), ("missing", 0, 5, None, 1)]
    assert classes(run) == {"verified": 39, "missing": 1}


def test_a_duplicate_before_its_original_is_a_duplicate() -> None:
    source, target = full(), full()
    del source.records[5]
    target.records[5] = rec(25)
    (finding,) = audit({TP: source}, {TP: target}).findings
    assert (finding.finding_class, finding.first_target_offset) == (FindingClass.DUPLICATE, 25)
