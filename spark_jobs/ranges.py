"""Arithmetic of offset ranges: lists of [low, high), sorted and disjoint. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Ranges = list[tuple[int, int]]


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of *ranges*, sorted, disjoint and without empty ones."""
    result: Ranges = []
    for low, high in sorted(each for each in ranges if each[1] > each[0]):
        if result and low <= result[-1][1]:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return result


def subtract(ranges: Iterable[tuple[int, int]], without: Iterable[tuple[int, int]]) -> Ranges:
    """Return the offsets of *ranges* that *without* does not contain."""
    cuts = merged(without)
    result: Ranges = []
    first_cut = 0
    for first, high in merged(ranges):
        low = first
        while first_cut < len(cuts) and cuts[first_cut][1] <= low:
            first_cut += 1
        at = first_cut
        while at < len(cuts) and cuts[at][0] < high:
            if cuts[at][0] > low:
                result.append((low, cuts[at][0]))
            low = max(low, cuts[at][1])
            at += 1
        if low < high:
            result.append((low, high))
    return result


def intersect(ranges: Iterable[tuple[int, int]], low: int, high: int) -> Ranges:
    """Return the offsets of *ranges* that are in [low, high)."""
    return merged((max(low, first), min(high, end)) for first, end in ranges)


def total(ranges: Sequence[tuple[int, int]]) -> int:
    """Return the number of offsets in disjoint *ranges*."""
    return sum(high - low for low, high in ranges)


def nearest_joined(ranges: Ranges, most: int, without: Sequence[tuple[int, int]] = ()) -> Ranges:
    """Return at most *most* ranges that contain disjoint, sorted *ranges*: the nearest neighbours are joined.

    Offsets of *without* stay outside, so that there may be one range more for each of them.
    """
    if len(ranges) <= most:
        return ranges
    far = sorted(range(1, len(ranges)), key=lambda n: ranges[n - 1][1] - ranges[n][0])[: most - 1]
    starts = [0, *sorted(far)]
    joined = [
        (ranges[first][0], ranges[end - 1][1])
        for first, end in zip(starts, [*starts[1:], len(ranges)], strict=True)
    ]
    return subtract(joined, without) if without else joined
