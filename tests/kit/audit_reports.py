"""Reports of audits in memory, of every verdict and fault, and the schemas that they follow."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from kclient.types import TopicPartition
from spark_jobs.comparison import Options
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.report.contents import Report, build_report
from tests.kit.audit_faults import case_with
from tests.kit.audit_logs import Log, Logs, MemoryEngine, Rec, audit, log_of, snapshot

META: dict[str, object] = {
    "run_id": "r",
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T00:00:01Z",
    "total_seconds": 1.0,
    "self_test": "not run",
    "self_test_passed": None,
    "previous": None,
    "previous_from": None,
    "arguments": {"source": "source", "target": "target", "topics": "t"},
    "versions": {"kbroker": "0"},
}
SCHEMAS = Path(__file__).parents[2] / "spark_jobs" / "report" / "schemas"


def report_of(run: Reconciliation, max_findings: int = 10_000) -> Report:
    """Return the report of *run*."""
    return build_report(run, META, max_findings)


@cache
def audited(seed: int, kind: str) -> Reconciliation:
    """Return the audit of a case with one fault. All tests get the same value, and none changes it."""
    case = case_with(seed, kind)
    return audit(case.source, case.target, Options(window=20, complete=case.complete))


def intact_log() -> Log:
    """Return a log of 50 records, one a second."""
    return log_of(*(Rec(b"k", b"v%d" % n, n * 1000) for n in range(50)))


def report_with_every_remark() -> Report:
    """Return a report with findings, with parts that were not read, and with most remarks that a report may have."""
    case = case_with(3, "missing", "corrupt", "reordered", "duplicate")
    report = report_of(audit(case.source, case.target, Options(window=20)))
    document = json.loads(json.dumps(report.document))
    document["since"] = {
        "offsets": {"now": 1, "earlier": 2, "gone": 0, "never": 0},
        "runs": [],
        "oldest": None,
        "recheck": {"windows": 1, "of_windows": 9},
        "refused": [
            {"topic": "t", "partition": n, "reason": "was created again"} for n in range(5)
        ],
    }
    document["settle"] = {
        "rounds": 2, "partitions": 3, "max_rounds": 2, "seconds": 5, "vanished": {"missing": 1}, "equal_by_record": 1,
        "read_later": 1, "standing_partitions": [{"topic": "t", "partition": n, "reason": "x"} for n in range(3)],
        "standing": 3, "problem": "p",
    }  # fmt: skip
    earlier = {"topic": "l", "topic_id": "j", "target_topic": "a", "offsets": 5}
    recreated = {"topic": "a", "topic_id": "i", "target_topic": "x", "earlier": [earlier] * 2}
    document["recreated"] = [recreated] * 3
    refused = {"topic": "t", "partition": 0, "from": 1, "until": 2, "reason": "z"}
    document["ledger"] = {
        "topics": ["l"], "problem": "", "entries": 3, "used": 1, "refused": 2, "unreadable": 1,
        "refused_entries": [refused] * 2, "changes": [],
    }  # fmt: skip
    document["totals"]["unreadable"] = ["source: a", "source: b", "target: c", "target: d"]
    document["explained"] = {"retention (ledger)": 4}
    return replace(report, document=document)


def without_leader(partition: TopicPartition, beside: Logs) -> Reconciliation:
    """Audit *partition*, which has no leader in either cluster, and two equal clusters with the logs *beside* it."""
    source, target = (
        replace(snapshot(name, beside), unreadable={partition: "no leader"})
        for name in ("source", "target")
    )
    engine = MemoryEngine(beside, beside, 10)
    return reconcile(engine, source, target, Options(window=10), buckets=TimeBuckets(0, 1))


def without_log_end(side: int, partition: TopicPartition, logs: Logs) -> Reconciliation:
    """Audit two equal clusters; the source (*side* 0) or the target returns an error for the end of *partition*."""
    both = [snapshot(name, logs) for name in ("source", "target")]
    known = {tp: each for tp, each in both[side].ranges.items() if tp != partition}
    both[side] = replace(both[side], ranges=known, unreadable={partition: "no leader"})
    engine = MemoryEngine(logs, logs, 10)
    return reconcile(engine, both[0], both[1], Options(window=10), buckets=TimeBuckets(0, 1))


def damaged_report(partition: TopicPartition, source_bootstrap: str = "east:9092") -> Report:
    """Return the report of a mirror that lost the record at 14 and changed that at 33."""
    target = intact_log()
    del target.records[14]
    target.records[33] = Rec(b"k", b"other", 33_000)
    buckets = TimeBuckets.over((0, 60_000))
    logs = ({partition: intact_log()}, {partition: target})
    report = report_of(audit(*logs, Options(window=10), buckets=buckets))
    report.document["source"].update(name="east", bootstrap=source_bootstrap)
    report.document["target"].update(name="west", bootstrap="west:9092", prefix="copy.")
    return report


@cache
def schema(name: str) -> Any:
    """Return the schema *name*."""
    return json.loads((SCHEMAS / f"{name}.json").read_text())


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(schema(name))


def violations(name: str, value: object) -> list[str]:
    """Return where *value* violates the schema *name*."""
    found = _validator(name).iter_errors(value)
    return [f"{each.json_path}: {each.message}" for each in found]
