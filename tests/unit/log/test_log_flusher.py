"""The sync of full segments: one at a time for each log, whatever the disk's pace."""

from __future__ import annotations

import pytest

from tests.kit.log_managers import ID, Brokers, Synced
from tests.kit.logs import FaultyDisk, append

MANY = 50


def test_segments_that_fill_up_faster_than_they_are_synced_are_synced_once(
    brokers: Brokers,
) -> None:
    disk = Synced()
    broker = brokers(disk=disk, holds=True, segment_bytes=100)
    log = broker.start().create("t", 0, ID)
    disk.syncs.clear()
    for _ in range(MANY):
        append(log, 1)
    broker.pool.run()
    assert log.recovery_point == log.segments.active.base_offset == MANY - 1
    assert disk.syncs["fsync"] < 6 * MANY, "a log, two indexes, a snapshot, and the leader epochs"


def test_a_segment_that_fills_up_during_a_sync_is_synced_after_it(brokers: Brokers) -> None:
    broker = brokers(holds=True, segment_bytes=100)
    log = broker.start().create("t", 0, ID)
    append(log, 1)
    append(log, 1)
    append(log, 1)
    (sync,) = broker.pool.waiting
    broker.pool.waiting.clear()
    sync()
    assert log.recovery_point == 1
    broker.pool.run()
    assert log.recovery_point == 2


def test_the_identity_of_a_log_is_on_the_disk_soon_after_it_is_made(brokers: Brokers) -> None:
    disk = Synced()
    broker = brokers(disk=disk, holds=True)
    dirs = broker.start()
    for partition in range(MANY):
        dirs.create("t", partition, ID)
    disk.syncs.clear()
    dirs.flush_due()
    dirs.flush_due()
    assert len(broker.pool.waiting) == 1, "syncs that someone waits for are not behind all of them"
    broker.pool.run()
    assert disk.syncs["fsync"] == MANY
    dirs.flush_due()
    assert not broker.pool.waiting


def test_an_identity_that_is_written_again_is_synced_again(brokers: Brokers) -> None:
    disk = Synced()
    broker = brokers(disk=disk, holds=True)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    dirs.flush_due()
    log.assign(log.metadata._replace(moves=1))
    disk.syncs.clear()
    broker.pool.run()
    assert disk.syncs["fsync"] == 2


def test_one_sync_of_identities_runs_at_a_time_whatever_the_number_of_directories(
    brokers: Brokers,
) -> None:
    disk = Synced()
    broker = brokers(*"abcd", disk=disk, holds=True)
    dirs = broker.start()
    for partition in range(MANY):
        dirs.create("t", partition, ID)
    disk.syncs.clear()
    dirs.flush_due()
    jobs = 0
    while broker.pool.waiting:
        assert len(broker.pool.waiting) == 1
        broker.pool.waiting.pop()()
        jobs += 1
    assert jobs == 4
    assert disk.syncs == {"fsync": MANY, "sync_dir": MANY + jobs}, "a directory's own names once"


def test_no_sync_begins_once_the_logs_are_to_be_closed(brokers: Brokers) -> None:
    broker = brokers(holds=True, segment_bytes=100)
    dirs = broker.start()
    logs = [dirs.create("t", partition, ID) for partition in range(MANY)]
    dirs.flush_due()
    append(logs[0], 1)
    append(logs[0], 1)
    (identities, sealed) = broker.pool.waiting
    broker.pool.waiting.clear()
    append(logs[0], 1)
    dirs.stop_flushing()
    identities()
    sealed()
    append(logs[1], 1)
    append(logs[1], 1)
    dirs.flush_due()
    assert not broker.pool.waiting
    assert dirs.close()


def test_a_log_with_an_identity_that_cannot_be_synced_is_offline(brokers: Brokers) -> None:
    disk = FaultyDisk()
    broker = brokers(disk=disk, holds=True)
    dirs = broker.start()
    dirs.create("t", 0, ID)
    dirs.flush_due()
    disk.fail("fsync")
    broker.pool.run()
    assert broker.failures


def test_a_log_is_not_clean_after_a_sync_of_its_identity_that_failed(brokers: Brokers) -> None:
    disk = FaultyDisk()
    log = brokers(disk=disk).start().create("t", 0, ID)
    work = log.flush_state.begin_identity()
    disk.fail("fsync")
    with pytest.raises(OSError, match="Input/output error"):
        work.run()
    last = log.start_close()
    assert last is not None
    with pytest.raises(OSError, match="Input/output error"):
        last.run()


def test_the_identity_of_a_new_log_is_not_behind_those_of_all_others_after_an_unclean_shutdown(
    brokers: Brokers,
) -> None:
    """It waited for thousands of them, minutes after kill -9: a power loss took the topic id of the new log."""
    disk = Synced()
    broker = brokers(disk=disk, holds=True)
    dirs = broker.start()
    for partition in range(MANY):
        dirs.create("t", partition, ID)
    dirs.release()
    broker = brokers(disk=disk, holds=True)
    dirs = broker.start()
    broker.pool.waiting.clear()
    dirs.flush_due()
    log = dirs.create("t", MANY, ID)
    assert log.flush_state.is_identity_due
    (job,) = broker.pool.waiting
    broker.pool.waiting.clear()
    job()
    (job,) = broker.pool.waiting
    broker.pool.waiting.clear()
    job()
    assert not log.flush_state.is_identity_due
    others = [dirs.get("t", partition) for partition in range(MANY)]
    assert any(each is not None and each.flush_state.is_identity_due for each in others)


def test_a_log_of_a_directory_that_has_just_failed_is_not_flushed(brokers: Brokers) -> None:
    """It was a KeyError: the logs behind it, of other directories too, were not flushed in that round."""
    disk = FaultyDisk()
    broker = brokers(disk=disk, holds=True, flush_ms=1000, index_interval_bytes=1)
    dirs = broker.start()
    for log in [dirs.create("t", partition, ID) for partition in range(4)]:
        append(log, 1)
        append(log, 1)
    dirs.flush_due()
    broker.now_ms = 5000
    disk.fail("pwritev")
    dirs.flush_due()
    assert len(broker.failures) == 1
    assert not any(dirs.get("t", partition) for partition in range(4))
