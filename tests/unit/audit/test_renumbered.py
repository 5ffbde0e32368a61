"""A target that assigns its own offsets: nothing follows from where its log starts, and no record is found falsely."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from kclient.types import TopicPartition
from spark_jobs.comparison import Options
from spark_jobs.engine import FailureKind
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.report.document import build_document
from spark_jobs.report.pictures import coverage
from spark_jobs.report.screen import first_screen
from spark_jobs.verdict import ExitCode, Limits, Verdict
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
WINDOWS = [7, 10, 100]


def source_log(start: int = 0, count: int = 60) -> Log:
    """A log with transaction markers, which a mirror that renumbers records does not copy."""
    return log_of(
        *(
            Rec(b"k", b"v%d" % n, 1000 + n, control=n % 20 == 5)
            for n in range(start, start + count)
        ),
        start=start,
    )


def copy_of(source: Log, start: int = 0) -> Log:
    """The records of *source* without markers, at consecutive offsets from *start* on."""
    return log_of(
        *(record for _, record in sorted(source.records.items()) if not record.control),
        start=start,
    )


def run(source: Log, target: Log, window: int = 10, **options: bool) -> Reconciliation:
    return audit({TP: source}, {TP: target}, Options(window, renumbered=True, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("starts", [(0, 0), (20, 0), (0, 500), (1000, 0), (20, 10)])
def test_logs_that_start_anywhere_are_equal(starts: tuple[int, int], window: int) -> None:
    source = source_log(starts[0])
    found = run(source, copy_of(source, starts[1]), window)
    assert (found.outcome.verdict, named(found)) == (Verdict.CONSISTENT, [])
    assert classes(found) == {"verified": 57, "empty": 3}


@pytest.mark.parametrize("window", WINDOWS)
def test_records_that_only_the_target_still_has_have_aged_out(window: int) -> None:
    source = source_log()
    target = copy_of(source)
    source.delete_below(20)
    found = run(source, target, window)
    assert (found.outcome.verdict, named(found)) == (Verdict.INCOMPLETE, [])
    assert classes(found) == {"verified": 38, "empty": 2, "aged out": 19}


@pytest.mark.parametrize("window", WINDOWS)
def test_records_that_only_the_source_still_has_have_aged_out(window: int) -> None:
    source = source_log()
    target = copy_of(source)
    target.delete_below(19)
    found = run(source, target, window)
    assert (found.outcome.verdict, named(found)) == (Verdict.INCOMPLETE, [])
    assert classes(found) == {"verified": 38, "empty": 3, "aged out": 19}
    (partition,) = build_document(found, META)["topics"][0]["partitions"]
    assert (partition["low"], partition["proven_up_to"]) == (20, 60)


MARKER = Rec(b"", b"", 1, control=True)
REMAINS = None
"""Of an aborted transaction no record is returned."""


def tail_of(count: int, *ending: Rec | None) -> tuple[Log, Log]:
    """A source that is *count* records ahead of its copy, which ends with *ending*."""
    source = log_of(*(Rec(b"k", b"v%d" % n, 1000 + n) for n in range(10 + count)))
    target = log_of(*(source.records[n] for n in range(10)))
    for each in ending:
        if each is None:
            target.end += 1
        else:
            target.append(each)
    return source, target


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("count", [1, 2, 30])
@pytest.mark.parametrize(
    "ending", [(MARKER,), (MARKER, REMAINS, REMAINS, MARKER)], ids=["marker", "remains"]
)
def test_a_mirror_lags_whatever_ends_its_log_behind_the_last_copy(
    ending: tuple[Rec | None, ...], count: int, window: int
) -> None:
    found = run(*tail_of(count, *ending), window)
    assert (found.outcome.verdict, named(found)) == (Verdict.LAGGING, [])
    assert classes(found) == {"verified": 10, "lagging": count}


@pytest.mark.parametrize("window", WINDOWS)
def test_records_behind_the_markers_of_a_complete_mirror_are_one_truncated_finding(
    window: int,
) -> None:
    found = run(*tail_of(5, MARKER, REMAINS, MARKER), window, complete=True)
    assert named(found) == [("truncated", 0, 10, None, 5)]


@pytest.mark.parametrize("window", WINDOWS)
def test_as_many_offsets_as_the_target_has_other_records_at_its_end_do_not_lag(window: int) -> None:
    """Each may stand for one of them: the mirror has passed it."""
    found = run(*tail_of(3, Rec(b"other", b"stranger", 7), MARKER), window)
    assert named(found) == [("extra", 0, None, 10, 1), ("missing", 0, 10, None, 1)]
    assert found.counts.lagging == 2


@pytest.mark.parametrize("window", WINDOWS)
def test_a_record_that_only_the_source_has_compacted_is_no_sign_that_others_are_lost(
    window: int,
) -> None:
    source, target = tail_of(3)
    target.append(source.records.pop(10))
    found = run(source, target, window)
    assert named(found) == [("extra", 0, None, 10, 1)]
    assert found.counts.lagging == 2


@pytest.mark.parametrize("window", WINDOWS)
def test_records_opposite_an_unread_end_of_the_source_do_not_make_its_last_ones_lost(
    window: int,
) -> None:
    source = log_of(*(Rec(b"k", b"v%d" % n, 1000 + n) for n in range(20)))
    target = log_of(*(source.records[n] for n in range(13)), MARKER)
    source.faults.append(Fault(10, 13, FailureKind.UNREADABLE))
    found = run(source, target, window)
    assert named(found) == []
    assert classes(found) == {"verified": 10, "not read": 3, "lagging": 7}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("at_source", [True, False])
def test_what_is_opposite_an_unread_part_is_no_finding(at_source: bool, window: int) -> None:
    source = source_log(100)
    target = copy_of(source)
    (source if at_source else target).faults.append(
        Fault(130, 135, FailureKind.UNDECODABLE)
        if at_source
        else Fault(28, 33, FailureKind.UNDECODABLE)
    )
    found = run(source, target, window)
    at = (130, None) if at_source else (None, 28)
    assert named(found) == [("undecodable", 0, *at, 5)]
    assert found.counts.verified == 52
    assert found.outcome.verdict is Verdict.DIVERGED


def drawn(found: Reconciliation) -> list[tuple[str, ...]]:
    """Return the state and the offsets of each mark in the picture of what is proven."""
    picture = coverage(build_document(found, META))
    return re.findall(r'<rect class="(\w+)" .*?offsets (\d+) to (\d+)<', picture)


def test_offsets_that_only_the_target_has_are_not_drawn() -> None:
    """They are in no place of the source's axis."""
    source, _ = tail_of(90)
    target = log_of(*source.records.values())
    for _ in range(10):
        target.append(MARKER)
    assert drawn(run(source, target)) == [("proven", "0", "99")]
    assert drawn(run(target, source)) == [("proven", "0", "109")]


