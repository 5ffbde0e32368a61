"""Disks that fail: nothing unwritten is acknowledged, nothing half-written is seen (S15, S16)."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from kbroker.log.disk import replace_file
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import parse
from kclient.wire.errors import KafkaStorageError
from tests.kit.logs import (
    IGNORED,
    FaultyDisk,
    IgnoredEvents,
    append,
    batch_of,
    config,
    open_log,
    records,
    two_flushes,
)
from tests.kit.simulated_disk import SimulatedDisk

SIZE = len(batch_of(0))
LOG = "00000000000000000000.log"


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_after_a_failed_write_nothing_more_is_accepted(tmp_path: Path, error: int) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk)
    append(log, 1)
    disk.fail("pwritev", error)
    with pytest.raises(KafkaStorageError, match=os.strerror(error)):
        append(log, 2)
    with pytest.raises(KafkaStorageError, match="takes no more appends"):
        append(log, 3)
    with pytest.raises(KafkaStorageError):
        log.append_as_follower(batch_of(1, base_offset=1), 0)
    assert records(log) == [(0, b"v")]
    assert records(open_log(tmp_path / "t-0")) == [(0, b"v")]


def test_a_short_write_is_completed(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk)
    append(log, 1)
    disk.write_short(3, 20, 1)
    append(log, 2, value=b"second")
    append(log, 3)
    assert records(log) == [(0, b"v"), (1, b"second"), (2, b"v")]
    log.close(clean=False)
    assert records(open_log(tmp_path / "t-0")) == [(0, b"v"), (1, b"second"), (2, b"v")]


@pytest.mark.parametrize("written", range(SIZE))
def test_a_write_that_fails_half_way_leaves_no_trace(tmp_path: Path, written: int) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk)
    append(log, 1)
    disk.write_short(written)
    disk.fail("pwritev", errno.ENOSPC)
    with pytest.raises(KafkaStorageError):
        append(log, 2)
    assert records(log) == [(0, b"v")]
    assert (tmp_path / "t-0" / LOG).stat().st_size == SIZE


def test_a_disk_that_takes_nothing_is_a_failure_and_no_endless_loop(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk)
    disk.write_short(5, 0)
    with pytest.raises(KafkaStorageError, match="took 5 of"):
        append(log, 2)


def test_half_a_batch_that_cannot_even_be_cut_off_is_not_seen(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk)
    append(log, 1)
    disk.write_short(40)
    disk.fail("pwritev")
    disk.fail("ftruncate")
    with pytest.raises(KafkaStorageError):
        append(log, 2)
    assert (tmp_path / "t-0" / LOG).stat().st_size == SIZE + 40
    assert records(log) == [(0, b"v")]
    assert records(open_log(tmp_path / "t-0")) == [(0, b"v")]


def test_a_failed_sync_fences_the_log_and_is_not_tried_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk)
    append(log, 1)
    disk.fail("fsync")
    with pytest.raises(KafkaStorageError):
        log.flush()
    assert log.recovery_point == 0
    with pytest.raises(KafkaStorageError):
        log.flush()
    with pytest.raises(KafkaStorageError):
        append(log, 2)
    assert log.close() is False


def test_a_failed_sync_in_the_pool_fences_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, 1)
    assert log.start_flush() is not None
    log.flush_failed(OSError(errno.EIO, "I/O error"))
    with pytest.raises(KafkaStorageError):
        append(log, 2)


def test_a_flush_that_overtakes_another_one_waits_for_what_that_one_writes(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    first, second = two_flushes(log, 3, 5)
    second.run()
    log.finish_flush(second)
    assert log.recovery_point == 2
    first.run()
    log.finish_flush(first)
    log = open_log(tmp_path / "t-0", recovery_point=2)
    assert log.leader_epochs.entries == ((3, 0), (5, 1))


def test_a_flush_after_one_that_failed_fails(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk)
    first, second = two_flushes(log)
    disk.fail("fsync")
    with pytest.raises(OSError, match="error"):
        first.run()
    with pytest.raises(OSError, match="error"):
        second.run()


@pytest.mark.parametrize("call", ["open", "pwritev"])
def test_a_roll_that_fails_fences_the_log(tmp_path: Path, call: str) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk, segment_bytes=2 * SIZE, index_interval_bytes=0)
    append(log, 1)
    append(log, 2)
    disk.fail(call, errno.ENOSPC)
    with pytest.raises(KafkaStorageError):
        append(log, 3)
    with pytest.raises(KafkaStorageError):
        append(log, 4)
    assert records(log) == [(0, b"v"), (1, b"v")]
    assert records(open_log(tmp_path / "t-0")) == [(0, b"v"), (1, b"v")]


class Failures(IgnoredEvents):
    """The failures that a log reports."""

    def __init__(self) -> None:
        self.reported: list[int | None] = []

    def failed(self, error: OSError) -> None:
        self.reported.append(error.errno)


def test_the_listener_receives_the_first_failure_only(tmp_path: Path) -> None:
    failures, disk = Failures(), FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk, listener=failures)
    disk.fail("pwritev", errno.EIO, times=2)
    for _ in range(3):
        with pytest.raises(KafkaStorageError):
            append(log, 1)
    assert failures.reported == [errno.EIO]


@pytest.mark.parametrize("call", ["ftruncate", "rename"])
def test_a_truncation_that_fails_fences_the_log(tmp_path: Path, call: str) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk, segment_bytes=3 * SIZE)
    for n in range(8):
        append(log, n)
    disk.fail(call)
    with pytest.raises(KafkaStorageError):
        log.truncate_to(1)
    with pytest.raises(KafkaStorageError):
        append(log, 9)


def test_a_read_that_fails_is_a_storage_error(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk)
    for n in range(500):
        append(log, n)
    disk.fail("pread")
    with pytest.raises(KafkaStorageError, match=LOG):
        log.read(3, 100)


def test_a_small_file_is_replaced_in_one_lasting_step(tmp_path: Path) -> None:
    disk = FaultyDisk()
    path = str(tmp_path / "file")
    replace_file(disk, path, b"old")
    disk.calls.clear()
    replace_file(disk, path, b"new")
    assert [call for call, _ in disk.calls] == ["open", "fsync", "rename", "sync_dir"]
    assert disk.calls[0][1] == path + ".tmp"
    assert disk.calls[3][1] == str(tmp_path)
    for call in ("open", "fsync", "rename"):
        disk.fail(call)
        with pytest.raises(OSError, match="Input/output"):
            replace_file(disk, path, b"newer")
        assert Path(path).read_bytes() == b"new"


def test_a_flush_syncs_every_file_before_the_directory(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk, segment_bytes=2 * SIZE)
    for n in range(3):
        append(log, n)
    log.role_began()
    disk.calls.clear()
    log.flush()
    calls = [call for call, _ in disk.calls]
    assert calls.count("fsync") == 2 * 3 + 2  # logs, indexes, leader epochs, a snapshot
    assert calls[-1] == "sync_dir"


def test_a_full_disk_needs_no_repair_once_there_is_room(tmp_path: Path) -> None:
    """The real thing, bounded by the process's own limit instead of a full device."""
    import resource
    import signal

    log = open_log(tmp_path / "t-0")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10 * SIZE + 30, hard))
        for n in range(10):
            append(log, n)
        with pytest.raises(KafkaStorageError, match=os.strerror(errno.EFBIG)):
            append(log, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert len(records(log)) == 10
    log.close(clean=False)
    log = open_log(tmp_path / "t-0")
    assert append(log, 11).base_offset == 10
    assert len(records(log)) == 11


def test_a_slice_outlives_the_segment_it_is_of(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=SIZE, retention_bytes=0)
    for n in range(4):
        append(log, n)
    (part,) = log.read(0, 1000).slices
    for path in log.delete_old_segments(0):
        os.unlink(path)
    assert log.log_start_offset > 0
    data = os.pread(part.fileno(), SIZE, part.position)
    assert parse(data).base_offset == 0
    assert part.read() == data


def test_the_name_of_a_new_segment_is_synced_with_its_batches(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    disk.mkdir("/t-0")
    disk.sync_dir("/")
    log = UnifiedLog.open("/t-0", config(), IGNORED, now_ms=0, disk=disk)
    append(log, 1)
    log.flush()
    log.roll(0)
    append(log, 2)
    log.flush()
    disk.lose_power(random.Random(0))
    assert records(UnifiedLog.open("/t-0", config(), IGNORED, now_ms=0, disk=disk)) == [
        (0, b"v"),
        (1, b"v"),
    ]


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("reads", range(4))
def test_a_read_that_fails_during_an_append_fences_the_log(
    tmp_path: Path, role: str, reads: int
) -> None:
    """The first append after a start reads what is known of the active segment."""
    log = open_log(tmp_path / "t-0")
    append(log, 1)
    log.close(clean=False)
    disk = FaultyDisk()
    failures = Failures()
    log = open_log(tmp_path / "t-0", clean=True, disk=disk, listener=failures)
    disk.fail("pread", after=reads)
    try:
        if role == "leader":
            append(log, 2)
        else:
            log.append_as_follower(batch_of(2, base_offset=1), 0)
    except KafkaStorageError:
        assert len(failures.reported) == 1
        assert records(log) == [(0, b"v")]
    else:
        assert log.failure is None
        log.close(clean=False)
        assert records(open_log(tmp_path / "t-0")) == [(0, b"v"), (1, b"v")]
