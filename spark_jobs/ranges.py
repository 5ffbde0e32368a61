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
    for first, high in merged(ranges):
        low = first
        for cut_low, cut_high in cuts:
            if cut_high <= low:
                continue
            if cut_low >= high:
                break
            if cut_low > low:
                result.append((low, cut_low))
            low = cut_high
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
