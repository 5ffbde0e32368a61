"""The alarms of one direction: no progress, and lag over a limit. Each begins once and ends once. Pure.

Theory of operation
===================
A link makes progress if the target's log end advances, or if the source answers and there is no lag. Without progress
for ``alarm.no.progress.seconds`` the alarm begins: records are not copied, or the source does not answer, or the log
ends cannot be read. Stopped links are reported as such by the flow, and links that have finished need no progress.

The alarm of lag begins above ``alarm.lag.records`` and ends at half of it, so that a lag near the limit is not reported
again and again. It includes stopped links.

Partitions with an alarm that begins or ends at the same time share a line.

In: links, the times of the source's last responses   Out: lines for the operator   Owner: the mirror
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kclient.types import TopicPartition
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import LinkState

MOST_NAMED = 5
"""Partitions that one line names; it counts the others."""


@dataclass(slots=True)
class _Watched:
    """One link: the target's log end at the last look, and since when nothing has changed."""

    link: PartitionLink
    appended_end: int
    since: float


class Alarms:
    """The alarms of one direction; a limit of 0 turns an alarm off."""

    def __init__(self, *, no_progress: float, lag: int) -> None:
        self._no_progress = no_progress
        self._lag = lag
        self._watched: dict[TopicPartition, _Watched] = {}
        self.stalled: set[TopicPartition] = set()
        """Partitions without progress."""
        self.lagging: set[TopicPartition] = set()
        """Partitions with a lag over the limit, until it is at most half of it."""

    def look(
        self,
        links: Iterable[PartitionLink],
        answered_at: Callable[[TopicPartition], float | None],
        now: float,
    ) -> list[str]:
        """Return a line per alarm that begins or ends. *answered_at* returns the time of the last response."""
        present = {link.tp: link for link in links}
        lines = []
        if self._no_progress:
            idle = self._idle_times(present, answered_at, now)
            stalled = {tp for tp, idle_time in idle.items() if idle_time >= self._no_progress}
            begun = {tp: _stall(present[tp], idle[tp]) for tp in stalled - self.stalled}
            lines += _line(f"ALARM no progress for {self._no_progress:g} s", begun)
            ended = {tp: _end(present.get(tp)) for tp in self.stalled - stalled}
            lines += _line("alarm of no progress ended", ended)
            self.stalled = stalled
        if self._lag:
            lags = {tp: link.lag or 0 for tp, link in present.items()}
            over = {
                tp
                for tp, lag in lags.items()
                if lag > self._lag or (tp in self.lagging and lag > self._lag // 2)
            }
            begun = {tp: f"lag {lags[tp]}" for tp in over - self.lagging}
            lines += _line(f"ALARM lag over {self._lag} records", begun)
            ended = {
                tp: f"lag {lags[tp]}" if tp in lags else _end(None) for tp in self.lagging - over
            }
            lines += _line("alarm of lag ended", ended)
            self.lagging = over
        return lines

    def __str__(self) -> str:
        """Return the part of the status line about alarms; "" without one."""
        counts = (len(self.stalled), "without progress"), (len(self.lagging), "over the lag limit")
        parts = [f"{number} {text}" for number, text in counts if number]
        return f"ALARM {', '.join(parts)}" if parts else ""

    def _idle_times(
        self,
        present: Mapping[TopicPartition, PartitionLink],
        answered_at: Callable[[TopicPartition], float | None],
        now: float,
    ) -> dict[TopicPartition, float]:
        """Return the seconds without progress of every link that has something to do."""
        for tp in self._watched.keys() - present.keys():
            del self._watched[tp]
        idle = {}
        for tp, link in present.items():
            watched = self._watched.get(tp)
            if watched is None or watched.link is not link:
                watched = self._watched[tp] = _Watched(link, link.appended_end, now)
            ended = (
                link.state in (LinkState.STOPPED, LinkState.FINISHED) or link.problem is not None
            )
            if ended or link.appended_end != watched.appended_end:
                watched.appended_end, watched.since = link.appended_end, now
            elif link.lag == 0:
                watched.since = max(watched.since, answered_at(tp) or watched.since)
            if not ended:
                idle[tp] = now - watched.since
        return idle


def _stall(link: PartitionLink, idle: float) -> str:
    """Return what a link without progress waits for."""
    if link.lag is None or link.state is LinkState.LOCATING:
        return "its log ends cannot be read"
    if not link.lag:
        return f"the source has not answered for {idle:.0f} s"
    if link.open_records >= link.lag:
        return f"lag {link.lag}, all in open transactions"
    return f"lag {link.lag}"


def _end(link: PartitionLink | None) -> str:
    """Return why a link without progress is none any more."""
    if link is None:
        return "no longer mirrored"
    return "STOPPED" if link.problem is not None else "progress again"


def _line(text: str, partitions: Mapping[TopicPartition, str]) -> list[str]:
    """Return one line about *partitions*, with a detail each; none if there are none."""
    if not partitions:
        return []
    named = [f"{tp} ({partitions[tp]})" for tp in sorted(partitions)[:MOST_NAMED]]
    left = len(partitions) - len(named)
    return [f"{text}: {', '.join(named)}" + (f" and {left} more" if left else "")]
