"""Profiles the topics of a cluster in Spark tasks: one `TopicProfile` per topic comes back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_jobs.cut import OffsetRange
from spark_jobs.engine import Failure
from spark_jobs.kafka_reader import DEFAULT_SLICE_OFFSETS
from spark_jobs.reader import fetch_ranges
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.tasks import pack
from spark_jobs.topic_profile import TopicProfile, profile_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Part = tuple[TopicProfile, list[Failure]]


def profile_topics(
    spark: SparkSession, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], bucket_ms: int
) -> tuple[dict[str, TopicProfile], list[Failure]]:
    """Return the profile of each topic of *ranges* that is not empty, and what could not be read."""
    context = spark.sparkContext
    wanted = [each for each in ranges if each.high > each.low]
    tasks = pack(wanted, DEFAULT_SLICE_OFFSETS, 2 * context.defaultParallelism)
    if not tasks:
        return {}, []
    task = partial(_task, cluster.name, cluster.bootstrap, bucket_ms)
    topics = len({each.topic for each in wanted})
    found = (
        context.parallelize(tasks, len(tasks))
        .flatMap(task)
        .reduceByKey(_merged, min(topics, 2 * context.defaultParallelism))
        .collect()
    )
    failures = [each for _, (_, failed) in found for each in failed]
    return (
        {topic: profile for topic, (profile, _) in sorted(found, key=lambda each: each[0])},
        sorted(failures, key=lambda each: (each.topic_partition, each.low)),
    )


def _task(
    name: str, bootstrap: str, bucket_ms: int, ranges: Sequence[OffsetRange]
) -> list[tuple[str, Part]]:
    profiles, unread = profile_ranges(fetch_ranges(bootstrap, ranges), ranges, bucket_ms)
    parts: dict[str, Part] = {topic: (profile, []) for topic, profile in profiles.items()}
    for each in unread:
        topic, partition, _, _ = ranges[each.number]
        failure = Failure(name, topic, partition, each.low, each.high, each.kind, each.cause)
        parts[topic][1].append(failure)
    return list(parts.items())


def _merged(one: Part, other: Part) -> Part:
    one[0].merge(other[0])
    return one[0], one[1] + other[1]
