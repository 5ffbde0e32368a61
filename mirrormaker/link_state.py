"""The values of a partition link: its states, why it stopped, gaps, log ends, and its effects. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from kclient.types import TopicPartition
from kclient.wire.produce import NO_TOPICS, CopiedTopics
from mirrormaker.runs import Run


class LinkState(Enum):
    """The states of a link; `mirrormaker.link` has the transitions."""

    LOCATING = "locating"
    RECORDING = "recording a gap"
    COPYING = "copying"
    FINISHED = "finished"
    STOPPED = "stopped"


@dataclass(slots=True)
class LinkCounts:
    """What has happened to a link since it was made."""

    rewinds: int = 0
    """Times that it dropped the batches in flight, and read both log ends again."""
    damaged: int = 0
    """Fetches that were refused because of a damaged batch."""
    rejected: int = 0
    """Appends that the target rejected for its log end, without those behind them in the pipeline."""

    def add(self, other: LinkCounts) -> None:
        """Add the counts of another link."""
        self.rewinds += other.rewinds
        self.damaged += other.damaged
        self.rejected += other.rejected


class Cause(Enum):
    """Why a link stopped, or why offsets are missing; operators read the value."""

    RETENTION = "the source deleted records before they were copied"
    COMPACTION = "the source has no records at some of these offsets any more (compaction)"
    TARGET_AHEAD = "the target has offsets that the source does not have"
    TARGET_LOST = "the target has lost records that it had acknowledged"
    TARGET_WRITTEN = "the target has records behind the position of the mirror"
    DIVERGED = "source and target hold different records at the same offset"
    STRADDLES = "the target's log ends inside a batch of the source"
    RECREATED = "the topic was deleted and created again at the source"
    TRUNCATED = (
        "the target had records that the source does not have; they were exported and removed"
    )
    CORRUPT = "a batch is damaged at the source"
    REJECTED = "the target rejects the records"
    UNPROVEN = "nothing proves that the target is a copy of the source"
    NO_MIRROR = "the target's topic is not marked as a mirror"
    UNREADABLE = "the source cannot be read"


RETRIABLE_CAUSES = frozenset({Cause.REJECTED, Cause.UNREADABLE, Cause.CORRUPT, Cause.NO_MIRROR})
"""Causes that may pass without a change of the copied records: the link tries again by itself.

The others state that the target is no prefix of the source, or that a policy refuses a gap: they need an operator.
"""


class GapPolicy(Enum):
    """What kmirror does when the target cannot be continued without a gap (gap.policy)."""

    FAIL = "fail"
    SKIP = "skip"
    NEW_LINEAGE = "new-lineage"
    """A topic that was created again at the source is copied to another topic; other gaps stop the partition."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets [first, until) that are not in the target. With the cause COMPACTION, only some of them are not.

    With the cause RECREATED, records below *first* are of the source topic id *before*, those from *until* on of
    *after*; the range may be empty.
    """

    first: int
    until: int
    cause: Cause
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        offsets = f"offsets {self.first}-{self.until - 1}"
        if self.cause is Cause.COMPACTION:
            return f"{offsets} are copied with holes: {self.cause.value}"
        skipped = f"{offsets} are skipped"
        if self.cause is not Cause.RECREATED:
            return f"{skipped}: {self.cause.value}"
        changed = f"topic id {self.before} became {self.after} at offset {self.until}"
        return f"{changed}; {skipped}" if self.first < self.until else changed


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a link stopped; *gap* is the gap that the policy refused, if any."""

    cause: Cause
    detail: str
    gap: Gap | None = None

    def __str__(self) -> str:
        return f"{self.cause.value}: {self.detail}"


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The header of the batch that holds the last offset below the target's log end."""

    base_offset: int
    next_offset: int
    crc: int
    leader_epoch: int = -1

    def __str__(self) -> str:
        return f"offsets {self.base_offset}-{self.next_offset - 1} with CRC {self.crc:#010x}"


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The start and end offsets of both logs, and the last batch below the target's end on each side.

    *source_end* is the last stable offset: records from there on belong to open transactions, and are not read yet. A
    last batch is None where that log lacks the offset.

    The source's log may start inside a batch, after DeleteRecords. Brokers keep and send that batch whole, so it is
    copied whole: *source_first_batch* holds the offset *source_start*. It is None if it was not read, because the
    target ends above, or if there is none.
    """

    source_start: int
    source_end: int
    target_start: int
    target_end: int
    source_last_batch: LastBatch | None = None
    target_last_batch: LastBatch | None = None
    source_high_watermark: int = -1
    """The end of the source's committed records; not below `source_end`. -1 if it was not read."""
    target_topic_id: UUID | None = None
    """The topic id at the target before its log was read; None if it is unknown."""
    source_first_batch: LastBatch | None = None
    problem: Problem | None = None
    """Why the target cannot be continued, if its position shows it (`mirrormaker.renumbered_ends`)."""

    @property
    def copied_from(self) -> int:
        """The offset of the first batch of the source, which may be below its log start."""
        batch = self.source_first_batch
        return self.source_start if batch is None else batch.base_offset

    @property
    def starts(self) -> str:
        """Where the source's log starts, for operators."""
        inside = self.copied_from < self.source_start
        where = f", inside a batch that begins at {self.copied_from}" if inside else ""
        return f"{self.source_start}{where}"

    @property
    def lag(self) -> int:
        """Records that the source has and the target lacks, those of open transactions included."""
        start = self.source_start if self.target_start == self.target_end else 0
        end = max(self.source_end, self.source_high_watermark)
        return max(0, end - max(self.target_end, start))

    @property
    def lacking(self) -> tuple[int, int]:
        """The offsets [first, until) that the source has, and the target has no longer; empty if there are none."""
        end = max(self.source_end, self.source_high_watermark)
        return self.source_start, max(self.source_start, min(self.target_start, end))

    @property
    def open_records(self) -> int:
        """Records of the source from the first open transaction on."""
        return max(0, self.source_high_watermark - self.source_end)


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """The fetch of one partition; batches that begin at or above offset *end* are ignored."""

    tp: TopicPartition
    generation: int
    offset: int
    max_bytes: int
    last_epoch: int = -1
    end: int | None = None
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Locate:
    """Read the `LogEnds` of both logs after *delay* seconds; answer with `located` or `not_located`."""

    generation: int
    delay: float


@dataclass(frozen=True, slots=True)
class RecordGap:
    """Write a gap into the ledger; answer with `recorded` when it is durable, or with `not_recorded`."""

    generation: int
    gap: Gap


@dataclass(frozen=True, slots=True)
class ReportGap:
    """Report a gap to the operator."""

    gap: Gap


@dataclass(frozen=True, slots=True)
class Finished:
    """All offsets below the cut are in the target."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The link has stopped; *retry_after* is in seconds, None if the link does not try again by itself."""

    problem: Problem
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """The link copies again; *problem* had stopped it."""

    problem: Problem


Effect = Locate | RecordGap | ReportGap | Finished | Stopped | Recovered


@dataclass(frozen=True, slots=True, eq=False)
class Append:
    """A run to append if the target's log ends at *expected_log_end* with a batch of CRC *previous_crc*.

    *previous_crc* is 0 for an empty log.
    """

    run: Run
    expected_log_end: int
    previous_crc: int
    generation: int
    topics: CopiedTopics = NO_TOPICS
    """The topic that the records are of, and the target's topic that the prefix check read."""
