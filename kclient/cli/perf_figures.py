"""The figures of `kclient perf`: rates, and percentiles of latencies. Pure.

Rates and latencies are those of Apache's kafka-producer-perf-test, kafka-consumer-perf-test and EndToEndLatency. A MB
is 1,048,576 bytes of keys and values, a latency is in ms from before the send.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_MB = 1_048_576
_STEPS = 11
"""Bits of a latency that are kept: steps of at most 0.1 %."""
_MASK = (1 << _STEPS) - 1
PERCENTILES: Mapping[str, float] = {
    "p50_ms": 50,
    "p95_ms": 95,
    "p99_ms": 99,
    "p999_ms": 99.9,
}


class Latencies:
    """The distribution of any number of latencies in bounded memory.

    Mean and maximum are exact. A percentile is up to 0.1 % too high: latencies are counted in steps of that width, and
    of 1 µs below 2 ms.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total_s = self.max_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a latency."""
        self.count += 1
        self.total_s += seconds
        if seconds > self.max_s:
            self.max_s = seconds
        micros = int(seconds * 1e6)
        shift = max(0, micros.bit_length() - _STEPS)
        step = (shift << _STEPS) | (micros >> shift)
        self._counts[step] = self._counts.get(step, 0) + 1

    def percentile_s(self, percent: float) -> float:
        """Return the smallest latency that *percent* of all do not exceed; 0 if there is none."""
        left = math.ceil(self.count * percent / 100)
        for step in sorted(self._counts):
            left -= self._counts[step]
            if left <= 0:
                highest = ((step & _MASK) + 1 << (step >> _STEPS)) / 1e6
                return min(highest, self.max_s)
        return self.max_s

    def row(self) -> dict[str, float | None]:
        """Return mean, percentiles and maximum in ms; None if there is no latency."""
        if not self.count:
            return dict.fromkeys(("avg_ms", *PERCENTILES, "max_ms"))
        return {
            "avg_ms": _ms(self.total_s / self.count),
            **{name: _ms(self.percentile_s(percent)) for name, percent in PERCENTILES.items()},
            "max_ms": _ms(self.max_s),
        }


LATENCY_COLUMNS = ("avg_ms", *PERCENTILES, "max_ms")
RATE_COLUMNS = ("records", "seconds", "records_per_s", "mb_per_s")


def rates(records: int, size: int, seconds: float) -> dict[str, float | None]:
    """Return the rates of *records* with *size* bytes together in *seconds*; None if no time passed."""
    return {
        "records": records,
        "bytes": size,
        "seconds": round(seconds, 3),
        "records_per_s": round(records / seconds, 1) if seconds > 0 else None,
        "mb_per_s": round(size / _MB / seconds, 2) if seconds > 0 else None,
    }


class Window:
    """What was counted since the last report; its lines have the words of Apache's tools."""

    def __init__(self, verb: str, seconds: float) -> None:
        self._verb = verb
        self._restart(seconds)

    def _restart(self, seconds: float) -> None:
        self._since = seconds
        self._records = self._bytes = self._latencies = 0
        self._total_s = self._max_s = 0.0

    def add(self, records: int, size: int, latency_s: float | None = None) -> None:
        """Count *records* with *size* bytes together, and the latency if it is of one record."""
        self._records += records
        self._bytes += size
        if latency_s is not None:
            self._latencies += 1
            self._total_s += latency_s
            self._max_s = max(self._max_s, latency_s)

    def report(self, seconds: float) -> str:
        """Return the line of the time until *seconds*, and begin the next window."""
        row = rates(self._records, self._bytes, seconds - self._since)
        line = (
            f"{self._records} records {self._verb}, {row['records_per_s'] or 0:.1f} records/s "
            f"({row['mb_per_s'] or 0:.2f} MB/s)"
        )
        if self._latencies:
            mean = _ms(self._total_s / self._latencies)
            line += f", {mean} ms avg latency, {_ms(self._max_s)} ms max latency"
        self._restart(seconds)
        return line


def due_after(sent: int, per_second: float) -> float:
    """Return how many seconds after the first send the send with number *sent* is due."""
    return sent / per_second


def busy_note(cpu_s: float, elapsed_s: float) -> str | None:
    """Return a note if this process, not the brokers, may have been the limit."""
    if elapsed_s <= 0 or cpu_s / elapsed_s < 0.9:
        return None
    return (
        f"kclient used {min(cpu_s / elapsed_s, 1.0):.0%} of a CPU: it may be the limit, not the brokers; "
        "several processes of it send or read more"
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
