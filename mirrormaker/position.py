"""The position of the mirror in a target that renumbers offsets: a committed offset with metadata. Pure.

The committed offset is the next source offset to copy. Its metadata describe the last copied batch of the source, so
that the prefix check (`mirrormaker.prefix`) and the lineage check work as they do with a log that keeps its offsets.
The metadata are JSON of about 150 bytes; offset.metadata.max.bytes is 4096 by default.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kclient.types import OffsetAndMetadata

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

    @property
    def is_described(self) -> bool:
        """Whether kmirror stored it: an offset that an operator committed states nothing else."""
        return self.base_offset >= 0 or self.target_topic_id != ""

    def committed(self) -> OffsetAndMetadata:
        """Return the offset to commit.

        It has no leader epoch: that of the source would be taken for one of the target (docs/design/mirror-groups.md).
        """
        fields = {
            "base": self.base_offset,
            "crc": self.crc,
            "epoch": self.leader_epoch,
            "source": self.topic_id,
            "target": self.target_topic_id,
            "end": self.target_end,
        }
        return OffsetAndMetadata(self.offset, json.dumps(fields, separators=(",", ":")))


def read_position(committed: OffsetAndMetadata) -> Position:
    """Return the position in a committed offset.

    Without metadata of kmirror the offset was set by an operator: then nothing is known but the offset.
    """
    try:
        fields: Any = json.loads(committed.metadata)
        return Position(
            committed.offset,
            int(fields["base"]),
            int(fields["crc"]),
            int(fields["epoch"]),
            str(fields["source"]),
            str(fields["target"]),
            int(fields["end"]),
        )
    except (ValueError, KeyError, TypeError):
        return Position(committed.offset)
