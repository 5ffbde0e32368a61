"""Which log the cleaner takes next, how far it may clean it, and which segments become one.

The words are Kafka's (LogCleanerManager). A log is *clean* below its first dirty offset, which the checkpoint has, and
*cleanable* up to its first uncleanable offset. All functions are pure; `LogState` is what they know of a log.

Invariants:
1. Nothing is cleaned at or above the last stable offset, the active segment and what is not synced. The same holds for
   the first dirty segment with a record younger than min.compaction.lag.ms.
2. The first uncleanable offset is the base offset of a segment.
3. A group's segments are side by side; they fit one segment by bytes, by index bytes and by offsets. They are not more
   than the owner's thread can rename in one turn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from kbroker.config.log import LogConfig

K = TypeVar("K")

MAX_OFFSETS: Final = 2**31 - 1
"""The greatest difference of two offsets in a segment."""

MAX_SEGMENTS: Final = 100
"""Segments of a group. The owner's thread renames their files in one turn: 65 us a segment (measured for 1,000)."""


class SegmentState(NamedTuple):
    """A segment, as the cleaner sees it."""

    base_offset: int
    size: int
    first_timestamp: int
    """Max timestamp of the first batch in ms, or -1."""
    max_timestamp: int
    """In ms, or -1."""
    index_bytes: int = 0
    """Bytes of the larger one of its indexes."""


class LogState(NamedTuple):
    """A log, as the cleaner sees it. The last segment is active."""

    segments: Sequence[SegmentState]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    """At most the high watermark: no transaction that begins below is open."""
    synced_below: int
    """The recovery point."""
    checkpoint: int | None
    """The first dirty offset of the last round; None before the first round."""


class LogToClean(NamedTuple):
    """How dirty a log is."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool
    """Whether a dirty record is older than max.compaction.lag.ms."""
    high_watermark: int = 0
    """All by which this was decided is below."""

    @property
    def cleanable_ratio(self) -> float:
        """The share of dirty bytes in what would be cleaned."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Return whether a round is worth its cost."""
        if not self.cleanable_bytes:
            return False
        return self.is_overdue or self.cleanable_ratio > config.min_cleanable_dirty_ratio


def first_dirty_offset(log: LogState) -> int:
    """Return where the dirty part begins: the checkpoint, or the log start offset for an impossible one."""
    start = log.log_start_offset
    if log.checkpoint is None or not start <= log.checkpoint <= log.log_end_offset:
        return start
    return log.checkpoint


def log_to_clean(log: LogState, config: LogConfig, now_ms: int) -> LogToClean:
    """Return how dirty *log* is, and how far it may be cleaned."""
    segments = log.segments
    first_dirty = first_dirty_offset(log)
    bases = [segment.base_offset for segment in segments]
    dirty = segments[max(bisect_right(bases, first_dirty) - 1, 0) : -1]
    limits = [log.high_watermark, log.last_stable_offset, log.synced_below, bases[-1]]
    if config.min_compaction_lag_ms > 0:
        youngest = now_ms - config.min_compaction_lag_ms
        limits += [each.base_offset for each in dirty if each.max_timestamp > youngest][:1]
    index = max(bisect_right(bases, min(limits)) - 1, 0)  # rounded down to a whole segment
    end = bases[index]
    if end <= first_dirty:
        return LogToClean(first_dirty, first_dirty, 0, 0, False, log.high_watermark)
    dirty = [each for each in dirty if each.base_offset < end]
    oldest = now_ms - config.max_compaction_lag_ms
    return LogToClean(
        first_dirty,
        end,
        sum(each.size for each in segments if each.base_offset < first_dirty),
        sum(each.size for each in dirty),
        any(0 < each.first_timestamp < oldest for each in dirty),
        log.high_watermark,
    )


def next_to_clean(logs: Mapping[K, tuple[LogToClean, LogConfig]]) -> K | None:
    """Return the key of the log that is due and has the highest cleanable ratio; None if no log is due."""
    due = [key for key, (log, config) in logs.items() if log.is_due(config)]
    return max(due, key=lambda key: logs[key][0].cleanable_ratio, default=None)


def segment_groups(
    segments: Sequence[SegmentState], config: LogConfig, end_offset: int
) -> list[range]:
    """Return the indexes of the sealed *segments* up to *end_offset* in groups, each of which becomes one segment."""
    if not segments:
        return []
    groups: list[range] = []
    first = size = index_bytes = 0
    ends = [each.base_offset for each in segments[1:]] + [end_offset]
    for number, (segment, end) in enumerate(zip(segments, ends, strict=True)):
        size += segment.size
        index_bytes += segment.index_bytes
        if number > first and (
            number - first >= MAX_SEGMENTS
            or size > config.segment_bytes
            or index_bytes > config.segment_index_bytes
            or (segment.size and end - 1 - segments[first].base_offset > MAX_OFFSETS)
        ):
            groups.append(range(first, number))
            first, size, index_bytes = number, segment.size, segment.index_bytes
    return [*groups, range(first, len(segments))]
