"""repair.json, executed: with its ranges replaced and its deletions done, an audit finds only what the source has lost.

The cases are those of the audit's oracle.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest

from kclient.types import TopicPartition
from spark_jobs.comparison import Options
from spark_jobs.digest import WindowShape
from spark_jobs.engine import FailureKind
from spark_jobs.findings import FindingClass
from spark_jobs.ranges import subtract
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.report.repair import RENUMBERED, SOURCE_DAMAGED, repair_plan
from tests.kit.audit_batches import BatchEngine, Layout
from tests.kit.audit_faults import END, EVERY, START, Case, case_with
from tests.kit.audit_logs import Fault, Log, Logs, Rec, audit, log_of, snapshot
from tests.kit.property_tests import cases, examples

KINDS = [
    *((kind,) for kind in EVERY),
    *(
        pair
        for pair in itertools.combinations(EVERY, 2)
        if not (set(pair) <= set(START) or set(pair) <= set(END))
    ),
]


def run(case: Case, window: int) -> Reconciliation:
    return audit(case.source, case.target, Options(window=window, complete=case.complete))


def run_with_few_findings(case: Case, window: int, keep: int) -> Reconciliation:
    """Audit with *keep* findings of a class that are single; the others are in runs."""
    shape, buckets = WindowShape(window, 0, 1_000, 4), TimeBuckets(0, 1_000)
    engine = BatchEngine(case.source, case.target, shape, (Layout(), Layout()), keep=keep)
    clusters = snapshot("source", case.source), snapshot("target", case.target)
    options = Options(window=window, complete=case.complete)
    return reconcile(engine, *clusters, options, buckets=buckets)


def place(row: dict[str, Any]) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


def execute(plan: dict[str, Any], source: Logs, target: Logs) -> None:
    """Do at the target what *plan* states."""
    for row in plan["copy"]:
        log = target.setdefault(place(row), Log())
        for each in row["ranges"]:
            replace(log, source[place(row)], each["from"], each["until"])
    for row in plan["not_repairable"]:
        if row["log"] == "target":
            log = target[place(row)]
            delete(log, row["from"], row["until"])


def replace(log: Log, source: Log, low: int, high: int) -> None:
    delete(log, low, high)
    log.records |= {at: record for at, record in source.records.items() if low <= at < high}
    log.end = max(log.end, high)


def delete(log: Log, low: int, high: int) -> None:
    log.records = {at: record for at, record in log.records.items() if not low <= at < high}
    log.faults = [
        fault._replace(low=part[0], high=part[1])
        for fault in log.faults
        for part in (
            subtract([(fault.low, fault.high)], [(low, high)])
            if fault.kind is FailureKind.UNDECODABLE
            else [(fault.low, fault.high)]
        )
    ]


def overlaps(low: int, high: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(low < end and start < high for start, end in ranges)


def check_plan(plan: dict[str, Any], source: Logs) -> None:
    """Check invariant 2 of `spark_jobs.report.repair`."""
    for row in plan["copy"]:
        log = source[place(row)]
        faults = [(fault.low, fault.high) for fault in log.faults]
        before = 0
        for each in row["ranges"]:
            assert log.start <= each["from"] < each["until"] <= log.end
            assert before <= each["from"], "ascending and disjoint"
            assert not overlaps(each["from"], each["until"], faults)
            before = each["until"]


@pytest.mark.parametrize("kinds", cases(KINDS), ids="+".join)
@pytest.mark.parametrize("most", [1_000, 2])
def test_a_plan_repairs_all_that_the_source_still_has(kinds: tuple[str, ...], most: int) -> None:
    for seed in range(examples(1)):
        case = case_with(seed, *kinds)
        window = 7 + seed % 40
        first = run(case, window)
        plan = repair_plan(first, most)
        check_plan(plan, case.source)
        execute(plan, case.source, case.target)
        left = [
            f
            for f in run(case, window).findings
            if f.finding_class not in (FindingClass.GAP, FindingClass.VISIBILITY)
            and not (f.finding_class is FindingClass.UNDECODABLE and f.source_offset is not None)
        ]
        assert left == [], (kinds, seed, plan)


@pytest.mark.parametrize("kinds", cases(KINDS), ids="+".join)
def test_a_plan_for_runs_of_findings_repairs_the_same(kinds: tuple[str, ...]) -> None:
    for seed in range(examples(1)):
        case = case_with(seed, *kinds)
        window = 7 + seed % 40
        plan = repair_plan(run_with_few_findings(case, window, seed % 3))
        check_plan(plan, case.source)
        execute(plan, case.source, case.target)
        left = [
            f
            for f in run(case, window).findings
            if f.finding_class not in (FindingClass.GAP, FindingClass.VISIBILITY)
            and not (f.finding_class is FindingClass.UNDECODABLE and f.source_offset is not None)
        ]
        assert left == [], (kinds, seed, plan)


def test_a_plan_deletes_no_record_between_those_of_a_run() -> None:
    """The foreign records at 5 and 25 are one finding; the windows with them are copied, and 15 stays."""
    tp = TopicPartition("t", 0)
    source = log_of(*(Rec(b"k%d" % n, b"v", n) for n in range(40)))
    target = source.copy()
    del source.records[5], source.records[25]
    case = Case(random.Random(1), {tp: source}, {tp: target})
    plan = repair_plan(run_with_few_findings(case, 10, 0))
    assert plan["not_repairable"] == []
    (copied,) = plan["copy"]
    assert [(each["from"], each["until"]) for each in copied["ranges"]] == [(0, 10), (20, 30)]


def renumbered_copy(rng: random.Random, source: Log) -> Log:
    """Return a damaged copy in which every record behind a lost or an added one has another offset."""
    records = list(source.records.values())
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(records) - 1)
        damage = rng.choice(("lose", "add", "repeat", "swap"))
        if damage == "lose":
            del records[at]
        elif damage == "add":
            records.insert(at, Rec(b"s", b"%d" % rng.getrandbits(60), 1))
        elif damage == "repeat":
            records.insert(at, records[at])
        else:
            records[at], records[at + 1] = records[at + 1], records[at]
    return log_of(*records)


@pytest.mark.parametrize("complete", [True, False])
def test_a_plan_moves_records_back_that_a_lost_or_added_one_has_moved(complete: bool) -> None:
    tp = TopicPartition("t", 0)
    for seed in range(examples(40)):
        rng = random.Random(seed)
        source = log_of(*(Rec(b"k", b"%d" % n, n) for n in range(100)))
        target = renumbered_copy(rng, source)
        options = Options(window=rng.randrange(3, 40), complete=complete)
        plan = repair_plan(audit({tp: source}, {tp: target}, options))
        check_plan(plan, {tp: source})
        execute(plan, {tp: source}, {tp: target})
        assert audit({tp: source}, {tp: target}, options).findings == [], (seed, plan)


def test_a_batch_that_neither_cluster_can_decode_is_not_copied() -> None:
    tp = TopicPartition("t", 0)
    source = log_of(*(Rec(b"k", b"%d" % n, n) for n in range(100)))
    target = source.copy()
    source.faults = [Fault(20, 30, FailureKind.UNDECODABLE)]
    target.faults = [Fault(25, 35, FailureKind.UNDECODABLE)]
    plan = repair_plan(audit({tp: source}, {tp: target}))
    assert [(r["from"], r["until"]) for r in plan["copy"][0]["ranges"]] == [(30, 35)]
    (left,) = plan["not_repairable"]
    assert (left["log"], left["from"], left["until"]) == ("source", 20, 30)
    assert left["reason"] == SOURCE_DAMAGED


def test_a_target_with_offsets_of_its_own_can_only_get_what_it_lacks() -> None:
    tp = TopicPartition("t", 0)
    source = log_of(*(Rec(b"k", b"%d" % n, n) for n in range(50)))
    records = list(source.records.values())
    records[10] = records[10]._replace(value=b"other")
    target = log_of(*records[:30], *records[31:])
    plan = repair_plan(audit({tp: source}, {tp: target}, Options(window=10, renumbered=True)))
    assert plan["copy"][0]["ranges"] == [{"from": 30, "until": 31, "records": {"missing": 1}}]
    assert [(row["class"], row["reason"]) for row in plan["not_repairable"]] == [
        ("corrupt", RENUMBERED)
    ]


def test_neighbours_are_one_range_and_all_are_counted() -> None:
    tp = TopicPartition("t", 0)
    source = log_of(*(Rec(b"k", b"%d" % n, n) for n in range(100)))
    target = source.copy()
    for at in (10, 11, 12, 40):
        del target.records[at]
    target.records[13] = Rec(b"k", b"other", 13)
    run = audit({tp: source}, {tp: target})
    ranges = repair_plan(run)["copy"][0]["ranges"]
    assert ranges == [
        {"from": 10, "until": 14, "records": {"corrupt": 1, "missing": 3}},
        {"from": 40, "until": 41, "records": {"missing": 1}},
    ]
    (joined,) = repair_plan(run, 1)["copy"][0]["ranges"]
    assert joined == {"from": 10, "until": 41, "records": {"corrupt": 1, "missing": 4}}


def test_a_clean_run_has_an_empty_plan() -> None:
    case = case_with(1, "behind")
    case.complete = False
    plan = repair_plan(run(case, 10))
    assert (plan["copy"], plan["not_repairable"]) == ([], [])
    assert plan["not_compared"]["lagging"] > 0
    assert plan["dry_run"] is True
