"""What commands read of a finished audit: its report and its findings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kclient.cli.finite_range import FiniteRange
from spark_jobs.commands.options import with_hash_key
from spark_jobs.finding_places import Side
from spark_jobs.hash_key import HashKey, read_hash_key
from spark_jobs.report.hashes import file_hash

if TYPE_CHECKING:
    from spark_jobs.stored_record import Stored


def with_run_directory(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command --run, --finding and --hash-key; *default* is what it does without --finding."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        number = click.option(
            "--finding",
            "number",
            type=click.IntRange(1),
            metavar="N",
            help=f"The `seq` of the finding in findings.jsonl (default: {default}).",
        )
        directory = click.option(
            "--run",
            "directory",
            required=True,
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIR",
            help="The --out directory of `kaudit reconcile`.",
        )
        key = with_hash_key(
            "The --hash-key of the audit: to see whether a record has changed since."
        )
        return directory(number(key(command)))

    return decorate


with_timeout = click.option(
    "--timeout",
    default=10.0,
    type=FiniteRange(0.1, 1_000_000),
    help="Seconds to wait for each cluster.",
)


@contextmanager
def usage_errors(directory: Path) -> Iterator[None]:
    """Turn what a wrong argument, or a *directory* with other files than an audit's, raises into a UsageError."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise click.UsageError(f"{directory}: {problem!r}") from None
    except (OSError, ValueError) as problem:
        raise click.UsageError(str(problem)) from None


def load_report(directory: Path) -> dict[str, Any]:
    """Return the report.json of *directory*; raise ValueError if no finished audit wrote it."""
    path = directory / "report.json"
    if not path.exists():
        raise ValueError(
            f"{directory} has no report.json: give the --out directory of a finished audit"
        )
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{path}: not JSON: {problem}") from None
    if not isinstance(report, dict):
        raise ValueError(f"{path}: not a report.json of kaudit")
    if "source" not in report:
        raise ValueError(f"{directory}: the audit ended early: {report.get('cause')}")
    return report


def load_findings(directory: Path, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the findings that *report* was written with; raise ValueError if the file is another one."""
    path = directory / "findings.jsonl"
    if file_hash(path) != report["files"]["findings.jsonl"]:
        raise ValueError(f"{path}: not the file of report.json, which has another SHA-256")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def finding_of(
    findings: Sequence[dict[str, Any]], number: int | None, directory: Path
) -> dict[str, Any]:
    """Return the finding with *number* as its `seq`, the first one for None; raise ValueError."""
    if not findings:
        raise ValueError(f"{directory}: the audit has no finding")
    for finding in findings:
        if number is None or finding["seq"] == number:
            return finding
    raise ValueError(
        f"{directory}: findings.jsonl has no finding {number}; it has {len(findings)}, "
        f"the last is {findings[-1]['seq']}"
    )


def key_of(report: Mapping[str, Any], path: Path | None) -> HashKey | None:
    """Return the key of the report's hashes; None if it is secret and *path* is None. Raise ValueError for another."""
    key = read_hash_key(path)
    name = report.get("hash_key") or ""
    if key.name == name:
        return key
    if path is None:
        return None
    what = f"with the key {name}" if name else "with the public key"
    raise ValueError(f"--hash-key {path}: it is the key {key.name}, the report has hashes {what}")


def is_as_audited(side: Side, found: Stored, key: HashKey | None) -> bool | None:
    """Return whether the record has the hash that the audit read, with *key*; None if that is not known."""
    from spark_jobs.content_hash import content_hash

    if side.audited_hash is None or key is None:
        return None
    now = content_hash(found, key.text)
    return None if now is None else f"{now:016x}" == side.audited_hash
