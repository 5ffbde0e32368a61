"""The frozen cut: which offsets of each partition one run compares, decided once, before any record is read.

Theory of operation
===================
A mirror always lags a little. Without fixed log ends on both sides the audit would report lag as loss. The target's
log ends are read first, the source's second: every record that the mirror had written to the target by then was in
the source before the source's ends were read. So a target record that the frozen source lacks is EXTRA. The other
order would need a second read of the source for every record mirrored between the two reads.

    source   log start ... | aged out | ==== compared ==== | lagging | source end (read second)
    target   log start ... | aged out | ==== compared ==== | target end (read first)

*compared* is [max(starts), target end). Below it retention has deleted records on one side: they are aged out, never
MISSING. Above it the target has not received them yet: they are lag, and MISSING only if the mirror is complete
(`--complete`). Offsets are the same on both sides, because the mirror keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kclient.types import TopicPartition


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets in one log: [start, end)."""

    start: int
    end: int


class OffsetRange(NamedTuple):
    """Offsets [low, high) of one partition."""

    topic: str
    partition: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """The compared offsets of one partition; every *end* and *high* is exclusive."""

    topic: str
    partition: int
    low: int
    """The first offset that is still in both logs."""
    high: int
    """The cut: the target's log end, bounded by the source's."""
    source_end: int
    target_end: int
    aged_out: int
    """Offsets below *low* that only one log still has."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def compared(self) -> int:
        """The number of offsets below the cut."""
        return self.high - self.low

    @property
    def lagging(self) -> int:
        """The number of source offsets that the target had not received."""
        return self.source_end - self.high


def freeze(
    target: Mapping[TopicPartition, LogRange],
    source: Mapping[TopicPartition, LogRange],
) -> list[PartitionCut]:
    """Return the cut of every partition of *source*, sorted. *target* must have been read before *source*.

    A partition that the target lacks lags by all offsets of the source.
    """
    cuts = []
    for tp, here in sorted(source.items()):
        there = target.get(tp, LogRange(here.start, here.start))
        empty_there = there.start == there.end
        low = (
            here.start
            if empty_there and there.start <= here.start
            else max(here.start, there.start)
        )
        low = min(low, here.end)
        high = max(low, min(here.end, there.end))
        cuts.append(
            PartitionCut(
                tp.topic,
                tp.partition,
                low,
                high,
                source_end=here.end,
                target_end=max(there.end, low),
                aged_out=low - here.start,
            )
        )
    return cuts
