"""A clean shutdown: its marker, and many logs closed as safely as one by one, for as many syncs as a few cost."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.clean_shutdown import FEW
from kbroker.log.clean_shutdown_file import CLEAN_SHUTDOWN
from kbroker.log.disk import OS_DISK
from tests.kit.log_managers import ID, Brokers, Synced, fill, start
from tests.kit.logs import FaultyDisk, append, records
from tests.kit.simulated_disk import SimulatedDisk

MANY = FEW + 4


def test_logs_come_back_after_a_clean_shutdown(brokers: Brokers) -> None:
    dirs = brokers().start()
    assert dirs.clean is False
    log = dirs.create("t", 0, ID)
    append(log, 1, epoch=3)
    append(dirs.create("t-with-dashes", 12, None), 1)
    assert dirs.close(broker_epoch=77, high_watermarks={("t", 0): 1})
    dirs = brokers().start()
    assert (dirs.clean, dirs.broker_epoch) == (True, 77)
    assert sorted(dirs) == [("t", 0), ("t-with-dashes", 12)]
    found = dirs.get("t", 0)
    assert found is not None
    assert records(found) == [(0, b"v")]
    assert (found.topic_id, found.leader_epochs.entries) == (ID, ((3, 0),))
    assert dirs.high_watermarks == {("t", 0): 1}
    assert dirs.notes == []


def test_the_clean_marker_is_gone_once_it_was_read(brokers: Brokers, tmp_path: Path) -> None:
    dirs = brokers().start()
    append(dirs.create("t", 0, ID), 1)
    dirs.close(broker_epoch=5)
    marker = tmp_path / "a" / ".kafka_cleanshutdown"
    assert json.loads(marker.read_text()) == {"version": 0, "brokerEpoch": 5}
    brokers().start().release()
    assert not marker.exists()
    dirs = brokers().start()
    assert (dirs.clean, dirs.broker_epoch) == (False, -1)


@pytest.mark.parametrize("content", ["", "{}", "\0\0", '{"version":0}', '{"brokerEpoch":"x"}'])
def test_a_marker_without_an_epoch_is_a_marker(
    brokers: Brokers, tmp_path: Path, content: str
) -> None:
    brokers().start().close()
    (tmp_path / "a" / ".kafka_cleanshutdown").write_text(content)
    dirs = brokers().start()
    assert (dirs.clean, dirs.broker_epoch) == (True, -1)


def syncs_of_a_close(place: Path, count: int) -> Counter[str]:
    disk = Synced()
    dirs = start(str(place), disk, threads=2)
    fill(dirs, count)
    disk.syncs.clear()
    assert dirs.close()
    return disk.syncs


def test_twice_as_many_logs_cost_no_further_sync(tmp_path: Path) -> None:
    some, twice = (syncs_of_a_close(tmp_path / str(n), n) for n in (MANY, 2 * MANY))
    assert some == twice
    assert twice["sync_all"] == 2
    assert twice.total() < MANY


def test_logs_that_have_nothing_new_cost_no_sync(tmp_path: Path) -> None:
    disk = Synced()
    dirs = start(str(tmp_path), disk)
    fill(dirs, MANY)
    assert dirs.close()
    assert start(str(tmp_path / "empty"), disk).close()
    dirs, none = start(str(tmp_path), disk), start(str(tmp_path / "empty"), disk)
    disk.syncs.clear()
    assert none.close()
    of_an_empty_directory = disk.syncs.copy()
    disk.syncs.clear()
    assert dirs.close()
    assert disk.syncs == of_an_empty_directory


def test_where_all_cannot_be_synced_at_once_each_is_by_itself(tmp_path: Path) -> None:
    disk = Synced(can=False)
    dirs = start(str(tmp_path), disk, threads=2)
    fill(dirs, MANY)
    disk.syncs.clear()
    assert dirs.close()
    assert disk.syncs["fsync"] > 4 * MANY
    assert disk.syncs["sync_dir"] > MANY
    assert start(str(tmp_path), OS_DISK).clean


def test_a_failed_write_of_the_file_system_is_no_clean_end(tmp_path: Path) -> None:
    class Failing(FaultyDisk):
        def sync_all(self, fd: int, paths: Sequence[str], /) -> bool:  # type: ignore[override]
            self._plan("sync_all")
            return True

    disk = Failing()
    dirs = start(str(tmp_path), disk)
    fill(dirs, MANY)
    dirs.checkpoint()
    disk.fail("sync_all")
    assert not dirs.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    points = (tmp_path / "recovery-point-offset-checkpoint").read_text().split("\n")[2:-1]
    assert {line.split()[2] for line in points} == {"0"}


def test_a_directory_elsewhere_is_not_synced_with_the_others(tmp_path: Path) -> None:
    fd = OS_DISK.open(str(tmp_path / "file"), 0o102)
    try:
        assert not OS_DISK.sync_all(fd, [str(tmp_path), "/proc"])
    finally:
        OS_DISK.close(fd)


class Recording(SimulatedDisk):
    """A disk that keeps the paths of the files that are synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: set[str] = set()

    def fsync(self, fd: int, /) -> None:
        self.synced.add(self._paths[fd])
        super().fsync(fd)

    def sync_all(self, fd: int, paths: Sequence[str], /) -> bool:
        self.synced.update(f"{path}/{name}" for path in paths for name in self.listdir(path))
        return super().sync_all(fd, paths)


