"""Records and bytes per topic and time bucket, as Spark tasks add them up for `kaudit counts` and `profile`. Pure.

A bucket is a span of record timestamps, aligned to the epoch. A timestamp may be any number, so there may be a bucket
for every record. `MOST_BUCKETS` bounds them, in a task and in the driver.

Invariants (tests cite the numbers):
 1. the sums of parts, merged, are those of the whole;
 2. nothing returns more than `MOST_BUCKETS` buckets.

In: Fetched.  Out: TimeSums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from spark_jobs.arrow_batches import chunks
from spark_jobs.cut import OffsetRange
from spark_jobs.reader import Fetched, Unread
from spark_jobs.record_arrays import Integers, RecordArrays
from spark_jobs.time_counts import Series, Sums

MOST_BUCKETS = 200_000
"""Buckets with a record, of all topics of a cluster together."""

BEFORE_1970: Final = -1
"""Stands for the start of the bucket of all timestamps below 0; Kafka has -1 for no timestamp."""


class TooManyBuckets(Exception):
    """More than `MOST_BUCKETS` time buckets have a record."""


@dataclass(slots=True)
class TimeSums:
    """Records, and bytes of their keys and values; each per start of the bucket in ms."""

    records: Counter[int] = field(default_factory=Counter)
    bytes: Counter[int] = field(default_factory=Counter)

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        return len(self.records)

    def add(self, timestamps: Integers, sizes: Integers, bucket_ms: int) -> None:
        """Add records with *timestamps* in ms and *sizes*."""
        starts = np.where(timestamps < 0, BEFORE_1970, timestamps // bucket_ms * bucket_ms)
        add_sums(self.records, self.bytes, starts, sizes)

    def merge(self, other: TimeSums) -> None:
        """Add everything of *other*."""
        self.records.update(other.records)
        self.bytes.update(other.bytes)


def add_sums(counts: Counter[int], totals: Counter[int], groups: Integers, sizes: Integers) -> None:
    """Add to *counts* how often each of *groups* occurs, and to *totals* the sum of its *sizes*."""
    found, which = np.unique(groups, return_inverse=True)
    summed = np.zeros(found.size, np.int64)
    np.add.at(summed, which, sizes)
    for group, count, total in zip(
        found.tolist(), np.bincount(which).tolist(), summed.tolist(), strict=True
    ):
        counts[group] += count
        totals[group] += total


def sum_ranges(
    fetched: Iterable[Fetched | Unread],
    ranges: Sequence[OffsetRange],
    *,
    bucket_ms: int,
    most: int = MOST_BUCKETS,
) -> tuple[dict[str, TimeSums], list[Unread]]:
    """Return the sums of each topic of *ranges*, and what was not read; raise TooManyBuckets above *most* buckets."""
    sums = {each.topic: TimeSums() for each in ranges}
    unread = []
    for each in by_topic(fetched, ranges):
        if isinstance(each, Unread):
            unread.append(each)
            continue
        topic, records = each
        sums[topic].add(records.timestamps, records.sizes, bucket_ms)
        check_buckets(sums.values(), most)
    return sums, unread


def series_of(sums: Mapping[str, TimeSums]) -> Series:
    """Return the sums of all topics of one side."""
    return {
        (topic, None if start == BEFORE_1970 else start): Sums(records, of_topic.bytes[start])
        for topic, of_topic in sums.items()
        for start, records in of_topic.records.items()
    }


def check_buckets(sums: Iterable[TimeSums], most: int) -> None:
    """Raise TooManyBuckets if *sums* have more than *most* buckets together."""
    if sum(each.buckets for each in sums) > most:
        raise TooManyBuckets


def by_topic(
    fetched: Iterable[Fetched | Unread], ranges: Sequence[OffsetRange]
) -> Iterator[tuple[str, RecordArrays] | Unread]:
    """Yield the records of *fetched* that are inside their range, by topic; groups are numbers of *ranges*."""
    topics = sorted({each.topic for each in ranges})
    number_of = {topic: number for number, topic in enumerate(topics)}
    topic_of = np.array([number_of[each.topic] for each in ranges], np.int64)
    for records in chunks(fetched, ranges):
        if isinstance(records, Unread):
            yield records
            continue
        of_topics = topic_of[records.groups]
        for number in np.unique(of_topics).tolist():
            chosen = of_topics == number
            yield topics[number], records if chosen.all() else records.where(chosen)
