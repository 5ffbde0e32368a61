"""Finding records by time: ListOffsets of a timestamp, and of the greatest one (KIP-734)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kbroker.log.timestamps import TimestampOffset
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import parse
from tests.kit.log_timestamps import max_timestamp, offset_for_timestamp
from tests.kit.logs import append, batch_of, open_log


def timestamps_in_no_order(log: UnifiedLog, seed: int) -> list[int]:
    """Append some batches with times that go up and down; return the timestamp of each offset."""
    rng = random.Random(seed)
    every: list[int] = []
    now = 1000
    for _ in range(60):
        now += rng.randrange(30)
        batch = [now + rng.randrange(-50, 50) for _ in range(rng.randrange(1, 5))]
        append(log, *batch, epoch=len(every) // 50)
        every += batch
    return every


def first(every: list[int], timestamp: int, start: int = 0) -> tuple[int, int] | None:
    return next(((at, n) for n, at in enumerate(every) if at >= timestamp and n >= start), None)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("reopen", [False, True], ids=["open", "reopened"])
def test_the_first_record_at_or_after_a_time_is_found(
    tmp_path: Path, seed: int, reopen: bool
) -> None:
    settings = {"segment_bytes": 900, "index_interval_bytes": 150}
    log = open_log(tmp_path / "t-0", **settings)  # type: ignore[arg-type]
    every = timestamps_in_no_order(log, seed)
    if reopen:
        log.close()
        log = open_log(tmp_path / "t-0", clean=True, recovery_point=len(every), **settings)  # type: ignore[arg-type]
    for start in (0, 37):
        log.advance_log_start(start)
        for timestamp in range(min(every) - 2, max(every) + 3):
            found = offset_for_timestamp(log, timestamp)
            assert (found and found[:2]) == first(every, timestamp, start)


def test_the_epoch_of_the_record_comes_with_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, 10, epoch=3)
    append(log, 20, epoch=5)
    assert offset_for_timestamp(log, 15) == TimestampOffset(20, 1, 5)


def test_the_greatest_timestamp_is_found_wherever_it_is(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=300)
    assert max_timestamp(log) is None
    for timestamps in ((10, 20), (5, 90, 90), (30,), (7,), (8,), (50, 60)):
        append(log, *timestamps)
    assert max_timestamp(log) == TimestampOffset(90, 3, 0)


def test_records_without_timestamps_are_not_found(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, -1)
    assert offset_for_timestamp(log, 0) is None
    assert max_timestamp(log) is None


def test_log_append_time_is_the_batchs(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", message_timestamp_type="LogAppendTime")
    append(log, 1, 2, now_ms=100)
    append(log, 1, 2, now_ms=200)
    assert offset_for_timestamp(log, 150) == TimestampOffset(200, 2, 0)
    assert offset_for_timestamp(log, 1) == TimestampOffset(100, 0, 0)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_records_are_found_in_compressed_batches(tmp_path: Path, codec: int) -> None:
    log = open_log(tmp_path / "t-0")
    batch = batch_of(10, 20, 30, codec=codec)
    log.append_as_leader(batch, parse(batch), 0, 0)
    assert offset_for_timestamp(log, 15) == TimestampOffset(20, 1, 0)


@pytest.mark.parametrize("reopen", [False, True], ids=["open", "reopened"])
@pytest.mark.parametrize("interval", [1, 4096])
def test_behind_a_record_of_the_latest_possible_time_records_are_found_by_offset(
    tmp_path: Path, interval: int, *, reopen: bool
) -> None:
    latest = (1 << 63) - 1
    every = [1000, 1010, latest, 1020, 1005, latest - 1, 1030, 1040]
    settings = {"index_interval_bytes": interval}
    log = open_log(tmp_path / "t-0", **settings)  # type: ignore[arg-type]
    for at in every:
        append(log, at)
    if reopen:
        log.close()
        log = open_log(tmp_path / "t-0", clean=True, recovery_point=len(every), **settings)  # type: ignore[arg-type]
    for start in range(len(every)):
        log.advance_log_start(start)
        for timestamp in (0, 1001, 1015, 1035, 1041, latest - 1, latest):
            found = offset_for_timestamp(log, timestamp)
            assert (found and found[:2]) == first(every, timestamp, start)
    assert offset_for_timestamp(log, 1041) is None
