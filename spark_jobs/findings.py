"""The findings of an audit and their classes.

A finding is a fact about records of one partition: one record, or a run of neighbours with the same fate. It holds
offsets and hashes, never payload, so a report can be shared where the data must not be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from kclient.types import TopicPartition

DEFAULT_MAX_FINDINGS = 10_000
"""Findings that are written one by one; the others are counted."""


class FindingClass(Enum):
    """How a record differs between the source's log and the target's."""

    MISSING = "missing"
    """In the source below the cut, not in the target."""
    TRUNCATED = "truncated"
    """The end of the source's log, which a complete mirror lacks: one finding for the whole run."""
    GAP = "gap"
    """Offsets that the target never received, and that retention has deleted from the source: one finding a run."""
    EXTRA = "extra"
    """In the target, not in the source."""
    DUPLICATE = "duplicate"
    """One copy more in the target than in the source."""
    CORRUPT = "corrupt"
    """At the same position in both logs with different content; `Finding.field` names the parts."""
    REORDERED = "reordered"
    """The same content in both logs, at another position relative to its neighbours."""
    SHIFTED = "shifted"
    """The same contents in the same order, at other offsets than the other findings explain: one finding a run."""
    MISROUTED = "misrouted"
    """In the source's partition, and in another partition of the target instead."""
    VISIBILITY = "visibility"
    """In both logs, and a consumer with isolation.level=read_committed gets it from one only: one finding a run.

    `Finding.field` names the log of which it does not get it, and why.
    """
    UNDECODABLE = "undecodable"
    """A batch with a wrong CRC or invalid records: one finding a batch; `Finding.field` names the cluster."""


NOT_COMPARABLE = frozenset({FindingClass.GAP, FindingClass.UNDECODABLE})
"""Findings about offsets that could not be compared: coverage does not count them as compared."""

KEYLESS = 1
TOMBSTONE = 2
CONTROL = 4
ABORTED = 8
"""Bits of `RecordDigest.flags`: null key, null value, transaction marker, record of an aborted transaction."""
TAKEN = 16
"""A bit of `Finding.flags`: compaction does not explain the record.

The target has another record at the offset of a MISSING one. Or, of a renumbered target, each log lacks a record of the
key that the other one has.
"""
UNDECIDED = 32
"""A bit of `Finding.flags`: a Spark task decides whether compaction explains it (`Engine.explain_undecided`)."""


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
    timestamp_type: int = 0
    """0 CreateTime, 1 LogAppendTime."""
    flags: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. An offset is None where that log lacks the record."""

    finding_class: FindingClass
    topic: str
    partition: int
    source_offset: int | None
    target_offset: int | None
    field: str | None = None
    """For CORRUPT: which parts differ, comma-separated. For UNDECODABLE: the cluster and the cause. For VISIBILITY:
    "aborted at the source", for example."""
    first_target_offset: int | None = None
    """For DUPLICATE: the target offset of another copy."""
    distance: int | None = None
    """For REORDERED in positions, for SHIFTED in offsets; negative means towards the log start."""
    source_hash: int | None = None
    target_hash: int | None = None
    timestamp_ms: int | None = None
    records: int = 1
    """How many records the finding covers; for GAP, UNDECODABLE and transactions that are open, how many offsets."""
    last_offset: int | None = None
    """For a finding of several records: the offset of the last one, in the same log as `position`."""
    target_partition: int | None = None
    """For MISROUTED: the partition of the target that has the record."""
    owns: int = 1
    """Offsets of the partition that this finding accounts for; 0 if another finding accounts for its offset."""
    tail_position: int | None = None
    """For MISSING behind the last common record: the target offset where it would be. Separates lag from loss.
    In a renumbered target the lowest offset where it can be."""
    follows: int | None = None
    """The common record before it: its offset in the other log. Of a record that only one log has, if the target is
    renumbered; -1 if there is none."""
    key_hash: int | None = None
    flags: int = 0
    """Those of the record, and `TAKEN`, `UNDECIDED`."""
    lowest: int | None = None
    """Of a run of `spark_jobs.folding`: the lowest offset of its records in either log, and the highest one."""
    highest: int | None = None
    places: int = 0
    """Of such a run: a sum over the offsets of its records, so that two runs of the same records are known."""
    where: str = "unknown"
    """Which log is not what the mirror copied: `spark_jobs.attribution.Where`."""
    apart: tuple[Finding, Finding] | None = None
    """Of a CORRUPT record behind the last pair of a renumbered target: the MISSING and the EXTRA one that it may be.

    It is, if a record there is a copy: `spark_jobs.accounting` decides it.
    """

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def is_run(self) -> bool:
        """Whether it stands for findings that `spark_jobs.folding` joined."""
        return self.lowest is not None

    def is_before(self, offset: int) -> bool:
        """Return whether its record, or its first one, is at the source, below *offset*."""
        return self.source_offset is not None and self.source_offset < offset

    @property
    def position(self) -> int:
        """The offset to sort and show a finding by: the target's, or the source's if the target has none."""
        if self.target_offset is not None and self.finding_class is not FindingClass.MISROUTED:
            return self.target_offset
        if self.source_offset is not None:
            return self.source_offset
        assert self.target_offset is not None, "a finding has at least one offset"
        return self.target_offset

    @property
    def first_difference(self) -> int:
        """The lowest offset at which the logs of the partition differ because of this finding."""
        offsets = [self.source_offset]
        if self.finding_class is not FindingClass.MISROUTED:
            offsets.append(self.target_offset)
        return min(each for each in offsets if each is not None)


def taken_apart(findings: Iterable[Finding]) -> list[Finding]:
    """Return *findings* with the MISSING and the EXTRA one in place of what may be both: see `Finding.apart`."""
    return [each for f in findings for each in (f.apart or (f,))]


def taken_together(findings: Iterable[Finding]) -> list[Finding]:
    """Return *findings*; those that may be MISSING and EXTRA are CORRUPT."""
    return [f if f.apart is None else replace(f, apart=None) for f in findings]
