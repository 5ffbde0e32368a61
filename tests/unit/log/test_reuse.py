"""Partitions that come back to where they were deleted: the checkpoint entries of the old logs go, for all at once."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kit.log_managers import ID, Synced, fill, start


def syncs_of_coming_back(place: Path, count: int) -> int:
    disk = Synced()
    dirs = start(str(place), disk)
    fill(dirs, count)
    dirs.checkpoint({("t", number): 1 for number in range(count)})
    for number in range(count):
        dirs.delete("t", number)
    disk.syncs.clear()
    for number in range(count):
        dirs.create("t", number, ID)
    dirs.release()
    return disk.syncs.total()


def test_thousands_that_come_back_cost_the_syncs_of_one(tmp_path: Path) -> None:
    assert syncs_of_coming_back(tmp_path / "one", 1) == syncs_of_coming_back(tmp_path / "many", 9)


def test_what_takes_the_place_of_a_lost_log_misses_nothing(tmp_path: Path) -> None:
    place, disk = tmp_path / "logs", Synced()
    dirs = start(str(place), disk)
    fill(dirs, 1)
    assert dirs.close(high_watermarks={("t", 0): 1})
    shutil.rmtree(place / "t-0")
    dirs = start(str(place), disk)
    assert dirs.missing_logs == {("t", 0)}
    dirs.create("t", 0, ID)
    dirs.release()  # killed before another checkpoint
    dirs = start(str(place), disk)
    found = dirs.get("t", 0)
    assert found is not None
    assert found.missing_below is None
    dirs.release()


def test_what_was_deleted_is_forgotten_and_what_was_lost_is_missed(tmp_path: Path) -> None:
    place, disk = tmp_path / "logs", Synced()
    dirs = start(str(place), disk)
    fill(dirs, 4)
    assert dirs.close(high_watermarks={("t", number): 1 for number in range(4)})
    shutil.rmtree(place / "t-0")
    dirs = start(str(place), disk)
    assert dirs.missing_logs == {("t", 0)}
    for number in (1, 2):
        dirs.delete("t", number)
    dirs.create("t", 1, ID)
    dirs.release()
    dirs = start(str(place), disk)
    assert dirs.missing_logs == {("t", 0)}
    assert not dirs.failed
    dirs.release()
