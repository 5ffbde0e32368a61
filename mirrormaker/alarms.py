"""The alarms of one direction: no progress, and lag over a limit. Each begins once and ends once. Pure.

Theory of operation
===================
A link makes progress if the target's log end advances, or if the source answers and there is no lag. Without progress
for ``alarm.no.progress.seconds`` the alarm begins: records are not copied, or the source does not answer, or the log
ends cannot be read. Stopped links are reported as such by the flow, and links that have finished need no progress.

The alarm of lag begins above ``alarm.lag.records`` and ends at half of it. So a lag near the limit is not reported
again and again. It includes stopped links.

Partitions with an alarm that begins or ends at the same time share a line.

In: links, the times of the source's last responses   Out: lines for the operator   Owner: the mirror
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass

from kclient.types import TopicPartition
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import LinkState

MOST_NAMED = 5
"""Partitions that one line names; it counts the others."""


@dataclass(slots=True)
class _Watched:
    """One link at the last look: the target's log end, and since when nothing has changed."""

    appended_end: int
    since: float
    caught_up_at: float | None = None
    """The time of that look if there was no lag."""


class Alarms:
    """The alarms of one direction; a limit of 0 turns an alarm off."""

    def __init__(self, *, no_progress: float, lag: int) -> None:
        self._no_progress = no_progress
        self._lag = lag
        self._watched: dict[PartitionLink, _Watched] = {}
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
        every = list(links)
        lines = []
        idle = self._idle_links(every, answered_at, now)
        if self._no_progress:
            begun = {tp: _stall(*idle[tp]) for tp in idle.keys() - self.stalled}
            lines += _line(f"ALARM no progress for {self._no_progress:g} s", begun)
            ended = _present(every, self.stalled - idle.keys())
            lines += _line(
                "alarm of no progress ended", {tp: _end(link) for tp, link in ended.items()}
            )
            self.stalled = set(idle)
        if self._lag:
            over = self._lags_over(every)
            begun = {tp: f"lag {over[tp]}" for tp in over.keys() - self.lagging}
            lines += _line(f"ALARM lag over {self._lag} records", begun)
            ended = _present(every, self.lagging - over.keys())
            lines += _line(
                "alarm of lag ended",
                {
                    tp: _end(None) if link is None else f"lag {link.lag or 0}"
                    for tp, link in ended.items()
                },
            )
            self.lagging = set(over)
        return lines

    def __str__(self) -> str:
        """Return the part of the status line about alarms; "" without one."""
        counts = (len(self.stalled), "without progress"), (len(self.lagging), "over the lag limit")
        parts = [f"{number} {text}" for number, text in counts if number]
        return f"ALARM {', '.join(parts)}" if parts else ""

    def idle_time(
        self,
        link: PartitionLink,
        answered_at: Callable[[TopicPartition], float | None],
        now: float,
    ) -> float | None:
        """Return for how many seconds *link* has made no progress at *now*.

        None if it has stopped or finished, or before the first look at it.
        """
        seen = self._watched.get(link)
        if seen is None or _needs_no_progress(link):
            return None
        if link.appended_end != seen.appended_end:
            return 0.0
        caught_up = link.lag == 0
        since = seen.since
        if caught_up or seen.caught_up_at is not None:
            since = _since(seen, caught_up, answered_at(link.tp))
        return max(0.0, now - since)

    # Each look passes over thousands of links that wait: a link without an alarm costs a microsecond.

    def _idle_links(
        self,
        links: Collection[PartitionLink],
        answered_at: Callable[[TopicPartition], float | None],
        now: float,
    ) -> dict[TopicPartition, tuple[PartitionLink, float]]:
        """Return the links without progress for too long, each with its seconds without progress."""
        found = {}
        watched, limit = self._watched, self._no_progress or math.inf
        if len(watched) > len(links):
            present = set(links)
            self._watched = watched = {
                link: seen for link, seen in watched.items() if link in present
            }
        for link in links:
            seen = watched.get(link)
            if seen is None:
                seen = watched[link] = _Watched(link.appended_end, now)
            caught_up = link.lag == 0
            if link.appended_end != seen.appended_end or _needs_no_progress(link):
                seen.appended_end, seen.since = link.appended_end, now
            else:
                # Without a lag the last response counts. It is looked up when it may matter: that costs more.
                is_late = now - seen.since >= limit
                if (caught_up and is_late) or (seen.caught_up_at is not None and not caught_up):
                    seen.since = _since(seen, caught_up, answered_at(link.tp))
                    is_late = now - seen.since >= limit
                if is_late:
                    found[link.tp] = link, now - seen.since
            seen.caught_up_at = now if caught_up else None
        return found

    def _lags_over(self, links: Iterable[PartitionLink]) -> dict[TopicPartition, int]:
        """Return the lags for which there is an alarm."""
        found = {}
        for link in links:
            lag = link.lag
            if lag and (lag > self._lag or (lag > self._lag // 2 and link.tp in self.lagging)):
                found[link.tp] = lag
        return found


def _needs_no_progress(link: PartitionLink) -> bool:
    return link.state in (LinkState.STOPPED, LinkState.FINISHED) or link.problem is not None


def _since(seen: _Watched, caught_up: bool, answered: float | None) -> float:
    """Return since when a link has made no progress that had no lag at the last look, or has none now.

    *answered* is the time of the source's last response, which is progress as long as there is no lag.
    """
    if answered is None:
        return seen.since
    if not caught_up and seen.caught_up_at is not None:
        answered = min(answered, seen.caught_up_at)
    return max(seen.since, answered)


def _present(
    links: Iterable[PartitionLink], partitions: Set[TopicPartition]
) -> dict[TopicPartition, PartitionLink | None]:
    """Return the link of each partition, None for one that is not mirrored any more."""
    if not partitions:
        return {}
    found = {link.tp: link for link in links if link.tp in partitions}
    return {tp: found.get(tp) for tp in partitions}


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
