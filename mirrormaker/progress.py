"""The progress of a flow: rates and lag as numbers and as a status line. Pure: the time is an argument.

Lag in records is exact, because offsets are the same on both sides: the source's high watermark - target log end. It
includes the records of open transactions, which are not copied before their end, and those of stopped links. Lag in
bytes is lag in records times the mean size of the copied records. Lag in seconds is the age of the newest copied record
while there is lag. It is the time span that would be missing if the source were lost now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mirrormaker.link import PartitionLink
from mirrormaker.link_state import LinkCounts, LinkState
from mirrormaker.runs import Run

WINDOW = 5.0
"""Seconds over which rates are measured."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a flow at one moment. A lag is None while unknown."""

    records: int
    bytes: int
    bytes_per_second: float
    records_per_second: float
    lag_records: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    open_records: int
    """Records of the lag from the first open transaction of their partition on."""
    partitions: int
    locating: int
    finished: int
    stopped: int


@dataclass(slots=True)
class Copied:
    """What was copied of one partition since its link was added."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    newest: int = -1
    """The newest record timestamp, in milliseconds since the epoch; -1 before the first record."""


_NOTHING = Copied()


class Progress:
    """Counts the records, bytes and batches that one flow has copied.

    The counts of the flow never go back. Those of a partition begin again with a new link.
    """

    def __init__(self, now: float) -> None:
        self.started_at = now
        self.records = 0
        self.bytes = 0
        self.batches = 0
        self.fetched_bytes = 0
        """Bytes of batches that the source sent: those that are fetched again count again."""
        self.removed_counts = LinkCounts()
        """The counts of links that were removed."""
        self.first_at: float | None = None
        """Time of the first append, in monotonic seconds."""
        self.changed_at = now
        """Time of the last append, in monotonic seconds; the start before the first one."""
        self._first_bytes = 0
        self._copied: dict[PartitionLink, Copied] = {}
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
        copied = self._copied.get(link)
        if copied is None:
            copied = self._copied[link] = Copied()
        copied.records += run.record_count
        copied.bytes += run.size
        copied.batches += run.batch_count
        copied.newest = max(copied.newest, run.max_timestamp)

    def copied_of(self, link: PartitionLink) -> Copied:
        """Return what was copied by *link*, to be read only."""
        return self._copied.get(link, _NOTHING)

    def removed(self, link: PartitionLink) -> None:
        """Keep the counts of a link that is removed in those of the flow."""
        self._copied.pop(link, None)
        self.removed_counts.add(link.counts)

    @property
    def mean_rate(self) -> float | None:
        """Bytes per second between the first and the last append; None in less than a second, which is no measure."""
        if self.first_at is None or self.changed_at < self.first_at + 1:
            return None
        return (self.bytes - self._first_bytes) / (self.changed_at - self.first_at)

    def snapshot(self, links: Iterable[PartitionLink], now: float, wall_clock_ms: int) -> Snapshot:
        """Return the progress of *links* at *now* (monotonic seconds); *wall_clock_ms* is since the epoch."""
        every = list(links)
        self._samples.append((now, self.bytes, self.records))
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW:
            self._samples.popleft()
        since, size, records = self._samples[0]
        period = max(1e-9, now - since)
        mean = self.bytes / self.records if self.records else 0.0
        # One pass: most of thousands of links wait, and are looked at each second.
        lag_records = open_records = locating = finished = stopped = 0
        unknown = not every
        oldest: int | None = None
        """The least of the newest copied timestamps, over the partitions behind."""
        for link in every:
            lag = link.lag
            if lag is None:
                unknown = True
            elif lag:
                lag_records += lag
                newest = self.copied_of(link).newest
                if newest >= 0 and (oldest is None or newest < oldest):
                    oldest = newest
            if lag != 0:
                open_records += link.open_records
            state = link.state
            if state is not LinkState.COPYING:
                locating += state is LinkState.LOCATING
                finished += state is LinkState.FINISHED
            stopped += link.problem is not None
        behind = None if oldest is None else wall_clock_ms - oldest
        return Snapshot(
            self.records,
            self.bytes,
            (self.bytes - size) / period,
            (self.records - records) / period,
            None if unknown else lag_records,
            None if unknown or (lag_records and not mean) else round(lag_records * mean),
            None if unknown or (behind is None and lag_records) else max(0, behind or 0) / 1000,
            open_records,
            len(every),
            locating,
            finished,
            stopped,
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
    if at.open_records:
        parts.append(f"{count(at.open_records)} rec in open transactions")
    if at.stopped:
        parts.append(f"{at.stopped} STOPPED")
    return "  |  ".join(parts)


def count(number: int) -> str:
    """Return a number in groups of three digits, as in 12 004."""
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
