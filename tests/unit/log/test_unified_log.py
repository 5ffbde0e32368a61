"""Appending to a log and reading from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.disk import OS_DISK
from kbroker.log.log_segment import LogSegment
from kbroker.log.log_segments import EMPTY
from kclient.wire.batches import HEADER_SIZE, iterate, parse
from kclient.wire.errors import CorruptMessage, OffsetOutOfRange, RecordListTooLarge
from kclient.wire.records import decode_batch
from tests.kit.logs import append, batch_of, open_log, read_bytes, records

SIZE = len(batch_of(0))


def test_offsets_are_given_in_order_and_stamped_into_the_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    assert append(log, 1, 2, 3, epoch=7)[:2] == (0, 2)
    assert append(log, 4, epoch=7)[:2] == (3, 3)
    assert log.log_end_offset == 4
    first, second = iterate(read_bytes(log, 0))
    assert (first.base_offset, first.leader_epoch, first.last_offset) == (0, 7, 2)
    assert (second.base_offset, second.leader_epoch) == (3, 7)


def test_a_batch_is_kept_byte_for_byte_behind_its_stamp(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log)
    batch = batch_of(5, 6, value=b"payload", codec=1)
    log.append_as_leader(batch, parse(batch), 3, 0)
    assert read_bytes(log, 1)[16:] == batch[16:]


def test_a_batch_in_the_middle_of_a_request_is_appended_from_where_it_lies(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    batch = batch_of(5, value=b"inside")
    frame = b"header" + batch + b"trailer"
    log.append_as_leader(memoryview(frame), parse(frame, 6), 0, 0)
    assert records(log) == [(0, b"inside")]


def test_log_append_time_puts_the_leaders_clock_into_the_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", message_timestamp_type="LogAppendTime")
    assert append(log, 1, 2, now_ms=1234).log_append_time_ms == 1234
    data = read_bytes(log, 0)
    info = parse(data)
    assert info.log_append_time
    assert [record.timestamp for record in decode_batch(data, info)] == [1234, 1234]


def test_create_time_reports_no_append_time(tmp_path: Path) -> None:
    assert append(open_log(tmp_path / "t-0"), 1, now_ms=1234).log_append_time_ms == -1


def test_a_read_is_a_slice_of_the_file_and_holds_it_open(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log)
    (part,) = log.read(0, 1000).slices
    log.close()
    assert os.pread(part.fileno(), SIZE, 0)[16:] == batch_of(0)[16:]
    fd = part.fileno()
    part.release()
    part.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(ValueError, match="released"):
        part.fileno()


def test_a_read_begins_with_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, 1, 2, 3)
    append(log, 4, 5, 6)
    assert parse(read_bytes(log, 5)).base_offset == 3


@pytest.mark.parametrize("index_interval", [0, 1, 200, 4096])
def test_every_offset_is_found_through_the_index(tmp_path: Path, index_interval: int) -> None:
    settings: dict[str, Any] = {"segment_bytes": 20 * SIZE, "index_interval_bytes": index_interval}
    log = open_log(tmp_path / "t-0", **settings)
    for n in range(100):
        append(log, n, n)
    log.close()
    log = open_log(tmp_path / "t-0", clean=True, recovery_point=200, **settings)
    for offset in range(200):
        assert parse(read_bytes(log, offset)).base_offset == offset // 2 * 2


def test_reading_at_the_end_finds_nothing_and_beyond_it_is_out_of_range(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log)
    assert log.read(1, 1000) == EMPTY
    with pytest.raises(OffsetOutOfRange, match=r"2 .* outside 0\.\.1"):
        log.read(2, 1000)
    log.advance_log_start(1)
    with pytest.raises(OffsetOutOfRange):
        log.read(0, 1000)


def test_max_bytes_cuts_the_last_batch_but_never_the_first(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for _ in range(3):
        append(log)
    assert log.read(0, SIZE + 5).size == SIZE + 5
    assert log.read(0, SIZE - 1).size == SIZE
    assert log.read(0, 0).size == SIZE
    assert log.read(0, SIZE - 1, min_one_batch=False) == EMPTY
    assert log.read(0, SIZE, min_one_batch=False).size == SIZE


def test_nothing_at_or_above_the_high_watermark_is_read(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=4 * SIZE)
    for n in range(10):
        append(log, n)
    for high_watermark in range(11):
        got = records(log, up_to_offset=high_watermark)
        assert [offset for offset, _ in got] == list(range(high_watermark))


def test_a_batch_that_straddles_the_high_watermark_is_held_back(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log)
    append(log, 1, 2, 3)
    assert log.read(0, 1000, up_to_offset=2).size == SIZE
    assert log.read(1, 1000, up_to_offset=2) == EMPTY


def test_old_batches_are_bounded_by_the_high_watermark_too(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for n in range(1000):  # far more than the log remembers positions of
        append(log, n)
    assert log.read(10, 1 << 20, up_to_offset=20).size == 10 * SIZE


def test_a_segment_is_rolled_before_it_grows_beyond_segment_bytes(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=2 * SIZE)
    for n in range(5):
        append(log, n)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]
    assert sorted(path.name for path in (tmp_path / "t-0").glob("*.log")) == [
        "00000000000000000000.log",
        "00000000000000000002.log",
        "00000000000000000004.log",
    ]
    assert records(log) == [(n, b"v") for n in range(5)]


def test_a_segment_is_rolled_when_its_records_span_segment_ms(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_ms=100)
    for timestamp in (1000, 1100, 1101, 1150):
        append(log, timestamp)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_segment_of_a_compacted_log_is_rolled_by_the_max_compaction_lag(tmp_path: Path) -> None:
    settings = {"segment_ms": 1000, "max_compaction_lag_ms": 100}
    for policy, count in ((("compact",), 2), (("compact", "delete"), 2), (("delete",), 1)):
        log = open_log(tmp_path / f"{'-'.join(policy)}-0", cleanup_policy=policy, **settings)
        for timestamp in (1000, 1101):
            append(log, timestamp)
        assert len(log.segments) == count
        log.close()


def test_segment_jitter_shortens_segment_ms_by_another_amount_for_each_segment(
    tmp_path: Path,
) -> None:
    spans = set()
    for partition in range(6):
        directory = tmp_path / f"t-{partition}"
        log = open_log(directory, segment_ms=1000, segment_jitter_ms=400)
        timestamp = 0
        while len(log.segments) == 1:
            append(log, timestamp)
            timestamp += 1
        spans.add(timestamp - 1)
        assert 600 < timestamp - 1 <= 1001
        log.close()
        log = open_log(directory, segment_ms=1000, segment_jitter_ms=400, clean=True)
        append(log, 599 + timestamp)
        assert len(log.segments) == 2, "a restart does not change it"
    assert len(spans) > 3


def test_the_jitter_of_partitions_of_one_topic_is_spread_whatever_the_path() -> None:
    few = 0
    for number in range(2000):
        stems = [f"/data/{number}/t-{p}/00000000000000000000" for p in range(6)]
        few += len({_segment(stem)._jitter(400) for stem in stems}) < 5
    assert few < 10, "a random choice has 5 or 6 different ones in 999 of 1,000 cases"


def _segment(stem: str) -> LogSegment:
    segment = LogSegment.__new__(LogSegment)
    segment.stem = stem
    return segment


def test_a_jitter_above_segment_ms_counts_as_segment_ms(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_ms=100, segment_jitter_ms=10**9)
    for timestamp in range(102):
        append(log, timestamp)
    assert len(log.segments) > 1


def reserved(directory: Path, segment: int = 0) -> int:
    """Return the bytes on the disk of a segment's file."""
    return (directory / f"{segment:020d}.log").stat().st_blocks * 512


