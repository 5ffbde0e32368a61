"""The mirror's gap ledger explains holes that neither log contradicts, and nothing else: a ledger may lie."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kclient.mirror_ledger import LINEAGE, REMOVAL, GapEntry
from kclient.types import TopicPartition
from spark_jobs.accounting import AcceptedGap
from spark_jobs.comparison import Options
from spark_jobs.findings import FindingClass
from spark_jobs.gap_ledger import LedgerRead, check_entries
from spark_jobs.reconcile import Reconciliation
from spark_jobs.report.document import build_document
from spark_jobs.report.screen import first_screen
from spark_jobs.verdict import ExitCode, Verdict
from tests.kit.audit_logs import Log, Rec, audit, classes, log_of, named, snapshot
from tests.kit.audit_reports import META, report_of, violations

TP = TopicPartition("t", 0)
GAP = GapEntry("source", "t", 0, 20, 60, "retention")


def full(count: int, start: int = 0) -> Log:
    return log_of(*(Rec(b"k", b"v%d" % (start + n), start + n) for n in range(count)), start=start)


def with_hole(low: int = 20, high: int = 60, end: int = 80) -> Log:
    """A copy of [0, end) without [low, high)."""
    log = full(end)
    log.records = {at: each for at, each in log.records.items() if not low <= at < high}
    return log


def run_with(
    entries: Sequence[GapEntry], source: Log, target: Log, **options: object
) -> Reconciliation:
    read = LedgerRead(("east.gaps.internal",), tuple(entries))
    return audit({TP: source}, {TP: target}, Options(window=10, ledger=read, **options))  # type: ignore[arg-type]


def test_a_gap_of_the_ledger_is_explained_with_its_cause() -> None:
    run = run_with([GAP], full(20, start=60), with_hole())
    assert (run.outcome.verdict, named(run)) == (Verdict.INCOMPLETE, [])
    assert run.account.explained[TP] == {"retention (ledger)": 40}
    assert classes(run) == {"verified": 20, "aged out": 20, "explained": 40}


def test_without_the_ledger_the_gap_is_a_finding() -> None:
    run = audit({TP: full(20, start=60)}, {TP: with_hole()})
    assert (named(run), run.outcome.exit_code) == ([("gap", 0, 20, None, 40)], ExitCode.DIVERGED)
    assert build_document(run, META)["ledger"] is None


def test_a_gap_that_nothing_follows_yet_is_explained() -> None:
    run = run_with([GAP], full(20, start=60), full(20))
    assert run.account.explained[TP] == {"retention (ledger)": 40}
    assert classes(run)["lagging"] == 20


def test_an_entry_that_claims_records_of_the_source_explains_nothing() -> None:
    """Neither the records that the source has, nor the offsets below them."""
    source, target = full(30, start=50), with_hole()
    run = run_with([GAP], source, target)
    assert named(run) == [
        ("gap", 0, 20, None, 30),
        *(("missing", 0, n, None, 1) for n in range(50, 60)),
    ]
    assert run.outcome.verdict is Verdict.DIVERGED
    assert "explained" not in classes(run)
    (refused,) = run.ledger_entries.refused
    assert refused == (GAP, "the source still has offsets from 50 on")


@pytest.mark.parametrize("until", [60, 1 << 62])
def test_a_missing_record_stays_missing_whatever_the_ledger_states(until: int) -> None:
    run = run_with([replace(GAP, until=until)], full(80), with_hole())
    assert run.counts.findings == audit({TP: full(80)}, {TP: with_hole()}).counts.findings
    assert len(named(run)) == 40


def test_a_gap_that_explains_gaps_only_explains_no_missing_record() -> None:
    """Also if the check of the source's log start failed."""
    accepted = AcceptedGap("t", 0, 20, 60, "a lie", only_gaps=True)
    run = audit({TP: full(80)}, {TP: with_hole()}, Options(window=10, accepted=(accepted,)))
    assert run.counts.findings == {FindingClass.MISSING: 40}


def test_a_gap_of_the_operator_still_explains_missing_records() -> None:
    accepted = AcceptedGap("t", 0, 20, 60, "ticket 4711")
    run = run_with([GAP], full(80), with_hole(), accepted=(accepted,))
    assert run.account.explained[TP] == {"ticket 4711": 40}


def test_an_entry_over_records_that_the_target_has_explains_no_loss_among_them() -> None:
    target = with_hole(30, 35)
    run = run_with([replace(GAP, first=0)], full(20, start=60), target)
    assert named(run) == [("gap", 0, 30, None, 5)]
    assert run.account.used == frozenset()


def test_an_entry_explains_one_hole_and_not_the_next() -> None:
    target = with_hole(20, 25)
    del target.records[40]
    run = run_with([GAP], full(20, start=60), target)
    assert named(run) == [("gap", 0, 40, None, 1)]
    assert run.account.explained[TP] == {"retention (ledger)": 5}


