"""Reports of audits in memory, of every verdict, and the schemas that they follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from spark_jobs.reconcile import Reconciliation
from spark_jobs.report.contents import Report, build_report

META: dict[str, object] = {
    "run_id": "r",
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T00:00:01Z",
    "total_seconds": 1.0,
    "self_test": "not run",
    "previous": None,
    "previous_from": None,
    "arguments": {"source": "source", "target": "target", "topics": "t"},
    "versions": {"kbroker": "0"},
}
SCHEMAS = Path(__file__).parents[2] / "spark_jobs" / "report" / "schemas"


def report_of(run: Reconciliation, max_findings: int = 10_000) -> Report:
    """Return the report of *run*."""
    return build_report(run, META, max_findings)


def schema(name: str) -> Any:
    """Return the schema *name*."""
    return json.loads((SCHEMAS / f"{name}.json").read_text())


def violations(name: str, value: object) -> list[str]:
    """Return where *value* violates the schema *name*."""
    found = Draft202012Validator(schema(name)).iter_errors(value)
    return [f"{each.json_path}: {each.message}" for each in found]