def can_reserve(directory: Path) -> bool:
    with (directory / "probe").open("wb") as file:
        OS_DISK.preallocate(file.fileno(), 1 << 20)
        return os.fstat(file.fileno()).st_blocks * 512 >= 1 << 20


def test_preallocate_reserves_a_segment_and_gives_back_the_rest(tmp_path: Path) -> None:
    if not can_reserve(tmp_path):
        pytest.skip("this file system cannot reserve space")
    directory = tmp_path / "t-0"
    log = open_log(directory, segment_bytes=1 << 20, preallocate=True)
    assert reserved(directory) == 0, "a log without records takes no space"
    append(log, 1)
    assert reserved(directory) >= 1 << 20
    assert (directory / f"{0:020d}.log").stat().st_size == SIZE, "the file does not grow"
    append(log, 2, value=bytes((1 << 20) - 2 * SIZE + 20))
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    assert reserved(directory) < 1 << 16
    assert reserved(directory, 1) >= 1 << 20
    log.truncate_to(1)
    append(log, 2)
    log.close()
    assert reserved(directory, 1) < 1 << 16
    log = open_log(directory, clean=False, preallocate=True)
    assert [offset for offset, _ in records(log)] == [0, 1]


def test_segment_ms_counts_from_the_first_batch_after_a_restart_too(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_ms=100)
    append(log, 1000)
    log.close()
    log = open_log(tmp_path / "t-0", segment_ms=100, clean=True, now_ms=10**6)
    append(log, 1100, now_ms=10**6)
    assert len(log.segments) == 1
    append(log, 1101, now_ms=10**6)
    assert len(log.segments) == 2


