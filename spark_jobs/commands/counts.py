"""`kaudit counts`: records and bytes per topic and time bucket in two clusters, side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kclient.replaced_file import replace_file
from spark_jobs.commands.guard import DoesNotFit, guarded
from spark_jobs.commands.options import (
    duration_ms,
    pair_of,
    progress_on_stderr,
    show_kept,
    spark_settings,
    with_limits,
    with_out,
    with_pair,
    with_run,
)
from spark_jobs.verdict import Limits

if TYPE_CHECKING:
    from spark_jobs.snapshot import ClusterSnapshot
    from spark_jobs.spark_settings import SparkSettings
    from spark_jobs.time_counts import TimeCounts

_FILES = ("counts.csv", "counts.json", "counts.png")


@click.command()
@with_pair
@click.option("--bucket", default="1m", metavar="TIME", help="Width of a bucket: 30s, 1m, 2h, 1d.")
@with_out(*_FILES)
@with_limits("counted")
@with_run
def counts(**options: Any) -> None:
    """Compare how many records and bytes both clusters have per topic and time of record.

    Equal counts are no proof that the records are equal; `kaudit reconcile` compares them. Exit code 0: equal, 1:
    different, 3: lag is above --max-lag, 4: a part could not be read, 5: too much has aged out.
    """
    pair = pair_of(options)
    bucket_ms = duration_ms(options["bucket"])
    limits = Limits(options["max_lag"], options["min_coverage"])
    progress = progress_on_stderr(options["quiet"])
    on = spark_settings(options)

    def work() -> int:
        from spark_jobs.counts_report import csv_text, json_text, picture, screen
        from spark_jobs.report.recreated import recreated_document
        from spark_jobs.scope import paired

        out: Path | None = options["out"]
        if out is not None:
            for name in _FILES:
                (out / name).unlink(missing_ok=True)
        at_cut = paired(pair, progress)
        recreated = recreated_document(at_cut.recreated, at_cut.target)
        clusters = at_cut.source, at_cut.target
        found = _count(clusters, bucket_ms, limits, on, out, progress)
        if out is not None:
            replace_file(out / "counts.csv", csv_text(found))
            replace_file(out / "counts.json", json_text(found, clusters, recreated))
            replace_file(out / "counts.png", picture(found, clusters))
        show_kept(screen(found, clusters, recreated), out)
        return found.exit_codes[0]

    sys.exit(guarded(work))


def _count(
    clusters: tuple[ClusterSnapshot, ClusterSnapshot],
    bucket_ms: int,
    limits: Limits,
    on: SparkSettings,
    out: Path | None,
    progress: Callable[[str], None],
) -> TimeCounts:
    from spark_jobs.bucket_sums import TooManyBuckets, series_of, sum_ranges
    from spark_jobs.comparison import known_ranges
    from spark_jobs.cut import OffsetRange, freeze
    from spark_jobs.engine import by_partition, joined
    from spark_jobs.session import spark_session
    from spark_jobs.time_counts import TimeCounts, compare, scopes
    from spark_jobs.topic_job import per_topic

    (at_source, at_target), failures = known_ranges(*clusters)
    cuts = freeze(at_target, at_source)
    unknown = by_partition(failures)
    known = [cut for cut in cuts if cut.topic_partition not in unknown]
    ranges = (
        [OffsetRange(*cut.topic_partition, cut.low, cut.high) for cut in known],
        [OffsetRange(*cut.topic_partition, cut.low, cut.target_end) for cut in known],
    )
    log = None if out is None else out / "spark.log"
    series = []
    on = replace(on, offsets=sum(each.offsets for each in clusters))
    with spark_session("kaudit counts", on, log=log) as spark:
        for cluster, of_cluster in zip(clusters, ranges, strict=True):
            offsets = sum(each.high - each.low for each in of_cluster)
            progress(f"reading {cluster.name}: {offsets:,} offsets")
            try:
                sums, failed = per_topic(
                    spark, cluster, of_cluster, partial(sum_ranges, bucket_ms=bucket_ms)
                )
            except TooManyBuckets as problem:
                raise DoesNotFit(str(problem)) from None
            series.append(series_of(sums))
            failures += failed
    found = joined(failures)
    return TimeCounts(bucket_ms, compare(*series), scopes(cuts, found), found, limits)
