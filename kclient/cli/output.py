"""Rows as an aligned table, JSON, JSON lines, CSV or YAML-like text; JSON keys are stable snake_case."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

FORMATS = ("text", "json", "jsonl", "csv")

Row = Mapping[str, Any]


def show(rows: Sequence[Row], columns: Sequence[str], form: str) -> None:
    """Print *rows*; *columns* are the keys of the table, JSON shows every key."""
    if form == "json":
        click.echo(json.dumps([dict(row) for row in rows], indent=2, default=str))
    elif form == "jsonl":
        for row in rows:
            click.echo(json.dumps(dict(row), default=str))
    elif form == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([[_cell(row.get(name)) for name in columns] for row in rows])
        click.echo(text.getvalue(), nl=False)
    else:
        click.echo(table(rows, columns))


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return an aligned table with a heading; numbers are right-aligned."""
    cells = [[_cell(row.get(name)) for name in columns] for row in rows]
    heads = [name.replace("_", "-").upper() for name in columns]
    widths = [max(len(row[n]) for row in [heads, *cells]) for n in range(len(columns))]
    numeric = [
        bool(rows) and all(isinstance(row.get(name), int | None) for row in rows)
        for name in columns
    ]
    lines = []
    for row in [heads, *cells]:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
