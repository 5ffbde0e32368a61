"""One round of compaction over one log, as the owner's thread and the pool take turns at it.

`state_of` gives the facts from which `log_to_clean` decides. `CleaningRound.steps` yields each piece of slow work. The
caller runs it in a pool, and then goes on with the generator on the owner's thread. Or it throws the error of the work
into it. The steps of a replacement are those of `segment_replacement`: the generator does what the owner does there.

Invariants:
1. Groups are replaced in the order of their offsets. When a tombstone gets its delete horizon, the records below it are
   gone already. Those of its own group go with it, those of earlier groups before.
2. A truncation ends the round, and cancels the replacement under way if it is below the end of the map. A record that
   is cut must not remove another one. So does a truncation below the high watermark. The outcome of a transaction that
   was cleaned is its marker, which may be behind the end of the map.
3. A round that ends early (by a truncation, retention, a deletion, or a fenced log) has replaced a prefix of the
   groups. Its checkpoint stays where it was. The next round repeats it.

Owner: the thread that owns the log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Protocol

from kbroker.config.log import LONG_MAX, LogConfig
from kbroker.log.cleaner import RoundLimits, SourceSegment
from kbroker.log.core.cleaned_transactions import AbortedTransaction
from kbroker.log.core.log_to_clean import LogState, LogToClean, SegmentState, segment_groups
from kbroker.log.core.record_filter import LastBatch
from kbroker.log.disk import Buffer
from kbroker.log.log_segment import LogSegment
from kbroker.log.unified_log import UnifiedLog

Steps = Generator[Callable[[], object], None, None]


class RoundCleaner(Protocol):
    """The slow part of a round: `Cleaner`."""

    map_end: int

    def build_offset_map(self) -> object:
        """Read the dirty records, and set `map_end`."""

    def cleaned(self, group: Sequence[SourceSegment], /) -> Iterator[Buffer]:
        """Yield what stays of *group*."""

    def kept_aborted(self) -> Iterable[AbortedTransaction]:
        """Return what stays of the transaction indexes of the last group, after all was yielded."""


MakeCleaner = Callable[[Sequence[SourceSegment], RoundLimits], RoundCleaner]


def state_of(log: UnifiedLog, high_watermark: int, checkpoint: int | None) -> LogState:
    """Return the facts about *log*. May read batch headers. Raise OSError, CorruptMessage."""
    config = log.config
    return LogState(
        [_state_of_segment(each, config) for each in log.segments],
        log.log_start_offset,
        log.log_end_offset,
        high_watermark,
        log.last_stable_offset(high_watermark),
        log.recovery_point,
        checkpoint,
    )


def _state_of_segment(segment: LogSegment, config: LogConfig) -> SegmentState:
    """Return the facts about a segment; timestamps only where the settings of the topic need them."""
    index, times = segment.offset_index, segment.time_index
    return SegmentState(
        segment.base_offset,
        segment.size,
        segment.first_timestamp() if config.max_compaction_lag_ms < LONG_MAX else -1,
        segment.max_timestamp if config.min_compaction_lag_ms > 0 else -1,
        max(len(index) * index.ENTRY.size, len(times) * times.ENTRY.size),
    )


class CleaningRound:
    """A round over *log* from `LogToClean.first_dirty_offset` on."""

    def __init__(
        self, log: UnifiedLog, to_clean: LogToClean, make_cleaner: MakeCleaner, now_ms: int
    ) -> None:
        self._log = log
        self._to_clean = to_clean
        self._make_cleaner = make_cleaner
        self._now_ms = now_ms
        self._truncations = log.truncations
        self.clean_below: int | None = None
        """The checkpoint after the round; None while it goes on, and after a round that ended early."""
        self.files: list[str] = []
        """Files of the segments that were replaced, renamed, for a later task to remove."""
        self.bytes_before = self.bytes_after = 0
        """Sizes of the segments that were replaced, and of those in their place."""

    @property
    def is_outdated(self) -> bool:
        """Whether the round ends at its next step, because the log was cut or fenced."""
        return self._log.failure is not None or self._log.truncations != self._truncations

    def steps(self) -> Steps:
        """Yield what the pool has to do. Raise what the cleaner and the log raise."""
        log, end = self._log, self._to_clean.first_uncleanable_offset
        segments = [each for each in log.segments if each.base_offset < end]
        cleaner = self._make_cleaner(
            [_source(each) for each in segments],
            RoundLimits(
                self._to_clean.first_dirty_offset,
                end,
                self._now_ms,
                log.config.delete_retention_ms,
                last_batches(log),
                log.later_indexes(end),
            ),
        )
        try:
            yield cleaner.build_offset_map
        except Exception:
            if self._is_intact(segments):
                raise
            return  # the files changed while they were read
        segments = [each for each in segments if each.base_offset < cleaner.map_end]
        states = [_state_of_segment(each, log.config) for each in segments]
        for group in segment_groups(states, log.config, end):
            old = segments[group.start : group.stop]
            if not self._is_intact(old):
                return
            if not (yield from self._replace(cleaner, old)):
                return
        self.clean_below = cleaner.map_end

    def _is_intact(self, segments: Sequence[LogSegment]) -> bool:
        """Return whether the log still has *segments*, and everything by which the round decides."""
        log = self._log
        index = log.segments.index_of(segments[0].base_offset)
        return not self.is_outdated and (
            list(log.segments[index : index + len(segments)]) == list(segments)
        )

    def _replace(
        self, cleaner: RoundCleaner, old: Sequence[LogSegment]
    ) -> Generator[Callable[[], object], None, bool]:
        """Replace the segments *old*; return whether that was done."""
        log = self._log
        replacement = log.start_replacement(
            log.segments.index_of(old[0].base_offset),
            len(old),
            decided_below=self._to_clean.high_watermark,
        )
        sources = [_source(each) for each in old]
        try:
            yield lambda: replacement.write(cleaner.cleaned(sources), cleaner.kept_aborted)
            yield replacement.publish
        except Exception:
            is_cut = replacement.is_cancelled
            replacement.cancel()
            yield replacement.sync
            if is_cut:
                return False
            raise
        if replacement.is_cancelled:
            yield replacement.sync
            return False
        self.files += log.replace_segments(replacement)
        if replacement.is_replaced:
            self.bytes_before += sum(each.size for each in old)
            self.bytes_after += replacement.segment.size
        yield replacement.sync
        log.complete_replacement(replacement)
        yield replacement.sync
        return replacement.is_replaced


def last_batches(log: UnifiedLog) -> dict[int, LastBatch]:
    """Return the last batch of each active producer."""
    return {
        producer_id: LastBatch(
            entry.batches[-1].last_offset if entry.batches else None, entry.epoch
        )
        for producer_id, entry in log.producers.states.entries.items()
    }


def _source(segment: LogSegment) -> SourceSegment:
    return SourceSegment(segment.path, segment.base_offset, segment.size)
