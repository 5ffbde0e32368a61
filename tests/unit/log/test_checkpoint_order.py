"""Flushes, sweeps and checkpoints while a broker runs: no file names more than what is synced."""

from __future__ import annotations

from pathlib import Path

from kbroker.common.topic_partition import TopicPartition
from kbroker.log.log_manager import LogManager
from kbroker.log.offset_checkpoint_file import LOG_START_OFFSETS, LOG_START_OFFSETS_COPY
from kbroker.log.unified_log import UnifiedLog
from tests.kit.log_managers import ID, Brokers
from tests.kit.logs import append, batch_of, records

SIZE = len(batch_of(0))


def nine_synced_records(dirs: LogManager) -> UnifiedLog:
    """Return the log t-0 with nine batches on the disk."""
    log = dirs.create("t", 0, ID)
    for n in range(9):
        append(log, n)
    log.flush()
    return log


def test_a_topic_created_again_does_not_inherit_recovery_points(
    brokers: Brokers, tmp_path: Path
) -> None:
    """Else its records would pass for synced, and a torn tail for bit rot."""
    dirs = brokers().start()
    log = nine_synced_records(dirs)
    log.advance_log_start(5)
    dirs.checkpoint({("t", 0): 9})
    assert "t 0 9" in (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text()
    dirs.delete("t", 0)
    append(dirs.create("t", 0, ID), 1)
    dirs.release()
    with (tmp_path / "a" / "t-0" / "00000000000000000000.log").open("ab") as file:
        file.write(b"torn")
    again = brokers().start().get("t", 0)
    assert again is not None
    assert records(again) == [(0, b"v")]
    assert again.missing_below is None


def test_a_truncated_log_does_not_keep_its_old_recovery_point(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    log = nine_synced_records(dirs)
    dirs.checkpoint()
    log.truncate_to(4)
    assert "t 0 4" in (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text()


def test_a_sweep_drops_old_segments_and_unlinks_them_later(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers(segment_bytes=SIZE, retention_bytes=2 * SIZE, file_delete_delay_ms=500)
    dirs = broker.start()
    for topic in ("t", "u"):
        log = dirs.create(topic, 0, ID)
        for n in range(5):
            append(log, n)
    assert dirs.sweep(lambda key: 2 if key == ("u", 0) else None, lambda _key: None) == 5
    assert len(list((tmp_path / "a" / "t-0").glob("*.log.deleted"))) == 3
    broker.now_ms = 500
    assert dirs.sweep(lambda key: 2, lambda _key: None) == 0
    assert not list((tmp_path / "a").glob("*/*.deleted"))
    assert len(list((tmp_path / "a" / "t-0").glob("*.log"))) == 2
    assert len(list((tmp_path / "a" / "u-0").glob("*.log"))) == 3


def test_what_was_sealed_is_flushed_and_checkpointed(brokers: Brokers, tmp_path: Path) -> None:
    dirs = brokers(segment_bytes=3 * SIZE).start()
    log = dirs.create("t", 0, ID)
    for n in range(8):
        append(log, n)
    assert log.recovery_point == 6
    dirs.checkpoint({("t", 0): 7, ("gone", 1): 3})
    assert (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 6\n"
    assert (tmp_path / "a" / "replication-offset-checkpoint").read_text() == "0\n1\nt 0 7\n"
    assert (tmp_path / "a" / "log-start-offset-checkpoint").read_text() == "0\n0\n"
    log.advance_log_start(4)
    dirs.checkpoint()
    assert (tmp_path / "a" / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 4\n"


def test_a_checkpoint_decided_earlier_does_not_overwrite_a_later_one(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers(holds=True)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    append(log, 1)
    log.flush()
    dirs.checkpoint()
    append(log, 2)
    log.flush()
    dirs.checkpoint()
    broker.pool.waiting.reverse()
    broker.pool.run()
    assert "t 0 2" in (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text()


def test_a_checkpoint_under_way_does_not_outlive_the_log_that_it_is_of(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers(holds=True)
    dirs = broker.start()
    dirs.registered(10)
    append(dirs.create("t", 0, ID), 1)
    dirs.checkpoint({("t", 0): 1})
    dirs.delete("t", 0)
    append(dirs.create("t", 0, ID), 1)
    broker.pool.run()
    dirs.release()
    assert brokers().start().high_watermarks.get(("t", 0), 0) == 0


def test_a_checkpoint_under_way_names_no_recovery_point_above_a_truncation(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers(holds=True)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    for _ in range(4):
        append(log, 1)
    log.flush()
    dirs.checkpoint({("t", 0): 4})
    log.truncate_to(2)
    append(log, 1)
    broker.pool.run()
    for name in ("recovery-point", "replication"):
        assert (tmp_path / "a" / f"{name}-offset-checkpoint").read_text() != "0\n1\nt 0 4\n"


def test_flush_messages_and_flush_ms_are_kept(brokers: Brokers) -> None:
    broker = brokers(flush_messages=3, flush_ms=100)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    append(log, 1, 1)
    dirs.flush_due()
    assert log.recovery_point == 0
    append(log, 1)
    dirs.flush_due()
    assert log.recovery_point == 3
    append(log, 1)
    dirs.flush_due()
    broker.now_ms = 99
    dirs.flush_due()
    assert log.recovery_point == 3
    broker.now_ms = 100
    dirs.flush_due()
    assert log.recovery_point == 4


def test_the_recovery_point_moves_when_the_flush_is_done(brokers: Brokers) -> None:
    broker = brokers(holds=True, flush_messages=1)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    append(log, 1)
    dirs.flush_due()
    assert log.recovery_point == 0
    broker.pool.run()
    assert log.recovery_point == 1


def test_a_late_write_of_log_start_offsets_replaces_neither_of_the_two_files(
    brokers: Brokers, tmp_path: Path
) -> None:
    """Else they differ, and the next start does not accept them: deleted records would be back."""
    directory = brokers().log_dirs.directories[0]
    same = {LOG_START_OFFSETS: {("t", 0): 5}}
    other: dict[str, dict[TopicPartition, int]] = {LOG_START_OFFSETS: {}}
    directory.write_checkpoints(directory.decide_checkpoints(same), same)
    late, last = directory.decide_checkpoints(other), directory.decide_checkpoints(same)
    directory.write_checkpoints(last, same)
    directory.write_checkpoints(late, other)
    for name in (LOG_START_OFFSETS, LOG_START_OFFSETS_COPY):
        assert (tmp_path / "a" / name).read_text() == "0\n1\nt 0 5\n"
