"""The findings of an audit and their classes.

A finding is a fact about one record of one partition. It holds offsets, hashes and lengths, never payload, so a report
can be shared where the data must not be.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FindingClass(Enum):
    """How one record differs between the source's log and the target's."""

    MISSING = "missing"
    """In the source below the cut, not in the target."""
    EXTRA = "extra"
    """In the target below the cut, not in the source."""
    DUPLICATE = "duplicate"
    """One copy more in the target than in the source."""
    CORRUPT = "corrupt"
    """At the same position in both logs with different content; `Finding.field` names the parts."""
    REORDERED = "reordered"
    """The same content in both logs, at another position relative to its neighbours."""


@dataclass(frozen=True, slots=True)
class RecordDigest:
    """One record as the audit compares it: its offset and 64-bit hashes of its parts.

    *content* covers every part, with null distinct from empty; the others show which part differs.
    """

    offset: int
    content: int
    key: int
    value: int
    headers: int
    timestamp: int
    size: int = 0
    """Serialized key plus value, in bytes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. An offset is None where that log lacks the record."""

    finding_class: FindingClass
    topic: str
    partition: int
    source_offset: int | None
    target_offset: int | None
    field: str | None = None
    """For CORRUPT: which parts differ, comma-separated, of key, value, headers, timestamp."""
    first_target_offset: int | None = None
    """For DUPLICATE: the target offset of the first copy."""
    distance: int | None = None
    """For REORDERED: by how many records it moved; negative means towards the log start."""
    source_hash: int | None = None
    target_hash: int | None = None
    timestamp_ms: int | None = None

    @property
    def position(self) -> int:
        """The offset to sort and show a finding by: the target's, or the source's if the target has none."""
        if self.target_offset is not None:
            return self.target_offset
        assert self.source_offset is not None, "a finding has at least one offset"
        return self.source_offset
