"""`kaudit profile`: sizes, keys, throughput, skew and batches of the topics of one cluster."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import click

from kclient.replaced_file import replace_file
from spark_jobs.commands.guard import DoesNotFit, guarded
from spark_jobs.commands.options import (
    duration_ms,
    pattern_of,
    progress_on_stderr,
    show_kept,
    spark_settings,
    with_cluster,
    with_out,
    with_run,
)

_FILES = ("profile.csv", "profile.json", "profile.png")


@click.command()
@with_cluster("--cluster", "Bootstrap servers.")
@click.option(
    "--topics", required=True, metavar="REGEX", help="Topics to read; the whole name must match."
)
@click.option("--bucket", default="1m", metavar="TIME", help="Width of a bucket: 30s, 1m, 2h, 1d.")
@with_out(*_FILES)
@with_run
def profile(**options: Any) -> None:
    """Measure sizes, keys, throughput, partition skew and batches of each topic.

    Reads every record between the log starts and the log ends of now. Exit code 0: everything was read, 4: a part
    could not be read, 5: a part was deleted during the run.
    """
    topics = pattern_of(options["topics"])
    bucket_ms = duration_ms(options["bucket"])
    bootstrap, out = options["cluster"], options["out"]
    progress = progress_on_stderr(options["quiet"])
    on = spark_settings(options)

    def work() -> int:
        from spark_jobs.bucket_sums import TooManyBuckets
        from spark_jobs.cluster import ClusterUnreadable, matching_topics, read_cluster
        from spark_jobs.cut import OffsetRange
        from spark_jobs.profile_report import (
            Profile,
            csv_text,
            json_text,
            not_known,
            picture,
            screen,
        )
        from spark_jobs.session import spark_session
        from spark_jobs.topic_job import per_topic
        from spark_jobs.topic_profile import TopicProfile, profile_ranges

        if out is not None:
            for name in _FILES:
                (out / name).unlink(missing_ok=True)
        names = matching_topics("cluster", bootstrap, topics)
        if not names:
            raise ClusterUnreadable(f"{bootstrap} has no topic matching {topics.pattern!r}")
        cluster = read_cluster("cluster", bootstrap, names, configs=False)
        ranges = [OffsetRange(*tp, held.start, held.end) for tp, held in cluster.ranges.items()]
        progress(
            f"reading {sum(each.high - each.low for each in ranges):,} offsets of {len(names):,} topics"
        )
        log = None if out is None else out / "spark.log"
        with spark_session(
            "kaudit profile", replace(on, offsets=cluster.offsets), log=log
        ) as spark:
            try:
                found, failed = per_topic(
                    spark, cluster, ranges, partial(profile_ranges, bucket_ms=bucket_ms)
                )
            except TooManyBuckets as problem:
                raise DoesNotFit(str(problem)) from None
        result = Profile(
            bootstrap,
            bucket_ms,
            {name: found.get(name, TopicProfile()) for name in names},
            cluster.ranges,
            [*not_known(cluster, names), *failed],
        )
        if out is not None:
            replace_file(out / "profile.csv", csv_text(result))
            replace_file(out / "profile.json", json_text(result))
            replace_file(out / "profile.png", picture(result))
        show_kept(screen(result), out)
        return result.exit_code

    sys.exit(guarded(work))
