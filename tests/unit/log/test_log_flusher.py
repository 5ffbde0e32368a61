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
    broker.pool.run()
    disk.syncs.clear()
    dirs.flush_due()
    broker.pool.run()
    assert disk.syncs["fsync"] == 1


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
