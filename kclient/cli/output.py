"""Rows as an aligned table, JSON, JSON lines, YAML or CSV, and lines of errors; JSON keys are stable snake_case.

A cell is text, a number, true or false, none, or a list of such. Only JSON and YAML have nested values, and a wide
table has them as JSON. An id that is text elsewhere (a UUID, an enum) is made text by the command, in Kafka's form:
nothing is printed by its `repr`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from kclient.cli import colour

TEXT_FORMATS = ("text", "wide")
"""For people; wide is text in which a table has every column."""
FORMATS = (*TEXT_FORMATS, "json", "jsonl", "yaml", "csv")

Row = Mapping[str, Any]


def show(rows: Sequence[Row], columns: Sequence[str], form: str) -> None:
    """Print *rows*; *columns* are the keys of the table and of CSV, the other formats show every key."""
    if form == "json":
        click.echo(json.dumps([dict(row) for row in rows], indent=2))
    elif form == "jsonl":
        for row in rows:
            click.echo(json.dumps(dict(row)))
    elif form == "yaml":
        click.echo(yaml_text(rows), nl=False)
    elif form == "wide":
        every = tuple(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
        print_table([{name: _flat(value) for name, value in row.items()} for row in rows], every)
    elif form == "csv":
        click.echo(
            csv_lines([columns, *([row.get(name) for name in columns] for row in rows)]), nl=False
        )
    else:
        print_table(rows, columns)


def print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print an aligned table."""
    head, newline, body = table(rows, columns).partition("\n")
    click.echo(f"{colour.heading(head)}{newline}{body}")


def yaml_text(rows: Sequence[Row]) -> str:
    """Return a YAML list of *rows*; it needs PyYAML, the extra yaml."""
    import yaml

    # By way of JSON: tuples become lists, and an equal value is no anchor of an earlier one.
    plain = json.loads(json.dumps([dict(row) for row in rows]))
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """Return lines of CSV (RFC 4180, with a line feed at the end); none is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([["" if cell is None else _cell(cell) for cell in row] for row in rows])
    return text.getvalue()


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return an aligned table with a heading; numbers are right-aligned."""
    cells = [[_cell(row.get(name)) for name in columns] for row in rows]
    heads = [name.replace("_", "-").upper() for name in columns]
    widths = [max(len(row[n]) for row in [heads, *cells]) for n in range(len(columns))]
    numeric = [
        any(isinstance(row.get(name), int) for row in rows)
        and all(isinstance(row.get(name), int | None) for row in rows)
        and not any(isinstance(row.get(name), bool) for row in rows)
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


def _flat(value: Any) -> Any:
    """Return *value* as a cell may hold it: a nested value is JSON."""
    if isinstance(value, dict) or (
        isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value)
    ):
        return json.dumps(value)
    return value


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(_cell, value))
    if isinstance(value, str | int | float):
        return str(value)
    raise TypeError(f"{value!r} is no cell of a table")


def print_error(problem: object) -> None:
    """Write an error or a warning to stderr, also with -q."""
    click.echo(f"{colour.bad('kclient:')} {problem}", err=True)
