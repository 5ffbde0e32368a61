"""Which offsets of the source and of a target that renumbers them belong together. Pure.

A pair (source, target) is two offsets of one partition. Each copied record below *source* is below *target*, and each
record from *source* on is copied to *target* or behind it. Each stored position is such a pair, because it is committed
with the records before it. So are the base offsets of each batch on both sides. Earlier pairs of a partition are kept
with its position (`mirrormaker.position`).

A consumer that has read the source up to the offset *c* may continue at the target of the last pair at or below *c*.
It reads no record late: every record that it has not read is behind that pair. It reads again what lies between the
pair and *c*. So a translated offset is never further than what the group has consumed.

The number of pairs is bounded. `thinned` drops those in the middle, more of them the further back they are. Between two
neighbours in the list there is one batch, or a distance. That distance is proportional to their distance from the
position. So a group that is little behind the position reads little again. The first pair is never dropped.

In: pairs, committed offsets of the source   Out: `Translated`   Owner: the flow that renumbers
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kclient.types import TopicPartition

MOST = 24
"""Pairs that are kept with a position: up to 700 bytes; offset.metadata.max.bytes is 4096 by default."""


class OffsetPair(NamedTuple):
    """Two offsets of one partition that belong together."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Translated:
    """The offset at the target for an offset of the source, and how many source offsets are read again at most.

    *ahead* is how far the source's offset is behind the position: these records are not copied yet.
    """

    offset: int
    again: int = 0
    ahead: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether the next record is the same on both sides, if there is one."""
        return not self.again and not self.ahead


Translate = Callable[[TopicPartition, int], Translated | None]
"""Returns the translation of a source offset, by the target's partition; None if it is unknown."""


def translate(offset: int, newest: OffsetPair, pairs: Sequence[OffsetPair]) -> Translated | None:
    """Return the translation of *offset*; None if it is below all pairs.

    *newest* is the pair of the position, *pairs* are those before it, the oldest first.
    """
    if offset >= newest.source:
        return Translated(newest.target, ahead=offset - newest.source)
    below = bisect_right(pairs, offset, key=lambda pair: pair.source)
    if not below:
        return None
    pair = pairs[below - 1]
    return Translated(pair.target, again=offset - pair.source)


def thinned(pairs: Sequence[OffsetPair], newest: int, most: int = MOST) -> tuple[OffsetPair, ...]:
    """Return at most *most* of *pairs*, the oldest first, for a position at the source offset *newest*.

    A pair is dropped if its older neighbour is at most *factor* times as far from *newest* as its newer neighbour. The
    factor is the least power of two that suffices. *most* is at least 2.
    """
    kept, factor = list(pairs), 1
    while len(kept) > most:
        factor *= 2
        kept = _spaced(pairs, newest, factor)
    return tuple(kept)


def _spaced(pairs: Sequence[OffsetPair], newest: int, factor: int) -> list[OffsetPair]:
    kept = [pairs[-1]]
    for pair, older in zip(pairs[-2:0:-1], pairs[-3::-1], strict=True):
        if newest - older.source > factor * (newest - kept[-1].source):
            kept.append(pair)
    kept.append(pairs[0])
    return kept[::-1]
