"""`kaudit diff`: names the Avro fields in which the two records of each finding differ.

It fetches the records from both clusters now, prints values of the fields that differ, and writes no file. It needs no
Spark.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
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
from spark_jobs.finding_places import Side, places
from spark_jobs.hash_key import PUBLIC, HashKey
from spark_jobs.verdict import ExitCode

if TYPE_CHECKING:
    from spark_jobs.avro_diff import FindingDiff
    from spark_jobs.avro_fields import Parsed, Schemas
    from spark_jobs.stored_record import Found, Stored

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@with_run_directory("all that name two records")
@click.option(
    "--avro",
    "files",
    required=True,
    multiple=True,
    type=_FILE,
    metavar="FILE",
    help="Avro schema. The first is the reader's: its names and defaults count. Give those of all writers.",
)
@click.option(
    "--schema-id",
    "ids",
    multiple=True,
    metavar="ID=FILE",
    help="The schema that a registry has under ID, for values in Confluent's frame.",
)
@click.option(
    "--limit", default=20, type=click.IntRange(1), help="Findings to compare, the first ones."
)
@click.option(
    "--max-chars", default=200, type=click.IntRange(1), help="Characters shown of a value."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@with_timeout
def diff(**options: Any) -> None:
    """Compare the values of a finding's two records as Avro, field by field, as both clusters hold them now.

    Exit code 0: the values of every chosen finding were compared, of a finding of many records those of the first.
    3: a value is gone or cannot be decoded. 4: a cluster could not be read.
    """
    directory: Path = options["directory"]
    with usage_errors(directory):
        report = load_report(directory)
        chosen, left_out, one_side = _chosen(
            load_findings(directory, report), options["number"], options["limit"], directory
        )
        sides = [places(each, report) for each in chosen]
        schemas = _schemas(options["files"], options["ids"])
        run_id = str(report["meta"]["run_id"])
        key = key_of(report, options["hash_key"])
        sample = report["findings"]["found"], report["findings"]["written"]

    def work() -> int:
        from spark_jobs import avro_diff
        from spark_jobs.record_lookup import look_up

        diffs = []
        for finding, (left, right) in zip(chosen, sides, strict=True):
            found = (
                look_up(left.place, options["timeout"]),
                look_up(right.place, options["timeout"]),
            )
            diffs.append(finding_diff(finding, (left, right), found, schemas, key))
        whole = avro_diff.Diff(run_id, diffs, left_out, one_side, *sample)
        if options["form"] == "json":
            show(avro_diff.json_text(whole))
        else:
            show(avro_diff.text(whole, max_chars=options["max_chars"], max_lines=50))
        compared = all(each.status is avro_diff.Status.COMPARED for each in diffs)
        return ExitCode.CONSISTENT if compared else ExitCode.NO_VERDICT_YET

    sys.exit(guarded(work))


def _chosen(
    findings: Sequence[dict[str, Any]], number: int | None, limit: int, directory: Path
) -> tuple[list[dict[str, Any]], int, int]:
    """Return the findings to compare, how many are above *limit*, and how many name one record only."""
    if number is not None:
        finding = finding_of(findings, number, directory)
        if not _names_two(finding):
            raise ValueError(
                f"finding {number} is {finding['class']}: it names one record only; "
                "`kaudit explain` prints it"
            )
        return [finding], 0, 0
    pairs = [each for each in findings if _names_two(each)]
    if not findings:
        raise ValueError(f"{directory}: the audit has no finding")
    if not pairs:
        raise ValueError(
            f"{directory}: no finding names two records; `kaudit explain` prints the others"
        )
    return pairs[:limit], max(0, len(pairs) - limit), len(findings) - len(pairs)


def _names_two(finding: Mapping[str, Any]) -> bool:
    if finding["class"] == "duplicate":
        return finding["first_dst_offset"] is not None
    return finding["src_offset"] is not None and finding["dst_offset"] is not None


def _schemas(files: Sequence[Path], ids: Sequence[str]) -> Schemas:
    from spark_jobs.avro_fields import Schemas

    known: dict[int, Any] = {}
    for text in ids:
        found = re.fullmatch(r"(\d{1,10})=(.+)", text)
        if found is None:
            raise ValueError(f"--schema-id {text!r}: expected ID=FILE, as in 7=order.avsc")
        if int(found[1]) in known:
            raise ValueError(f"--schema-id {found[1]}: given twice")
        known[int(found[1])] = parsed_schema("--schema-id", Path(found[2]))
    reader, *writers = [parsed_schema("--avro", each) for each in files]
    return Schemas(reader, writers, known)


def parsed_schema(option: str, path: Path) -> Parsed:
    """Return the Avro schema in the file that *option* names; raise ValueError if it is none."""
    from kclient.errors import SerializationError
    from spark_jobs.avro_fields import Parsed

    try:
        return Parsed(json.loads(path.read_text(encoding="utf-8")), path.name)
    except SerializationError as problem:
        raise ValueError(f"{option} {path}: {problem}") from None
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{option} {path}: not JSON: {problem}") from None


def finding_diff(
    finding: Mapping[str, Any],
    sides: tuple[Side, Side],
    found: tuple[Found, Found],
    schemas: Schemas,
    key: HashKey | None = PUBLIC,
) -> FindingDiff:
    """Return the difference of the two records of *finding*, which has hashes of *key*."""
    from spark_jobs.avro_diff import FindingDiff, Status
    from spark_jobs.avro_fields import compare
    from spark_jobs.stored_record import Absent, Stored

    titles = sides[0].title, sides[1].title
    left, right = found
    if not isinstance(left, Stored) or not isinstance(right, Stored):
        reasons = [
            f"{side.title}: {each.reason if isinstance(each, Absent) else each.problem}"
            for side, each in zip(sides, found, strict=True)
            if not isinstance(each, Stored)
        ]
        return FindingDiff(finding, Status.ABSENT, reasons=reasons, titles=titles)
    comparison = compare(schemas, left.value, right.value)
    status = Status.COMPARED if comparison.decoded else Status.UNDECODABLE
    changed = [
        side.place.cluster
        for side, each in zip(sides, (left, right), strict=True)
        if is_as_audited(side, each, key) is False
    ]
    return FindingDiff(
        finding,
        status,
        comparison,
        other_fields=_other_fields(left, right),
        changed_since=changed,
        titles=titles,
    )


def _other_fields(left: Stored, right: Stored) -> list[str]:
    """Return the parts beside the value that the audit compares and that differ."""
    pairs = {
        "offset": (left.offset, right.offset),
        "timestamp": (left.timestamp, right.timestamp),
        "timestamp type": (left.batch.log_append_time, right.batch.log_append_time),
        "kind": (left.batch.is_control, right.batch.is_control),
        "key": (left.key, right.key),
        "headers": (list(left.headers), list(right.headers)),
    }
    return [name for name, (ours, theirs) in pairs.items() if ours != theirs]
