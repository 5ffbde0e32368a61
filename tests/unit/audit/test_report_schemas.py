"""Every file that a program reads follows its schema, for every verdict; a field that is not in it is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kclient.types import TopicPartition
from spark_jobs.comparison import Options
from spark_jobs.engine import FailureKind
from spark_jobs.findings import FindingClass
from spark_jobs.reconcile import Reconciliation
from spark_jobs.report.document import error_document
from spark_jobs.verdict import ExitCode, Limits, Verdict
from tests.kit.audit_faults import EVERY, case_with, clean_case, compact
from tests.kit.audit_logs import Fault, Log, Rec, audit, log_of
from tests.kit.audit_reports import META, audited, report_of, schema, violations

TP = TopicPartition("t", 0)


def logs(count: int = 50) -> Log:
    return log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(count)))


def of_every_verdict() -> dict[Verdict, Reconciliation]:
    shorter, damaged, younger, unread = logs(40), logs(), logs(), logs()
    damaged.records[7] = Rec(b"k", b"other", 7)
    younger.delete_below(10)
    unread.faults = [Fault(20, 25, FailureKind.UNREADABLE)]
    return {
        Verdict.CONSISTENT: audit({TP: logs()}, {TP: logs()}),
        Verdict.LAGGING: audit({TP: logs()}, {TP: shorter}),
        Verdict.INCOMPLETE: audit({TP: logs()}, {TP: younger}),
        Verdict.DIVERGED: audit({TP: logs()}, {TP: damaged}),
        Verdict.ERROR: audit({TP: unread}, {TP: logs()}),
    }


def check(run: Reconciliation) -> None:
    report = report_of(run)
    document = json.loads(json.dumps(report.document))
    assert violations("report", document) == []
    assert violations("repair", json.loads(json.dumps(report.repair))) == []
    for line in report.lines:
        assert violations("finding", json.loads(line)) == []


def objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from objects(each)
    elif isinstance(value, list):
        for each in value:
            yield from objects(each)


@pytest.mark.parametrize("name", ["report", "finding", "repair"])
def test_every_object_of_a_schema_is_closed(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    for each in objects(schema(name)):
        if each.get("type") == "object":
            assert "additionalProperties" in each, each
        if "prefixItems" in each:
            assert each["items"] is False


@pytest.mark.parametrize("verdict", Verdict)
def test_a_report_of_each_verdict_follows_its_schema(verdict: Verdict) -> None:
    run = of_every_verdict()[verdict]
    assert run.outcome.verdict is verdict
    check(run)


@pytest.mark.parametrize("kind", EVERY)
def test_a_report_of_each_fault_follows_its_schema(kind: str) -> None:
    for seed in range(5):
        check(audited(seed, kind))


@pytest.mark.parametrize("seed", range(5))
def test_a_report_of_many_faults_follows_its_schema(seed: int) -> None:
    case = case_with(seed, "missing", "corrupt", "misrouted", "aged_at_target", "behind")
    limits = Limits(5, 0.5, frozenset({FindingClass.MISSING}))
    check(audit(case.source, case.target, Options(window=20, limits=limits)))


def test_a_report_of_compacted_logs_follows_its_schema() -> None:
    import random

    case = clean_case(random.Random(1))
    compact(case, at_source=True)
    compacted = frozenset({"t"})
    run = audit(case.source, case.target, source_compacted=compacted, target_compacted=compacted)
    assert run.counts.explained
    check(run)


@pytest.mark.parametrize(
    "code",
    [ExitCode.USAGE, ExitCode.UNREADABLE, ExitCode.INTERNAL, ExitCode.INTERRUPTED],
)
def test_the_report_of_a_run_that_ended_early_follows_its_schema(code: ExitCode) -> None:
    assert violations("report", error_document(code, "no broker answers", META)) == []


def test_a_new_field_without_a_schema_is_noticed() -> None:
    report = report_of(of_every_verdict()[Verdict.DIVERGED])
    document = json.loads(json.dumps(report.document))
    for changed in (document, document["totals"], document["topics"][0]["partitions"][0]):
        changed["new"] = 1
        assert violations("report", document)
        del changed["new"]
    assert violations("finding", {**json.loads(report.lines[0]), "new": 1})
    assert violations("repair", {**report.repair, "new": 1})


def test_a_report_that_contradicts_its_verdict_violates_the_schema() -> None:
    document = report_of(of_every_verdict()[Verdict.DIVERGED]).document
    assert violations("report", {**document, "verdict": "CONSISTENT"})
    assert violations("report", {**document, "verdict": "LAGGING"})
    consistent = report_of(of_every_verdict()[Verdict.CONSISTENT]).document
    assert violations("report", consistent) == []
    assert violations("report", {**consistent, "exit_code": 1})
    assert violations("report", {**consistent, "exit_codes": [0, 1]})
    for wrong in ({"coverage": 0.5}, {"unknown_partitions": 1}, {"not_read": 1}):
        assert violations("report", {**consistent, "totals": {**consistent["totals"], **wrong}})
    lagging = report_of(of_every_verdict()[Verdict.LAGGING]).document
    assert violations("report", {**lagging, "exit_code": 0})
    unread = report_of(of_every_verdict()[Verdict.ERROR]).document
    assert violations("report", {**unread, "exit_code": 0})
    assert violations("report", {**unread, "verdict": "CONSISTENT"})