def test_offsets_that_are_lost_behind_an_entry_are_a_finding() -> None:
    run = run_with([replace(GAP, until=30)], full(20, start=60), with_hole())
    assert named(run) == [("gap", 0, 30, None, 30)]
    assert run.account.explained[TP] == {"retention (ledger)": 10}


def test_an_entry_that_begins_below_the_targets_log_start_explains_the_hole_at_the_start() -> None:
    target = with_hole()
    target.delete_below(40)
    run = run_with([GAP], full(20, start=60), target)
    assert (named(run), classes(run)) == ([], {"verified": 20, "explained": 20})


@pytest.mark.parametrize(
    "other",
    [
        {"source_cluster_id": "another"},
        {"source_cluster_id": ""},
        {"topic": "u"},
        {"partition": 1},
        {"first": 19},
    ],
)
def test_an_entry_of_another_gap_explains_nothing(other: dict[str, object]) -> None:
    run = run_with([replace(GAP, **other)], full(20, start=60), with_hole())  # type: ignore[arg-type]
    assert named(run) == [("gap", 0, 20, None, 40)]


def test_an_entry_of_a_deleted_target_topic_is_refused() -> None:
    source = snapshot("source", {TP: full(20, start=60)})
    target = replace(snapshot("target", {TP: with_hole()}), topic_ids={"t": "new"})
    assert check_entries([replace(GAP, target_topic_id="new")], source, target).refused == ()
    for other in ("old", ""):
        (refused,) = check_entries([replace(GAP, target_topic_id=other)], source, target).refused
        assert refused.reason.endswith("the target's topic has new")


def test_a_source_with_an_unknown_log_start_proves_no_gap() -> None:
    source = replace(snapshot("source", {}), cluster_id="source")
    (refused,) = check_entries([GAP], source, snapshot("target", {TP: with_hole()})).refused
    assert refused.reason == "the source's log start is unknown"


def test_names_of_a_prefixed_mirror_are_compared_without_the_prefix() -> None:
    source = snapshot("source", {TP: full(20, start=60)})
    target = replace(snapshot("target", {TP: with_hole()}), prefix="east.")
    found = check_entries([replace(GAP, topic="east.t"), GAP], source, target)
    assert found.gaps == (AcceptedGap("t", 0, 20, 60, "retention (ledger)", only_gaps=True),)


def test_the_report_has_the_used_and_the_refused_entries() -> None:
    lying = replace(GAP, first=70, until=75)
    run = run_with([GAP, lying], full(20, start=60), with_hole())
    document = report_of(run).document
    assert document["ledger"] == {
        "topics": ["east.gaps.internal"],
        "entries": 2,
        "used": 1,
        "refused": 1,
        "refused_entries": [
            {**lying.as_json(), "reason": "the source still has offsets from 60 on"}
        ],
        "changes": [],
        "unreadable": 0,
        "problem": "",
    }
    assert violations("report", json.loads(json.dumps(document))) == []
    screen = first_screen(document, report="page")
    assert "gap ledger: 2 entries, 1 used, 1 refused (east.gaps.internal)" in screen
    assert "refused t p0 70 to 75: the source still has offsets from 60 on" in screen
    assert "explained gaps: retention (ledger) 40" in screen


def test_removals_and_copies_that_ended_explain_nothing_and_are_named() -> None:
    """The hole is that of the first test, and the same offsets stand in both entries."""
    removal = replace(GAP, type=REMOVAL, cause="truncated", target_topic_id="x", records_lost=40)
    ended = replace(GAP, type=LINEAGE, cause="recreated", source_topic_id_after="y")
    run = run_with([removal, ended], full(20, start=60), with_hole())
    assert named(run) == [("gap", 0, 20, None, 40)]
    document = report_of(run).document
    assert document["ledger"]["entries"] == document["ledger"]["used"] == 0
    assert document["ledger"]["changes"] == [removal.as_json(), ended.as_json()]
    assert violations("report", json.loads(json.dumps(document))) == []
    screen = first_screen(document, report="page")
    assert "t p0: kmirror exported and removed 20 to 60 of topic id x" in screen
    assert "t p0 ends at 20: topic id y is copied to lineage.y.t" in screen


def test_a_ledger_that_cannot_be_read_explains_nothing_and_is_named() -> None:
    read = LedgerRead(("east.gaps.internal",), problem="west: no answer")
    options = Options(window=10, ledger=read)
    run = audit({TP: full(20, start=60)}, {TP: with_hole()}, options)
    assert run.outcome.verdict is Verdict.DIVERGED
    screen = first_screen(build_document(run, META), report="page")
    assert "gap ledger was not read, and explains nothing: west: no answer" in screen
