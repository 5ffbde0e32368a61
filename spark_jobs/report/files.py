"""Write a run's files: report.json, findings.jsonl, report.html.

Each is written beside its place and renamed into it, so that a reader never sees half of one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_jobs.report import pictures
from spark_jobs.report.document import Document

_VERDICT_COLOURS = {
    "CONSISTENT": "#2f7d4a",
    "LAGGING": "#b58105",
    "INCOMPLETE": "#b58105",
    "DIVERGED": "#9b2335",
    "ERROR": "#5b3a8c",
}
FILES = ("report.json", "findings.jsonl", "report.html")
FINDINGS_ON_PAGE = 500
TIMELINES_ON_PAGE = 12


def write_report(out: Path, document: Document, lines: Sequence[str]) -> Path:
    """Write all files of one run into *out* (made if missing); return the path of the page."""
    out.mkdir(parents=True, exist_ok=True)
    _replace(out / "report.json", json.dumps(document, indent=2, sort_keys=True) + "\n")
    _replace(out / "findings.jsonl", "".join(f"{line}\n" for line in lines))
    page = out / "report.html"
    _replace(page, render_page(document, lines))
    return page


def remove_report(out: Path) -> None:
    """Remove the files of an earlier run from *out*: a run that ends early leaves no verdict of another one."""
    for name in FILES:
        (out / name).unlink(missing_ok=True)


def write_error(out: Path, document: Document) -> None:
    """Write report.json of a run that ended without a reconciliation."""
    out.mkdir(parents=True, exist_ok=True)
    _replace(out / "report.json", json.dumps(document, indent=2, sort_keys=True) + "\n")


def render_page(document: Document, lines: Sequence[str]) -> str:
    """Return report.html: one self-contained page, no script, nothing fetched."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spark_jobs.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    findings = [_for_page(json.loads(line)) for line in lines[:FINDINGS_ON_PAGE]]
    topics = [topic["topic"] for topic in document["topics"]][:TIMELINES_ON_PAGE]
    return template.render(
        d=document,
        colour=_VERDICT_COLOURS[document["verdict"]],
        # The charts escape their own text.
        heatmap=Markup(pictures.heatmap(document)),
        coverage=Markup(pictures.coverage(document)),
        cumulative=Markup(pictures.cumulative(document)),
        timelines=[(topic, Markup(pictures.timeline(document, topic))) for topic in topics],
        findings=findings,
        total_findings=document["findings"]["found"],
    )


def _for_page(finding: dict[str, Any]) -> dict[str, Any]:
    detail = {
        "corrupt": f"differs in {finding['field']}",
        "duplicate": f"first copy at {finding['first_dst_offset']}",
        "reordered": f"moved by {finding['distance']}",
        "shifted": f"{finding['records']} records moved by {finding['distance']} offsets",
        "truncated": f"{finding['records']} records up to {finding['last_offset']}",
        "gap": f"{finding['records']} offsets up to {finding['last_offset']}",
        "extra": f"{finding['records']} records" if finding["records"] > 1 else "",
        "misrouted": f"in target partition {finding['dst_partition']}",
        "undecodable": f"{finding['records']} offsets up to {finding['last_offset']}, {finding['field']}",
    }.get(finding["class"], "")
    when = ""
    if finding["ts"] is not None:
        when = datetime.fromtimestamp(finding["ts"] / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
    return {**finding, "detail": detail, "when": when}


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
