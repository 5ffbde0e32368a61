"""Writes a run's files into its `--out` directory, and takes away those of the run before.

Each file is written beside its place and renamed into it, so that a reader never sees half of one. report.json is
the last one: where it is, the others are of the same run.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from kclient.replaced_file import replace_file
from spark_jobs.report.contents import Report, json_text, lines_text
from spark_jobs.report.digests import DIGESTS
from spark_jobs.report.document import Document
from spark_jobs.report.hashes import file_hash
from spark_jobs.report.markdown import error_markdown, markdown
from spark_jobs.report.metrics import metrics
from spark_jobs.report.page import render_page
from spark_jobs.report.timeline import timeline_csv, timeline_png

FILES = (
    "report.json",
    "findings.jsonl",
    "repair.json",
    "report.html",
    "report.md",
    "metrics.prom",
    "timeline.csv",
    "timeline.png",
)
PREVIOUS = "report.previous.json"
"""report.json of the run before, so that its SHA-256 in `meta.previous` can be verified."""
DIGESTS_REPORT = "digests.report.json"
"""A copy of the report.json that belongs to digests.parquet. A run that fails leaves both for the next one."""
DIGESTS_NEXT = f".{DIGESTS}.next"
"""The digests of `DIGESTS_REPORT` if a run was killed before it gave them their name; or those of no report."""


def write_report(out: Path, report: Report) -> Path:
    """Write all files of one run into *out* (made if missing); return the path of the page."""
    out.mkdir(parents=True, exist_ok=True)
    page = out / "report.html"
    replace_file(out / "findings.jsonl", lines_text(report.lines))
    replace_file(out / "repair.json", json_text(report.repair))
    replace_file(page, render_page(report, directory=_name_of(out)))
    replace_file(out / "timeline.csv", timeline_csv(report.document))
    replace_file(out / "timeline.png", timeline_png(report.document))
    replace_file(out / "report.md", markdown(report, page=_name_of(page)))
    replace_file(out / "metrics.prom", metrics(report.document))
    text = json_text(report.document)
    keep_digests(out, report.digests, text)
    replace_file(out / "report.json", text)
    return page


def keep_digests(out: Path, digests: bytes, report: str) -> None:
    """Replace what *out* keeps for later runs by *digests* and the text of their *report*.

    Both become valid with the rename of the report: until then the older ones stay. The digests get their name after
    that, here or in the next run.
    """
    digests_next = out / DIGESTS_NEXT
    if is_of_report(
        digests_next, out / DIGESTS_REPORT
    ):  # A run was killed before it gave them their name.
        digests_next.replace(out / DIGESTS)
    replace_file(digests_next, digests)
    replace_file(out / DIGESTS_REPORT, report)
    digests_next.replace(out / DIGESTS)


def is_of_report(digests: Path, report: Path) -> bool:
    """Return whether *report* has the hash of the file *digests*."""
    try:
        known = json.loads(report.read_bytes())["files"][DIGESTS]
        return bool(known == file_hash(digests))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def _name_of(path: Path) -> str:
    """Return *path* as a page can have it: a name of a file may have bytes that are not UTF-8."""
    return os.fsencode(path).decode(errors="backslashreplace")


def remove_report(out: Path) -> str | None:
    """Remove the files of an earlier run from *out*: a run that ends early leaves no verdict of another one.

    report.json becomes `PREVIOUS`. What the run kept for later runs stays: it is no verdict. Return the SHA-256 of
    `PREVIOUS`, None if *out* has no earlier report.
    """
    previous = out / PREVIOUS
    with suppress(FileNotFoundError):
        os.replace(out / "report.json", previous)
    for name in FILES:
        (out / name).unlink(missing_ok=True)
    return file_hash(previous) if previous.exists() else None


def write_error(out: Path, document: Document) -> None:
    """Write the files of a run that ended without a reconciliation, and remove what it wrote before it failed."""
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (out / name).unlink(missing_ok=True)
    replace_file(out / "report.md", error_markdown(document))
    replace_file(out / "metrics.prom", metrics(document))
    replace_file(out / "report.json", json_text(document))
