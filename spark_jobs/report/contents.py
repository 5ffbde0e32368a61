"""The machine-readable contents of a report: report.json, findings.jsonl, repair.json and digests.parquet of one run.

report.json has the SHA-256 of the other three, so that the hash of report.json covers all four. The hash of the report
before is under `meta.previous`: docs/audit.md has the chain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_jobs.findings import DEFAULT_MAX_FINDINGS
from spark_jobs.reconcile import Reconciliation
from spark_jobs.report.digests import DIGESTS, digest_rows, parquet_bytes
from spark_jobs.report.document import Document, build_document, fair_share, finding_lines, sample
from spark_jobs.report.hashes import content_hash, text_hash
from spark_jobs.report.repair import repair_plan


class AvroFields(NamedTuple):
    """In which Avro fields the two values of a finding differ."""

    text: str
    schema: str
    """The file of the schema that they were read with; "" if they could not be read."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one run reports, ready to be written."""

    document: Document
    lines: Sequence[str]
    """findings.jsonl."""
    repair: Document
    digests: bytes
    """digests.parquet."""
    fields: Mapping[int, AvroFields] = field(default_factory=dict)
    """For report.html only: by the number of the finding."""

    def first_findings(self, most: int) -> list[dict[str, Any]]:
        """Return at most *most* of `lines`; each class of each partition takes turns."""
        findings = [json.loads(line) for line in self.lines]
        return fair_share(
            findings, most, lambda each: (each["topic"], each["partition"], each["class"])
        )


def build_report(
    run: Reconciliation, meta: Mapping[str, object], max_findings: int = DEFAULT_MAX_FINDINGS
) -> Report:
    """Return the report of *run*; at most *max_findings* findings are in findings.jsonl, all of them are counted."""
    lines = finding_lines(sample(run.findings, max_findings), run.options.window)
    repair = repair_plan(run)
    document = build_document(run, meta, max_findings)
    digests = parquet_bytes(digest_rows(run), run.options.window, run.options.hash_key)
    document["files"] = {
        DIGESTS: content_hash(digests),
        "findings.jsonl": text_hash(lines_text(lines)),
        "repair.json": text_hash(json_text(repair)),
    }
    return Report(document, lines, repair, digests)


def json_text(document: Document) -> str:
    """Return *document* as it is written: sorted, so that equal documents are equal bytes."""
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def lines_text(lines: Sequence[str]) -> str:
    """Return *lines* as a file."""
    return "".join(f"{line}\n" for line in lines)
