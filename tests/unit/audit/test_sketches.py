"""Sketches of parts merge to the sketch of the whole, and stay within their documented error."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from spark_jobs.sketches import DistinctCount, SizeHistogram


@pytest.mark.parametrize("seed", range(30))
def test_percentiles_are_at_most_1_128_above_those_of_the_sorted_sizes(seed: int) -> None:
    rng = random.Random(seed)
    largest = rng.choice([1, 100, 255, 256, 257, 5000, 10**6, 2**31 - 1])
    sizes = [rng.randrange(largest + 1) for _ in range(rng.randrange(1, 400))]
    whole, merged = SizeHistogram(), SizeHistogram()
    whole.add(np.array(sizes, np.int64))
    for part in (sizes[::3], sizes[1::3], sizes[2::3]):
        histogram = SizeHistogram()
        histogram.add(np.array(part, np.int64))
        merged.merge(histogram)
    assert merged == whole
    assert (whole.count, whole.total, whole.largest) == (len(sizes), sum(sizes), max(sizes))
    ordered = sorted(sizes)
    for percent in (0, 1, 50, 95, 99, 99.9, 100):
        true = ordered[max(1, math.ceil(len(sizes) * percent / 100)) - 1]
        found = whole.percentile(percent)
        assert found is not None
        assert true <= found <= true * (1 + 1 / 128)


def test_every_size_has_a_bin_of_its_own_or_one_that_is_narrow_enough() -> None:
    for size in (*range(3000), *(2**n + d for n in range(12, 50) for d in (-1, 0, 1))):
        histogram = SizeHistogram()
        histogram.add(np.array([size, size + size // 64 + 2], np.int64))
        found = histogram.percentile(50)
        assert found is not None
        assert size <= found <= size * (1 + 1 / 128)


def test_no_size_has_no_percentile() -> None:
    histogram = SizeHistogram()
    histogram.add(np.zeros(0, np.int64))
    assert histogram.percentile(50) is None


@pytest.mark.parametrize("distinct", [0, 1, 2, 100, 3000, 10_000, 20_000, 300_000])
def test_distinct_hashes_are_estimated_within_four_standard_errors(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    hashes = rng.integers(0, 1 << 64, distinct, np.uint64)
    whole, merged = DistinctCount(), DistinctCount()
    whole.add(np.concatenate([hashes, hashes[: distinct // 2]]))
    for part in (hashes[::2], hashes[1::2]):
        count = DistinctCount()
        count.add(part)
        merged.merge(count)
    assert (merged.registers == whole.registers).all()
    assert abs(whole.estimate() - distinct) <= max(1, distinct * 4 * 1.04 / 64)
