"""The sync of full segments: one at a time for each log, whatever the disk's pace."""

from __future__ import annotations

from tests.kit.log_managers import ID, Brokers, Synced
from tests.kit.logs import append

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