@pytest.mark.parametrize("count", [2, MANY])
def test_the_recovery_point_of_another_log_leaves_nothing_unsynced(count: int) -> None:
    """After a kill two directories are exchanged: the recovery point of t-0 is above the end of what is there now."""
    disk = Recording()
    dirs = start("/data", disk)
    synced, unsynced, *_ = [dirs.create("t", number, ID) for number in range(count)]
    append(synced, 1, 2, 3, 4)
    flush = synced.start_flush()
    assert flush is not None
    flush.run()
    synced.finish_flush(flush)
    append(unsynced, 1, 2)
    unsynced.roll(0)
    append(unsynced, 3)
    dirs.checkpoint()
    dirs.release()
    disk.kill()
    for former, name in (("t-0", "aside"), ("t-1", "t-0"), ("aside", "t-1")):
        disk.rename(f"/data/{former}", f"/data/{name}")
    dirs = start("/data", disk)
    found = dirs.get("t", 0)
    assert found is not None
    assert (len(found.segments), found.recovery_point, found.log_end_offset) == (2, 3, 3)
    before = {name: disk.listdir(f"/data/{name}") for name in ("t-0", "t-1")}
    disk.synced.clear()
    assert dirs.close()
    kept = {f"/data/{name}/{file}" for name in ("t-0", "t-1") for file in before[name]}
    assert kept - disk.synced == set()
    for name in ("t-0", "t-1"):
        contents = disk.contents(f"/data/{name}")
        on_the_disk = disk.durable(f"/data/{name}")
        logs = [each for each in contents if each.endswith(".log")]
        assert {each: on_the_disk[each] for each in logs} == {each: contents[each] for each in logs}


def test_a_log_with_a_role_is_synced_from_its_recovery_point_on(tmp_path: Path) -> None:
    disk = Synced()
    syncs = []
    for has_role in (False, True):
        dirs = start(str(tmp_path / str(has_role)), disk)
        log = dirs.create("t", 0, ID)
        append(log, 1)
        log.roll(0)
        append(log, 2)
        flush = log.start_flush()
        assert flush is not None
        flush.run()
        log.finish_flush(flush)
        dirs.checkpoint()
        dirs.release()
        dirs = start(str(tmp_path / str(has_role)), disk)
        again = dirs.get("t", 0)
        assert again is not None
        if has_role:
            again.role_began()
        disk.syncs.clear()
        assert dirs.close()
        syncs.append(disk.syncs["fsync"])
    without_role, with_role = syncs
    assert without_role > with_role


class PowerLost(BaseException):
    """The machine has no power any more."""


class Mortal(SimulatedDisk):
    """The disk of a machine that loses power in place of the *nth* call of that name."""

    dies_at = ("", 0)

    def __getattribute__(self, name: str) -> Any:
        call, nth = super().__getattribute__("dies_at")
        if name == call:
            self.dies_at = (call, nth - 1)
            if nth == 1:
                raise PowerLost
        return super().__getattribute__(name)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "moment",
    [
        ("pwritev", MANY),
        ("sync_all", 1),
        ("rename", MANY // 2),
        ("sync_all", 2),
        ("fsync", 1),
        ("rename", MANY + 3),
        ("sync_dir", 4),
    ],
    ids=str,
)
def test_power_may_be_lost_at_any_moment_of_the_close(moment: tuple[str, int], seed: int) -> None:
    disk = Mortal()
    dirs = start("/data", disk)
    fill(dirs, MANY, epoch=0)
    assert dirs.close()
    dirs = start("/data", disk)
    fill(dirs, MANY, epoch=1)
    disk.dies_at = moment
    with suppress(PowerLost):
        dirs.close()
    disk.dies_at = ("", 0)
    disk.lose_power(random.Random(seed))
    dirs = start("/data", disk)
    for number in range(MANY):
        log = dirs.get("t", number)
        assert log is not None
        held = records(log)
        assert len(held) in ((2,) if dirs.clean else (1, 2))
        epochs = [(entry.epoch, entry.start_offset) for entry in log.leader_epochs.entries]
        assert epochs == [(0, 0), (1, 1)][: len(held)]
        assert not [note for note in log.notes if "leader-epoch-checkpoint" in note]


def test_many_logs_are_not_clean_behind_a_sync_that_failed(brokers: Brokers) -> None:
    disk = FaultyDisk()
    broker = brokers(disk=disk)
    dirs = broker.start()
    logs = [dirs.create("t", partition, ID) for partition in range(MANY)]
    work = logs[0].flush_state.begin_identity()
    disk.fail("fsync")
    with suppress(OSError):
        work.run()
    assert not dirs.close()


def test_an_unforeseen_error_of_one_log_leaves_the_other_directories_clean(
    brokers: Brokers, tmp_path: Path
) -> None:
    """It was raised again by the last sync of that log: no directory behind it got its marker."""
    disk = FaultyDisk()
    dirs = brokers("a", "b", "c", disk=disk).start()
    logs = [dirs.create("t", partition, ID) for partition in range(3)]
    work = logs[0].flush_state.begin_identity()
    disk.break_down("fsync")
    with suppress(MemoryError):
        work.run()
    assert not dirs.close()
    clean = [each.parent for each in tmp_path.glob(f"?/{CLEAN_SHUTDOWN}")]
    assert len(clean) == 2
    assert Path(logs[0].directory).parent not in clean


@pytest.mark.parametrize("call", ["open", "fsync", "rename"])
@pytest.mark.parametrize("count", [3, 60])
def test_an_unforeseen_error_of_a_close_is_raised_when_the_other_directories_are_clean(
    brokers: Brokers, tmp_path: Path, count: int, call: str
) -> None:
    """Its error ended the close: no directory behind it got its marker."""
    disk = FaultyDisk()
    dirs = brokers("a", "b", "c", disk=disk).start()
    for partition in range(count):
        append(dirs.create("t", partition, ID), 1)
    disk.break_down(call)
    with pytest.raises(MemoryError):
        dirs.close()
    assert len(list(tmp_path.glob(f"?/{CLEAN_SHUTDOWN}"))) == 2
