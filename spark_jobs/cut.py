"""The frozen cut: which offsets of each partition one run compares, decided once, before any record is read.

Theory of operation
===================
A mirror always lags a little. Without fixed log ends on both sides the audit would report lag as loss. The target's log
ends are read first, the source's second. Every record that the mirror had written to the target by then was in the
source before the source's ends were read. So a target record that the frozen source lacks is EXTRA. The other order
would need a second read of the source for every record mirrored between the two reads.

    source                    log start | ==== compared ==== | lagging | source end (read second)
    target   log start ... aged out ... | ==== compared ==== | target end (read first)

The scope is every offset of either log. *compared* is [max(starts), min(ends)). Below it, retention has deleted records
on one side: they are aged out, whichever side that is, and never MISSING. Above it, offsets of the source are lag, and
offsets of the target are EXTRA. Offsets between the end of the target's log and the start of the source's are lost: the
source deleted them before the mirror copied them.

A partition that only one log has is compared with an empty one: at the target it lags, at the source it is EXTRA.
If neither log has an offset, the scope is empty, and *same_end* is all that is known of the partition.

**Last stable offsets** bound what a consumer with isolation.level=read_committed may get. Below the lower one of
both logs every transaction has ended in both, and whether a record was aborted is compared with it. Above, only the
records are compared. The last stable offset of the target is read after its log end, that of the source before its log
end. So all that the source's is due to is in both logs if the target's end is not below the source's, and:

    target's last stable offset < source's, target's end >= source's    a transaction is open at the target only
    target's last stable offset > source's, target's end <= source's    a transaction is open at the source only
    any other difference                                                the mirror has not copied its end yet

A *renumbered* target has offsets of its own, which show nothing about those of the source. Both logs are then compared
whole, and the records decide what is lag and what has aged out (`spark_jobs.align`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kclient.types import TopicPartition


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets in one log: [start, end)."""

    start: int
    end: int
    stable: int | None = field(default=None, compare=False)
    """The last stable offset; None if it was not read, as of a log that is read with isolation.level=read_committed."""

    @property
    def stable_end(self) -> int:
        """The end of the offsets of which all transactions have ended."""
        return self.end if self.stable is None else max(self.start, min(self.stable, self.end))


class OffsetRange(NamedTuple):
    """Offsets [low, high) of one partition."""

    topic: str
    partition: int
    low: int
    high: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


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
    only_source: tuple[int, int]
    """Offsets below *low* that only the source still has."""
    only_target: tuple[int, int]
    """Offsets below *low* that only the target still has."""
    lost: tuple[int, int]
    """Offsets that the source deleted before the target received them, above the target's log end."""
    on_source: bool = True
    on_target: bool = True
    own_target_low: int | None = None
    """Of a renumbered target: the first offset of its log."""
    same_end: bool = True
    """Whether both logs end at the same offset; of a renumbered target, whether neither log was ever written to.

    *source_end* and *target_end* do not show it: a log that was never written begins where the other one does."""
    stable: tuple[int, int] | None = None
    """The last stable offsets of source and target; None if one of them does not have the partition."""

    @property
    def decided(self) -> int:
        """The end of the compared offsets of which all transactions have ended in both logs."""
        return self.high if self.stable is None else max(self.low, min(self.high, *self.stable))

    @property
    def open_at_target(self) -> tuple[int, int]:
        """Offsets above the last stable offset of the target and below the source's, of which nothing lags."""
        if self.stable is None or self.target_end < self.source_end:
            return self.high, self.high
        return _range(max(self.low, self.stable[1]), min(self.stable[0], self.high))

    @property
    def open_at_source(self) -> tuple[int, int]:
        """Offsets below the last stable offset of the target that are above the source's."""
        if self.stable is None or self.target_end > self.source_end:
            return self.high, self.high
        return _range(max(self.low, self.stable[0]), min(self.stable[1], self.high))

    @property
    def undecided(self) -> int:
        """The number of compared offsets that are stable in the source, and not yet in the target, which lags."""
        if self.stable is None or self.target_end >= self.source_end:
            return 0
        return max(0, min(self.stable[0], self.high) - self.decided)

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def target_low(self) -> int:
        """The first offset of the target that is compared."""
        return self.low if self.own_target_low is None else self.own_target_low

    @property
    def compared(self) -> int:
        """The number of offsets in both logs."""
        return self.high - self.low

    @property
    def aged_out(self) -> int:
        """The number of offsets below *low* that only one log still has."""
        return _size(self.only_source) + _size(self.only_target)

    @property
    def lagging(self) -> int:
        """The number of source offsets that the target had not received."""
        return max(0, self.source_end - self.high)

    @property
    def scope(self) -> int:
        """The number of offsets in either log, and lost between them; each is in exactly one class of the report."""
        above = max(self.high, self.target_end) - self.low
        return self.aged_out + _size(self.lost) + above + self.lagging


def freeze(
    target: Mapping[TopicPartition, LogRange],
    source: Mapping[TopicPartition, LogRange],
    *,
    renumbered: bool = False,
) -> list[PartitionCut]:
    """Return the cut of every partition of either side, sorted. *target* must have been read before *source*."""
    cut = _whole if renumbered else _cut
    return [cut(tp, source.get(tp), target.get(tp)) for tp in sorted(source.keys() | target.keys())]


def _whole(tp: TopicPartition, source: LogRange | None, target: LogRange | None) -> PartitionCut:
    here, there = source or LogRange(0, 0), target or LogRange(0, 0)
    empty = there == LogRange(0, 0)  # It was never written: all of the source lags.
    return PartitionCut(
        tp.topic,
        tp.partition,
        here.start,
        here.start if empty else here.end,
        source_end=here.end,
        target_end=there.end,
        only_source=(here.start, here.start),
        only_target=(there.start, there.start),
        lost=(here.start, here.start),
        on_source=source is not None,
        on_target=target is not None,
        own_target_low=there.start,
        same_end=not here.end and not there.end,
    )


def _cut(tp: TopicPartition, source: LogRange | None, target: LogRange | None) -> PartitionCut:
    here = source or LogRange(0, 0)
    # A log that was never written has no start of its own.
    there = LogRange(here.start, here.start) if target in (None, LogRange(0, 0)) else target
    assert there is not None
    low = max(here.start, there.start)
    high = max(low, min(here.end, there.end))
    return PartitionCut(
        tp.topic,
        tp.partition,
        low,
        high,
        source_end=max(here.end, low),
        target_end=max(there.end, low),
        only_source=_range(here.start, min(low, here.end)),
        only_target=_range(there.start, min(low, there.end)),
        lost=_range(there.end, here.start),
        on_source=source is not None,
        on_target=target is not None,
        same_end=here.end == (0 if target is None else target.end),
        stable=(source.stable_end, target.stable_end) if source and target else None,
    )


def _range(low: int, high: int) -> tuple[int, int]:
    return low, max(low, high)


def _size(each: tuple[int, int]) -> int:
    return each[1] - each[0]
