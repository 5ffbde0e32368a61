"""The log directories of a broker after a restart: the epochs that they cover, and what they miss."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from kbroker.common.log_dir_integrity import LogDirCondition, LogDirIntegrity, broker_epochs
from kbroker.log.log_dir_history import FILE
from kbroker.log.log_manager import LogManager
from kclient.errors import KafkaError
from kclient.wire.errors import (
    KafkaStorageError,
)
from tests.kit.log_managers import ID, Brokers, Unreadable
from tests.kit.logs import FaultyDisk, append


def test_s08_a_broker_publishes_the_epochs_that_its_directories_cover(brokers: Brokers) -> None:
    first = brokers().start()
    assert first.registering() == (LogDirCondition.NEW, None)
    first.registered(10)
    assert first.registering() == (
        LogDirCondition.CLEAN,
        broker_epochs(10),
    )  # a new session of the same process
    first.registered(15)
    first.release()
    killed = brokers().start()
    assert killed.registering() == (LogDirCondition.CRASHED, broker_epochs(10, 15))
    killed.registered(20)
    assert killed.close(broker_epoch=20)
    assert brokers().start().histories.integrity == (
        LogDirCondition.CLEAN,
        broker_epochs(10, 15, 20),
    )


def test_s08_a_partition_or_a_directory_that_is_gone_is_missed(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b").start()
    dirs.registered(10)
    for index in range(4):
        append(dirs.create("t", index, ID), 1)
    assert dirs.close(high_watermarks={("t", index): 1 for index in range(4)})
    (gone, *_) = sorted((tmp_path / "a").glob("t-*"))
    shutil.rmtree(gone)
    dirs = brokers("a", "b").start()
    assert dirs.missing_logs == {("t", int(gone.name[-1]))}
    assert not dirs.histories.missing_directories
    dirs.release()
    shutil.rmtree(tmp_path / "b")
    dirs = brokers("a", "b").start()
    assert dirs.registering() == (LogDirCondition.PARTIAL, broker_epochs(10))
    assert len(dirs.histories.missing_directories) == 1
    assert dirs.histories.found_logs == frozenset(dirs)
    for index in range(4):
        dirs.create("t", index, ID)
    assert len(dirs) == 4 > len(dirs.histories.found_logs)
    dirs.registered(20)
    dirs.release()
    # The new logs are not the earlier ones: no epoch before that run is covered any more.
    again = brokers("a", "b").start()
    assert again.registering() == (LogDirCondition.CRASHED, broker_epochs(20))
    assert again.histories.found_logs is None


def test_s08_directories_with_exchanged_meta_properties_lose_nothing(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b").start()
    dirs.registered(10)
    for index in range(4):
        append(dirs.create("t", index, ID), 1)
    assert dirs.close(broker_epoch=10, high_watermarks={("t", index): 1 for index in range(4)})
    one, other = (tmp_path / name / "meta.properties" for name in "ab")
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    dirs = brokers("a", "b").start()
    assert not dirs.histories.missing_directories
    assert not dirs.missing_logs
    assert dirs.registering() == (LogDirCondition.CLEAN, broker_epochs(10))
    for key in dirs:
        log = dirs.get(*key)
        assert log is not None
        assert (log.log_end_offset, dirs.is_copied(log)) == (1, False)
        assert dirs.vouched_for(key) == broker_epochs(10)


def test_s08_a_directory_stays_missing_until_a_registration_has_reported_it(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b").start()
    dirs.registered(10)
    dirs.release()
    shutil.rmtree(tmp_path / "b")
    dirs = brokers("a", "b").start()
    dirs.registering()
    dirs.release()  # before it knew its broker epoch
    assert brokers("a", "b").start().histories.integrity.intact is None


@pytest.mark.parametrize("ends_cleanly", [True, False])
def test_s17_the_next_run_reports_a_loss_if_this_one_could_not(
    brokers: Brokers, tmp_path: Path, ends_cleanly: bool
) -> None:
    def start(boot_id: str) -> LogManager:
        broker = brokers()
        broker.dirs.histories.boot_id = boot_id
        return broker.start()

    dirs = start("one")
    dirs.registered(10)
    dirs.release()
    dirs = start("two")
    assert dirs.histories.integrity == (LogDirCondition.POWER_LOSS, None)
    if ends_cleanly:
        dirs.close()  # before it registered at all
    else:
        dirs.registering()
        dirs.release()
    dirs = start("two")
    assert dirs.registering() == (LogDirCondition.POWER_LOSS, None)
    dirs.registered(20)
    dirs.release()
    assert start("two").histories.integrity == (LogDirCondition.CRASHED, broker_epochs(20))


def test_s15_a_directory_that_failed_and_works_again_takes_nothing_away(
    brokers: Brokers, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    dirs = brokers("a", "b", disk=disk).start()
    dirs.registered(10)
    logs = [dirs.create("t", n, ID) for n in range(2)]
    disk.fail("pwritev", errno.EIO)
    with pytest.raises(KafkaStorageError):
        append(logs[0], 1)
    assert len(dirs.online) == 1
    dirs.registered(20)
    dirs.release()
    assert brokers("a", "b").start().registering() == (
        LogDirCondition.CRASHED,
        broker_epochs(10, 20),
    )


def test_s15_a_directory_that_fails_when_the_broker_registers_is_not_covered(
    brokers: Brokers,
) -> None:
    disk = FaultyDisk()
    dirs = brokers("a", "b", disk=disk).start()
    dirs.registering()
    dirs.registered(10)
    disk.fail("rename", errno.EIO)
    assert dirs.registering() == (LogDirCondition.PARTIAL, broker_epochs(10))
    assert len(dirs.online) == 1


def test_s15_a_directory_that_could_not_be_read_is_away_and_no_more(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b").start()
    dirs.registered(10)
    dirs.release()
    dirs = brokers("a", "b", disk=Unreadable(tmp_path / "a")).start()
    assert dirs.registering() == (LogDirCondition.PARTIAL, broker_epochs(10))
    dirs.registered(20)
    dirs.registering()  # in another session
    dirs.registered(30)
    dirs.release()
    assert brokers("a", "b").start().registering() == (
        LogDirCondition.CRASHED,
        broker_epochs(10, 20, 30),
    )


def test_s15_while_a_directory_cannot_be_read_nothing_is_made_that_may_be_in_it(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b", disk=Unreadable(tmp_path / "a")).start()
    with pytest.raises(KafkaStorageError, match=r"it may be in .*/a, which is offline"):
        dirs.create("t", 0, ID, is_new=False)
    assert dirs.create("t", 0, ID, is_new=True) is dirs.get("t", 0)


def test_s08_a_log_that_ends_before_what_was_committed_misses_records(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    log = dirs.create("t", 0, ID)
    append(log, 1, 2, 3)
    assert dirs.close(high_watermarks={("t", 0): 3})
    (segment,) = (tmp_path / "a" / "t-0").glob("*.log")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 1)
    found = brokers().start().get("t", 0)
    assert found is not None
    assert found.missing_below == 3


def test_a_topic_that_is_made_again_misses_nothing_of_its_namesake(brokers: Brokers) -> None:
    broker = brokers()
    dirs = broker.start()
    append(dirs.create("t", 0, ID), 1, 2, 3)
    dirs.checkpoint({("t", 0): 3})
    dirs.delete("t", 0)
    append(dirs.create("t", 0, ID), 1)
    dirs.release()
    found = brokers().start().get("t", 0)
    assert found is not None
    assert (found.log_end_offset, found.missing_below) == (1, None)


@pytest.mark.parametrize(
    ("boot_id", "checkpointed", "accepted"),
    [("this-boot", 5, 5), ("another-boot", 5, 3), ("this-boot", 9, 0), ("another-boot", 9, 0)],
)
def test_s17_after_a_power_loss_a_high_watermark_is_accepted_up_to_the_recovery_point(
    brokers: Brokers, boot_id: str, checkpointed: int, accepted: int
) -> None:
    """Above it a truncation that was not synced may be undone: other records lie there than were committed.

    A high watermark above the log end is wrong, so nothing is accepted.
    """
    dirs = brokers().start()
    dirs.registered(10)
    log = dirs.create("t", 0, ID)
    append(log, 1, 1, 1)
    log.flush()
    append(log, 1, 1)
    dirs.checkpoint({("t", 0): checkpointed})
    dirs.release()
    broker = brokers()
    broker.dirs.histories.boot_id = boot_id
    assert broker.start().high_watermarks == {("t", 0): accepted}


def test_s08_directories_that_are_all_restored_from_a_copy_cover_no_run_that_they_missed(
    brokers: Brokers, tmp_path: Path
) -> None:
    def run(broker_epoch: int) -> LogDirIntegrity:
        dirs = brokers("a", "b").start()
        integrity = dirs.registering()
        dirs.registered(broker_epoch)
        assert dirs.close(broker_epoch=broker_epoch)
        return integrity

    run(10)
    for name in "ab":
        shutil.copytree(tmp_path / name, tmp_path / "copy" / name)
    run(20)
    run(30)
    for name in "ab":
        shutil.rmtree(tmp_path / name)
        shutil.copytree(tmp_path / "copy" / name, tmp_path / name)
    restored = run(40)
    assert restored.covers(10)
    assert not restored.covers(20), "what was written under it is in the directories that are gone"
    after = run(50)
    assert [each for each in (10, 20, 30, 40) if after.covers(each)] == [10, 40]


def test_s27_a_log_that_has_lost_its_topic_id_has_no_high_watermark(
    brokers: Brokers, tmp_path: Path
) -> None:
    """Directories may have been exchanged since: the checkpoint has the entry of another log."""
    dirs = brokers().start()
    dirs.registered(10)
    for number in (0, 1):
        append(dirs.create("t", number, ID), 1, 2, 3)
    dirs.checkpoint({("t", 0): 3, ("t", 1): 3})
    dirs.release()
    (tmp_path / "a" / "t-1" / "partition.metadata").unlink()
    assert brokers().start().high_watermarks == {("t", 0): 3, ("t", 1): 0}


def test_a_clean_shutdown_before_the_machine_went_down_counts_after_a_start_on_a_full_disk(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b").start()
    dirs.registering()
    dirs.registered(10)
    assert dirs.close(broker_epoch=10)
    for name in "ab":
        file = tmp_path / name / FILE
        file.write_text(file.read_text().replace("this-boot", "the boot before"))
    disk = FaultyDisk()
    disk.fail("pwritev", errno.ENOSPC)
    dirs = brokers("a", "b", disk=disk).start()
    dirs.registering()
    dirs.registered(20)
    assert len(dirs.offline) == 1
    dirs.release()
    found = brokers("a", "b").start().histories.integrity
    assert found.condition is LogDirCondition.CRASHED
    assert found.covers(10)


def test_a_clean_shutdown_counts_after_a_start_on_a_disk_that_became_full_since(
    brokers: Brokers, tmp_path: Path
) -> None:
    """The marker was removed before the first write. After a power loss that run counted, and had written nothing."""
    dirs = brokers("a").start()
    dirs.registering()
    dirs.registered(10)
    assert dirs.close(broker_epoch=10)
    disk = FaultyDisk()
    disk.fail("pwritev", errno.ENOSPC, times=100)
    broker = brokers("a", disk=disk)
    with suppress(KafkaError):
        broker.start()
        broker.dirs.registering()
    broker.dirs.release()
    file = tmp_path / "a" / FILE
    file.write_text(file.read_text().replace("this-boot", "the boot before"))
    dirs = brokers("a").start()
    assert dirs.clean
    assert dirs.histories.integrity.covers(10)
