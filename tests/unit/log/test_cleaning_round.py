"""A round of compaction, step by step, while other things happen to its log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log.cleaner import Cleaner, CleanerSizes
from kbroker.log.cleaning_round import CleaningRound, Steps, state_of
from kbroker.log.core.log_to_clean import log_to_clean
from kbroker.log.disk import OS_DISK, Disk
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import TRANSACTIONAL, iterate, parse
from kclient.wire.errors import CorruptMessage, KafkaStorageError
from kclient.wire.records import ABORT, COMMIT, Record, decode_batch, encode_batch
from tests.kit.logs import open_log, read_bytes
from tests.kit.transactional_logs import marker

SETTINGS = {
    "segment_bytes": 160,
    "index_interval_bytes": 1,
    "cleanup_policy": ("compact",),
    "min_cleanable_dirty_ratio": 0.0,
}


def put(log: UnifiedLog, key: bytes, value: bytes | None, **fields: int) -> None:
    batch = encode_batch([Record(0, 1, key, value)], **fields)
    log.append_as_leader(batch, parse(batch), 0, 1)


def held(log: UnifiedLog) -> list[tuple[int, bytes | None]]:
    """Every offset and key that a consumer reads."""
    found = []
    offset = log.log_start_offset
    while data := read_bytes(log, offset):
        for info in iterate(data):
            found += [(each.offset, each.key) for each in decode_batch(data, info)]
            offset = info.next_offset
    return found


@pytest.fixture
def log(tmp_path: Path) -> UnifiedLog:
    """Return a log of eight synced records, two in a segment: keys a, b and their successors."""
    log = open_log(tmp_path / "t-0", **SETTINGS)
    for key in (b"a", b"b", b"c", b"d", b"a", b"b", b"e", b"f"):
        put(log, key, b"v")
    log.flush()
    assert [each.base_offset for each in log.segments] == [0, 2, 4, 6]
    return log


def round_of(log: UnifiedLog, disk: Disk = OS_DISK) -> CleaningRound:
    to_clean = log_to_clean(state_of(log, log.log_end_offset, None), log.config, 1)
    return CleaningRound(
        log,
        to_clean,
        lambda segments, limits: Cleaner(
            disk,
            segments,
            limits,
            CleanerSizes(24 * 100, 0.9, 1 << 16),
            throttle=lambda _bytes: None,
        ),
        1,
    )


def play(steps: Steps, *, until: Callable[[], bool] = lambda: False) -> None:
    """Do the work of *steps*, as the pool does, up to the moment *until*."""
    for work in steps:
        try:
            work()
        except Exception as error:
            steps.throw(error)
        if until():
            return


def test_a_round_removes_what_has_a_successor(log: UnifiedLog) -> None:
    cleaning = round_of(log)
    play(cleaning.steps())
    assert cleaning.clean_below == 6
    assert held(log) == [(2, b"c"), (3, b"d"), (4, b"a"), (5, b"b"), (6, b"e"), (7, b"f")]
    assert cleaning.files


def test_the_groups_are_replaced_in_order_and_each_is_one_segment(log: UnifiedLog) -> None:
    # Segments of a size that two of them, cleaned, still fit: the first two become one.
    log.config = log.config.overridden({"segment.bytes": "320"})
    play(round_of(log).steps())
    assert [each.base_offset for each in log.segments] == [0, 4, 6]
    assert len(held(log)) == 6


@pytest.mark.parametrize("published", [False, True])
def test_a_record_that_is_truncated_during_a_round_removes_no_other(
    log: UnifiedLog, published: bool, tmp_path: Path
) -> None:
    cleaning = round_of(log)
    steps = cleaning.steps()
    names = tmp_path / "t-0"
    suffix = ".log.swap" if published else ".log.cleaned"
    play(steps, until=lambda: any(each.name.endswith(suffix) for each in names.iterdir()))
    log.truncate_to(4)  # the successors of a and b are gone
    assert not [each for each in names.iterdir() if each.name.endswith((".swap", ".cleaned"))]
    play(steps)
    assert cleaning.clean_below is None
    assert held(log) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert held(open_log(names, recovery_point=4, **SETTINGS)) == held(log)


def test_a_truncation_while_the_map_is_built_ends_the_round(log: UnifiedLog) -> None:
    cleaning = round_of(log)
    steps = cleaning.steps()
    play(steps, until=lambda: True)
    log.truncate_to(4)
    for key in (b"x", b"y", b"z"):
        put(log, key, b"v")
    log.flush()
    play(steps)
    assert cleaning.clean_below is None
    assert held(log)[:2] == [(0, b"a"), (1, b"b")]


def test_retention_of_a_segment_ends_the_round(log: UnifiedLog) -> None:
    cleaning = round_of(log)
    steps = cleaning.steps()
    play(steps, until=lambda: True)
    log.advance_log_start(2)
    log.delete_old_segments(1)
    play(steps)
    assert cleaning.clean_below is None
    assert held(log)[0] == (2, b"c")


@pytest.mark.parametrize("cut", [True, False])
def test_a_segment_that_cannot_be_read_is_an_error_unless_the_log_was_cut(
    log: UnifiedLog, cut: bool
) -> None:
    path = Path(log.segments[2].path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    steps = round_of(log).steps()
    if not cut:
        with pytest.raises(CorruptMessage, match="CRC"):
            play(steps)
        assert [each.base_offset for each in log.segments] == [0, 2, 4, 6]
        return
    work = next(steps)
    log.truncate_to(4)
    with pytest.raises((CorruptMessage, FileNotFoundError)) as found:
        work()
    with pytest.raises(StopIteration):
        steps.throw(found.value)
    assert held(log) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


def test_damage_that_is_met_while_a_group_is_written_replaces_nothing_of_it(
    log: UnifiedLog, tmp_path: Path
) -> None:
    steps = round_of(log).steps()
    play(steps, until=lambda: True)
    path = Path(log.segments[0].path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptMessage, match="CRC"):
        play(steps)
    assert not [
        each for each in (tmp_path / "t-0").iterdir() if each.name.endswith((".swap", ".cleaned"))
    ]
    assert log.failure is None
    # The next round begins: the first one is over.
    with pytest.raises(CorruptMessage):
        play(round_of(log).steps())


def test_a_fenced_log_is_not_cleaned(log: UnifiedLog) -> None:
    steps = round_of(log).steps()
    play(steps, until=lambda: True)
    log.flush_failed(OSError("broken"))
    play(steps)
    with pytest.raises(KafkaStorageError):
        log.start_replacement(0, 1)


def put_transactional(log: UnifiedLog, key: bytes, producer: int, sequence: int = 0) -> None:
    put(
        log, key, b"v",
        producer_id=producer, producer_epoch=0, base_sequence=sequence, attributes=TRANSACTIONAL,
    )  # fmt: skip


def end_transaction(log: UnifiedLog, producer: int, kind: int) -> None:
    batch = marker(producer, kind)
    log.append_as_leader(batch, parse(batch), 0, 1)


def test_a_round_ends_before_the_first_open_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **SETTINGS)
    for key in (b"a", b"b", b"a"):
        put(log, key, b"v")
    put_transactional(log, b"b", 5)
    for key in (b"b", b"c", b"d"):
        put(log, key, b"v")
    log.flush()
    cleaning = round_of(log)
    play(cleaning.steps())
    assert cleaning.clean_below == 2  # where the segment with offset 3 begins
    assert held(log)[:3] == [(0, b"a"), (1, b"b"), (2, b"a")]
    end_transaction(log, 5, COMMIT)
    put(log, b"e", b"v")
    log.flush()
    play(round_of(log).steps())
    assert held(log)[:2] == [(2, b"a"), (4, b"b")]


def test_an_aborted_record_supersedes_none_and_its_entry_goes_with_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **SETTINGS)
    put(log, b"a", b"v")
    put_transactional(log, b"a", 5)
    put_transactional(log, b"b", 6)
    end_transaction(log, 5, ABORT)
    put_transactional(log, b"c", 5, 1)
    end_transaction(log, 6, ABORT)
    end_transaction(log, 5, COMMIT)
    put(log, b"d", b"v")
    put(log, b"e", b"v")
    log.flush()
    log.producers.states.clear()  # they wrote nothing for a long time
    play(round_of(log).steps())
    assert [key for _, key in held(log) if key and len(key) == 1] == [b"a", b"c", b"d", b"e"]
    assert [offset for offset, key in held(log) if key and len(key) > 1] == [3, 5, 6]  # markers
    assert not [entry for each in log.segments for entry in each.transaction_index.entries()]


def test_an_index_that_lacks_an_aborted_transaction_ends_the_round(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **SETTINGS)
    put(log, b"a", b"v")
    put_transactional(log, b"a", 5)
    end_transaction(log, 5, ABORT)
    for key in (b"c", b"d", b"e"):
        put(log, key, b"v")
    log.flush()
    for each in log.segments:
        each.transaction_index.reset()
    before = held(log)
    with pytest.raises(
        CorruptMessage, match=r"2\.log: the transaction index contradicts the marker"
    ):
        play(round_of(log).steps())
    assert held(log) == before


def test_a_marker_that_is_truncated_during_a_round_decides_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **SETTINGS)
    put(log, b"a", b"v")
    put(log, b"b", b"v")
    put_transactional(log, b"a", 5)
    for key in (b"c", b"d", b"e"):
        put(log, key, b"v")
    end_transaction(log, 5, COMMIT)
    log.flush()
    cleaning = round_of(log)
    steps = cleaning.steps()
    directory = tmp_path / "t-0"
    play(steps, until=lambda: any(each.name.endswith(".cleaned") for each in directory.iterdir()))
    log.truncate_to(6)  # by an unclean election: the transaction is open again, and may be aborted
    play(steps)
    assert cleaning.clean_below is None
    assert held(log)[:3] == [(0, b"a"), (1, b"b"), (2, b"a")]


@pytest.mark.long
def test_the_owner_has_no_long_step_in_a_round_over_many_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **SETTINGS)
    put_transactional(log, b"a", 9)  # open below all others, up to the end of the log
    while len(log.segments) < 300:
        put(log, b"a", b"v")
        put_transactional(log, b"b", 5, log.log_end_offset)
        end_transaction(log, 5, ABORT)
    end_transaction(log, 9, ABORT)
    put(log, b"a", b"v")
    log.roll(1)
    log.flush()
    log.config = log.config.overridden({"segment.bytes": "1048576"})
    taken = []
    began = time.thread_time()
    cleaning = round_of(log)
    for work in cleaning.steps():
        taken.append(time.thread_time() - began)
        work()
        began = time.thread_time()
    taken.append(time.thread_time() - began)
    assert len(log.segments) < 10
    assert max(taken) < 0.1, [round(each, 3) for each in taken]  # CPU time
