"""Divides offset ranges into Spark tasks: large ranges are cut, small ones share a task.

A task costs a start of its own and a connection per broker, a partition costs a place in a request. So the number of
tasks follows from the offsets, not from the partitions; but there are enough tasks for all cores.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from spark_jobs.cut import OffsetRange

RANGE_COST = 200
"""The cost of a range, in records: what a task spends on its position and its part of requests."""

SMALLEST_SLICE = 50_000
"""Offsets below which a range is not cut: a consumer has fetched some megabytes behind its end."""

MOST_RANGES = 1000
"""Ranges in one task. Above it the tasks' requests and bookkeeping grow faster than their number shrinks."""


def split(ranges: Sequence[OffsetRange], slice_offsets: int) -> list[OffsetRange]:
    """Cut *ranges* into pieces of at most *slice_offsets*, in round-robin order over the ranges.

    The order spreads concurrent tasks over all leaders instead of reading one broker at a time.
    """
    pieces = [
        [
            OffsetRange(each.topic, each.partition, low, min(low + slice_offsets, each.high))
            for low in range(each.low, each.high, slice_offsets)
        ]
        for each in ranges
    ]
    longest = max(map(len, pieces), default=0)
    return [
        of_range[turn] for turn in range(longest) for of_range in pieces if turn < len(of_range)
    ]


def pack(
    ranges: Sequence[OffsetRange], slice_offsets: int, parallelism: int
) -> list[list[OffsetRange]]:
    """Return the ranges of each task: about *slice_offsets* offsets, at most `MOST_RANGES` ranges.

    There are at least *parallelism* tasks, if there is as much to read. A range above its share of all offsets is cut,
    but not below `SMALLEST_SLICE`. The largest piece goes to the task with the least to do, and so on.
    """
    offsets = sum(each.high - each.low for each in ranges)
    share = -(-offsets // parallelism)
    pieces = split(ranges, min(slice_offsets, max(SMALLEST_SLICE, share)))
    if not pieces:
        return []
    cost = sum(each.high - each.low + RANGE_COST for each in pieces)
    count = max(-(-cost // slice_offsets), -(-len(pieces) // MOST_RANGES), parallelism)
    tasks: list[list[OffsetRange]] = [[] for _ in range(min(count, len(pieces)))]
    load = [(0, number) for number in range(len(tasks))]
    for piece in sorted(pieces, key=lambda each: each.low - each.high):
        so_far, number = heapq.heappop(load)
        tasks[number].append(piece)
        if len(tasks[number]) < MOST_RANGES:
            heapq.heappush(load, (so_far + piece.high - piece.low + RANGE_COST, number))
    return tasks
