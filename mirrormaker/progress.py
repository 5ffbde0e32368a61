"""How a flow is doing, in numbers and in one line. Pure: the time is an argument.

Lag in records is exact, for offsets are the same on both sides: source log end - target log end. Lag
in bytes is that times the mean size of what was copied. Lag in seconds is the age of the newest
record copied, while there is lag: how much of the past would be missing if the source were lost now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mirrormaker.link import PartitionLink
from mirrormaker.runs import Run
from mirrormaker.words import LinkState

WINDOW = 5.0
"""Seconds over which the rate is taken."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of a flow. Lags are None while unknown."""

    records: int
    bytes: int
    bytes_per_second: float
    records_per_second: float
    lag_records: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    partitions: int
    locating: int
    finished: int
    stopped: int


class Progress:
    """Counts what one flow has copied."""

    def __init__(self, now: float) -> None:
        self.started_at = now
        self.records = 0
        self.bytes = 0
        self.batches = 0
        self.first_at: float | None = None
        """When something was copied first (monotonic seconds)."""
        self.changed_at = now
        """When something was copied last (monotonic seconds)."""
        self._first_bytes = 0
        self._newest: dict[PartitionLink, int] = {}
        self._samples: deque[tuple[float, int, int]] = deque([(now, 0, 0)])

    def appended(self, link: PartitionLink, run: Run, now: float) -> None:
        """Count a run that the target acknowledged."""
        self.records += run.record_count
        self.bytes += run.size
        self.batches += run.batch_count
        self.changed_at = now
        if self.first_at is None:
            self.first_at = now
            self._first_bytes = run.size
        if run.max_timestamp > self._newest.get(link, -1):
            self._newest[link] = run.max_timestamp

    @property
    def mean_rate(self) -> float:
        """Bytes per second from the first run copied to the last; 0 if that was one moment."""
        if self.first_at is None or self.changed_at <= self.first_at:
            return 0.0
        return (self.bytes - self._first_bytes) / (self.changed_at - self.first_at)

    def snapshot(self, links: Iterable[PartitionLink], now: float, wall_clock_ms: int) -> Snapshot:
        """Return the numbers at *now* (monotonic seconds) of *links*."""
        every = list(links)
        self._samples.append((now, self.bytes, self.records))
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW:
            self._samples.popleft()
        since, size, records = self._samples[0]
        period = max(1e-9, now - since)
        lags = [link.lag for link in every if link.state is not LinkState.STOPPED]
        lag_records = sum(lag for lag in lags if lag is not None)
        mean = self.bytes / self.records if self.records else 0.0
        behind = [
            wall_clock_ms - self._newest[link]
            for link in every
            if link.lag and self._newest.get(link, -1) >= 0
        ]
        unknown = not lags or None in lags
        return Snapshot(
            self.records,
            self.bytes,
            (self.bytes - size) / period,
            (self.records - records) / period,
            None if unknown else lag_records,
            None if unknown or (lag_records and not mean) else round(lag_records * mean),
            None if unknown else max(0, *behind, 0) / 1000 if behind or not lag_records else None,
            len(every),
            sum(link.state is LinkState.LOCATING for link in every),
            sum(link.state is LinkState.FINISHED for link in every),
            sum(link.state is LinkState.STOPPED for link in every),
        )


def line(name: str, at: Snapshot) -> str:
    """Return the status line of the flow *name*."""
    parts = [
        f"{name}  {count(at.records)} records  {size(at.bytes)}",
        f"{size(at.bytes_per_second)}/s  {count(round(at.records_per_second))} rec/s",
        f"lag {_known(at.lag_records, count)} rec {_known(at.lag_bytes, size)} "
        f"{_known(at.lag_seconds, seconds)}",
        f"{at.partitions} partitions"
        + (f" ({at.locating} waiting)" if at.locating else "")
        + (f" ({at.finished} done)" if at.finished else ""),
    ]
    if at.stopped:
        parts.append(f"{at.stopped} STOPPED")
    return "  |  ".join(parts)


def count(number: int) -> str:
    """Return a number with thin groups of three, as 12 004."""
    return f"{number:,}".replace(",", " ")


def size(number: float) -> str:
    """Return bytes in the unit that leaves one to three digits."""
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1000:
            return (
                f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
            )
        number /= 1000
    return f"{number:.2f} TB"


def seconds(number: float) -> str:
    """Return a duration: 3.1 s, 12 m, 5.0 h, 3.0 d."""
    if number < 120:
        return f"{number:.1f} s"
    if number < 7200:
        return f"{number / 60:.0f} m"
    return f"{number / 3600:.1f} h" if number < 172_800 else f"{number / 86_400:.1f} d"


def _known(number: float | None, show: object) -> str:
    return "?" if number is None else show(number)  # type: ignore[operator]
