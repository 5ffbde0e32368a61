"""`kaudit explain`: prints the records of one finding, fetched from both clusters now.

It is the only command of kaudit that prints payload; it writes no file. It needs no Spark.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_jobs.commands.guard import guarded
from spark_jobs.commands.options import show
from spark_jobs.commands.run_directory import (
    finding_of,
    is_as_audited,
    key_of,
    load_findings,
    load_report,
    usage_errors,
    with_run_directory,
    with_timeout,
)
from spark_jobs.finding_places import Side, kclient_words, more_records, places
from spark_jobs.findings import FindingClass
from spark_jobs.verdict import ExitCode

if TYPE_CHECKING:
    from spark_jobs.hash_key import HashKey
    from spark_jobs.record_text import Decoder
    from spark_jobs.stored_record import Found


@click.command()
@with_run_directory("the first")
@click.option(
    "--avro",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Avro schema of the values, framed as kclient frames them.",
)
@click.option(
    "--max-bytes", default=1000, type=click.IntRange(1), help="Bytes shown of a key or value."
)
@with_timeout
def explain(
    directory: Path,
    number: int | None,
    hash_key: Path | None,
    avro: Path | None,
    max_bytes: int,
    timeout: float,
) -> None:
    """Print the records of a finding side by side, as both clusters hold them now.

    Exit code 0: every record that the finding names was printed, of many the first. 3: one is gone. 4: a cluster could
    not be read.
    """
    with usage_errors(directory):
        report = load_report(directory)
        finding = finding_of(load_findings(directory, report), number, directory)
        sides = places(finding, report)
        key = key_of(report, hash_key)
        decoder = _decoder(avro)

    def work() -> int:
        from spark_jobs.record_lookup import look_up

        left, right = sides
        found = look_up(left.place, timeout), look_up(right.place, timeout)
        lines = _explanation(finding, report, sides, found, decoder, max_bytes, key)
        lines += _yourself(sides, found, avro)
        show("\n".join(lines))
        return _exit_code(sides, found)

    sys.exit(guarded(work))


def _decoder(schema: Path | None) -> Decoder | None:
    if schema is None:
        return None
    from kclient.avro import AvroDeserializer
    from kclient.errors import SerializationError

    try:
        return AvroDeserializer(json.loads(schema.read_text(encoding="utf-8")))
    except (SerializationError, ValueError, RecursionError) as problem:
        raise ValueError(f"--avro {schema}: {problem}") from None


def _explanation(
    finding: Mapping[str, Any],
    report: Mapping[str, Any],
    sides: tuple[Side, Side],
    found: tuple[Found, Found],
    decoder: Decoder | None,
    max_bytes: int,
    key: HashKey | None,
) -> list[str]:
    from spark_jobs.record_text import Row, Style, differing, printable, sections, table
    from spark_jobs.stored_record import Stored

    width = max(80, min(200, shutil.get_terminal_size((140, 24)).columns))
    style = Style(max_bytes, decoder, width)
    shown = sections(*found, style)
    if shown:
        audited = [_as_audited(side, each, key) for side, each in zip(sides, found, strict=True)]
        shown[0].rows.append(Row("as audited", audited[0], audited[1]))
    run_id = report["meta"]["run_id"]
    lines = [
        f"finding {finding['seq']} of run {run_id}: {finding['class']}, "
        f"{finding['topic']} partition {finding['partition']}"
    ]
    if finding.get("where", "unknown") != "unknown":
        lines.append(f"changed since the copy, by the mirror's evidence: {finding['where']}")
    if finding["field"]:
        lines.append(f"the audit found: {printable(finding['field'])}")
    if finding["distance"]:
        lines.append(f"moved by {finding['distance']}")
    if others := more_records(finding):
        lines.append(others)
    lines += ["", *table(shown, (sides[0].title, sides[1].title), style), ""]
    if all(isinstance(each, Stored) for each in found):
        fields = differing(shown)
        lines.append(f"differs now: {', '.join(fields)}" if fields else "no field differs now")
    if finding["class"] == FindingClass.VISIBILITY.value:
        lines.append(
            "to see what read_committed consumers get, add -X isolation.level=read_committed"
        )
    return lines


def _as_audited(side: Side, found: Found, key: HashKey | None) -> list[str]:
    """Return whether the record is still as the audit read it; nothing if the finding has no hash of it."""
    from spark_jobs.content_hash import MOST_BYTES
    from spark_jobs.stored_record import Stored

    if side.audited_hash is None or not isinstance(found, Stored):
        return []
    if key is None:
        return ["not checked: the hash has a secret key (--hash-key)"]
    same = is_as_audited(side, found, key)
    if same is None:
        return [f"not checked: above {MOST_BYTES:,} bytes"]
    return ["yes, the same hash" if same else "NO, it has CHANGED since"]


def _yourself(sides: tuple[Side, Side], found: tuple[Found, Found], avro: Path | None) -> list[str]:
    """Return the `kclient` lines that print the records."""
    from spark_jobs.stored_record import Stored

    lines = ["", "to print the records again:"]
    for side, each in zip(sides, found, strict=True):
        if not isinstance(each, Stored):
            continue
        if each.batch.is_control:
            lines.append(f"  {side.title}: a transaction marker, which no consumer prints")
            continue
        lines.append(
            "  " + shlex.join(kclient_words(side.place, avro, crc_wrong=bool(each.crc_problem)))
        )
    return lines if len(lines) > 2 else []


def _exit_code(sides: tuple[Side, Side], found: tuple[Found, Found]) -> ExitCode:
    from spark_jobs.stored_record import Stored

    lacking = any(
        side.named and not isinstance(each, Stored) for side, each in zip(sides, found, strict=True)
    )
    return ExitCode.NO_VERDICT_YET if lacking else ExitCode.CONSISTENT
