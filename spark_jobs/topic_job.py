"""Adds up what Spark tasks read of the records of a cluster: one result per topic comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias, TypeVar

from spark_jobs.bucket_sums import MOST_BUCKETS, TooManyBuckets
from spark_jobs.cut import OffsetRange
from spark_jobs.engine import Failure, joined
from spark_jobs.kafka_reader import DEFAULT_SLICE_OFFSETS
from spark_jobs.reader import Fetched, Unread, fetch_ranges
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.tasks import pack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OfTopic(Protocol):
    """What tasks add up of one topic."""

    @property
    def buckets(self) -> int:
        """The number of time buckets."""
        ...

    def merge(self, other: Self) -> None:
        """Add everything of *other*."""
        ...


T = TypeVar("T", bound=OfTopic)

ReadRanges: TypeAlias = Callable[
    [Iterable[Fetched | Unread], Sequence[OffsetRange]], tuple[dict[str, T], list[Unread]]
]
"""What a task does: it returns the result of each topic and what was not read, or raises TooManyBuckets."""

Part: TypeAlias = tuple[T | None, list[Failure]]
"""None: it had more than `MOST_BUCKETS` buckets."""


def per_topic(
    spark: SparkSession,
    cluster: ClusterSnapshot,
    ranges: Sequence[OffsetRange],
    read: ReadRanges[T],
) -> tuple[dict[str, T], list[Failure]]:
    """Return the result of each topic of *ranges* that is not empty, and what could not be read.

    Raise TooManyBuckets, before they are in the driver's memory.
    """
    context = spark.sparkContext
    names = {cluster.topic_of(each.topic): each.topic for each in ranges}
    wanted = [
        each._replace(topic=cluster.topic_of(each.topic)) for each in ranges if each.high > each.low
    ]
    tasks = pack(wanted, DEFAULT_SLICE_OFFSETS, 2 * context.defaultParallelism)
    if not tasks:
        return {}, []
    topics = len({each.topic for each in wanted})
    found = (
        context.parallelize(tasks, len(tasks))
        .flatMap(partial(_task, cluster.name, cluster.bootstrap, read))
        .reduceByKey(merged, min(topics, 2 * context.defaultParallelism))
    )
    # The second action has the shuffle files of the first: nothing is read twice.
    buckets = found.mapValues(_buckets).values().collect()
    if None in buckets or sum(filter(None, buckets)) > MOST_BUCKETS:
        raise TooManyBuckets(
            f"{cluster.name} has records in more than {MOST_BUCKETS:,} time buckets of all topics together; "
            "use a larger --bucket, or fewer topics"
        )
    results = {}
    failures = []
    for topic, (result, failed) in sorted(found.collect(), key=lambda each: names[each[0]]):
        if result is not None:
            results[names[topic]] = result
        failures += [replace(each, topic=names[topic]) for each in failed]
    return results, joined(failures)


def _task(
    cluster: str, bootstrap: str, read: ReadRanges[T], ranges: Sequence[OffsetRange]
) -> list[tuple[str, Part[T]]]:
    try:
        results, unread = read(fetch_ranges(bootstrap, ranges), ranges)
    except TooManyBuckets:
        return [(ranges[0].topic, (None, []))]
    parts: dict[str, Part[T]] = {topic: (result, []) for topic, result in results.items()}
    for each in unread:
        topic, partition, _, _ = ranges[each.number]
        failure = Failure(cluster, topic, partition, each.low, each.high, each.kind, each.cause)
        parts[topic][1].append(failure)
    return list(parts.items())


def merged(one: Part[T], other: Part[T]) -> Part[T]:
    """Return both parts of one topic together."""
    result, more = one[0], other[0]
    if result is None or more is None:
        return None, []
    result.merge(more)
    return (None, []) if result.buckets > MOST_BUCKETS else (result, one[1] + other[1])


def _buckets(part: Part[T]) -> int | None:
    return None if part[0] is None else part[0].buckets
