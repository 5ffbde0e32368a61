"""`kaudit latency`: how long records took to a mirror, as kmirror measured it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from kclient.replaced_file import replace_file
from spark_jobs.commands.guard import guarded
from spark_jobs.commands.options import (
    duration_ms,
    pattern_of,
    progress_on_stderr,
    show_kept,
    with_cluster,
    with_out,
    with_quiet,
)

_FILES = ("latency.csv", "latency.json", "latency.png")


@click.command()
@with_cluster(
    "--target", "Bootstrap servers of the target, the mirror. The source is not contacted."
)
@click.option(
    "--topics",
    required=True,
    metavar="REGEX",
    help="Topics, named as at the target; the whole name must match.",
)
@click.option("--bucket", default="1m", metavar="TIME", help="Width of a bucket: 30s, 1m, 2h, 1d.")
@click.option(
    "--last",
    metavar="TIME",
    help="Only what was measured since 24h ago. Default: all that is kept.",
)
@click.option(
    "--max-p99", metavar="TIME", help="Exit code 1 if p99 of a row is above it: 250ms, 2s, 1m."
)
@with_out(*_FILES)
@with_quiet
def latency(**options: Any) -> None:
    """Show how long records took to the target, per source and topic, as kmirror measured it.

    kmirror measures with emit.latency.enabled=true. Exit code 0: measured, and each p99 is within --max-p99, 1: a p99
    is above it, 3: nothing was measured, or a row cannot be judged, 4: a part could not be read.
    """
    topics = pattern_of(options["topics"])
    bucket_ms = duration_ms(options["bucket"])
    last_ms = None if options["last"] is None else duration_ms(options["last"], "--last")
    max_p99_ms = (
        None
        if options["max_p99"] is None
        else duration_ms(options["max_p99"], "--max-p99", with_ms=True)
    )
    progress = progress_on_stderr(options["quiet"])

    def work() -> int:
        from spark_jobs.cluster import matching_topics, read_latencies
        from spark_jobs.latency import Scope, measure
        from spark_jobs.latency_report import csv_text, json_text, picture, screen

        out: Path | None = options["out"]
        if out is not None:
            for name in _FILES:
                (out / name).unlink(missing_ok=True)
        target = options["target"]
        since_ms = None if last_ms is None else round(time.time() * 1000) - last_ms
        progress(f"reading the latency topics of {target}")
        wanted_ms = None if out is None else bucket_ms
        scope = Scope(target, topics, wanted_ms, since_ms, max_p99_ms)
        read = read_latencies("target", target, scope)
        present = matching_topics("target", target, topics)
        found = measure(read, present)
        if out is not None:
            replace_file(out / "latency.csv", csv_text(found))
            replace_file(out / "latency.png", picture(found))
            replace_file(out / "latency.json", json_text(found))
        show_kept(screen(found), out)
        return found.exit_codes[0]

    sys.exit(guarded(work))