def test_a_full_index_rolls_the_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", index_interval_bytes=0, segment_index_bytes=3 * 12)
    for n in range(12):
        append(log, n)
    assert len(log.segments) > 2
    for segment in log.segments:
        assert len(segment.offset_index) <= 4
        assert len(segment.time_index) <= 3


def test_an_offset_too_far_from_the_base_rolls_the_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", cleanup_policy=("compact",))
    log.append_as_follower(batch_of(1, base_offset=0, leader_epoch=0), 0)
    log.append_as_follower(batch_of(1, base_offset=2**31 + 5, leader_epoch=0), 0)
    assert [segment.base_offset for segment in log.segments] == [0, 6]
    assert records(log) == [(0, b"v"), (2**31 + 5, b"v")]


def test_a_batch_above_segment_bytes_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=SIZE - 1)
    with pytest.raises(RecordListTooLarge, match=r"segment\.bytes"):
        append(log)
    assert (log.log_end_offset, log.size) == (0, 0)


def test_a_follower_keeps_offsets_and_epochs_of_the_leader(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader", segment_bytes=5 * SIZE)
    for n in range(9):
        append(leader, n, value=b"%d" % n, epoch=n // 4)
    follower = open_log(tmp_path / "follower", segment_bytes=4 * SIZE)
    while data := read_bytes(leader, follower.log_end_offset, 3 * SIZE + 10):
        assert follower.append_as_follower(data, 0) <= 3 * SIZE
    assert records(follower) == records(leader)
    assert (
        follower.leader_epochs.entries == leader.leader_epochs.entries == ((0, 0), (1, 4), (2, 8))
    )


def test_a_follower_rolls_inside_of_what_the_leader_sent(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=3 * SIZE)
    data = b"".join(batch_of(1, base_offset=n, leader_epoch=0) for n in range(10))
    assert log.append_as_follower(data, 0) == 10 * SIZE
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]


def test_a_follower_takes_the_batches_before_a_corrupt_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    bad = bytearray(batch_of(1, base_offset=1, leader_epoch=0))
    bad[-1] ^= 1
    with pytest.raises(CorruptMessage, match="CRC"):
        log.append_as_follower(batch_of(1, leader_epoch=0) + bad, 0)
    assert records(log) == [(0, b"v")]
    assert log.failure is None


def test_a_follower_refuses_an_offset_it_has_already(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, 1, 2)
    with pytest.raises(CorruptMessage, match="does not follow"):
        log.append_as_follower(batch_of(1, base_offset=1, leader_epoch=0), 0)
    assert log.log_end_offset == 2


def test_a_header_that_rotted_is_an_error_and_not_a_skip(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for n in range(300):
        append(log, n)
    path = tmp_path / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[SIZE : SIZE + HEADER_SIZE] = bytes(HEADER_SIZE)
    path.write_bytes(data)
    with pytest.raises(CorruptMessage, match=rf"00\.log.*byte {SIZE}"):
        log.read(2, 1000)
    assert log.log_end_offset == 300
