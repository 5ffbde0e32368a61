"""Sums per topic and time bucket are those of a brute-force count, and their number is bounded."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from kclient.types import TopicPartition
from kclient.wire.batches import parse
from kclient.wire.record_writer import Record, encode_batch
from spark_jobs import topic_job
from spark_jobs.bucket_sums import (
    BEFORE_1970,
    TimeSums,
    TooManyBuckets,
    series_of,
    sum_ranges,
)
from spark_jobs.cut import OffsetRange
from spark_jobs.engine import Failure, FailureKind
from spark_jobs.reader import Fetched, RangesLeft, Unread
from spark_jobs.time_counts import Sums
from spark_jobs.topic_job import merged
from spark_jobs.topic_profile import profile_ranges

MINUTE = 60_000
LAST = (1 << 63) - 1
RANGES = [OffsetRange("a", 0, 0, 60), OffsetRange("b", 0, 0, 40), OffsetRange("a", 1, 10, 30)]


def read(ranges: Sequence[OffsetRange], times: dict[TopicPartition, list[int]]) -> list[Fetched]:
    """Each record is a batch of its own."""
    left = RangesLeft(ranges)
    found: list[Fetched | Unread] = []
    for tp in list(left.partitions):
        for offset, at in enumerate(times[tp]):
            data = encode_batch([Record(0, at, b"k", b"v" * (offset % 7))], base_offset=offset)
            if tp in left.partitions:
                found += left.accept(tp, parse(data), memoryview(data))
                left.ended(tp)
    return [each for each in found if isinstance(each, Fetched)]


def timestamps(rng: random.Random) -> dict[TopicPartition, list[int]]:
    choices = [-1, -(1 << 63), 0, 59_999, MINUTE, LAST, LAST - MINUTE, 1_764_500_000_000]
    return {
        each.topic_partition: [rng.choice(choices) for _ in range(each.high)] for each in RANGES
    }


@pytest.mark.parametrize("seed", range(10))
def test_the_sums_are_those_of_a_brute_force_count_for_any_timestamp(seed: int) -> None:
    times = timestamps(random.Random(seed))
    expected: Counter[tuple[str, int | None]] = Counter()
    size: Counter[tuple[str, int | None]] = Counter()
    for topic, partition, low, high in RANGES:
        for offset in range(low, high):
            at = times[TopicPartition(topic, partition)][offset]
            bucket = topic, None if at < 0 else at // MINUTE * MINUTE
            expected[bucket] += 1
            size[bucket] += 1 + offset % 7
    found, unread = sum_ranges(read(RANGES, times), RANGES, bucket_ms=MINUTE)
    assert unread == []
    assert series_of(found) == {key: Sums(expected[key], size[key]) for key in expected}


def test_the_sums_of_parts_merge_to_those_of_the_whole() -> None:
    """Invariant 1."""
    times = timestamps(random.Random(1))
    whole, _ = sum_ranges(read(RANGES, times), RANGES, bucket_ms=MINUTE)
    added: dict[str, TimeSums] = {}
    for part in (RANGES[:1], RANGES[1:]):
        for topic, sums in sum_ranges(read(part, times), part, bucket_ms=MINUTE)[0].items():
            added.setdefault(topic, TimeSums()).merge(sums)
    assert added == whole


@pytest.mark.parametrize("task", [sum_ranges, profile_ranges])
def test_a_task_ends_when_it_has_more_buckets_than_the_driver_takes(
    task: Callable[..., object],
) -> None:
    """Invariant 2: a microsecond taken for a millisecond gives a bucket per record."""
    times = {each.topic_partition: [n * MINUTE for n in range(each.high)] for each in RANGES}
    task(read(RANGES, times), RANGES, bucket_ms=MINUTE, most=100)
    with pytest.raises(TooManyBuckets):
        task(read(RANGES, times), RANGES, bucket_ms=MINUTE, most=99)


def test_parts_of_one_topic_with_too_many_buckets_together_have_no_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_job, "MOST_BUCKETS", 3)

    def part(*starts: int) -> tuple[TimeSums, list[Failure]]:
        return TimeSums(Counter(starts), Counter(starts)), []

    sums, _ = merged(part(0, 1, BEFORE_1970), part(0, 1))
    assert sums is not None
    assert sums.records == {0: 2, 1: 2, BEFORE_1970: 1}
    assert merged(part(0, 1), part(2, 3)) == (None, [])
    failure = Failure("east", "a", 0, 3, 5, FailureKind.UNREADABLE, "why")
    assert merged((None, []), (TimeSums(), [failure])) == (None, [])