@pytest.mark.parametrize("start", [0, 500])
def test_offsets_below_the_own_start_of_the_source_are_not_drawn_as_aged_out(start: int) -> None:
    source = source_log(1000)
    assert drawn(run(source, copy_of(source, start))) == [("proven", "1000", "1059")]


def test_what_only_lags_is_drawn_as_lag() -> None:
    source, target = tail_of(5, MARKER)
    assert drawn(run(source, target)) == [("proven", "0", "9"), ("lagging", "10", "14")]
    source.records[3] = source.records[3]._replace(value=b"other")
    assert drawn(run(source, target)) == [("proven", "0", "2"), ("unproven", "3", "14")]


@pytest.mark.parametrize("window", WINDOWS)
def test_markers_that_end_the_source_are_proven_with_the_records_before(window: int) -> None:
    source = log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(100)), MARKER, MARKER)
    target = log_of(*(source.records[n] for n in range(100)), start=7)

    def proven() -> str:
        text = first_screen(build_document(run(source, target, window), META), report="")
        return text.partition("equal or explained up to:  ")[2].partition("\n")[0]

    assert proven() == "t 98.03 % (100 of 102)"  # Two have no record.
    del target.records[106]
    target.end -= 1
    assert proven() == "t p0 -> 99 of 102"
    target.append(source.records[99])
    source.faults.append(Fault(100, 102, FailureKind.UNREADABLE))
    assert proven() == "t p0 -> 100 of 102"


