"""A difference that came from reading two clusters at different moments is looked at again, before a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from kclient.types import TopicPartition
from spark_jobs.accounting import AcceptedGap
from spark_jobs.commands.accepted_gaps import AcceptedLine, Unmatched, accepted_here
from spark_jobs.comparison import Options
from spark_jobs.cut import LogRange, PartitionCut, freeze
from spark_jobs.engine import FailureKind
from spark_jobs.findings import FindingClass
from spark_jobs.kept import Lineage
from spark_jobs.later_looks import Moment
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.report.screen import first_screen
from spark_jobs.settle import Patience, Seen, carried
from spark_jobs.snapshot import WHOLE_TOPIC
from spark_jobs.verdict import Verdict
from tests.kit.audit_histories import CountingEngine
from tests.kit.audit_logs import (
    Fault,
    Log,
    Logs,
    MemoryEngine,
    Rec,
    classes,
    log_of,
    named,
    snapshot,
)
from tests.kit.audit_reports import report_of, violations

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
TIMES = TimeBuckets.over((0, 1000))
OPTIONS = Options(window=10)


def rec(number: int) -> Rec:
    return Rec(b"k%d" % number, b"v%d" % number, number)


def full(count: int, start: int = 0) -> Log:
    return log_of(*(rec(start + n) for n in range(count)), start=start)


def settled(
    source: Logs,
    target: Logs,
    *changes: Callable[[], None],
    options: Options = OPTIONS,
    epochs: tuple[int, int] = (3, 3),
    source_now: Logs | None = None,
    ids: tuple[str, str] = ("", ""),
) -> tuple[Reconciliation, CountingEngine]:
    """Audit; the n-th of *changes* happens before the n-th later look. *source_now*: the logs of the first cut.

    *ids* are the topic ids at the source, at the first and at the later cuts.
    """
    engine = CountingEngine(source, target, options.window)
    left = list(changes)

    def lineage(ends: object, epoch: int) -> Lineage:
        before = dict.fromkeys((TP, OTHER), epoch)
        return Lineage((before, before), (before, before))

    def again(cuts: Sequence[PartitionCut]) -> Moment:
        if left:
            left.pop(0)()
        return Moment(
            replace(snapshot("source", source), topic_ids={"t": ids[1]}),
            snapshot("target", target),
            lineage(cuts, epochs[1]),
        )

    first = snapshot("source", source if source_now is None else source_now)
    first = replace(first, topic_ids={"t": ids[0]})
    run = reconcile(
        engine,
        first,
        snapshot("target", target),
        replace(options, lineage=lineage((), epochs[0])),
        buckets=TIMES,
        again=again,
    )
    return run, engine


def repair(log: Log, offset: int) -> Callable[[], None]:
    return lambda: log.records.update({offset: rec(offset)})


def test_a_difference_that_is_gone_at_the_second_look_is_counted_and_no_finding() -> None:
    target = full(40)
    target.records[15] = rec(99)
    run, _ = settled({TP: full(40)}, {TP: target}, repair(target, 15))
    assert (run.outcome.verdict, named(run)) == (Verdict.CONSISTENT, [])
    assert run.settled.vanished == {FindingClass.CORRUPT: 1}
    assert (run.settled.rounds, run.settled.suspects) == (1, 1)
    report = report_of(run)
    assert violations("report", report.document) == []
    assert "vanished corrupt 1" in first_screen(report.document, report="r")


def test_a_later_look_corrects_the_end_of_a_transaction_and_reads_only_its_windows_again() -> None:
    target = full(40)
    target.stable = 25
    run, engine = settled({TP: full(40)}, {TP: target}, lambda: setattr(target, "stable", None))
    assert (run.outcome.verdict, named(run)) == (Verdict.CONSISTENT, [])
    assert run.settled.vanished == {FindingClass.VISIBILITY: 15}
    # Nothing was known of the records from offset 25 on: whether they are aborted is read at the second look.
    assert engine.digested == 80 + 40


def test_a_finding_above_a_last_stable_offset_that_has_fallen_stands() -> None:
    source, target = full(40), full(40)
    target.records[30] = target.records[30]._replace(aborted=True)

    def fall() -> None:
        source.stable = target.stable = 20

    run, _ = settled({TP: source}, {TP: target}, fall)
    assert named(run) == [("visibility", 0, 30, 30, 1)]
    (stands,) = run.settled.standing
    assert stands.reason == "the last stable offset of a log has fallen: 20, before 40"


def test_a_difference_that_stays_is_a_finding_after_one_later_look() -> None:
    target = full(40)
    del target.records[15]
    run, engine = settled({TP: full(40), OTHER: full(40)}, {TP: target, OTHER: full(40)})
    assert (run.outcome.verdict, named(run)) == (
        Verdict.DIVERGED,
        [("missing", 0, 15, None, 1)],
    )
    assert (run.settled.rounds, run.settled.vanished) == (1, {})
    # 160 offsets for the first look, and the one window that differs for the second.
    assert engine.digested == 160 + 20
    # It was compared record by record at both looks, and is one window.
    assert (
        report_of(run).document["read"] | {"windows": 8, "windows_drilled": 1}
        == (report_of(run).document["read"])
    )
    assert report_of(run).document["settle"]["records_digested"] == 19


def test_equal_logs_are_looked_at_once() -> None:
    run, engine = settled({TP: full(40)}, {TP: full(40)})
    assert (run.settled.rounds, engine.digested) == (0, 80)


def test_a_gap_that_appears_because_the_source_is_read_later_is_not_one() -> None:
    source, target = full(40), full(20)
    later = full(10, start=30)

    def mirrored() -> None:
        target.records.update({at: rec(at) for at in range(20, 40)})
        target.end = 40
        source.delete_below(30)

    # The cut has the target before the mirror's copy, and the source after the retention.
    run, _ = settled({TP: source}, {TP: target}, mirrored, source_now={TP: later})
    assert run.settled.vanished == {FindingClass.GAP: 10}
    assert (run.outcome.verdict, classes(run)) == (
        Verdict.INCOMPLETE,
        {"verified": 10, "aged out": 30},
    )


def test_the_end_that_a_complete_mirror_still_copies_is_not_truncated() -> None:
    target = full(35)

    def copied() -> None:
        target.records.update({at: rec(at) for at in range(35, 40)})
        target.end = 40

    options = Options(window=10, complete=True)
    run, _ = settled({TP: full(40)}, {TP: target}, copied, options=options)
    assert (run.outcome.verdict, classes(run)) == (Verdict.CONSISTENT, {"verified": 40})
    assert run.settled.vanished == {FindingClass.TRUNCATED: 5}


def test_an_end_that_a_new_leader_reports_too_low_makes_no_record_extra() -> None:
    run, _ = settled({TP: full(40)}, {TP: full(40)}, source_now={TP: full(33)})
    assert (run.outcome.verdict, classes(run)) == (Verdict.CONSISTENT, {"verified": 40})
    assert run.settled.vanished == {FindingClass.EXTRA: 7}


def test_a_finding_that_retention_deletes_before_the_second_look_stays() -> None:
    source, target = full(40), full(40)
    target.records[3] = rec(99)

    def retention() -> None:
        source.delete_below(10)
        target.delete_below(10)

    run, _ = settled({TP: source}, {TP: target}, retention)
    assert (run.outcome.verdict, named(run)) == (Verdict.DIVERGED, [("corrupt", 0, 3, 3, 1)])
    (standing,) = run.settled.standing
    assert standing.reason == "offset 3 (corrupt) is no longer in both logs"
    assert violations("report", report_of(run).document) == []


def test_a_finding_at_a_renumbered_target_stays_when_a_log_start_moves() -> None:
    """Offsets do not show whether the record that is missing was among those that were deleted."""
    source = full(40)
    target = log_of(*(rec(number) for number in range(40) if number != 3), start=100)

    def retention() -> None:
        source.delete_below(10)
        target.delete_below(109)

    options = Options(window=10, renumbered=True)
    run, _ = settled({TP: source}, {TP: target}, retention, options=options)
    assert (run.outcome.verdict, named(run)) == (Verdict.DIVERGED, [("missing", 0, 3, None, 1)])
    (standing,) = run.settled.standing
    assert standing.reason == "records were deleted since, and offsets do not show which ones"


def test_windows_that_retention_deletes_before_the_second_look_are_no_longer_verified() -> None:
    source, target = full(40), full(40)
    target.records[35] = rec(99)
    run, _ = settled({TP: source}, {TP: target}, lambda: source.delete_below(20))
    assert (named(run), run.settled.standing) == ([("corrupt", 0, 35, 35, 1)], [])
    assert classes(run) == {"verified": 19, "corrupt": 1, "aged out": 20}


def test_a_log_that_was_written_again_is_read_whole() -> None:
    target = full(40)
    target.records[15] = rec(99)

    def rewritten() -> None:
        repair(target, 15)()
        target.records[35] = rec(77)

    run, engine = settled({TP: full(40)}, {TP: target}, rewritten, epochs=(3, 4))
    assert (run.outcome.verdict, named(run)) == (Verdict.DIVERGED, [("corrupt", 0, 35, 35, 1)])
    assert engine.digested >= 160


def test_a_part_that_only_a_later_look_can_read_is_compared() -> None:
    target = full(40)
    target.faults.append(Fault(12, 14, FailureKind.UNREADABLE))
    run, _ = settled({TP: full(40)}, {TP: target}, target.faults.clear)
    assert (run.outcome.verdict, run.settled.read_later) == (Verdict.CONSISTENT, 1)


def test_a_log_that_ends_lower_than_before_leaves_the_earlier_look() -> None:
    target = full(40)
    target.records[3] = rec(99)

    def truncated() -> None:
        target.records = {at: rec(at) for at in range(30)}
        target.end = 30

    run, _ = settled({TP: full(40)}, {TP: target}, truncated)
    assert (run.outcome.verdict, named(run)) == (Verdict.DIVERGED, [("corrupt", 0, 3, 3, 1)])


def test_two_partitions_that_share_a_misrouted_record_are_replaced_together() -> None:
    source, target = {TP: full(20), OTHER: Log()}, {TP: full(20), OTHER: Log()}
    del target[TP].records[7]
    target[OTHER].append(rec(7))
    run, _ = settled(source, target)
    assert named(run) == [("misrouted", 0, 7, 0, 1)]

    def retention() -> None:
        repair(target[TP], 7)()
        target[OTHER].delete_below(1)

    run, _ = settled(source, target, retention)
    assert named(run) == [("misrouted", 0, 7, 0, 1)]
    assert [each.partition for each in run.settled.standing] == [0, 1]


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        ("two", "was created again in source"),
        ("", "was deleted, or is no longer listed, in source"),
    ],
)
def test_a_topic_of_another_id_leaves_the_earlier_look(now: str, reason: str) -> None:
    target = full(30)
    target.records[5] = Rec(b"k", b"other", 5)
    run, _ = settled({TP: full(30)}, {TP: target}, repair(target, 5), ids=("one", now))
    assert named(run) == [("corrupt", 0, 5, 5, 1)]
    assert f"the topic {reason}" in first_screen(report_of(run).document, report="r")


def test_a_partition_without_a_leader_at_first_is_not_looked_at_in_a_topic_of_another_id() -> None:
    logs: Logs = {TP: full(40), OTHER: full(40)}
    now = replace(snapshot("target", logs), topic_ids={"t": "two"})
    first = replace(
        now,
        ranges={OTHER: now.ranges[OTHER]},
        unreadable={TP: "no leader"},
        topic_ids={"t": "one"},
    )
    run = reconcile(
        MemoryEngine(logs, logs, 10),
        snapshot("source", logs),
        first,
        OPTIONS,
        buckets=TIMES,
        again=lambda _cuts: Moment(snapshot("source", logs), now),
    )
    assert run.outcome.verdict is Verdict.ERROR
    assert {each.reason for each in run.settled.standing} == {
        "the topic was created again in target"
    }


@pytest.mark.parametrize(
    ("of_line", "verdict"), [("one", Verdict.CONSISTENT), ("another", Verdict.DIVERGED)]
)
def test_a_gap_of_the_operator_is_one_of_the_topic_that_a_later_look_knows(
    of_line: str, verdict: Verdict
) -> None:
    """The target does not describe the topic at first, so the topic id of the line cannot be compared before."""
    target = full(40)
    del target.records[15]
    logs: tuple[Logs, Logs] = ({TP: full(40)}, {TP: target})
    source, now = snapshot("source", logs[0]), snapshot("target", logs[1])
    now = replace(now, topic_ids={"t": "one"})
    whole = {TopicPartition("t", WHOLE_TOPIC): "UNKNOWN_TOPIC_OR_PARTITION"}
    first = replace(now, ranges={}, configs={}, topic_ids={}, unreadable=whole)
    line = AcceptedLine(AcceptedGap(*TP, 10, 20, "c"), at_target=True, target_topic_id=of_line)
    found = accepted_here([line], source, first)
    assert (found.gaps, found.unmatched) == ((), ())
    run = reconcile(
        MemoryEngine(*logs, 10),
        source,
        first,
        replace(OPTIONS, accepted_if=found.unchecked),
        buckets=TIMES,
        again=lambda _cuts: Moment(source, now),
    )
    assert run.outcome.verdict is verdict
    refused = accepted_here([line], run.source, run.target).since(found)
    reason = "of another topic id at the target"
    assert refused.unmatched == (() if of_line == "one" else (Unmatched(line.gap, reason),))


def test_a_gap_of_a_partition_that_a_later_look_does_not_list_is_named() -> None:
    """At the first look the topic has no known partitions."""
    logs = {TP: full(40)}
    source, now = snapshot("source", logs), snapshot("target", logs)
    whole = {TopicPartition("t", WHOLE_TOPIC): "UNKNOWN_TOPIC_OR_PARTITION"}
    first = replace(now, ranges={}, configs={}, unreadable=whole)
    lines = [
        AcceptedLine(AcceptedGap("t", number, 10, 20, "c"), at_target=False) for number in (0, 7)
    ]
    found = accepted_here(lines, source, first)
    assert not found.unmatched
    run = reconcile(
        MemoryEngine(logs, logs, 10),
        source,
        first,
        replace(OPTIONS, accepted=found.gaps),
        buckets=TIMES,
        again=lambda _cuts: Moment(source, now),
    )
    assert run.outcome.verdict is Verdict.CONSISTENT
    refused = accepted_here(lines, run.source, run.target).since(found)
    assert refused.unmatched == (Unmatched(lines[1].gap, "in no partition in scope"),)


def test_no_round_is_made_without_patience() -> None:
    target = full(40)
    target.records[15] = rec(99)
    options = Options(window=10, patience=Patience(rounds=0))
    run, _ = settled({TP: full(40)}, {TP: target}, repair(target, 15), options=options)
    assert (run.outcome.verdict, run.settled.rounds) == (Verdict.DIVERGED, 0)


def test_a_cluster_that_cannot_be_read_again_leaves_the_first_look() -> None:
    target = {TP: full(40)}
    target[TP].records[15] = rec(99)
    source = {TP: full(40)}
    run = reconcile(
        CountingEngine(source, target, 10),
        snapshot("source", source),
        snapshot("target", target),
        Options(window=10),
        buckets=TIMES,
        again=lambda _: "target (host:9092): no broker answers",
    )
    assert (run.outcome.verdict, run.settled.rounds) == (Verdict.DIVERGED, 0)
    document = report_of(run).document
    assert document["settle"]["problem"] == "target (host:9092): no broker answers"
    assert violations("report", document) == []


@pytest.mark.parametrize(
    ("low", "failed", "expected"),
    [
        (0, [], [(0, 10), (20, 40)]),
        (12, [], [(20, 40)]),
        (25, [], [(30, 40)]),
        (0, [(33, 34)], [(0, 10), (20, 30)]),
    ],
)
def test_only_windows_that_were_equal_and_read_in_full_are_not_read_again(
    low: int, failed: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    (old,) = freeze({TP: LogRange(0, 40)}, {TP: LogRange(0, 40)})
    (new,) = freeze({TP: LogRange(0, 60)}, {TP: LogRange(low, 70)})
    assert carried(Seen(old, (), failed), new, [(10, 20)], 10) == expected


def unknown_first(
    unreadable: str, logs: dict[str, Logs], *, number: int = 0, renumbered: bool = False
) -> Reconciliation:
    """Audit *logs* by cluster; at the first cut one cluster ("both": each) did not return its log ranges."""
    known = [snapshot(name, logs[name]) for name in ("source", "target")]
    first = [
        replace(each, ranges={}, unreadable={TopicPartition("t", number): "no leader"})
        if unreadable in (each.name, "both")
        else each
        for each in known
    ]
    return reconcile(
        MemoryEngine(logs["source"], logs["target"], 10),
        *first,
        replace(OPTIONS, renumbered=renumbered),
        buckets=TIMES,
        again=lambda _cuts: Moment(*known),
    )


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize(
    ("unreadable", "start", "end", "verdict"),
    [
        ("target", 0, 40, Verdict.CONSISTENT),
        ("target", 0, 30, Verdict.LAGGING),
        ("target", 10, 30, Verdict.INCOMPLETE),
        ("source", 0, 30, Verdict.LAGGING),
        ("both", 0, 40, Verdict.CONSISTENT),
    ],
)
def test_a_log_range_that_was_not_known_at_first_is_no_bound_of_the_later_one(
    unreadable: str, start: int, end: int, verdict: Verdict, renumbered: bool
) -> None:
    logs = {"source": {TP: full(40)}, "target": {TP: full(end - start, start)}}
    run = unknown_first(unreadable, logs, renumbered=renumbered)
    assert (run.settled.standing, named(run)) == ([], [])
    assert run.outcome.verdict is verdict
    assert run.counts.verified == end - start
    assert run.settled.read_later == 1


def test_offsets_that_cannot_be_read_at_the_later_look_are_named_instead_of_all() -> None:
    target = full(50)
    target.faults.append(Fault(45, 47, FailureKind.UNREADABLE))
    source = full(40)
    run = unknown_first("target", {"source": {TP: source}, "target": {TP: target}})
    assert run.settled.standing == []
    assert classes(run) == {"verified": 40, "extra": 8, "not read": 2}


@pytest.mark.parametrize("unreadable", ["source", "target", "both"])
def test_a_topic_of_which_nothing_was_known_is_not_read_until_all_its_partitions_are(
    unreadable: str,
) -> None:
    """At first a cluster did not return the partitions of the topic. At the later look it has another one besides."""
    logs: dict[str, Logs] = {
        "source": {TP: full(40), OTHER: full(40)},
        "target": {TP: full(40), OTHER: full(20)},
    }
    if unreadable != "both":
        del logs["source" if unreadable == "target" else "target"][OTHER]
    run = unknown_first(unreadable, logs, number=-1)
    assert run.outcome.verdict is Verdict.ERROR
    assert [each.reason for each in run.settled.standing] == [
        "partition 1 of the topic was not known at the first look"
    ]


@pytest.mark.parametrize(
    ("unreadable", "now", "verdict", "standing"),
    [
        ("source", "one", Verdict.CONSISTENT, []),
        ("target", "one", Verdict.CONSISTENT, []),
        ("source", "two", Verdict.DIVERGED, ["the topic was created again in source"]),
    ],
)
def test_a_topic_that_was_not_listed_at_first_has_the_topic_id_of_the_later_look(
    unreadable: str, now: str, verdict: Verdict, standing: list[str]
) -> None:
    """The first later look has two records EXTRA and is accepted; the second one finds both logs equal."""
    logs = {"source": {TP: full(40)}, "target": {TP: full(40)}}
    source, target = (
        replace(snapshot(name, logs[name]), topic_ids={"t": "one"}) for name in ("source", "target")
    )
    first = [
        replace(
            each,
            ranges={},
            configs={},
            topic_ids={},
            unreadable={TopicPartition("t", -1): "UNKNOWN_TOPIC_OR_PARTITION"},
        )
        if each.name == unreadable
        else each
        for each in (source, target)
    ]
    moments = [
        Moment(replace(source, ranges={TP: LogRange(0, 38)}), target),
        Moment(replace(source, topic_ids={"t": now}), target),
    ]
    run = reconcile(
        MemoryEngine(logs["source"], logs["target"], 10),
        *first,
        OPTIONS,
        buckets=TIMES,
        again=lambda _cuts: moments.pop(0),
    )
    assert (run.outcome.verdict, [each.reason for each in run.settled.standing]) == (
        verdict,
        standing,
    )
    (topic,) = report_of(run).document["topics"]
    assert topic["topic_ids"] == {"source": "one", "target": "one"}
    assert [each.unreadable for each in (run.source, run.target)] == [{}, {}]
