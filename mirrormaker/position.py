"""The position of the mirror in a target that renumbers offsets: a committed offset with metadata. Pure.

The committed offset is the next source offset to copy. Its metadata describe the last copied batch of the source. So
the prefix check (`mirrormaker.prefix`) and the lineage check work as they do with a log that keeps its offsets. They
also have earlier pairs of offsets, with which committed offsets of consumer groups are translated
(`mirrormaker.offset_pairs`). The metadata are JSON of at most 900 bytes; offset.metadata.max.bytes is 4096 by default.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kclient.types import OffsetAndMetadata
from mirrormaker.offset_pairs import OffsetPair, Translated, thinned, translate

GROUP_PREFIX = "kmirror-"


def position_group(source_id: str) -> str:
    """Return the group, and the transactional id, of the mirror of the cluster *source_id*."""
    return f"{GROUP_PREFIX}{source_id}"


@dataclass(frozen=True, slots=True)
class Position:
    """The next source offset, and the last source batch below it; *crc* 0 if nothing was copied yet."""

    offset: int
    base_offset: int = -1
    crc: int = 0
    leader_epoch: int = -1
    """The source's leader epoch of the last batch."""
    topic_id: str = ""
    """The topic id at the source; "" if it has none."""
    target_topic_id: str = ""
    """The topic id at the target; "" if it has none."""
    target_end: int = 0
    """The target offset behind the last copied record."""
    pairs: tuple[OffsetPair, ...] = ()
    """Earlier offsets of both sides that belong together, the oldest first, without those of the position."""

    def pairs_for(self, offset: int, topic_id: str, target_topic_id: str) -> tuple[OffsetPair, ...]:
        """Return the pairs of the position that follows this one, at *offset* of a topic with these ids.

        Offsets of another topic id, and an offset that an operator committed, are no pairs.
        """
        if not self.is_described or (self.topic_id, self.target_topic_id) != (
            topic_id,
            target_topic_id,
        ):
            return ()
        if offset <= self.offset:
            return self.pairs
        return thinned((*self.pairs, OffsetPair(self.offset, self.target_end)), offset)

    def appended(self, target_end: int, batches: Iterable[OffsetPair]) -> Position:
        """Return the position with its records appended up to *target_end*; *batches* are the base offsets of each."""
        last = self.pairs[-1].source if self.pairs else -1
        new = sorted(pair for pair in batches if last < pair.source < self.offset)
        return replace(self, target_end=target_end, pairs=thinned((*self.pairs, *new), self.offset))

    def translate(self, offset: int) -> Translated | None:
        """Return the target's offset for an *offset* of the source; None if it is unknown."""
        if not self.is_described:
            return None
        return translate(offset, OffsetPair(self.offset, self.target_end), self.pairs)

    @property
    def is_described(self) -> bool:
        """Whether kmirror stored it: an offset that an operator committed states nothing else."""
        return self.base_offset >= 0 or self.target_topic_id != ""

    def committed(self) -> OffsetAndMetadata:
        """Return the offset to commit.

        It has no leader epoch: that of the source would be taken for one of the target (docs/design/mirror-groups.md).
        """
        fields: dict[str, Any] = {
            "base": self.base_offset,
            "crc": self.crc,
            "epoch": self.leader_epoch,
            "source": self.topic_id,
            "target": self.target_topic_id,
            "end": self.target_end,
        }
        if self.pairs:  # as distances from the position: they are shorter
            fields["pairs"] = [
                distance
                for pair in self.pairs
                for distance in (self.offset - pair.source, self.target_end - pair.target)
            ]
        return OffsetAndMetadata(self.offset, json.dumps(fields, separators=(",", ":")))


def read_position(committed: OffsetAndMetadata) -> Position:
    """Return the position in a committed offset.

    Without metadata of kmirror the offset was set by an operator: then nothing is known but the offset.
    """
    try:
        fields: Any = json.loads(committed.metadata)
        end, distances = int(fields["end"]), fields.get("pairs", ())
        return Position(
            committed.offset,
            int(fields["base"]),
            int(fields["crc"]),
            int(fields["epoch"]),
            str(fields["source"]),
            str(fields["target"]),
            end,
            tuple(
                OffsetPair(committed.offset - int(source), end - int(target))
                for source, target in zip(distances[::2], distances[1::2], strict=True)
            ),
        )
    except (ValueError, KeyError, TypeError):
        return Position(committed.offset)
