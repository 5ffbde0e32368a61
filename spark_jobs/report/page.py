"""report.html: one self-contained page, no script, nothing fetched, readable from 500 px on, light and dark."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_jobs.finding_places import kclient_words, places
from spark_jobs.report import pictures
from spark_jobs.report.contents import Report
from spark_jobs.report.next_steps import explain_command, next_steps
from spark_jobs.report.screen import attention, remarks, since_lines
from spark_jobs.report.times import moment, second

if TYPE_CHECKING:
    import jinja2

FINDINGS_ON_PAGE = 500
TIMELINES_ON_PAGE = 12


def render_page(report: Report, directory: str) -> str:
    """Return the page; *directory* is the --out of the run, for the commands on the page."""
    document = report.document
    from markupsafe import Markup

    findings = [
        _for_page(each, report, directory) for each in report.first_findings(FINDINGS_ON_PAGE)
    ]
    topics = [topic["topic"] for topic in document["topics"]]
    spent = pictures.first_and_last(document)
    return _template().render(
        d=document,
        attention=attention(document),
        remarks=[*since_lines(document["since"]), *remarks(document)],
        # The pictures escape their own text.
        palette=Markup(pictures.palette()),
        heatmap=Markup(
            pictures.heatmap(document, _links(findings, document["windows"]["offsets"]))
        ),
        coverage=Markup(pictures.coverage(document)),
        cumulative=Markup(pictures.cumulative(document)),
        timelines=[
            (topic, Markup(pictures.timeline(document, topic)))
            for topic in topics[:TIMELINES_ON_PAGE]
        ],
        topics_left_out=max(0, len(topics) - TIMELINES_ON_PAGE),
        spent=spent and [moment(each, document["timeline"]["bucket_ms"]) for each in spent],
        steps=next_steps(document, report.repair, directory),
        findings=findings,
        first_of_class=_first_of_class(findings),
        total_findings=document["findings"]["found"],
    )


@cache
def _template() -> jinja2.Template:
    """Return the page's template: compiling it takes longer than filling it in, and a process may write many pages."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spark_jobs.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["n"] = lambda number: f"{number:,}"
    # A line breaks between the words of a command, not behind the hyphens of an option.
    environment.filters["words"] = lambda command: Markup(" ").join(
        Markup("<span>{}</span>").format(word) for word in command.split(" ")
    )
    environment.globals["anchor"] = pictures.anchor
    return environment.get_template("report.html.j2")


def _links(findings: list[dict[str, Any]], size: int) -> dict[tuple[str, int, int], str]:
    """Return what a window of the heatmap links to: its first finding on the page."""
    links: dict[tuple[str, int, int], str] = {}
    for each in findings:
        place = (each["topic"], each["partition"], each["window"][0] // size)
        links.setdefault(place, f"finding-{each['seq']}")
    return links


def _first_of_class(findings: list[dict[str, Any]]) -> dict[str, int]:
    first: dict[str, int] = {}
    for each in findings:
        first.setdefault(each["class"], each["seq"])
    return first


def _for_page(finding: dict[str, Any], report: Report, directory: str) -> dict[str, Any]:
    detail = {
        "corrupt": f"differs in {finding['field']}",
        "duplicate": f"first copy at {finding['first_dst_offset']}",
        "reordered": f"moved by {finding['distance']}",
        "shifted": f"{finding['records']} records moved by {finding['distance']} offsets",
        "truncated": f"{finding['records']} records up to {finding['last_offset']}",
        "gap": f"{finding['records']} offsets up to {finding['last_offset']}",
        "extra": f"{finding['records']} records" if finding["records"] > 1 else "",
        "misrouted": f"in target partition {finding['dst_partition']}",
        "visibility": f"{finding['records']} up to {finding['last_offset']}, {finding['field']}",
        "undecodable": f"{finding['records']} offsets up to {finding['last_offset']}, {finding['field']}",
    }.get(finding["class"], "")
    if finding["records"] > 1:
        run = f"{finding['records']} records up to {finding['last_offset']}"
        detail = {
            "missing": run,
            "duplicate": run,
            "reordered": run,
            "corrupt": f"{run}, {detail}",
        }.get(finding["class"], detail)
    fields = report.fields.get(finding["seq"])
    schema = Path(fields.schema) if fields is not None and fields.schema else None
    commands = [
        (side.title, shlex.join(kclient_words(side.place, schema, crc_wrong=False)))
        for side in places(finding, report.document)
    ]
    explain = explain_command(report.document, directory, finding["seq"])
    return {
        **finding,
        "detail": detail,
        "fields": "" if fields is None else fields.text,
        "when": "" if finding["ts"] is None else second(finding["ts"]),
        "commands": [*commands, ("both, side by side", explain)],
    }
