"""What a directory of local clusters remembers."""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from kbroker.local import zookeeper
from kbroker.local.cluster import _last_lines, _start_brokers, counted
from kbroker.local.processes import ProcessIdentity
from kbroker.local.state import BrokerState, ClusterState, Directory, ServerState, checked_name
from kbroker.local.zookeeper import LocalError, Server, free_ports, reserve
from tests.kit.waiting import eventually


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    us = ProcessIdentity.of(os.getpid())
    servers = [ServerState(Server(1, 2, 3, 4), us)]
    directory.save_ensemble(servers)
    cluster = ClusterState("east", [BrokerState(1, 19092, us), BrokerState(2, 19093)], ["a=b"])
    directory.save_cluster(cluster)
    assert directory.ensemble() == servers
    assert directory.clusters() == [cluster]
    assert cluster.bootstrap == "127.0.0.1:19092,127.0.0.1:19093"
    assert cluster.brokers[0].running
    assert not cluster.brokers[1].running


def test_an_empty_directory_has_nothing(tmp_path: Path) -> None:
    assert Directory(tmp_path / "none").ensemble() == []
    assert Directory(tmp_path / "none").clusters() == []


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    (tmp_path / "ensemble.json").write_text("{")
    with pytest.raises(LocalError, match=r"ensemble\.json"):
        Directory(tmp_path).ensemble()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "zookeeper-1", "a b", "x" * 64, "-x"])
def test_names_that_would_be_strange_paths_are_refused(name: str) -> None:
    with pytest.raises(LocalError):
        checked_name(name)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at its descriptors")
def test_a_command_that_waited_for_a_purge_keeps_the_next_one_waiting(tmp_path: Path) -> None:
    """A purge removes the lock file that others wait for: a lock on that one locks nothing."""
    directory, path = Directory(tmp_path), tmp_path / ".lock"
    is_inside, may_end = Event(), Event()

    def wait_and_hold() -> None:
        with directory.locked():
            is_inside.set()
            may_end.wait(30)

    waiting = Thread(target=wait_and_hold)
    with directory.locked():
        waiting.start()
        inode = path.stat().st_ino
        eventually("the lock file is opened twice", lambda: _opened(inode) == 2)
        path.unlink()
    assert is_inside.wait(30)
    try:
        with path.open("wb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        may_end.set()
        waiting.join()


def _opened(inode: int) -> int:
    """Return how many descriptors of this process are of the file *inode*."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.stat(f"/proc/self/fd/{name}").st_ino == inode
    return found


def test_another_process_under_the_same_id_is_not_ours() -> None:
    us = ProcessIdentity.of(os.getpid())
    assert us is not None
    assert us.alive
    assert not ProcessIdentity(os.getpid(), "another time").alive


def test_a_process_that_ended_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        assert identity.alive
        process.kill()
    assert not identity.alive


def test_free_ports_differ_and_consecutive_ones_follow_each_other() -> None:
    assert len(set(free_ports(20))) == 20
    first, second, third = free_ports(3, consecutive=True)
    assert (second, third) == (first + 1, first + 2)


def test_a_broker_that_runs_and_is_not_ready_is_waited_for(tmp_path: Path) -> None:
    """An `up` that was interrupted has started it."""
    directory = Directory(tmp_path)
    before = b"READY broker.id=1 before\n"
    broker = BrokerState(1, 19092, ProcessIdentity.of(os.getpid()), len(before))
    cluster = ClusterState("east", [broker])
    log = directory.broker_log("east", broker)
    log.parent.mkdir(parents=True)
    log.write_bytes(before)
    reports: list[str] = []
    has_returned = Event()

    def up() -> None:
        _start_brokers(directory, cluster, [], reports.append)
        has_returned.set()

    waiting = Thread(target=up)
    waiting.start()
    eventually("it has begun", lambda: reports)
    assert not has_returned.wait(0.2)
    with log.open("ab") as file:
        file.write(b"READY broker.id=1 now\n")
    waiting.join(30)
    assert has_returned.is_set()
    assert directory.clusters() == [cluster]


def test_one_broker_is_singular() -> None:
    assert [counted(n, "broker") for n in (0, 1, 3)] == ["0 brokers", "1 broker", "3 brokers"]


def test_an_error_quotes_the_lines_of_this_start_only(tmp_path: Path) -> None:
    log, before = tmp_path / "broker.log", "an error\n"
    log.write_text(f"{before}an error\n")
    assert _last_lines(log, len(before)) == "    an error"
    assert _last_lines(tmp_path / "none", 3) == "    (no log)"


def test_free_ports_do_not_depend_on_the_seed() -> None:
    """Two test runs at the same time may seed alike (pytest-randomly does with -p)."""
    chosen = []
    for _ in range(2):
        random.seed(7)
        chosen.append(free_ports(3))
    assert chosen[0] != chosen[1]


@pytest.mark.skipif(
    sys.platform != "linux", reason="reservations are names in Linux's abstract namespace"
)
def test_a_port_that_was_returned_is_reserved_until_the_process_ends() -> None:
    reserving = """
from kbroker.local.zookeeper import free_ports
print(*free_ports(2), flush=True)
input()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", reserving], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        one, two = map(int, other.stdout.readline().split())
        assert not reserve(one)
        assert not reserve(two)
        other.communicate(b"end")
    assert reserve(one)
    assert not reserve(one), "by this process now"
    assert zookeeper.is_free(one), "nothing listens"