PLAIN = log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(100)))
SHIFTED = log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(100)), start=7)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("kind", "not_compared", "code"),
    [
        (FailureKind.DELETED, "aged out", ExitCode.AGED_OUT),
        (FailureKind.UNREADABLE, "not read", ExitCode.UNREADABLE),
        (FailureKind.UNDECODABLE, "undecodable", ExitCode.DIVERGED),
    ],
)
def test_records_opposite_an_unread_part_of_the_target_were_not_compared(
    kind: FailureKind, not_compared: str, code: ExitCode, window: int
) -> None:
    target = SHIFTED.copy()
    target.faults.append(Fault(7, 97, kind))
    limits = Limits(min_coverage=0.5)
    found = audit({TP: PLAIN}, {TP: target}, Options(window, renumbered=True, limits=limits))
    assert classes(found) == {"verified": 10, not_compared: 90}
    assert found.outcome.exit_code is code
    assert found.counts.coverage == 0.1


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", [FailureKind.DELETED, FailureKind.UNREADABLE])
def test_more_records_than_the_unread_offsets_that_are_opposite_were_not_compared_either(
    kind: FailureKind, window: int
) -> None:
    """Three offsets of the target were not read; the source has five records there."""
    name = "aged out" if kind is FailureKind.DELETED else "not read"
    target = log_of(*(PLAIN.records[n] for n in range(100) if n not in (52, 53)), start=7)
    target.faults.append(Fault(57, 60, kind))
    assert classes(run(PLAIN, target, window)) == {"verified": 95, name: 5}
    assert classes(run(target, PLAIN, window)) == {"verified": 95, name: 5}


@pytest.mark.parametrize("window", WINDOWS)
def test_unread_offsets_stand_for_the_records_that_are_opposite_them_and_for_no_others(
    window: int,
) -> None:
    """The mirror did not copy offsets 50 to 99; 50 strangers are opposite offset 200 alone."""
    source = log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(300)))
    strangers = [Rec(b"s", b"stranger %d" % n, n) for n in range(50)]
    copied = [source.records[n] for n in range(300) if not (50 <= n < 100 or n == 200)]
    target = log_of(*copied[:150], *strangers, *copied[150:])
    source.faults += [
        Fault(50, 100, FailureKind.UNDECODABLE),
        Fault(200, 201, FailureKind.UNDECODABLE),
    ]
    found = run(source, target, window)
    assert classes(found) == {"verified": 249, "undecodable": 100}
    assert round(found.counts.coverage, 3) == 0.713
    assert classes(run(target, source, window)) == {"verified": 249, "undecodable": 100}


@pytest.mark.parametrize("window", WINDOWS)
def test_unread_offsets_of_both_logs_are_different_offsets_although_their_numbers_are_equal(
    window: int,
) -> None:
    source, target = PLAIN.copy(), SHIFTED.copy()
    for log in (source, target):
        log.faults.append(Fault(40, 45, FailureKind.UNDECODABLE))
    assert classes(run(source, target, window)) == {"verified": 90, "undecodable": 10}


