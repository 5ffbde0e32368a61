"""report.md: the first screen and the tables, for a pull request or a ticket.

It fits into a comment of 65,536 characters: a table of more than `ROWS` rows states how many are left out, and where
they are. Counts are exact. It has no payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_jobs.report.contents import Report
from spark_jobs.report.document import Document
from spark_jobs.report.screen import finding_line, first_screen
from spark_jobs.report.times import second

ROWS = 40
_CELL = 250
"""Characters; a topic name has at most 249."""


def markdown(report: Report, *, page: str) -> str:
    """Return report.md; *page* is the path of report.html."""
    document = report.document
    screen = first_screen(document, report=page)
    parts = [
        _heading(document),
        f"```text\n{screen.replace('```', '   ')}\n```",
        *_partitions(document),
        *_findings(report),
        *_repair(report.repair),
        *_table(
            "Settings that differ",
            ("topic", "config", "source", "target"),
            [
                (row["topic"], row["config"], row["source"], row["target"])
                for row in document["drift"]
            ],
            len(document["drift"]),
            "settings: report.json",
        ),
    ]
    return "\n\n".join(parts) + "\n"


def error_markdown(document: Document) -> str:
    """Return report.md of a run that ended without a comparison."""
    return (
        f"{_heading(document)}\n\nExit code {document['exit_code']}: {_cell(document['cause'])}\n\n"
        "Nothing was compared.\n"
    )


def _heading(document: Document) -> str:
    arguments = document["meta"]["arguments"]
    return (
        f"# {document['verdict']}: {_cell(arguments['source'])} to {_cell(arguments['target'])}, "
        f"topics `{arguments['topics'].replace('`', ' ')}`"
    )


def _partitions(document: Document) -> list[str]:
    rows = [(topic["topic"], each) for topic in document["topics"] for each in topic["partitions"]]
    rows.sort(key=lambda row: (_badness(row[1]), row[0], row[1]["partition"]))
    return _table(
        "Partitions",
        (
            "topic",
            "partition",
            "verified",
            "compared",
            "in scope",
            "explained",
            "aged out",
            "not read",
            "lag",
            "findings",
            "first bad offset",
        ),
        [
            (
                topic,
                each["partition"],
                each["verified"],
                each["compared"],
                each["in_scope"],
                each["explained"],
                each["aged_out"],
                "all" if each["unknown_partitions"] else each["not_read"],
                "not known" if each["lagging"] is None else each["lagging"],
                ", ".join(f"{name} {count}" for name, count in each["findings"].items()),
                each["first_bad_offset"],
            )
            for topic, each in rows
        ],
        len(rows),
        "partitions: report.json",
    )


def _badness(partition: dict[str, Any]) -> tuple[int, int, int]:
    """Return a key that sorts the worst partition first."""
    # Of a partition without known offsets nothing was compared, and their number is not known.
    unknown = partition["unknown_partitions"] << 63
    not_compared = partition["in_scope"] - partition["compared"] - partition["explained"] + unknown
    return -sum(partition["findings"].values()), -not_compared, -(partition["lagging"] or 0)


def _findings(report: Report) -> list[str]:
    total = report.document["findings"]["found"]
    shown = report.first_findings(ROWS)
    return _table(
        f"Findings ({len(shown)} of {total})",
        ("#", "class", "what", "changed log", "record time"),
        [
            (
                each["seq"],
                each["class"],
                finding_line(each).strip().partition(each["class"])[2].strip(),
                each["where"],
                "" if each["ts"] is None else second(each["ts"]),
            )
            for each in shown
        ],
        total,
        f"findings: findings.jsonl, which has {len(report.lines)}",
    )


_LOGS = {"source": "at the source", "target": "at the target", "both": "in one of the logs"}


def _repair(repair: Document) -> list[str]:
    ranges = [
        (row["topic"], row["partition"], f"{each['from']} to {each['until'] - 1}", "copy again")
        for row in repair["copy"]
        for each in row["ranges"]
    ]
    ranges += [
        (
            row["topic"],
            row["partition"],
            f"{row['from']} to {row['until'] - 1}",
            f"{row['class']} {_LOGS[row['log']]}: {row['reason']}",
        )
        for row in repair["not_repairable"]
    ]
    return _table(
        "Repair plan (nothing was changed)",
        ("topic", "partition", "offsets", "what"),
        ranges,
        len(ranges),
        "ranges: repair.json",
    )


def _table(
    title: str, names: Sequence[str], rows: Sequence[Sequence[object]], total: int, rest: str
) -> list[str]:
    """Return a table with its title, nothing if it has no rows; *rest* states where those above `ROWS` are."""
    if not rows:
        return []
    lines = [
        "| " + " | ".join(names) + " |",
        "|" + "---|" * len(names),
        *("| " + " | ".join(map(_cell, row)) + " |" for row in rows[:ROWS]),
    ]
    more = total - min(len(rows), ROWS)
    left_out = [f"{more} more {rest}."] if more else []
    return [f"## {title}", "\n".join(lines), *left_out]


def _cell(value: object) -> str:
    """Return *value* as text that neither ends a cell nor is markup."""
    text = "" if value is None else " ".join(str(value).split())
    text = text if len(text) <= _CELL else f"{text[:_CELL]}..."
    for character in "\\`|<>*_[]":
        text = text.replace(character, f"\\{character}")
    return text
