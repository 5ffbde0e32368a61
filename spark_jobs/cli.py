"""`kaudit`: reconcile two clusters, or test the auditor itself. Exit codes: see spark_jobs.verdict."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from spark_jobs.findings import FindingClass
from spark_jobs.verdict import ExitCode, Limits


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="kbroker", prog_name="kaudit")
def kaudit() -> None:
    """Prove, with Spark, that a mirror holds the records of its source."""


@kaudit.command()
@click.option(
    "--source", required=True, metavar="BROKERS", help="Bootstrap servers of the source cluster."
)
@click.option(
    "--target",
    required=True,
    metavar="BROKERS",
    help="Bootstrap servers of the target cluster, the mirror.",
)
@click.option(
    "--topics", required=True, metavar="REGEX", help="Topics to compare; the whole name must match."
)
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="DIR"
)
@click.option(
    "--names",
    default="source,target",
    metavar="A,B",
    help="Names of the two clusters in the report.",
)
@click.option("--master", default="local[*]", help="Spark master.")
@click.option("--window", default=10_000, type=click.IntRange(1), help="Offsets per digest window.")
@click.option(
    "--complete",
    is_flag=True,
    help="The mirror has caught up and stopped: records missing at the end are loss, not lag.",
)
@click.option(
    "--max-lag", default=0, type=click.IntRange(0), help="Lag in records that is accepted."
)
@click.option("--min-coverage", default=1.0, type=click.FloatRange(0, 1))
@click.option(
    "--fail-on",
    default=",".join(each.value for each in FindingClass),
    metavar="CLASSES",
    help="Finding classes that make the exit code 1.",
)
@click.option(
    "--self-test/--no-self-test", default=True, help="Run the self-test with seeded faults first."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def reconcile(**options: Any) -> None:
    """Compare TARGET with SOURCE record by record, up to a cut frozen at the start."""
    try:
        limits = Limits(options["max_lag"], options["min_coverage"], _classes(options["fail_on"]))
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    sys.exit(_guarded(lambda: _reconcile(options, limits)))


@kaudit.command()
@click.option("--seeds", default=3, type=click.IntRange(1), help="How many cases.")
@click.option("--faults", default=40, type=click.IntRange(0), help="Faults per case.")
@click.option("--master", default="local[*]")
def selftest(seeds: int, faults: int, master: str) -> None:
    """Seed faults of every class into generated logs; all must be found and none invented."""
    sys.exit(_guarded(lambda: _self_test(seeds, faults, master)))


def _classes(text: str) -> frozenset[FindingClass]:
    known = {each.value: each for each in FindingClass}
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"--fail-on: unknown class {', '.join(unknown)}; the classes are {', '.join(known)}"
        )
    return frozenset(known[name] for name in names)


def _guarded(work: Any) -> int:
    """Run *work* and return its exit code: 70 for a crash, 4 for an unreadable cluster; 1 only if the logs differ."""
    from spark_jobs.cluster import ClusterUnreadable

    try:
        return int(work())
    except ClusterUnreadable as problem:
        click.echo(f"kaudit: {problem}", err=True)
        return ExitCode.UNREADABLE
    except Exception as problem:
        if "RangeUnreadable" in str(problem):
            click.echo(f"kaudit: {_cause(str(problem))}", err=True)
            return ExitCode.UNREADABLE
        import traceback

        traceback.print_exc()
        click.echo("kaudit: internal error; this is not a verdict", err=True)
        return ExitCode.INTERNAL


def _cause(text: str) -> str:
    """Return the line of Spark's long message that holds the error of the task."""
    lines = [line for line in text.splitlines() if "RangeUnreadable: " in line]
    return lines[-1].partition("RangeUnreadable: ")[2] if lines else text.splitlines()[0]


def _reconcile(options: dict[str, Any], limits: Limits) -> int:
    from spark_jobs.cluster import ClusterUnreadable, matching_topics, read_cluster, time_span
    from spark_jobs.data_source import KafkaReader
    from spark_jobs.reconcile import Options
    from spark_jobs.reconcile import reconcile as run_reconcile
    from spark_jobs.report.document import build_document, finding_lines
    from spark_jobs.report.files import write_report
    from spark_jobs.report.screen import first_screen
    from spark_jobs.selftest import run_self_test
    from spark_jobs.session import spark_session

    started = time.monotonic()
    started_at = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run_id = datetime.now(tz=UTC).strftime("%Y%m%d-%H%M%S-%f")

    def progress(text: str) -> None:
        if not options["quiet"]:
            click.echo(f"kaudit: {time.monotonic() - started:5.1f} s  {text}", err=True)

    source_name, _, target_name = options["names"].partition(",")
    topics = _topics_of(options["source"], source_name, options["topics"], matching_topics)
    if not topics:
        raise ClusterUnreadable(
            f"{source_name} ({options['source']}) has no topic matching {options['topics']!r}"
        )
    progress(
        f"{len(topics)} topics in scope: {', '.join(topics[:5])}{', ...' if len(topics) > 5 else ''}"
    )
    # The target's log ends first: see spark_jobs.cut.
    target = read_cluster(target_name or "target", options["target"], topics)
    source = read_cluster(source_name or "source", options["source"], topics)
    spark_log = options["out"] / "spark.log"
    with spark_session("kaudit", master=options["master"], log=spark_log) as spark:
        tested = None
        if options["self_test"]:
            progress("self-test: seeded faults of every class")
            tested = run_self_test(spark, records=1000, faults=20)
        run = run_reconcile(
            KafkaReader(spark),
            source,
            target,
            Options(options["window"], options["complete"], limits),
            span_ms=time_span(source),
            progress=progress,
            self_test_failed=tested is not None and not tested.passed,
        )
    meta = {
        "run_id": run_id,
        "started_at": started_at,
        "total_seconds": round(time.monotonic() - started, 3),
        "self_test": str(tested) if tested else "not run",
    }
    document = build_document(run, meta)
    lines = finding_lines(run_id, run.findings)
    page = write_report(options["out"], document, lines)
    if options["form"] == "json":
        click.echo(json.dumps(document, sort_keys=True))
    else:
        click.echo(
            first_screen(document, report=str(page), findings=[json.loads(x) for x in lines[:8]])
        )
    return int(run.outcome.exit_code)


def _topics_of(bootstrap: str, name: str, pattern: str, ask: Any) -> list[str]:
    import re

    from kclient.wire.errors import KafkaError
    from spark_jobs.cluster import ClusterUnreadable

    try:
        found: list[str] = ask(bootstrap, pattern)
    except re.error as problem:
        raise click.UsageError(f"--topics {pattern!r}: {problem}") from None
    except KafkaError as problem:
        raise ClusterUnreadable(f"{name} ({bootstrap}): {problem}") from problem
    return found


def _self_test(seeds: int, faults: int, master: str) -> int:
    from spark_jobs.selftest import run_self_test
    from spark_jobs.session import spark_session

    passed = True
    with spark_session("kaudit selftest", master=master) as spark:
        for seed in range(1, seeds + 1):
            result = run_self_test(spark, seed=seed, faults=faults)
            click.echo(f"seed {seed}: {result}")
            for fault in (*result.overlooked, *result.invented):
                click.echo(
                    f"    {'overlooked' if fault in result.overlooked else 'invented'}: {fault}"
                )
            passed = passed and result.passed
    return ExitCode.CONSISTENT if passed else ExitCode.INTERNAL
