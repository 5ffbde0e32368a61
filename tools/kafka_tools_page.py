"""Writes docs/kafka-tools.md: the tools of Apache Kafka that kclient has, their options, and what differs.

    python -m tools.kafka_tools_page            # writes the page
    python -m tools.kafka_tools_page --check    # exit code 1 if the page is not that of the code

The tables come from the declarations of the tools in kclient/cli/kafka_tools.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from kclient.cli.kafka_tools.command import NOT_HERE, TOOLS, tool_of
from kclient.cli.kafka_tools.tool import KAFKA_VERSION

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "kafka-tools.md"

_HEAD = f"""\
# Kafka's own tools

`kclient` has the command-line tools of Apache Kafka {KAFKA_VERSION} as commands: Kafka's options, Kafka's lines,
Kafka's exit codes, without a JVM. Old runbooks and scripts work with an alias:

    alias kafka-topics='kclient kafka-topics'
    kafka-topics --bootstrap-server localhost:9092 --describe --topic orders

`kclient kafka-topics.sh` is the same command.

This page is written by `python -m tools.kafka_tools_page` from the code. `tests/compat/test_kafka_tools.py` runs the
same command lines through Kafka's tools and these, on one cluster, and compares standard output and exit codes.

## What holds for all tools

- Options are parsed as by Kafka's parsers. That is argparse4j for kafka-cluster, kafka-transactions,
  kafka-producer-perf-test and kafka-verifiable-*, and joptsimple for the others.
- With joptsimple `--topic t`, `--topic=t` and `-topic t` are the same, and a value may begin with a dash. Words without
  an option are ignored. Names are complete, because Kafka 3.9 allows no abbreviations.
- An option that is not honoured is refused by name with the reason, exit code 1. None is ignored silently.
- Only Kafka's options count. kclient's own ones before the name (`-b`, `-F`, `--context`) are refused, and the
  KCLIENT_ variables are not read.
- Property files have the names of Kafka's Java clients. A setting that kclient does not know is an error, where Java
  warns. One that kclient accepts without an effect (`kclient -X list`) is named in a warning on stderr.
- The lines of standard output are Kafka's, in Kafka's order, also where that is the order of a Java HashMap. Texts of
  errors that a broker sends are the broker's.
- There are no Java stack traces. The text of help is kclient's; its place (stderr, exit code 1) is Kafka's.
- As Kafka's tools, these try for 60 s (`default.api.timeout.ms`) to reach a broker. Unlike them they print on stderr
  which addresses do not answer, and why. If no name resolves, they end at once.
- `--version` prints `{KAFKA_VERSION}`, and in brackets that it is kclient.

## The tools

| tool | options honoured | refused |
|---|---:|---:|
"""


def page() -> str:
    """Return the page."""
    tools = {name: tool_of(name) for name in TOOLS}
    rows = {name: tool.rows() for name, tool in tools.items()}
    summary = "".join(
        f"| [{name}](#{name}) | {sum(not r.refused for r in found)} | {sum(bool(r.refused) for r in found)} |\n"
        for name, found in rows.items()
    )
    absent = "".join(f"| {name} | {reason} |\n" for name, reason in NOT_HERE.items())
    return (
        _HEAD
        + summary
        + "\nNot there:\n\n| tool | reason |\n|---|---|\n"
        + absent
        + "".join(_section(name, tools[name], rows[name]) for name in tools)
    )


def _section(name: str, tool: Any, rows: list[Any]) -> str:
    honoured = ", ".join(f"`{row.option}`" for row in rows if not row.refused)
    lines = [f"\n## {name}\n", f"Honoured: {honoured}.\n"]
    refused = [row for row in rows if row.refused]
    if refused:
        lines += ["| refused | reason |", "|---|---|"]
        for row in refused:
            kind = "" if row.is_from_kafka else " (not in Kafka 3.9 either)"
            lines.append(f"| `{row.option}` | {row.refused.replace('|', chr(92) + '|')}{kind} |")
        lines.append("")
    lines += [f"- {text}" for text in tool.differs]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Write the page, or check it."""
    if "--check" in sys.argv[1:]:
        sys.exit(
            0 if PAGE.exists() and PAGE.read_text() == page() else f"{PAGE} is not that of the code"
        )
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
