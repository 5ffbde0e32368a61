"""Where logs are: the directory of a new one, what a directory holds besides, and deletion."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from kclient.wire.errors import (
    KafkaStorageError,
    LogDirNotFound,
)
from tests.kit.log_managers import ID, Brokers
from tests.kit.logs import FaultyDisk, append, records
from tests.kit.simulated_disk import SimulatedDisk


def test_new_partitions_go_where_there_are_fewest(brokers: Brokers, tmp_path: Path) -> None:
    dirs = brokers("a", "b", "c").start()
    for n in range(9):
        dirs.create("t", n, ID)
    counts = [len(list((tmp_path / name).glob("t-*"))) for name in "abc"]
    assert counts == [3, 3, 3]
    assert dirs.directory_of("t", 0) == str(tmp_path / "a")
    assert dirs.create("t", 0, ID) is dirs.get("t", 0)


def test_a_high_watermark_in_another_directory_is_of_a_deleted_topic(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b").start()
    append(dirs.create("t", 0, ID), 2)
    dirs.checkpoint({("t", 0): 0})
    dirs.release()
    (tmp_path / "b" / "replication-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    dirs = brokers("a", "b").start()
    assert dirs.directory_of("t", 0) == str(tmp_path / "a")
    assert dirs.high_watermarks.get(("t", 0), 0) == 0


def test_a_partition_in_two_directories_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    dirs = brokers("a", "b").start()
    dirs.create("t", 0, ID)
    dirs.close()
    (tmp_path / "b" / "t-0").mkdir()
    with pytest.raises(KafkaStorageError, match=r"t-0 is in .*/a and in .*/b"):
        brokers("a", "b").start()


def test_other_directories_and_files_are_left_alone(brokers: Brokers, tmp_path: Path) -> None:
    brokers().start().close()
    for name in ("lost+found", "t-0.0123456789abcdef0123456789abcdef-future", "no number-x"):
        (tmp_path / "a" / name).mkdir()
    (tmp_path / "a" / "t-7").write_text("a file")
    dirs = brokers().start()
    assert list(dirs) == []
    assert len(dirs.notes) == 3


def test_a_damaged_partition_is_named_and_the_others_are_served(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    for n in range(3):
        append(dirs.create("t", n, ID), 1)
    assert dirs.close()
    (tmp_path / "a" / "t-1" / "partition.metadata").write_text("nonsense")
    dirs = brokers().start()
    assert sorted(dirs) == [("t", 0), ("t", 2)]
    assert "t-1/partition.metadata" in str(dirs.failed["t", 1])
    with pytest.raises(KafkaStorageError, match="t-1"):
        dirs.create("t", 1, ID)
    assert dirs.close() is False
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()


def test_a_directory_that_was_put_back_by_hand_waits_for_a_restart(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers("a", "b")
    dirs = broker.start()
    for number in range(2):
        append(dirs.create("t", number, ID), 1)
    assert dirs.close(high_watermarks={("t", 0): 1, ("t", 1): 1})
    (tmp_path / "a" / "t-0").rename(tmp_path / "t-0")
    broker = brokers("a", "b")
    dirs = broker.start()
    (tmp_path / "t-0").rename(tmp_path / "a" / "t-0")
    for _ in range(3):  # whichever directory has the fewest logs then
        with pytest.raises(KafkaStorageError, match=r"a/t-0.*restart the broker"):
            dirs.create("t", 0, ID, is_new=False)
        dirs.create("u", len(dirs), ID)
    assert broker.failures == []
    assert len(dirs.online) == 2
    dirs.close(high_watermarks={("t", 1): 1})
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists(), "t-0 was not opened"
    assert (tmp_path / "b" / ".kafka_cleanshutdown").exists()
    dirs = brokers("a", "b").start()
    found = dirs.get("t", 0)
    assert found is not None
    assert (len(records(found)), dirs.high_watermarks["t", 0]) == (1, 1)


@pytest.mark.parametrize("opened", range(2))
def test_a_log_that_could_not_be_created_leaves_no_directory_behind(
    brokers: Brokers, opened: int
) -> None:
    """Another directory has the partition then, and the next start would refuse to have it in two."""
    disk = FaultyDisk()
    dirs = brokers("a", "b", disk=disk).start()
    disk.fail("open", errno.ENOSPC, after=opened)
    with pytest.raises(KafkaStorageError):
        dirs.create("t", 0, ID)
    append(dirs.create("t", 0, ID), 1)
    dirs.release()
    found = brokers("a", "b").start().get("t", 0)
    assert found is not None
    assert len(records(found)) == 1


def test_a_file_in_the_place_of_a_partitions_directory_concerns_that_partition_only(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers()
    dirs = broker.start()
    (tmp_path / "a" / "t-0").write_text("?")
    with pytest.raises(KafkaStorageError, match="a/t-0"):
        dirs.create("t", 0, ID)
    assert broker.failures == []
    dirs.create("t", 1, ID)


def test_a_deleted_partition_is_renamed_at_once_and_removed_later(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers(file_delete_delay_ms=1000)
    dirs = broker.start()
    append(dirs.create("t", 0, ID), 1)
    dirs.delete("t", 0)
    assert dirs.get("t", 0) is None
    (renamed,) = (tmp_path / "a").glob("t-0.*-delete")
    assert len(renamed.name) == len("t-0.") + 32 + len("-delete")
    broker.now_ms = 999
    dirs.remove_due()
    assert renamed.exists()
    broker.now_ms = 1000
    dirs.remove_due()
    assert not renamed.exists()
    with pytest.raises(LogDirNotFound):
        dirs.delete("t", 0)


def test_a_directory_inside_of_a_deleted_partition_goes_with_it(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers()
    dirs = broker.start()
    append(dirs.create("t", 0, ID), 1)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("")
    copies = tmp_path / "a" / "t-0" / "copies"
    (copies / "empty").mkdir(parents=True)
    (copies / "file").write_text("")
    (copies / "link").symlink_to(tmp_path / "kept")
    dirs.delete("t", 0)
    broker.now_ms = broker.config.file_delete_delay_ms
    dirs.remove_due()
    assert broker.failures == []
    assert not list((tmp_path / "a").glob("*-delete"))
    assert (tmp_path / "kept" / "file").exists()


def test_what_a_crash_left_of_a_deleted_partition_is_removed(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    append(dirs.create("t", 0, ID), 1)
    dirs.delete("t", 0)
    dirs.release()
    dirs = brokers().start()
    assert list(dirs) == []
    dirs.remove_due()
    assert not list((tmp_path / "a").glob("*-delete"))


@pytest.mark.parametrize("removal", ["delete", "set_aside"])
def test_s27_a_power_loss_does_not_bring_a_deleted_log_back_beside_its_successor(
    brokers: Brokers, removal: str
) -> None:
    """Its new name is not synced. With the successor in another directory the broker would not start."""
    is_new = True
    for seed in range(12):
        disk = SimulatedDisk()
        paths = Path(f"/{seed}a"), Path(f"/{seed}b")
        broker = brokers(*paths, disk=disk)
        dirs = broker.start()
        dirs.create("t", 0, ID)
        dirs.create("u", 0, ID)
        dirs.create("u", 1, ID).flush()
        getattr(dirs, removal)("t", 0)
        dirs.delete("u", 0)
        dirs.delete("u", 1)
        dirs.create("v", 0, ID)
        assert len(dirs) == 1
        log = dirs.create("t", 0, ID)
        append(log, 1)
        log.flush()
        disk.lose_power(random.Random(seed))
        dirs = brokers(*paths, disk=disk).start()
        found = dirs.get("t", 0)
        assert found is not None
        is_new = is_new and len(records(found)) == 1
    assert is_new, "it was synced, and its name with it"


@pytest.mark.parametrize(("synced", "expected"), [(False, "a"), (True, "b")])
def test_a_deleted_log_keeps_its_successor_in_its_directory_until_its_new_name_is_synced(
    brokers: Brokers, tmp_path: Path, synced: bool, expected: str
) -> None:
    broker = brokers("a", "b", holds=True)
    dirs = broker.start()
    dirs.create("t", 0, ID)
    dirs.create("u", 0, ID)
    dirs.delete("t", 0)
    for number in range(2):
        dirs.create("v", number, ID)
    dirs.checkpoint()
    if synced:
        broker.pool.run()
    dirs.create("t", 0, ID)
    assert dirs.directory_of("t", 0) == str(tmp_path / expected)


def test_a_flush_that_runs_after_its_log_was_deleted_writes_nothing_into_the_next_one(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers(holds=True)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    append(log, 1, epoch=5)
    log.roll(0)
    assert broker.pool.waiting
    dirs.delete("t", 0)
    dirs.create("t", 0, ID)
    broker.pool.run()
    assert not list((tmp_path / "a" / "t-0").glob("leader-epoch-checkpoint*"))


def test_a_long_topic_name_can_be_deleted(brokers: Brokers, tmp_path: Path) -> None:
    dirs = brokers().start()
    dirs.create("x" * 240, 0, ID)
    dirs.delete("x" * 240, 0)
    (renamed,) = (tmp_path / "a").glob("*-delete")
    assert len(renamed.name) == 255