@pytest.mark.parametrize("side", [0, 1])
def test_nothing_of_a_partition_is_compared_if_a_cluster_did_not_return_its_log_range(
    side: int,
) -> None:
    logs = {TP: PLAIN}
    clusters = [snapshot("source", logs), snapshot("target", logs)]
    clusters[side] = replace(clusters[side], ranges={}, unreadable={TP: "no leader"})
    options = Options(10, renumbered=True)
    found = reconcile(
        MemoryEngine(logs, logs, 10), *clusters, options, buckets=TimeBuckets.over((0, 1000))
    )
    assert classes(found) == {"not read": 100}
    assert found.outcome.exit_code is ExitCode.UNREADABLE


@pytest.mark.parametrize("window", WINDOWS)
def test_a_lost_record_and_a_foreign_record_are_found_behind_another_log_start(window: int) -> None:
    source = source_log(100)
    target = copy_of(source)
    records = [record for _, record in sorted(target.records.items())]
    del records[10]
    records.insert(40, Rec(b"s", b"foreign!", 5))
    found = run(source, log_of(*records), window)
    assert named(found) == [("extra", 0, None, 40, 1), ("missing", 0, 111, None, 1)]
    assert classes(found) == {"verified": 56, "empty": 3, "missing": 1, "extra": 1}


@pytest.mark.parametrize("complete", [True, False])
def test_the_end_that_the_target_lacks_is_lag_or_truncated(complete: bool) -> None:
    source = source_log(100)
    target = copy_of(source)
    target.records = {at: record for at, record in target.records.items() if at < 50}
    target.end = 50
    found = run(source, target, complete=complete)
    assert classes(found) == {
        "verified": 50,
        "empty": 3,
        "truncated" if complete else "lagging": 7,
    }
    assert found.outcome.verdict is (Verdict.DIVERGED if complete else Verdict.LAGGING)
    (partition,) = build_document(found, META)["topics"][0]["partitions"]
    assert partition["proven_up_to"] == 153


def test_a_target_without_records_lags() -> None:
    found = run(source_log(100), Log())
    assert (found.outcome.verdict, classes(found)) == (Verdict.LAGGING, {"lagging": 60})


def test_a_foreign_record_in_the_first_window_that_differs_is_found_although_the_log_start_moved() -> (
    None
):
    source = log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(60)))
    target = source.copy()
    for log in (source, target):
        log.delete_below(20)
    target.records[40] = Rec(b"s", b"foreign!", 5, control=False)
    del source.records[40]
    found = run(source, target)
    assert named(found) == [("extra", 0, None, 40, 1)]
    assert classes(found) == {"verified": 39, "empty": 1, "extra": 1}


@pytest.mark.parametrize("seed", range(40))
def test_faults_apart_from_each_other_are_found_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    source = source_log(rng.choice([0, 0, 3, 1000]), 120)
    held = [at for at, record in source.records.items() if rng.random() < 0.9 or record.control]
    source.records = {at: source.records[at] for at in held}
    copied = [at for at in held if not source.records[at].control]
    records: list[Rec | None] = [source.records[at] for at in copied]
    expected: Counter[tuple[str, int | None]] = Counter()
    for place in rng.sample(range(20, 90, 10), 3):
        kind = rng.choice(["missing", "extra", "corrupt"])
        record = source.records[copied[place]]
        if kind == "missing":
            records[place] = None
        elif kind == "corrupt":
            records[place] = record._replace(value=b"changed")
        else:
            # The source loses the record, so that only the target has it.
            del source.records[copied[place]]
        expected[kind, None if kind == "extra" else copied[place]] += 1
    target = log_of(
        *(record for record in records if record is not None), start=rng.choice([0, 0, 7, 2000])
    )
    source.delete_below(source.start + rng.choice([0, rng.randrange(15)]))
    target.delete_below(target.start + rng.choice([0, rng.randrange(15)]))
    found = run(source, target, rng.choice([7, 10, 33, 1000]))
    assert Counter((f.finding_class.value, f.source_offset) for f in found.findings) == expected
    assert found.outcome.verdict is Verdict.DIVERGED
    assert found.counts.lagging == 0
