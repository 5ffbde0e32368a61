"""Cutting a log at its end (a follower does) and at its start (retention and DeleteRecords)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import parse
from kclient.wire.errors import OffsetOutOfRange
from tests.kit.log_timestamps import offset_for_timestamp
from tests.kit.logs import IgnoredEvents, append, batch_of, open_log, read_bytes, records

SIZE = len(batch_of(0))
NOW = 10**12


def filled(path: Path, batches: int = 10, **settings: object) -> UnifiedLog:
    log = open_log(path, **{"segment_bytes": 3 * SIZE, **settings})  # type: ignore[arg-type]
    for n in range(batches):
        append(log, NOW + n, epoch=n // 2)
    return log


def offsets(log: UnifiedLog) -> list[int]:
    return [offset for offset, _ in records(log)]


@pytest.mark.parametrize("offset", range(11))
@pytest.mark.parametrize("reopen", [False, True], ids=["open", "reopened"])
def test_a_log_truncated_to_any_offset_ends_there_and_goes_on(
    tmp_path: Path, offset: int, reopen: bool
) -> None:
    log = filled(tmp_path / "t-0")
    log.flush()
    assert log.truncate_to(offset) == offset
    assert log.recovery_point == offset
    assert all(entry.start_offset < offset for entry in log.leader_epochs.entries)
    if reopen:
        assert log.close()
        log = open_log(tmp_path / "t-0", clean=True, recovery_point=offset, segment_bytes=3 * SIZE)
    assert offsets(log) == list(range(offset))
    assert append(log, NOW + 99, epoch=9).base_offset == offset
    assert offsets(log) == list(range(offset + 1))


def test_a_truncation_inside_of_a_batch_takes_the_whole_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, 1, 2, 3)
    append(log, 4, 5, 6)
    assert log.truncate_to(4) == 3
    assert log.log_end_offset == 3


def test_a_truncation_beyond_the_end_does_nothing(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    assert log.truncate_to(10) == log.truncate_to(11) == 10


def test_timestamps_of_truncated_records_are_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", index_interval_bytes=0)
    for timestamp in (10, 20, 90, 30):
        append(log, timestamp)
    log.truncate_to(2)
    assert log.segments[-1].max_timestamp == 20
    assert offset_for_timestamp(log, 21) is None
    append(log, 25)
    found = offset_for_timestamp(log, 21)
    assert found is not None
    assert (found.timestamp, found.offset) == (25, 2)


def test_time_index_entries_of_truncated_records_are_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", index_interval_bytes=0)
    for timestamp in (10, 20, 30, 40):
        append(log, timestamp)
    log.truncate_to(2)
    assert len(log.segments[-1].time_index) == 1
    assert len(log.segments[-1].offset_index) == 1
    append(log, 45)
    append(log, 46)
    found = offset_for_timestamp(log, 44)
    assert found is not None
    assert found.offset == 2


def test_positions_of_truncated_batches_are_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for n in range(4):
        append(log, n)
    log.truncate_to(1)
    append(log, 1, 2, 3, value=b"longer than before")
    assert parse(read_bytes(log, 2)).base_offset == 1


def test_a_truncation_below_the_log_start_takes_the_start_with_it(tmp_path: Path) -> None:
    """A follower with an end inside of a batch could never take that batch again."""
    log = open_log(tmp_path / "t-0")
    append(log, 1, 2, 3)
    log.advance_log_start(1)
    assert log.truncate_to(2) == 0
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    log.append_as_follower(batch_of(1, 2, 3, leader_epoch=0), 0)
    assert log.log_end_offset == 3


def test_a_log_can_begin_again_anywhere(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    log.truncate_fully_and_start_at(500)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (500, 500, 0)
    assert log.leader_epochs.entries == ()
    append(log, 1, epoch=7)
    assert offsets(log) == [500]
    log.truncate_fully_and_start_at(3)
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    assert len(list((tmp_path / "t-0").glob("*.log"))) == 1
    log.close()
    log = open_log(tmp_path / "t-0", clean=True, recovery_point=3)
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)


def test_a_flush_that_began_before_a_truncation_does_not_count(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    work = log.start_flush()
    assert work is not None
    work.run()
    log.truncate_to(5)
    for _ in range(7):
        append(log, 1, epoch=9)
    log.finish_flush(work)
    assert log.recovery_point == 0


def test_of_a_log_that_began_again_nothing_is_synced(tmp_path: Path) -> None:
    """Else a power loss that undoes it brings back records that count as synced, and as committed."""
    log = filled(tmp_path / "t-0")
    log.flush()
    assert log.recovery_point == 10
    log.truncate_fully_and_start_at(7)
    assert log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 7


def test_a_log_that_began_again_further_on_counts_after_a_sync_where_appends_do(
    tmp_path: Path,
) -> None:
    asked = []

    class Listener(IgnoredEvents):
        def flush_due(self) -> None:
            asked.append(log.held_at)

    log = open_log(tmp_path / "t-0", listener=Listener(), flush_messages=1)
    log.truncate_fully_and_start_at(7)
    assert (log.log_end_offset, log.held_at, asked) == (7, 0, [0])
    log.flush()
    assert log.held_at is None
    log.truncate_fully_and_start_at(3)
    assert log.held_at is None, "a power loss brings back a log that ends further on"


def test_a_flush_moves_the_recovery_point_to_where_it_began(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    work = log.start_flush()
    assert work is not None
    append(log, 1, epoch=4)
    work.run()
    log.finish_flush(work)
    assert log.recovery_point == 10
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").exists()
    assert log.start_flush(sealed_only=True) is None


def test_a_roll_asks_for_a_flush_of_what_was_sealed(tmp_path: Path) -> None:
    points = []

    class Listener(IgnoredEvents):
        def rolled(self) -> None:
            work = log.start_flush(sealed_only=True)
            assert work is not None
            work.run()
            log.finish_flush(work)
            points.append(log.recovery_point)

    log = open_log(tmp_path / "t-0", listener=Listener(), segment_bytes=3 * SIZE)
    for n in range(8):
        append(log, n)
    assert points == [3, 6]


# The start of the log


def test_delete_records_hides_and_retention_removes(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    assert log.advance_log_start(4)
    assert not log.advance_log_start(2)
    assert offsets(log) == list(range(4, 10))
    assert len(log.segments) == 4
    log.delete_old_segments(NOW)
    assert [segment.base_offset for segment in log.segments] == [3, 6, 9]
    assert log.log_start_offset == 4
    with pytest.raises(OffsetOutOfRange):
        log.advance_log_start(11)


def test_damage_behind_the_newest_record_of_a_segment_does_not_hold_retention_up(
    tmp_path: Path,
) -> None:
    settings = {"segment_bytes": 3 * SIZE, "retention_ms": 1000}
    log = open_log(tmp_path / "t-0", **settings)
    for timestamp in (NOW, NOW - 1, NOW - 2, NOW + 1):
        append(log, timestamp)
    assert log.close()
    with open(log.segments[0].path, "r+b") as file:
        file.seek(2 * SIZE + 16)  # the magic byte of the third batch
        file.write(b"\0")
    log = open_log(tmp_path / "t-0", clean=True, recovery_point=4, **settings)
    assert log.delete_old_segments(NOW + 1001)
    assert log.log_start_offset == 3


def test_delete_records_up_to_the_end_leaves_an_empty_log(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    log.advance_log_start(10)
    assert offsets(log) == []
    log.delete_old_segments(NOW)
    assert log.log_end_offset == 10
    assert append(log, 1, epoch=9).base_offset == 10


def test_epochs_before_the_log_start_are_forgotten_but_the_one_in_force(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    log.advance_log_start(5)
    assert log.leader_epochs.entries == ((2, 5), (3, 6), (4, 8))


def test_segments_go_when_their_newest_record_is_old(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_ms=100)
    assert log.delete_old_segments(NOW + 102) == []
    paths = log.delete_old_segments(NOW + 105)
    assert [segment.base_offset for segment in log.segments] == [3, 6, 9]
    assert all(path.endswith(".deleted") and os.path.exists(path) for path in paths)
    assert len(paths) == 3
    assert offsets(log) == list(range(3, 10))


def test_one_new_record_keeps_what_is_behind_it(tmp_path: Path) -> None:
    """Retention takes a prefix: an old segment behind a young one waits."""
    log = open_log(tmp_path / "t-0", segment_bytes=SIZE, retention_ms=100)
    for timestamp in (NOW, NOW + 500, NOW, NOW):
        append(log, timestamp)
    log.delete_old_segments(NOW + 300)
    assert log.log_start_offset == 1


def test_when_everything_is_old_the_log_goes_on_in_a_new_segment(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_ms=100)
    log.delete_old_segments(NOW + 10**6)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (10, 10, 0)
    assert log.delete_old_segments(NOW + 10**6) == []
    assert append(log, NOW, epoch=9).base_offset == 10


def test_records_from_the_future_are_kept_by_time(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_ms=100)
    assert log.delete_old_segments(NOW - 10**9) == []


def test_segments_without_timestamps_are_as_old_as_their_files(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=SIZE, retention_ms=100)
    for _ in range(3):
        append(log, -1)
    modified_ms = os.stat(log.segments[0].path).st_mtime_ns // 10**6
    assert log.delete_old_segments(modified_ms + 50) == []
    assert log.delete_old_segments(modified_ms + 10**6)
    assert log.size == 0


def test_the_oldest_segments_beyond_retention_bytes_go(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_bytes=4 * SIZE)
    log.delete_old_segments(NOW)
    assert log.log_start_offset == 6
    assert log.size == 4 * SIZE


def test_a_segment_that_fits_retention_bytes_in_part_stays(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_bytes=5 * SIZE)
    log.delete_old_segments(NOW)
    assert log.log_start_offset == 3


def test_retention_takes_nothing_above_the_high_watermark(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_bytes=0)
    log.delete_old_segments(NOW, up_to_offset=5)
    assert log.log_start_offset == 3


def test_a_compacted_log_is_left_alone_by_retention(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_bytes=0, retention_ms=0, cleanup_policy=("compact",))
    assert log.delete_old_segments(NOW + 10**6) == []
    log.advance_log_start(4)
    log.delete_old_segments(NOW + 10**6)
    assert log.segments[0].base_offset == 3


def test_retention_finds_the_age_of_a_segment_after_a_restart(tmp_path: Path) -> None:
    settings = {"segment_bytes": 3 * SIZE, "retention_ms": 100}
    log = filled(tmp_path / "t-0", retention_ms=100)
    log.close()
    log = open_log(tmp_path / "t-0", clean=True, recovery_point=10, **settings)  # type: ignore[arg-type]
    log.delete_old_segments(NOW + 105)
    assert log.log_start_offset == 3
