"""Whether a figure of a process is flat or growing over a long run, by its second half (S46).

Theory of operation
===================
The first half is a warm-up: caches fill, the allocator finds its size. Over the second half the slope is that of Theil
and Sen, the median of the slopes between all pairs of samples, which steps and spikes do not sway; the growth is that
slope over the length of the half. Small growth is no leak: each kind of figure has an *allowance*, a number and a
share of its level, whichever is more, and never less than `NOISE` times what the series usually is off its own line: a
saw's teeth may end higher than they began. A series that is longer than `POINTS` is thinned by medians first.

Invariants: 1. A constant series, with whatever spikes in less than a quarter of it, is flat. 2. A series that rises
steadily by more than its allowance over the second half is growing.
3. Fewer than `LEAST` samples in the second half are too few: the finding states it.

In: samples (seconds, value)   Out: a finding per series
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final, NamedTuple

POINTS: Final = 200
LEAST: Final = 10
NOISE: Final = 1.5

Series = Sequence[tuple[float, float]]
"""(seconds, value), in the order of time."""


class Allowance(NamedTuple):
    """What a figure may grow by in the second half of a run: the greater of a number and a share of its level."""

    number: float
    share: float = 0.0


ALLOWED: Final[Mapping[str, Allowance]] = {
    "rss": Allowance(2 << 20, 0.03),
    "descriptors": Allowance(6, 0.05),
    "threads": Allowance(2),
    "znodes": Allowance(8, 0.05),
    "watches": Allowance(8, 0.05),
}


@dataclass(frozen=True)
class Growth:
    """One series, judged."""

    kind: str
    of: str
    level: float
    """The median of the second half."""
    growth: float
    """Over the second half."""
    seconds: float
    """The length of the second half."""
    allowed: float
    judged: bool = True

    @property
    def is_growing(self) -> bool:
        """Whether it grew by more than is allowed."""
        return self.judged and self.growth > self.allowed

    def to_text(self) -> str:
        """Give what a person reads."""
        word = "GROWING" if self.is_growing else "flat" if self.judged else "too few samples"
        unit, by = ("MiB", 1 << 20) if self.kind == "rss" else ("", 1)
        hourly = self.growth * 3600 / self.seconds if self.seconds else 0.0
        return (
            f"{word}: {self.kind} of {self.of}: {self.level / by:.1f} {unit}".rstrip()
            + f", {self.growth / by:+.2f} in {self.seconds:.0f} s"
            + f" ({hourly / by:+.1f} an hour, allowed {self.allowed / by:.2f})"
        )


def judge(kind: str, of: str, series: Series) -> Growth:
    """Judge one series of *kind* (a key of `ALLOWED`)."""
    half = _second_half(series)
    if len(half) < LEAST:
        return Growth(kind, of, half[-1][1] if half else 0.0, 0.0, 0.0, 0.0, judged=False)
    level = median(value for _, value in half)
    seconds = half[-1][0] - half[0][0]
    number, share = ALLOWED[kind]
    points = _thinned(half)
    slope = theil_sen(points)
    above = [value - slope * at for at, value in points]
    line = median(above)
    noise = median(abs(one - line) for one in above)
    allowed = max(number, share * level, NOISE * noise)
    return Growth(kind, of, level, slope * seconds, seconds, allowed)


def theil_sen(series: Series) -> float:
    """Return the median of the slopes between all pairs, per second."""
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in combinations(series, 2) if t > s]
    return median(slopes) if slopes else 0.0


def _second_half(series: Series) -> Series:
    if not series:
        return []
    middle = (series[0][0] + series[-1][0]) / 2
    return [(at, value) for at, value in series if at >= middle]


def _thinned(series: Series) -> Series:
    """Return at most `POINTS`, each the median of its neighbours."""
    width = -(-len(series) // POINTS)
    groups = [series[n : n + width] for n in range(0, len(series), width)]
    return [(median(at for at, _ in g), median(value for _, value in g)) for g in groups]
