"""The files of logs: how many are open at a time, and their permissions."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from kbroker.log import log_segment, open_files
from tests.kit.log_managers import ID, Brokers
from tests.kit.logs import append, records


def test_only_so_many_segment_files_are_open_at_a_time(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = brokers().start()
    monkeypatch.setattr(log_segment, "max_open_files", 10)
    logs = [dirs.create("t", n, ID) for n in range(40)]
    for _ in range(3):
        for log in logs:
            append(log, 1)
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    paths = {log.segments[0].path for log in logs}
    assert sum(os.path.realpath(link) in paths for link in links) <= 10
    assert all(len(records(log)) == 3 for log in logs)


def test_where_descriptors_are_scarce_a_segment_is_opened_in_exchange_for_another(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests left some open.
    monkeypatch.setattr(log_segment, "_opened", type(log_segment._opened)())
    dirs = brokers().start()
    logs = [dirs.create("t", n, ID) for n in range(40)]
    for log in logs[:5]:
        append(log, 1)
    monkeypatch.setattr(open_files, "limit", lambda: 0)  # every descriptor is one of the last
    for _ in range(3):
        for log in logs:
            append(log, 1)
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    paths = {log.segments[0].path for log in logs}
    assert sum(os.path.realpath(link) in paths for link in links) <= 5 + 1
    assert all(len(records(log)) >= 3 for log in logs)


def test_idle_partitions_keep_no_file_open(brokers: Brokers, tmp_path: Path) -> None:
    def open_segments() -> int:
        count = 0
        for fd in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the descriptor that listdir had open
                link = os.readlink(f"/proc/self/fd/{fd}")
                count += link.startswith(str(tmp_path)) and link.endswith(".log")
        return count

    dirs = brokers().start()
    for n in range(50):
        dirs.create("t", n, ID)
    assert open_segments() == 0
    append(log := dirs.create("t", 0, ID), 1)
    assert log.log_end_offset == 1
    assert open_segments() == 1
    dirs.close()
    dirs = brokers().start()
    assert open_segments() == 0


def test_data_files_are_for_the_owner_and_the_group_and_not_executable(
    brokers: Brokers, tmp_path: Path
) -> None:
    former = os.umask(0)
    try:
        dirs = brokers("data/a").start()
        append(dirs.create("t", 0, ID), 1)
        dirs.checkpoint({("t", 0): 1})
        dirs.registered(10)
        dirs.close()
    finally:
        os.umask(former)
    modes = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "data").rglob("*")
        if path.name != "data"
    }
    assert {path.name: oct(mode) for path, mode in modes.items() if path.is_file()} == {
        path.name: "0o640" for path in modes if path.is_file()
    }
    assert {oct(mode) for path, mode in modes.items() if path.is_dir()} == {"0o750"}
    assert len(modes) > 10
