"""Moves of logs between log directories: what is kept, what ends a move, and what a start finds on real directories."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.common.log_dir_integrity import broker_epochs
from kbroker.log.core.partition_metadata_file import decode_partition_metadata
from kbroker.log.disk import OsDisk
from kbroker.log.log_manager import LogManager
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import iterate
from kclient.wire.errors import InvalidTopicException, KafkaStorageError, LogDirNotFound
from tests.kit.inline_cleaner import CompactingBroker, filled
from tests.kit.log_managers import ID, Broker, Brokers, Pool, Unreadable
from tests.kit.logs import FaultyDisk, append, batch_of, config, held_batches, records

KEY = ("t", 0)


def mark(_key: tuple[str, int]) -> int:
    return 0


def begun(broker: Broker, tmp_path: Path, to: str = "b") -> LogManager:
    """Have the log of t-0 in a, with five batches, and begin its move."""
    dirs = broker.start()
    log = dirs.get(*KEY) or dirs.create(*KEY, ID)
    assert dirs.directory_of(*KEY) == str(tmp_path / "a")
    for number in range(5):
        append(log, 1, 2, value=b"%d" % number, epoch=number // 2)
    move(dirs, tmp_path / to)
    return dirs


def move(dirs: LogManager, path: Path) -> None:
    dirs.prefer(*KEY, str(path))
    dirs.move(*KEY, str(path))


def only(dirs: LogManager) -> UnifiedLog:
    """Return the copy of the one move."""
    (one,) = dirs.moves
    assert one.log is not None
    return one.log


def completed(dirs: LogManager, path: Path) -> UnifiedLog:
    """Have the moves end; return the log, which is at *path* then."""
    for _ in range(10):
        dirs.moves.go_on(mark)
    assert not list(dirs.moves)
    assert dirs.directory_of(*KEY) == str(path)
    log = dirs.get(*KEY)
    assert log is not None
    return log


def names(tmp_path: Path) -> dict[str, list[str]]:
    """The directories of t-0, with their 32 digits left out."""
    return {
        path.name: sorted(
            each.name[:4] + each.name[36:] for each in path.glob("t-0*") if each.is_dir()
        )
        for path in sorted(tmp_path.glob("?"))
    }


def test_a_log_is_moved_with_all_that_it_knows(brokers: Brokers, tmp_path: Path) -> None:
    broker = brokers("a", "b", segment_bytes=300, index_interval_bytes=1)
    dirs = begun(broker, tmp_path)
    source = dirs.get(*KEY)
    assert source is not None
    source.leader_epochs.assign(9, source.log_end_offset)  # a leader that has not written
    source.clean_below = 4
    source.lacks_until_in_sync = "something"
    before = held_batches(source), source.leader_epochs.entries
    log = completed(dirs, tmp_path / "b")
    assert (held_batches(log), log.leader_epochs.entries) == before
    assert (log.clean_below, log.lacks_until_in_sync) == (4, "something")
    assert log.directory == str(tmp_path / "b" / "t-0")
    append(log, 1, epoch=9)
    assert names(tmp_path) == {"a": ["t-0.-delete"], "b": ["t-0"]}
    broker.now_ms += 60_000
    dirs.remove_due()
    assert names(tmp_path) == {"a": [], "b": ["t-0"]}
    metadata = decode_partition_metadata((tmp_path / "b" / "t-0/partition.metadata").read_bytes())
    assert metadata == (ID, 0, dirs.histories.directory_id(str(tmp_path / "b")), 1)
    assert dirs.close(high_watermarks={KEY: 11})
    assert (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text() == "0\n0\n"
    dirs = brokers("a", "b").start()
    assert (dirs.clean, dirs.high_watermarks) == (True, {KEY: 11})
    move(dirs, tmp_path / "a")
    found = dirs.get(*KEY)
    assert found is not None
    now = held_batches(found)
    assert now[:-1] == before[0]
    back = completed(dirs, tmp_path / "a")
    assert held_batches(back) == now
    assert back.metadata.moves == 2


def test_a_move_goes_on_after_a_kill_and_follows_what_happened_meanwhile(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers("a", "b")
    dirs = begun(broker, tmp_path)
    dirs.moves.go_on(mark)  # copied, prepared and replaced at once
    dirs.release()
    broker = brokers("a", "b", holds=True)
    dirs = broker.start()
    move(dirs, tmp_path / "a")
    dirs.moves.go_on(mark)
    broker.pool.waiting.pop(0)()  # copied, not prepared
    dirs.release()
    assert names(tmp_path) == {"a": ["t-0.-delete", "t-0.-future"], "b": ["t-0"]}
    dirs = brokers("a", "b").start()
    log = dirs.get(*KEY)
    assert log is not None
    log.truncate_to(5)
    append(log, 1, value=b"another", epoch=7)
    expected = held_batches(log)
    assert held_batches(completed(dirs, tmp_path / "a")) == expected


def test_a_copy_is_cut_with_the_log(brokers: Brokers, tmp_path: Path) -> None:
    broker = brokers("a", "b", holds=True)
    dirs = begun(broker, tmp_path)
    dirs.moves.chunk_bytes = 200
    dirs.moves.go_on(mark)
    while not (broker.pool.waiting.pop(0)() or only(dirs).log_end_offset > 4):
        pass
    one, log = only(dirs), dirs.get(*KEY)
    assert log is not None
    log.truncate_to(4)
    append(log, *[1] * 8, value=b"new", epoch=7)
    expected = held_batches(log)
    for _ in range(10):
        broker.pool.run()
        dirs.moves.go_on(mark)
    found = dirs.get(*KEY)
    assert found is one
    assert held_batches(found) == expected


def test_a_checkpoint_from_before_a_cut_does_not_outlive_the_replacement(
    brokers: Brokers, tmp_path: Path
) -> None:
    """Its high watermark is above the end of the log: the next start would take records for lost."""
    broker = brokers("a", "b", holds=True)
    dirs = begun(broker, tmp_path)
    dirs.moves.go_on(mark)
    broker.pool.waiting.pop(0)()  # synced; the checkpoints of b are to be written
    dirs.checkpoint({KEY: 10})
    log = dirs.get(*KEY)
    assert log is not None
    log.truncate_to(6)
    broker.pool.run()
    completed(dirs, tmp_path / "b")
    dirs.release()
    found = brokers("a", "b").start().get(*KEY)
    assert found is not None
    assert (found.log_end_offset, found.missing_below) == (6, None)


def test_what_is_read_on_both_sides_of_a_cut_is_not_appended(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers("a", "b", holds=True)
    dirs = begun(broker, tmp_path)
    dirs.moves.chunk_bytes = 200
    dirs.moves.go_on(mark)
    log = dirs.get(*KEY)
    assert log is not None
    log.truncate_to(4)
    assert log.log_end_offset == 4
    broker.pool.waiting.pop(0)()
    assert only(dirs).log_end_offset == 0


def test_the_log_start_offset_is_followed(brokers: Brokers, tmp_path: Path) -> None:
    broker = brokers("a", "b", holds=True)
    dirs = broker.start()
    log = dirs.create(*KEY, ID)
    for _ in range(4):
        append(log, 1, 2, 3)
    log.advance_log_start(4)  # within a batch
    move(dirs, tmp_path / "b")
    for _ in range(3):
        dirs.moves.go_on(mark)
        broker.pool.run()
    found = completed(dirs, tmp_path / "b")
    assert (found.log_start_offset, found.log_end_offset) == (4, 12)
    assert records(found) == records(log)
    dirs.release()
    dirs = brokers("a", "b").start()
    again = dirs.get(*KEY)
    assert again is not None
    assert again.log_start_offset == 4, "it was in the checkpoint before the replacement"


def test_a_log_that_begins_behind_its_copy_has_it_begin_again(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers("a", "b", holds=True)
    dirs = begun(broker, tmp_path)
    dirs.moves.go_on(mark)
    broker.pool.waiting.pop(0)()
    log = dirs.get(*KEY)
    assert log is not None
    log.truncate_fully_and_start_at(100)
    append(log, 1, epoch=9)
    for _ in range(10):
        broker.pool.run()
        dirs.moves.go_on(mark)
    broker.pool.run()
    assert records(completed(dirs, tmp_path / "b")) == [(100, b"v")]


def test_what_was_synced_is_synced_in_the_copy(brokers: Brokers, tmp_path: Path) -> None:
    """With flush.messages a producer has its answer after a sync: a power loss must not take the record."""
    broker = brokers("a", "b", holds=True)
    dirs = begun(broker, tmp_path)
    log = dirs.get(*KEY)
    assert log is not None
    log.flush()
    dirs.moves.go_on(mark)
    broker.pool.run()
    found = dirs.get(*KEY)
    assert found is not None
    assert found.recovery_point == 10


def test_a_record_that_waits_for_a_sync_waits_for_that_of_the_new_name(
    brokers: Brokers, tmp_path: Path
) -> None:
    """The copy is synced first, but a power loss may bring back the former log, which is not."""
    new_manager = partial(LogManager, move_executor=Pool())
    broker = brokers("a", "b", holds=True, new_manager=new_manager, flush_messages=1)
    log = completed(begun(broker, tmp_path), tmp_path / "b")
    assert log.held_at == 0
    broker.pool.run()
    assert (log.held_at, log.recovery_point) == (None, 10)


def test_a_log_that_is_deleted_takes_its_copy_along(brokers: Brokers, tmp_path: Path) -> None:
    dirs = begun(brokers("a", "b", holds=True), tmp_path)
    dirs.delete(*KEY)
    assert names(tmp_path) == {"a": ["t-0.-delete"], "b": ["t-0.-delete"]}
    assert not list(dirs.moves)


def test_a_step_under_way_ends_before_its_copy_goes(brokers: Brokers, tmp_path: Path) -> None:
    broker = brokers("a", "b", holds=True)
    dirs = begun(broker, tmp_path)
    dirs.moves.go_on(mark)
    dirs.delete(*KEY)
    assert names(tmp_path) == {"a": ["t-0.-delete"], "b": ["t-0.-future"]}
    broker.pool.run()
    assert names(tmp_path) == {"a": ["t-0.-delete"], "b": ["t-0.-delete"]}
    assert broker.failures == []


def test_a_request_for_another_directory_begins_again_there(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers("a", "b", "c", holds=True)
    dirs = begun(broker, tmp_path)
    move(dirs, tmp_path / "b")
    assert names(tmp_path)["b"] == ["t-0.-future"]
    move(dirs, tmp_path / "c")
    assert names(tmp_path) == {"a": ["t-0"], "b": ["t-0.-delete"], "c": ["t-0.-future"]}
    move(dirs, tmp_path / "a")
    assert names(tmp_path) == {"a": ["t-0"], "b": ["t-0.-delete"], "c": ["t-0.-delete"]}


def test_what_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    broker = brokers("a", "b")
    dirs = broker.start()
    log = dirs.create(*KEY, ID)
    with pytest.raises(LogDirNotFound, match=r"none of log\.dirs"):
        dirs.prefer(*KEY, str(tmp_path / "c"))
    with pytest.raises(InvalidTopicException, match="too long"):
        dirs.prefer("t" * 249, 0, str(tmp_path / "b"))
    dirs.create("u", 0, ID).flush_failed(OSError(5, "no disk"))
    with pytest.raises(KafkaStorageError, match="offline"):
        dirs.prefer(*KEY, str(tmp_path / "b"))
    assert log.failure is None


def test_nothing_is_moved_while_another_directory_is_offline(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b", "c").start()
    dirs.create(*KEY, ID)
    dirs.create("u", 0, ID).flush_failed(OSError(5, "no disk"))
    dirs.prefer(*KEY, str(tmp_path / "c"))
    with pytest.raises(KafkaStorageError, match="while a log directory is offline"):
        dirs.move(*KEY, str(tmp_path / "c"))


def test_a_target_that_fails_leaves_the_log_where_it_is(brokers: Brokers, tmp_path: Path) -> None:
    disk = FaultyDisk()
    broker = brokers("a", "b", disk=disk)
    dirs = begun(broker, tmp_path)
    disk.fail("fsync", errno.EIO)
    for _ in range(3):
        dirs.moves.go_on(mark)
    assert broker.failures == [(str(tmp_path / "b"), [])]
    assert not list(dirs.moves)
    found = dirs.get(*KEY)
    assert found is not None
    assert append(found, 1, epoch=3).base_offset == 10
    dirs.release()
    dirs = brokers("a", "b").start()
    assert len(records(completed(dirs, tmp_path / "b"))) == 11, "the next start goes on"


def test_compaction_of_a_log_that_moves_is_paused(tmp_path: Path) -> None:
    broker = CompactingBroker(tmp_path / "a", tmp_path / "b", holds_rounds=True)
    broker.start()
    log = filled(broker)
    broker.dirs.compact(lambda _key: log.log_end_offset)
    assert broker.executor.waiting, "a round runs"
    move(broker.dirs, tmp_path / "b")
    broker.dirs.moves.go_on(lambda _key: log.log_end_offset)
    assert broker.workers[0].kills
    broker.executor.run()
    broker.dirs.compact(lambda _key: log.log_end_offset)
    while not broker.executor.waiting and list(broker.dirs.moves):
        broker.dirs.moves.go_on(lambda _key: log.log_end_offset)
    assert broker.dirs.directory_of(*KEY) == str(tmp_path / "b")
    assert not broker.rounds.failed
    broker.dirs.compact(lambda _key: log.log_end_offset)
    broker.executor.run()
    assert broker.rounds.done, "and goes on then"
    broker.dirs.release()


def test_moves_keep_to_their_rate(brokers: Brokers, tmp_path: Path) -> None:
    broker = brokers("a", "b")
    dirs = broker.start()
    dirs.moves.limit(1 << 20)
    log = dirs.create(*KEY, ID)
    for _ in range(5):
        append(log, 1, value=b"x" * (1 << 20))
    move(dirs, tmp_path / "b")
    seconds = 0
    while list(dirs.moves):
        dirs.moves.go_on(mark)
        broker.now_ms += 1000
        seconds += 1
        assert seconds < 20
    assert seconds >= 4


def test_a_batch_that_is_damaged_ends_the_move(brokers: Brokers, tmp_path: Path) -> None:
    ended: list[Any] = []
    dirs = begun(brokers("a", "b", holds=True), tmp_path)
    dirs.moves._on_move = lambda *what: ended.append(what)
    segment = tmp_path / "a" / "t-0" / f"{0:020d}.log"
    content = bytearray(segment.read_bytes())
    content[70] ^= 1
    segment.write_bytes(content)
    broker_pool = dirs._executor
    dirs.moves.go_on(mark)
    broker_pool.run()  # type: ignore[attr-defined]
    ((key, path, error),) = ended
    assert (key, path) == (KEY, str(tmp_path / "b"))
    assert "CRC" in str(error)
    assert names(tmp_path) == {"a": ["t-0"], "b": ["t-0.-delete"]}


# What a start finds


def half_done(brokers: Brokers, tmp_path: Path) -> str:
    """Leave a broker that was killed between the two renames; return the digits of the move."""
    dirs = begun(brokers("a", "b"), tmp_path)
    (one,) = dirs.moves
    completed(dirs, tmp_path / "b")
    dirs.release()
    (tmp_path / "b" / "t-0").rename(tmp_path / "b" / f"t-0.{one.unique}-future")
    return one.unique


def test_a_start_completes_the_second_rename(brokers: Brokers, tmp_path: Path) -> None:
    half_done(brokers, tmp_path)
    broker = brokers("a", "b")
    dirs = broker.start()
    found = dirs.get(*KEY)
    assert found is not None
    assert dirs.directory_of(*KEY) == str(tmp_path / "b")
    assert len(records(found)) == 10
    dirs.remove_due()
    assert names(tmp_path) == {"a": [], "b": ["t-0"]}


def test_nothing_is_completed_or_removed_while_a_directory_cannot_be_read(
    brokers: Brokers, tmp_path: Path
) -> None:
    unique = half_done(brokers, tmp_path)
    dirs = brokers("a", "b", disk=Unreadable(tmp_path / "a")).start()
    dirs.remove_due()
    assert dirs.get(*KEY) is None
    with pytest.raises(KafkaStorageError, match="not created again"):
        dirs.create(*KEY, ID, is_new=False)
    dirs.release()
    assert names(tmp_path)["b"] == ["t-0.-future"]
    assert (tmp_path / "a" / f"t-0.{unique}-delete").exists()
    found = brokers("a", "b").start().get(*KEY)
    assert found is not None
    assert len(records(found)) == 10


def test_a_log_that_a_power_loss_brought_back_beside_its_successor_is_kept_as_stray(
    brokers: Brokers, tmp_path: Path
) -> None:
    unique = half_done(brokers, tmp_path)
    (tmp_path / "b" / f"t-0.{unique}-future").rename(tmp_path / "b" / "t-0")
    (tmp_path / "a" / f"t-0.{unique}-delete").rename(tmp_path / "a" / "t-0")
    dirs = brokers("a", "b").start()
    assert dirs.directory_of(*KEY) == str(tmp_path / "b")
    assert names(tmp_path) == {"a": ["t-0.-stray"], "b": ["t-0"]}
    assert "is kept" in str(dirs.notes)


def test_an_identity_that_cannot_be_read_takes_its_directory_offline(
    brokers: Brokers, tmp_path: Path
) -> None:
    half_done(brokers, tmp_path)
    (future,) = (tmp_path / "b").glob("t-0*")
    future.rename(tmp_path / "b" / "t-0")
    (former,) = (tmp_path / "a").glob("t-0*")
    former.rename(tmp_path / "a" / "t-0")

    class Damaged(OsDisk):
        def open(self, path: str, flags: int, mode: int = 0o666, /) -> int:  # type: ignore[override]
            if path == str(tmp_path / "a" / "t-0" / "partition.metadata"):
                raise OSError(errno.EIO, "I/O error")
            return os.open(path, flags, mode)

    dirs = brokers("a", "b", disk=Damaged()).start()
    assert dirs.unreadable_dirs == [str(tmp_path / "a")]
    assert dirs.directory_of(*KEY) == str(tmp_path / "b")


def test_a_copy_without_evidence_never_becomes_the_log(brokers: Brokers, tmp_path: Path) -> None:
    half_done(brokers, tmp_path)
    (deleted,) = (tmp_path / "a").glob("t-0.*")
    deleted.rename(tmp_path / "lost")
    dirs = brokers("a", "b").start()
    assert dirs.get(*KEY) is None
    assert names(tmp_path)["b"] == ["t-0.-future"]
    assert "left alone" in str(dirs.notes)


@pytest.mark.parametrize("topic_id", [UUID(int=7), None])
def test_a_copy_of_another_topic_is_left_alone(
    brokers: Brokers, tmp_path: Path, topic_id: UUID | None
) -> None:
    dirs = brokers("a", "b").start()
    dirs.create(*KEY, topic_id)
    assert dirs.directory_of(*KEY) == str(tmp_path / "a")
    dirs.release()
    (tmp_path / "b" / f"t-0.{'0' * 32}-future").mkdir()
    (tmp_path / "b" / f"t-0.{'0' * 32}-future/partition.metadata").write_text(
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAACA\n"
    )
    dirs = brokers("a", "b").start()
    assert not list(dirs.moves)
    dirs.delete(*KEY)
    assert names(tmp_path) == {"a": ["t-0.-delete"], "b": ["t-0.-future"]}


def test_directories_that_were_exchanged_during_a_move_erase_nothing(
    brokers: Brokers, tmp_path: Path
) -> None:
    """t-0 and u-0 have each other's log: the copy of t-0 is not of the log that is named t-0 now."""
    dirs = begun(brokers("a", "b", holds=True), tmp_path)
    other = UUID(int=7)
    append(dirs.create("u", 0, other), 1)
    u = Path(dirs.directory_of("u", 0) or "") / "u-0"
    dirs.release()
    (tmp_path / "a" / "t-0").rename(tmp_path / "x")
    u.rename(tmp_path / "a" / "t-0")
    (tmp_path / "x").rename(u)
    dirs = brokers("a", "b").start()
    assert not list(dirs.moves)
    found = dirs.get(*KEY)
    assert found is not None
    assert found.topic_id == other
    assert names(tmp_path)["b"] == ["t-0.-future"]
    moved = dirs.get("u", 0)
    assert moved is not None
    assert len(records(moved)) == 10


