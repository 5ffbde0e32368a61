"""The frozen cut: which offsets of each partition one run compares, decided once, before any record is read.

Theory of operation
===================
A mirror is always a little behind, so what each side holds has to be pinned, or lag would be reported as loss. The
target's log ends are read first and the source's after them: whatever a mirror had written to the target by then
was in the source before the source's ends were read. A target record that the frozen source lacks is therefore
truly extra. (The other order would need a second look at the source for every record the mirror carried between
the two readings.)

    source   log start ... | aged out | ==== compared ==== | lagging | source end (read second)
    target   log start ... | aged out | ==== compared ==== | target end (read first)

*compared* is [max(starts), target end). Below it one side has removed records by retention: aged out, never
"missing". Above it the target has not received them yet: lagging, never "missing", unless the caller says that the
mirror is complete. Offsets are the same on both sides, because the mirror keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets one side holds: [start, end)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """What is compared of one partition. Offsets; every *end* and *high* is exclusive."""

    topic: str
    partition: int
    low: int
    """First offset that both sides still hold."""
    high: int
    """The cut: the target's log end, bounded by the source's."""
    source_end: int
    target_end: int
    aged_out: int
    """Offsets below *low* that one side held and the other had removed already."""

    @property
    def compared(self) -> int:
        """How many offsets lie below the cut."""
        return self.high - self.low

    @property
    def lagging(self) -> int:
        """How many offsets of the source the target had not received."""
        return self.source_end - self.high


def freeze(
    target: Mapping[TopicPartition, LogRange],
    source: Mapping[TopicPartition, LogRange],
) -> list[PartitionCut]:
    """Return the cut of every partition of *source*, sorted. *target* must have been read before *source*.

    A partition that the target lacks altogether lags by all that the source holds.
    """
    cuts = []
    for (topic, partition), here in sorted(source.items()):
        there = target.get((topic, partition), LogRange(here.start, here.start))
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
                topic,
                partition,
                low,
                high,
                source_end=here.end,
                target_end=max(there.end, low),
                aged_out=low - here.start,
            )
        )
    return cuts
