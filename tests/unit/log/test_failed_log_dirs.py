"""Log directories with a disk that fails, at a start and later: the others go on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kclient.wire.errors import (
    KafkaStorageError,
)
from tests.kit.log_managers import ID, Broker, Brokers, Unreadable
from tests.kit.logs import FaultyDisk, append, records, two_flushes


def test_a_directory_that_fails_goes_offline_and_the_other_goes_on(
    brokers: Brokers, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    broker = brokers("a", "b", disk=disk)
    dirs = broker.start()
    for n in range(4):
        append(dirs.create("t", n, ID), 1)
    log = dirs.get("t", 0)
    assert log is not None
    disk.fail("pwritev", errno.EIO)
    with pytest.raises(KafkaStorageError):
        append(log, 2)
    lost = [("t", 0), ("t", 2)]
    assert broker.failures == [(str(tmp_path / "a"), lost)]
    assert sorted(dirs) == [("t", 1), ("t", 3)]
    assert sorted(dirs.failed) == lost
    assert dirs.online == [str(tmp_path / "b")]
    assert list(dirs.offline) == [str(tmp_path / "a")]
    with pytest.raises(KafkaStorageError):
        dirs.create("t", 0, ID)
    assert dirs.directory_of("t", 9) is None
    dirs.create("t", 9, ID)
    assert dirs.directory_of("t", 9) == str(tmp_path / "b")
    assert dirs.close() is False
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("call", ["fsync", "sync_dir"])
def test_a_sync_that_fails_in_the_pool_takes_the_directory_offline(
    brokers: Brokers, tmp_path: Path, call: str
) -> None:
    disk = FaultyDisk()
    broker = brokers(disk=disk, flush_messages=1)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    disk.fail(call)
    append(log, 1)
    assert broker.failures == [(str(tmp_path / "a"), [("t", 0)])]
    assert log.recovery_point == 0
    with pytest.raises(KafkaStorageError):
        append(log, 2)
    with pytest.raises(KafkaStorageError, match="every log directory is offline"):
        dirs.create("u", 0, ID)


def test_a_sync_that_ends_in_an_unforeseen_error_fences_the_log(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk()
    broker = brokers(disk=disk, flush_messages=1)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    disk.break_down("fsync")
    append(log, 1)
    assert "MemoryError" in caplog.text  # of the pool, in a callback that raised it
    assert broker.failures == [(str(tmp_path / "a"), [("t", 0)])]
    assert log.recovery_point == 0
    with pytest.raises(KafkaStorageError):
        append(log, 2)


def test_a_sync_that_ended_in_an_unforeseen_error_is_not_tried_again(brokers: Brokers) -> None:
    disk = FaultyDisk()
    log = brokers(disk=disk).start().create("t", 0, ID)
    first, second = two_flushes(log)
    disk.break_down("fsync")
    for work in (first, second, first):
        with pytest.raises(MemoryError):
            work.run()


def test_a_checkpoint_that_fails_takes_the_directory_offline(
    brokers: Brokers, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    broker = brokers(disk=disk)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    append(log, 1)
    log.flush()
    dirs.checkpoint()
    before = (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text()
    append(log, 1)
    log.flush()
    disk.write_short(3)
    disk.fail("pwritev", errno.ENOSPC)
    dirs.checkpoint()
    assert len(broker.failures) == 1
    assert (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text() == before


def test_a_deletion_that_fails_takes_the_directory_offline(
    brokers: Brokers, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    broker = brokers(disk=disk)
    dirs = broker.start()
    dirs.create("t", 0, ID)
    dirs.create("t", 1, ID)
    disk.fail("rename")
    with pytest.raises(KafkaStorageError):
        dirs.delete("t", 0)
    assert broker.failures == [(str(tmp_path / "a"), [("t", 1)])]


def test_a_log_that_could_not_be_deleted_is_not_created_in_another_directory(
    brokers: Brokers,
) -> None:
    """The failed directory has it still: at the next start the partition would be in two directories."""
    disk = FaultyDisk()
    dirs = brokers("a", "b", disk=disk).start()
    append(dirs.create("t", 0, ID), 1)
    disk.fail("rename")
    with pytest.raises(KafkaStorageError):
        dirs.delete("t", 0)
    with pytest.raises(KafkaStorageError, match="t-0 is offline"):
        dirs.create("t", 0, ID, is_new=False)
    dirs.release()
    found = brokers("a", "b").start().get("t", 0)
    assert found is not None
    assert len(records(found)) == 1


def write_closed_segments(broker: Broker) -> None:
    """Write t-0 and t-1 with a record in a segment that is not the active one, and stop the broker."""
    dirs = broker.start()
    for number in range(2):
        log = dirs.create("t", number, ID)
        append(log, 1)
        log.roll(0)
    assert dirs.close()


@pytest.mark.parametrize("failing", ["open", "pread"])
def test_a_log_that_cannot_be_read_does_not_stop_the_retention_of_the_others(
    brokers: Brokers, tmp_path: Path, failing: str
) -> None:
    write_closed_segments(brokers("a", "b"))
    disk = FaultyDisk()
    broker = brokers("a", "b", disk=disk, retention_ms=1)
    dirs = broker.start()
    for number in range(2):
        (tmp_path / "ab"[number] / f"t-{number}" / f"{0:020d}.timeindex").unlink()
    broker.now_ms = 10**9
    disk.fail(failing)
    assert dirs.sweep(lambda _: 1, lambda _key: None) == 1
    assert broker.failures == [(str(tmp_path / "a"), [("t", 0)])]
    assert list(dirs) == [("t", 1)]


def test_retention_without_a_file_descriptor_tries_again_later(
    brokers: Brokers, tmp_path: Path
) -> None:
    write_closed_segments(brokers())
    disk = FaultyDisk()
    broker = brokers(disk=disk, retention_ms=1)
    dirs = broker.start()
    (tmp_path / "a" / "t-0" / f"{0:020d}.timeindex").unlink()
    broker.now_ms = 10**9
    disk.fail("open", errno.EMFILE)
    assert dirs.sweep(lambda _: 1, lambda _key: None) == 1
    assert broker.failures == []
    assert dirs.sweep(lambda _: 1, lambda _key: None) == 1


def test_a_directory_without_damage_is_closed_cleanly_beside_one_that_failed(
    brokers: Brokers, tmp_path: Path
) -> None:
    """Without its marker every log in it is recovered, and after a reboot its replicas are not accepted."""
    disk = FaultyDisk()
    dirs = brokers("a", "b", disk=disk).start()
    logs = [dirs.create("t", number, ID) for number in range(2)]
    disk.fail("pwritev")
    with pytest.raises(KafkaStorageError):
        append(logs[0], 1)
    append(logs[1], 1)
    assert dirs.close(broker_epoch=7) is False
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "b" / ".kafka_cleanshutdown").exists()


def test_a_directory_that_cannot_be_read_at_start_is_offline(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b", disk=Unreadable(tmp_path / "a")).start()
    assert dirs.online == [str(tmp_path / "b")]
    dirs.release()
    with pytest.raises(KafkaStorageError, match="no log directory is usable"):
        brokers("a", disk=Unreadable(tmp_path / "a")).start()


class Failed(FaultyDisk):
    """A disk on which *call* fails with *code* for everything below *path*."""

    def __init__(self, path: Path, call: str, code: int) -> None:
        super().__init__()
        real = getattr(self, call)

        def refuse(where: str, *rest: Any) -> Any:
            if where.startswith(f"{path}/"):
                raise OSError(code, os.strerror(code))
            return real(where, *rest)

        setattr(self, call, refuse)


@pytest.mark.parametrize("failing", ["lock", "open"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_s15_a_broker_starts_without_a_log_directory_on_a_failed_disk(
    brokers: Brokers, tmp_path: Path, failing: str, code: int
) -> None:
    dirs = brokers("a", "b").start()
    for number in range(2):
        append(dirs.create("t", number, ID), 1)
    assert dirs.close()
    dirs = brokers("a", "b", disk=Failed(tmp_path / "a", failing, code)).start()
    assert (dirs.online, list(dirs)) == ([str(tmp_path / "b")], [("t", 1)])
    assert dirs.unreadable_dirs == [str(tmp_path / "a")]
    with pytest.raises(KafkaStorageError, match="t-0 is not created again"):
        dirs.create("t", 0, ID, is_new=False)
    dirs.create("t", 2, ID)
    dirs.close()
    assert sorted(brokers("a", "b").start()) == [("t", 0), ("t", 1), ("t", 2)]


@pytest.mark.parametrize("failing", ["lock", "open"])
def test_s15_a_broker_without_a_disk_that_works_does_not_start(
    brokers: Brokers, tmp_path: Path, failing: str
) -> None:
    brokers("a").start().close()
    with pytest.raises(KafkaStorageError, match=r"no log directory is usable.*/a: .*Input/output"):
        brokers("a", disk=Failed(tmp_path / "a", failing, errno.EIO)).start()
    assert list(brokers("a").start()) == [], "it was unlocked"


def test_a_log_directory_that_is_not_to_be_written_is_a_fault_of_the_configuration(
    brokers: Brokers, tmp_path: Path
) -> None:
    with pytest.raises(KafkaStorageError, match="cannot be used"):
        brokers("a", "b", disk=Failed(tmp_path / "a", "lock", errno.EACCES))


def test_a_shutdown_that_cannot_sync_is_not_clean(brokers: Brokers, tmp_path: Path) -> None:
    disk = FaultyDisk()
    dirs = brokers(disk=disk).start()
    append(dirs.create("t", 0, ID), 1)
    disk.fail("fsync")
    assert dirs.close() is False
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
