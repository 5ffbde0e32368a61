"""What an audit can find: the classes, one finding, and which class a reader should see first.

A finding is a fact about one record of one partition. It never holds payload: only offsets, hashes and lengths,
so that a report can be passed on where the data may not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FindingClass(Enum):
    """How one record differs between the source's log and the target's."""

    MISSING = "missing"
    """In the source below the cut, nowhere in the target."""
    EXTRA = "extra"
    """In the target below the cut, nowhere in the source."""
    DUPLICATE = "duplicate"
    """A second copy in the target of a record that the source holds once less."""
    CORRUPT = "corrupt"
    """At its place in both, with different content: see the finding's field."""
    REORDERED = "reordered"
    """The same content in both, but at another place among its neighbours."""


@dataclass(frozen=True, slots=True)
class RecordDigest:
    """One record as the audit compares it: where it is, and 64-bit hashes of its parts.

    *content* covers every part, with null distinct from empty; the others say which part differs.
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
    """One difference. Offsets are None on the side that does not hold the record."""

    finding_class: FindingClass
    topic: str
    partition: int
    source_offset: int | None
    target_offset: int | None
    field: str | None = None
    """For CORRUPT: which parts differ, comma-separated, of key, value, headers, timestamp."""
    first_target_offset: int | None = None
    """For DUPLICATE: where the target holds the first copy."""
    distance: int | None = None
    """For REORDERED: by how many records it moved; negative is towards the start."""
    source_hash: int | None = None
    target_hash: int | None = None
    timestamp_ms: int | None = None

    @property
    def place(self) -> int:
        """The offset a reader should go to: the target's where there is one."""
        if self.target_offset is not None:
            return self.target_offset
        assert self.source_offset is not None, "a finding is on at least one side"
        return self.source_offset
