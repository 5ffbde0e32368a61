"""Sums the records of a cluster per topic and time bucket, in Spark tasks."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jobs.cut import OffsetRange
from spark_jobs.digest import WindowShape
from spark_jobs.engine import Failure
from spark_jobs.snapshot import ClusterSnapshot, RecordReader
from spark_jobs.spark_engine import at_cluster, failure_of, renamed
from spark_jobs.time_counts import Series, Sums

_EVER = 1 << 62
"""As a window in offsets, and as a number of buckets: no limit."""


def bucket_sums(
    read: RecordReader,
    cluster: ClusterSnapshot,
    ranges: Sequence[OffsetRange],
    bucket_ms: int,
) -> tuple[Series, list[Failure]]:
    """Return the sums of *ranges* per topic and bucket, and what could not be read.

    Bucket 0 of the digests has the timestamps below 0; the others begin at the epoch.
    """
    from pyspark.sql import functions as f_

    shape = WindowShape(_EVER, -bucket_ms, bucket_ms, _EVER)
    rows = (
        renamed(cluster, read.digests(cluster, at_cluster(cluster, ranges), shape))
        .withColumn("partition", f_.expr("if(unread is null, null, partition)"))
        .groupBy("topic", "partition", "bucket", "unread")
        .agg(f_.sum("records").alias("records"), f_.sum("bytes").alias("bytes"))
        .collect()
    )
    series = {}
    failures = []
    for row in rows:
        if row["unread"] is not None:
            failures.append(failure_of(cluster.name, row["topic"], row["partition"], row["unread"]))
            continue
        start = (row["bucket"] - 1) * bucket_ms if row["bucket"] else None
        series[row["topic"], start] = Sums(row["records"], row["bytes"])
    return series, sorted(failures, key=lambda each: (each.topic_partition, each.low))
