"""Whether a cost grows with the work only, or faster."""

from __future__ import annotations

from collections.abc import Mapping


def growth(costs: Mapping[float, float]) -> float | None:
    """Return the cost of one more unit at the largest of three sizes over that at the smallest; None if unknown.

    *costs* are totals by size. A start of any length cancels out. If the sizes double, a linear cost has 1, n log n
    slightly more, n^1.5 1.41 and n^2 2. The largest deviation from a fitted a + b n would show the same, since three
    sizes leave one number. But its size depends on the start: n^1.2 deviates by 4 %.

    None: the middle size cost no more than the smallest. Other load on the machine hides the growth.
    """
    small, middle, large = sorted(costs)
    first = (costs[middle] - costs[small]) / (middle - small)
    last = (costs[large] - costs[middle]) / (large - middle)
    return last / first if first > 0 else None
