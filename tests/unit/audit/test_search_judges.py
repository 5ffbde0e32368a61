"""The judges of `tests.audit_search`, on logs that a reader can check."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kclient.types import TopicPartition
from spark_jobs.engine import FailureKind
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.verdict import ExitCode, Verdict
from tests.audit_search.judge import Open, judge, problems
from tests.audit_search.kinds import SearchCase
from tests.audit_search.renumbered_judge import false_distances, judge_renumbered
from tests.kit.audit_logs import Fault, Log, Rec, log_of

TP = TopicPartition("t", 0)


def records(*numbers: int, start: int = 0) -> Log:
    """Return a log of records, each with its own content."""
    return log_of(*(Rec(b"k", b"%d" % n, n) for n in numbers), start=start)


def case_of(source: Log, target: Log, *, complete: bool = False) -> SearchCase:
    case = SearchCase(random.Random(0), {TP: source}, {TP: target}, complete=complete)
    case.renumbered = True
    return case


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        # (last stable offset, log end)
        ((10, 10), (10, 10), None),
        ((4, 10), (4, 10), None),
        ((10, 10), (4, 10), Open(4, 10, "in an open transaction at the target")),
        ((4, 10), (10, 10), Open(4, 10, "in an open transaction at the source")),
        ((10, 10), (4, 8), None),
        ((6, 10), (8, 8), Open(6, 8, "in an open transaction at the source")),
    ],
)
def test_a_transaction_that_ended_in_one_log_only_is_a_finding_unless_the_other_lags(
    source: tuple[int, int], target: tuple[int, int], expected: Open | None
) -> None:
    logs = []
    for stable, end in (source, target):
        logs.append(records(*range(end)))
        logs[-1].stable = stable
    case = case_of(*logs)
    judged = judge(case)
    assert judged.open == ({TP: expected} if expected else {})
    assert (judged.verdict is Verdict.DIVERGED) == (expected is not None)
    assert (ExitCode.DIVERGED in judged.codes) == (expected is not None)
    assert bool(list(problems(case, judged, []))) == (expected is not None)


def test_above_the_last_stable_offset_nothing_shows_what_is_aborted() -> None:
    source, target = records(*range(6)), records(*range(6))
    source.stable = target.stable = 3
    target.records[4] = target.records[4]._replace(aborted=True)
    assert judge(case_of(source, target)).total == {"verified": 6}
    target.records[2] = target.records[2]._replace(aborted=True)
    assert judge(case_of(source, target)).total == {"verified": 5, "different": 1}


@pytest.mark.parametrize(
    ("target", "complete", "classes"),
    [
        (records(0, 1, 2, 3, 4), False, {"verified": 5}),
        (records(0, 1, 2, 3, 4, start=90), False, {"verified": 5}),
        (records(0, 1, 3, 4), False, {"verified": 4, "different": 1}),
        (records(0, 1, 9, 3, 4), False, {"verified": 4, "different": 1}),
        (records(0, 1, 2, 9, 3, 4), False, {"verified": 5, "different": 1}),
        (records(0, 1, 2), False, {"verified": 3, "lagging": 2}),
        (records(0, 1, 2), True, {"verified": 3, "truncated": 2}),
        (records(3, 0, 1, 2, 4), False, {"verified": 4, "different": 1}),
        (records(2, 3, 4, start=7), False, {"verified": 3, "aged out": 2}),
        (records(2, 3, 4), False, {"verified": 3, "different": 2}),
        (Log(), False, {"lagging": 5}),
    ],
)
def test_contents_and_their_order_decide_where_the_target_has_its_own_offsets(
    target: Log, complete: bool, classes: dict[str, int]
) -> None:
    judged = judge_renumbered(case_of(records(*range(5)), target, complete=complete))
    assert +judged.total == classes


def test_markers_and_aborted_records_are_in_no_renumbered_log() -> None:
    source = records(*range(6))
    source.records[1] = source.records[1]._replace(control=True)
    source.records[2] = source.records[2]._replace(aborted=True)
    target = records(0, 7, 3, 4, 5)
    target.records[1] = target.records[1]._replace(aborted=True)
    assert +judge_renumbered(case_of(source, target)).total == {"verified": 4, "empty": 2}


def test_what_is_opposite_an_unread_part_is_no_difference() -> None:
    target = records(0, 1, 2, 3, 4)
    target.faults.append(Fault(1, 3, FailureKind.UNREADABLE))
    judged = judge_renumbered(case_of(records(*range(5)), target))
    assert +judged.total == {"verified": 3, "not read": 2}
    assert judged.verdict is Verdict.ERROR


def test_more_records_than_the_unread_offsets_that_are_opposite_are_no_difference() -> None:
    target = records(0, 1, 3, 4)
    target.faults.append(Fault(1, 2, FailureKind.UNREADABLE))
    judged = judge_renumbered(case_of(records(*range(5)), target))
    assert +judged.total == {"verified": 3, "not read": 2}


def test_a_wrong_distance_at_a_renumbered_target_is_false() -> None:
    case = case_of(records(*range(6)), records(0, 2, 3, 4, 1, 5))
    moved = Finding(FindingClass.REORDERED, *TP, 1, 4, distance=3)
    assert list(false_distances(case, [moved])) == []
    assert list(false_distances(case, [replace(moved, distance=2)])) != []
