"""What of a log is dirty, how far it may be cleaned, and which log is next."""

from __future__ import annotations

from typing import Any

from kbroker.config.log import LogConfig
from kbroker.log.core.log_to_clean import (
    MAX_SEGMENTS,
    LogState,
    LogToClean,
    SegmentState,
    log_to_clean,
    next_to_clean,
    segment_groups,
)

NOW = 1_000_000
CONFIG = LogConfig(cleanup_policy=("compact",))


def segments(*bases: int, size: int = 100, at: int = 500_000) -> list[SegmentState]:
    return [SegmentState(base, size, at + base, at + base) for base in bases]


def state(**changes: Any) -> LogState:
    """Segments at 0, 10, 20, 30, the last one active; all of it committed and synced."""
    log = LogState(
        segments(0, 10, 20, 30),
        log_start_offset=0,
        log_end_offset=40,
        high_watermark=40,
        last_stable_offset=40,
        synced_below=40,
        checkpoint=None,
    )
    return log._replace(**changes)


def range_of(log: LogState, config: LogConfig = CONFIG) -> tuple[int, int]:
    found = log_to_clean(log, config, NOW)
    return found.first_dirty_offset, found.first_uncleanable_offset


def test_all_but_the_active_segment_may_be_cleaned() -> None:
    assert range_of(state()) == (0, 30)
    assert range_of(state(checkpoint=20)) == (20, 30)
    assert range_of(state(segments=segments(0))) == (0, 0)


def test_nothing_that_may_be_undone_or_is_not_synced_is_cleaned() -> None:
    assert range_of(state(high_watermark=29)) == (0, 20)
    assert range_of(state(high_watermark=9)) == (0, 0)
    assert range_of(state(synced_below=20)) == (0, 20)
    assert range_of(state(last_stable_offset=29)) == (0, 20)
    assert range_of(state(checkpoint=20, high_watermark=15)) == (20, 20)


def test_a_checkpoint_outside_the_log_makes_the_whole_log_dirty() -> None:
    assert range_of(state(checkpoint=41)) == (0, 30)
    assert range_of(state(log_start_offset=5, checkpoint=3)) == (5, 30)
    assert range_of(state(log_start_offset=5)) == (5, 30)


def test_min_compaction_lag_keeps_the_first_young_segment_and_all_behind_it() -> None:
    mixed = [
        SegmentState(0, 100, 1, 1),
        SegmentState(10, 100, NOW - 10, NOW - 10),
        SegmentState(20, 100, 1, 1),
        SegmentState(30, 100, 1, 1),
    ]
    config = LogConfig(min_compaction_lag_ms=100)
    assert range_of(state(segments=mixed), config) == (0, 10)
    assert range_of(state(segments=mixed), LogConfig(min_compaction_lag_ms=10)) == (0, 30)
    assert range_of(state(segments=mixed)) == (0, 30)


def test_the_ratio_counts_the_bytes_that_a_round_would_read() -> None:
    assert log_to_clean(state(checkpoint=20), CONFIG, NOW).cleanable_ratio == 1 / 3
    assert log_to_clean(state(), CONFIG, NOW).cleanable_ratio == 1
    # A map that was full within a segment leaves the rest of that segment dirty.
    assert log_to_clean(state(checkpoint=25), CONFIG, NOW).cleanable_bytes == 100


def test_a_log_is_due_above_the_ratio_or_when_a_dirty_record_is_too_old() -> None:
    clean = state(checkpoint=20)
    assert not log_to_clean(clean, CONFIG, NOW).is_due(CONFIG)
    assert log_to_clean(state(checkpoint=0), CONFIG, NOW).is_due(CONFIG)
    impatient = LogConfig(max_compaction_lag_ms=499_979)
    assert log_to_clean(clean, impatient, NOW).is_due(impatient)
    patient = LogConfig(max_compaction_lag_ms=499_980)
    assert not log_to_clean(clean, patient, NOW).is_due(patient)
    # The record that is too old is not committed: a round could not remove it.
    assert not log_to_clean(clean._replace(high_watermark=29), impatient, NOW).is_due(impatient)


def test_the_dirtiest_log_that_is_due_is_next() -> None:
    def log(clean: int, dirty: int, *, overdue: bool = False) -> tuple[LogToClean, LogConfig]:
        return LogToClean(0, 10, clean, dirty, overdue), CONFIG

    assert next_to_clean({"a": log(10, 11), "b": log(10, 30), "c": log(0, 0)}) == "b"
    assert next_to_clean({"a": log(10, 10), "b": log(99, 1)}) is None
    assert next_to_clean({"a": log(10, 10), "b": log(99, 1, overdue=True)}) == "b"
    assert next_to_clean({}) is None


def test_groups_fit_a_segment_by_bytes_index_bytes_and_offsets() -> None:
    by_bytes = LogConfig(segment_bytes=250)
    assert segment_groups(segments(0, 10, 20, 30), by_bytes, 40) == [range(2), range(2, 4)]
    by_index = LogConfig(segment_index_bytes=30)
    indexed = [each._replace(index_bytes=16) for each in segments(0, 10, 20)]
    assert segment_groups(indexed, by_index, 30) == [range(1), range(1, 2), range(2, 3)]
    far = segments(0, 2**31 - 10, 2**31 + 10)
    assert segment_groups(far, CONFIG, 2**31 + 20) == [range(1), range(1, 3)]
    assert segment_groups(far[:2], CONFIG, 2**31) == [range(2)]
    assert segment_groups([], CONFIG, 0) == []


def test_one_segment_above_the_limit_is_a_group() -> None:
    assert segment_groups(segments(0, 10, size=300), LogConfig(segment_bytes=250), 20) == [
        range(1),
        range(1, 2),
    ]


def test_empty_segments_far_apart_are_one_group() -> None:
    far = [SegmentState(base, 0, -1, -1) for base in (0, 2**32, 2**33)]
    assert segment_groups(far, CONFIG, 2**34) == [range(3)]


def test_a_group_has_no_more_segments_than_are_renamed_in_one_turn() -> None:
    tiny = segments(*range(2 * MAX_SEGMENTS + 1), size=1)
    assert segment_groups(tiny, CONFIG, len(tiny)) == [
        range(MAX_SEGMENTS),
        range(MAX_SEGMENTS, 2 * MAX_SEGMENTS),
        range(2 * MAX_SEGMENTS, 2 * MAX_SEGMENTS + 1),
    ]
