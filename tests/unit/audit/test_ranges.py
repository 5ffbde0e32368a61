"""Ranges of offsets are sets of offsets: every operation equals that of the sets."""

from __future__ import annotations

import random

import pytest

from spark_jobs.ranges import Ranges, intersect, merged, nearest_joined, subtract, total


def offsets(ranges: Ranges) -> set[int]:
    return {offset for low, high in ranges for offset in range(low, high)}


def some(rng: random.Random) -> Ranges:
    """Return ranges in any order, some of them empty or overlapping."""
    starts = [rng.randrange(60) for _ in range(rng.randrange(12))]
    return [(low, low + rng.randrange(8)) for low in starts]


def are_canonical(ranges: Ranges) -> bool:
    return ranges == merged(ranges)


@pytest.mark.parametrize("seed", range(300))
def test_operations_equal_those_of_sets(seed: int) -> None:
    rng = random.Random(seed)
    one, other = some(rng), some(rng)
    low, high = sorted((rng.randrange(60), rng.randrange(60)))
    for result, expected in (
        (merged(one), offsets(one)),
        (subtract(one, other), offsets(one) - offsets(other)),
        (intersect(one, low, high), offsets(one) & set(range(low, high))),
    ):
        assert offsets(result) == expected
        assert are_canonical(result)
        assert total(result) == len(expected)


@pytest.mark.parametrize("seed", range(300))
def test_joined_ranges_are_few_and_have_everything_but_what_is_left_out(seed: int) -> None:
    rng = random.Random(seed)
    without = merged(some(rng))
    ranges, most = subtract(some(rng), without), rng.randrange(1, 6)
    joined = nearest_joined(ranges, most, without)
    assert offsets(ranges) <= offsets(joined)
    assert not offsets(joined) & offsets(without)
    assert are_canonical(joined)
    assert len(nearest_joined(ranges, most)) <= most


def test_the_nearest_are_joined_first() -> None:
    assert nearest_joined([(0, 1), (10, 11), (12, 13), (30, 31)], 3) == [(0, 1), (10, 13), (30, 31)]
