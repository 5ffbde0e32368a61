"""The latencies of a mirror's copies, and their records in the latency topic."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import count

import pytest

from kclient.mirror_latency import (
    LAST_BUCKET,
    Histogram,
    Interval,
    Measured,
    bucket_of,
    encode,
    largest_in,
    measured_in,
)
from kclient.types import TopicPartition
from kclient.wire.batches import CONTROL, BatchInfo, iterate
from kclient.wire.record_writer import Record, encode_batch
from mirrormaker.measured_latency import MeasuredLatency

ORDERS = TopicPartition("orders", 3)


def batches_of(*batches: Sequence[int], attributes: int = 0) -> list[BatchInfo]:
    """Batches, each given by the timestamps of its records."""
    data, offset = b"", 0
    for timestamps in batches:
        records = [Record(offset + n, at, None, b"v") for n, at in enumerate(timestamps)]
        data += encode_batch(records, base_offset=offset, attributes=attributes)
        offset += len(records)
    return list(iterate(data))


def measuring(most: int = 100, now_ms: int = 1000) -> MeasuredLatency:
    names = count()
    return MeasuredLatency(most, lambda: f"process-{next(names)}", now_ms)


def read(measured: Iterable[Measured]) -> list[Measured]:
    """Return what the records of *measured* state, each interval once."""
    found = {}
    for each in measured_in(map(encode, measured)):
        assert each is not None
        at = each.interval
        found[at.source_cluster_id, at.topic, at.process, at.from_ms] = each
    return list(found.values())


def test_a_batch_counts_from_its_newest_record_for_all_of_its_records() -> None:
    measured = measuring()
    measured.appended(ORDERS, batches_of([5, 9, 7], [100]), 110)
    (found,) = measured.due("east-id", 2000)
    assert found.interval == Interval("east-id", "orders", "process-0", 1000, 2000)
    assert found.latencies.buckets == {bucket_of(101): 3, bucket_of(10): 1}
    assert (found.latencies.min_ms, found.latencies.max_ms) == (10, 101)
    assert found.latencies.max_partition == 3
    assert measured.due("east-id", 3000) == []


def test_a_timestamp_ahead_of_the_clock_is_negative_and_one_that_is_missing_is_counted() -> None:
    measured = measuring()
    measured.appended(ORDERS, batches_of([500, 501], [-1], [90]), 100)
    (found,) = measured.due("east-id", 2000)
    assert (found.latencies.records, found.latencies.ahead) == (3, 2)
    assert found.latencies.without_timestamp == 1
    assert (found.latencies.min_ms, found.latencies.max_ms) == (-401, 10)
    assert found.latencies.quantile(0.5) == -1
    assert found.latencies.quantile(1.0) == 10


def test_transaction_markers_do_not_count() -> None:
    measured = measuring()
    measured.appended(ORDERS, batches_of([5], attributes=CONTROL), 10)
    assert measured.due("east-id", 2000) == []


def test_what_was_not_written_is_due_again_and_too_much_of_it_is_dropped() -> None:
    """Invariant 1."""
    measured = measuring(most=2)
    for now in (2000, 3000, 4000):
        measured.appended(ORDERS, batches_of([now - 5, now - 5]), now)
        measured.not_written(measured.due("east-id", now))
    assert measured.dropped == 2
    assert [each.interval.from_ms for each in measured.due("east-id", 5000)] == [2000, 3000]
    assert measured.due("east-id", 6000) == []


def test_a_clock_that_goes_back_replaces_no_interval() -> None:
    """Invariant 2."""
    measured = measuring()
    due = []
    for now in (2000, 1000, 2000, 2000):
        measured.appended(ORDERS, batches_of([now]), now)
        due += measured.due("east-id", now)
    assert sum(each.latencies.records for each in read(due)) == 4


def test_each_record_is_measured_once_whatever_fails_and_however_the_clock_goes() -> None:
    """Both invariants, with records that are written twice."""
    for seed in range(200):
        rng = random.Random(seed)
        measured, now, topic = measuring(now_ms=10**7), 10**7, []
        expected: Counter[str] = Counter()
        for _ in range(20):
            now += rng.choice((0, 1, 500, -300))
            copy = TopicPartition(rng.choice("ab"), rng.randrange(3))
            timestamps = [now + rng.randrange(-900, 50) for _ in range(rng.randrange(1, 4))]
            measured.appended(copy, batches_of(timestamps), now)
            expected[copy.topic] += len(timestamps)
            if rng.random() < 0.4:
                due = measured.due("east-id", now)
                topic += due  # written, and perhaps not acknowledged
                if rng.random() < 0.5:
                    measured.not_written(due)
        topic += measured.due("east-id", now)
        records: Counter[str] = Counter()
        for each in read(topic):
            records[each.interval.topic] += each.latencies.records
        assert records == expected, seed


def test_a_bucket_is_at_most_an_eighth_wide_and_buckets_follow_each_other() -> None:
    latencies = [*range(3000), *(2**k + d for k in range(12, 63) for d in (-1, 0, 1))]
    for latency in latencies:
        bucket = bucket_of(latency)
        assert latency <= largest_in(bucket) <= latency * 9 / 8
        assert bucket == 0 or largest_in(bucket - 1) < latency
    assert bucket_of(2**63 - 1) == LAST_BUCKET


def test_a_quantile_is_that_of_the_records_up_to_an_eighth() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        scale = rng.choice((10, 1000, 10**6))
        samples = [rng.randrange(-scale // 4, scale) for _ in range(rng.randrange(1, 60))]
        parts: defaultdict[int, Histogram] = defaultdict(Histogram)
        for latency in samples:
            parts[rng.randrange(3)].add(latency, records=1, partition=0)
        whole = Histogram()
        for part in parts.values():
            whole.merge(part)
        samples.sort()
        for share in (0.0, 0.5, 0.9, 0.99, 1.0):
            exact = samples[max(0, -int(-share * len(samples) // 1) - 1)]
            found = whole.quantile(share)
            assert found is not None
            if exact < 0:
                assert found == -1, (seed, share)
            else:
                assert exact <= found <= exact * 9 / 8, (seed, share)
        assert (whole.min_ms, whole.max_ms) == (samples[0], samples[-1])


GOOD = encode(
    Measured(Interval("i", "t", "p", 1, 2), Histogram(2, 1, 0, -3, 7, 4, {bucket_of(7): 1}))
)


def test_a_record_is_read_as_it_was_written() -> None:
    (measured,) = measured_in([GOOD])
    assert measured is not None
    assert encode(measured) == GOOD
    assert measured.latencies.max_partition == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"records":2', b'"records":3'),
        (b'"records":2', b'"records":true'),
        (b'"schema_version":1', b'"schema_version":2'),
        (b'"until_ms":2', b'"until_ms":0'),
        (b'"max_ms":7', b'"max_ms":null'),
        (b'"max_ms":7', b'"max_ms":9223372036854775808'),
        (b'"min_ms":-3', b'"min_ms":"x"'),
        (b'"max_ms":7', b'"max_ms":0'),
        (b'"max_ms":7', b'"max_ms":8'),
        (b'"max_ms":7', b'"max_ms":-1'),
        (b'"min_ms":-3', b'"min_ms":0'),
        (b"[[7,1]]", b"[[7,1],[400,0]]"),
        (b"[[7,1]]", b"[[999,1]]"),
        (b"[[7,1]]", b"[[7]]"),
        (b"[[7,1]]", b"7"),
        (b"[[7,1]]", b"[" * 100_000),
    ],
)
def test_a_record_of_another_client_is_not_used(old: bytes, new: bytes) -> None:
    key, value = GOOD
    assert old in value
    records = [(key, value.replace(old, new)), (None, value), (key, None), (b"\xff", value)]
    assert list(measured_in(records)) == [None] * 4


@pytest.mark.parametrize(
    "latencies",
    [
        Histogram(2, 0, 0, 3, 7, 0, {bucket_of(2): 1, bucket_of(7): 1}),
        Histogram(2, 0, 0, -1, 7, 0, {bucket_of(2): 1, bucket_of(7): 1}),
        Histogram(2, 2, 0, -9, 0, 0, {}),
        Histogram(2, 2, 0, -3, -9, 0, {}),
        Histogram(100, 0, 0, 0, 0, 0, {400: 100}),
    ],
)
def test_a_least_and_a_largest_latency_that_the_buckets_do_not_have_are_not_used(
    latencies: Histogram,
) -> None:
    """A largest one below the buckets would be within any limit."""
    record = encode(Measured(Interval("i", "t", "p", 1, 2), latencies))
    assert list(measured_in([record])) == [None]


@pytest.mark.parametrize("name", ["a\\nb", "\\ud800", "x" * 250])
def test_a_name_that_no_topic_has_is_not_used(name: str) -> None:
    key, value = GOOD
    assert list(measured_in([(key.replace(b'"t"', b'"%b"' % name.encode()), value)])) == [None]
