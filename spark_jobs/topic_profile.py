"""What a topic consists of: records, sizes, keys, time, partitions and batches.

A Spark task fills one `TopicProfile` per topic of its ranges from arrays of records and headers of batches; the driver
merges them. Memory: a few kilobytes per topic, and one entry per time bucket (`spark_jobs.bucket_sums`).

Counted as records: all but transaction markers, also records of aborted transactions. A batch is counted by the range
that has its base offset, so that a batch in two ranges counts once. A batch that begins below the log start is not
counted.

Invariants (tests cite the numbers):
 1. merging the profiles of parts gives the profile of the whole.

In: RecordArrays, BatchInfo.  Out: a TopicProfile.  Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from kclient.wire.batches import BatchInfo
from kclient.wire.compression import codec_name
from spark_jobs.bucket_sums import MOST_BUCKETS, TimeSums, add_sums, by_topic, check_buckets
from spark_jobs.cut import OffsetRange
from spark_jobs.hashes import key_hashes
from spark_jobs.reader import Fetched, Unread
from spark_jobs.record_arrays import RecordArrays
from spark_jobs.sketches import DistinctCount, Integers, SizeHistogram

_CONTROL = 2
"""Bit of `RecordArrays.timestamp_types`."""


@dataclass(slots=True)
class TopicProfile:
    """Sums and sketches of the records of one topic, or of a part of it."""

    records: Counter[int] = field(default_factory=Counter)
    """Per partition."""
    bytes: Counter[int] = field(default_factory=Counter)
    """Of keys and values, per partition."""
    markers: int = 0
    null_keys: int = 0
    null_values: int = 0
    log_append_time: int = 0
    """Records with the leader's time instead of the producer's."""
    without_time: int = 0
    """Records with a timestamp below 0: -1 for none, or from before 1970."""
    first_ms: int | None = None
    last_ms: int | None = None
    keys: SizeHistogram = field(default_factory=SizeHistogram)
    values: SizeHistogram = field(default_factory=SizeHistogram)
    bodies: SizeHistogram = field(default_factory=SizeHistogram)
    """Encoded key, value and headers of a record, with their lengths."""
    distinct_keys: DistinctCount = field(default_factory=DistinctCount)
    times: TimeSums = field(default_factory=TimeSums)
    """Without the records of `without_time`."""
    codecs: Counter[str] = field(default_factory=Counter)
    """Batches per codec."""
    batch_bytes: SizeHistogram = field(default_factory=SizeHistogram)
    batch_records: SizeHistogram = field(default_factory=SizeHistogram)

    @property
    def buckets(self) -> int:
        """The number of time buckets."""
        return self.times.buckets

    def add(self, records: RecordArrays, partitions: Integers, bucket_ms: int) -> None:
        """Add *records*, each in the partition that *partitions* has at its place."""
        plain = records.timestamp_types & _CONTROL == 0
        if not plain.all():
            self.markers += int((~plain).sum())
            records, partitions = records.where(plain), partitions[plain]
        if not records.offsets.size:
            return
        sizes = records.sizes
        add_sums(self.records, self.bytes, partitions, sizes)
        keyed, valued = records.key_size >= 0, records.value_size >= 0
        self.null_keys += int((~keyed).sum())
        self.null_values += int((~valued).sum())
        self.log_append_time += int((records.timestamp_types & 1).sum())
        self.keys.add(records.key_size[keyed])
        self.values.add(records.value_size[valued])
        self.bodies.add(records.ends - records.body_at)
        self.distinct_keys.add(key_hashes(records)[keyed])
        timed = records.timestamps >= 0
        self.without_time += int((~timed).sum())
        times = records.timestamps[timed]
        if times.size:
            self._span(int(times.min()), int(times.max()))
            self.times.add(times, sizes[timed], bucket_ms)

    def add_batch(self, info: BatchInfo) -> None:
        """Add the header of a batch."""
        self.codecs[codec_name(info.codec)] += 1
        self.batch_bytes.add(np.array([info.size]))
        self.batch_records.add(np.array([max(0, info.record_count)]))

    def merge(self, other: TopicProfile) -> None:
        """Add everything of *other*."""
        for name in ("records", "bytes", "codecs"):
            getattr(self, name).update(getattr(other, name))
        for name in ("markers", "null_keys", "null_values", "log_append_time", "without_time"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in (
            *("keys", "values", "bodies", "distinct_keys", "batch_bytes", "batch_records"),
            "times",
        ):
            getattr(self, name).merge(getattr(other, name))
        if other.first_ms is not None and other.last_ms is not None:
            self._span(other.first_ms, other.last_ms)

    def _span(self, first: int, last: int) -> None:
        self.first_ms = first if self.first_ms is None else min(first, self.first_ms)
        self.last_ms = last if self.last_ms is None else max(last, self.last_ms)


def profile_ranges(
    fetched: Iterable[Fetched | Unread],
    ranges: Sequence[OffsetRange],
    *,
    bucket_ms: int,
    most: int = MOST_BUCKETS,
) -> tuple[dict[str, TopicProfile], list[Unread]]:
    """Return the profile of each topic of *ranges*, and what was not read.

    Raise TooManyBuckets above *most* time buckets.
    """
    profiles = {each.topic: TopicProfile() for each in ranges}
    partition_of = np.array([each.partition for each in ranges], np.int64)
    unread = []

    def count_batch(each: Fetched) -> None:
        if each.low == each.info.base_offset and not each.info.is_control:
            profiles[ranges[each.number].topic].add_batch(each.info)

    for found in by_topic(_observed(fetched, count_batch), ranges):
        if isinstance(found, Unread):
            unread.append(found)
            continue
        topic, records = found
        profiles[topic].add(records, partition_of[records.groups], bucket_ms)
        check_buckets((each.times for each in profiles.values()), most)
    return profiles, unread


def _observed(
    fetched: Iterable[Fetched | Unread], observe: Callable[[Fetched], None]
) -> Iterator[Fetched | Unread]:
    for each in fetched:
        if isinstance(each, Fetched):
            observe(each)
        yield each
