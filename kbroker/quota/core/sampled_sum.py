"""The sum of recorded values over a sliding window of samples, as Kafka's SampledStat keeps it.

A sample begins with the first value after the previous sample's time is over. It leaves the window when its last value
is as old as the whole window. So the oldest sample may have begun before the window.
"""

from __future__ import annotations

from collections import deque


class SampledSum:
    """The sum over the last *samples* of *sample_seconds* each."""

    __slots__ = ("_begun", "_last", "_samples", "_total", "_values", "sample_seconds")

    def __init__(self, samples: int = 11, sample_seconds: float = 1.0) -> None:
        self._samples = samples
        self.sample_seconds = sample_seconds
        self._begun: deque[float] = deque()
        self._last: deque[float] = deque()
        self._values: deque[float] = deque()
        self._total: float = 0

    def record(self, value: float, now: float) -> None:
        """Add *value*."""
        self._forget(now)
        if not self._begun or now - self._begun[-1] >= self.sample_seconds:
            self._begun.append(now)
            self._last.append(now)
            self._values.append(0)
        self._last[-1] = now
        self._values[-1] += value
        self._total += value

    def measure(self, now: float) -> tuple[float, float]:
        """Return the sum, and the seconds since the oldest sample of the window began."""
        self._forget(now)
        return self._total, now - self._begun[0] if self._begun else 0.0

    def _forget(self, now: float) -> None:
        length = self._samples * self.sample_seconds
        while self._last and now - self._last[0] >= length:
            self._begun.popleft()
            self._last.popleft()
            self._total -= self._values.popleft()
        if not self._begun:
            self._total = 0  # the differences of fractions may leave a rest
