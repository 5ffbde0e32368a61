"""The same key goes where every Kafka client puts it; records without one stick and spread."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter

import pytest

from kclient.producer.partitioner import StickyPartitioner, murmur2, partition_for_key

# From Kafka's UtilsTest, as signed numbers.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", KNOWN)
def test_murmur2_is_kafkas(key: bytes) -> None:
    assert murmur2(key) == KNOWN[key] & 0xFFFFFFFF


@pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
def test_keys_go_where_another_client_puts_them() -> None:
    from kafka.partitioner.default import murmur2 as theirs

    rng = random.Random(7)
    for _ in range(500):
        key = rng.randbytes(rng.randrange(40))
        assert murmur2(key) == theirs(key) & 0xFFFFFFFF
        assert partition_for_key(key, 7) == (theirs(key) & 0x7FFFFFFF) % 7
        longer = key * 20
        assert partition_for_key(longer, 7) == (theirs(longer) & 0x7FFFFFFF) % 7


def test_long_keys_are_not_kept_in_memory() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n in range(50):
            partition_for_key(b"%d" % n * 200, 7)
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
    finally:
        tracemalloc.stop()


def test_records_without_key_stay_until_a_batch_is_full_then_move() -> None:
    sticky = StickyPartitioner(1000, random.Random(1).choice)
    chosen = [sticky.partition("t", [0, 1, 2], 100) for _ in range(20)]
    assert len(set(chosen[:10])) == 1
    assert len(set(chosen[10:])) == 1
    assert chosen[0] != chosen[10]


def test_partitions_are_drawn_evenly() -> None:
    sticky = StickyPartitioner(100, random.Random(2).choice)
    counts = Counter(sticky.partition("t", [0, 1, 2, 3], 50) for _ in range(8000))
    assert min(counts.values()) > 1600


def test_a_partition_that_lost_its_leader_is_left_at_once() -> None:
    sticky = StickyPartitioner(1000, lambda among: among[0])
    assert sticky.partition("t", [0, 1], 10) == 0
    assert sticky.partition("t", [1], 10) == 1


def test_topics_stick_apart() -> None:
    sticky = StickyPartitioner(1000, random.Random(3).choice)
    first = sticky.partition("a", range(50), 10)
    sticky.partition("b", range(50), 990)
    sticky.partition("b", range(50), 990)
    assert sticky.partition("a", range(50), 10) == first