def test_a_moved_log_covers_the_broker_epochs_that_both_directories_covered(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b").start()
    dirs.registering()
    dirs.registered(10)
    dirs.create(*KEY, ID)
    dirs.release()
    dirs = brokers("a", "b").start()
    histories = dirs.histories
    assert histories._found_at_start == {KEY}
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    histories._published = {a: broker_epochs(10, 30), b: broker_epochs(10, 20, 30)}
    move(dirs, tmp_path / "b")
    completed(dirs, tmp_path / "b")
    assert dirs.vouched_for(KEY) == broker_epochs(10, 30)
    histories._published[a] = None
    assert dirs.vouched_for(KEY) is None


def test_copies_of_mirrored_batches_do_not_count_for_producers(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b").start()
    log = dirs.create(*KEY, ID)
    batch = batch_of(1)
    log.append_copied(batch, list(iterate(batch)), 0, 1, start_offset=0)
    ranges = log.producers.copied.ranges
    move(dirs, tmp_path / "b")
    found = completed(dirs, tmp_path / "b")
    assert found.producers.copied.ranges == ranges != ()
    dirs.release()
    again = brokers("a", "b").start().get(*KEY)
    assert again is not None
    assert again.producers.copied.ranges == ranges
    assert again.config == config()


def test_a_move_begins_no_step_once_the_broker_stops(brokers: Brokers, tmp_path: Path) -> None:
    """The sync of the new name ended, and that of the former one began in a pool that was shut down: a traceback."""
    broker = brokers("a", "b", holds=True)
    dirs = begun(broker, tmp_path)
    while dirs.directory_of(*KEY) == str(tmp_path / "a"):
        dirs.moves.go_on(mark)
        if broker.pool.waiting and dirs.directory_of(*KEY) == str(tmp_path / "a"):
            broker.pool.waiting.pop(0)()
    dirs.moves.stop()
    assert broker.pool.waiting
    broker.pool.waiting.pop()()
    assert not broker.pool.waiting
