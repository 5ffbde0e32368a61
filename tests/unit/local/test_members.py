"""Members of local clusters as they are typed, and the ends of their logs."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from kbroker.local.members import Member, cluster_of, follow, last_lines, members
from kbroker.local.state import BrokerState, ClusterState, Directory, ServerState
from kbroker.local.zookeeper import LocalError, Server


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """Clusters east, of two brokers, and west, of one."""
    made = Directory(tmp_path)
    made.save_cluster(ClusterState("east", [BrokerState(1, 1001), BrokerState(2, 1002)]))
    made.save_cluster(ClusterState("west", [BrokerState(1, 1003)]))
    made.save_ensemble([ServerState(Server(1, 2001, 2002, 2003))])
    return made


def test_members_are_named_as_a_person_types_them(directory: Directory) -> None:
    east = cluster_of(directory, "east")

    def labels(*words: str) -> list[str]:
        return [each.label for each in members(directory, east, words)]

    assert labels() == ["broker 1", "broker 2"]
    assert labels("2", "zk") == ["broker 2", "zookeeper 1"]
    assert labels("zk1", "broker-1", "zookeeper-1") == ["zookeeper 1", "broker 1", "zookeeper 1"]
    for unknown in ("3", "zk2", "one", "-1"):
        with pytest.raises(LocalError, match="its members are 1, 2, zk1"):
            labels(unknown)


def test_the_server_of_an_ensemble_needs_its_number(directory: Directory) -> None:
    servers = [ServerState(Server(n, 2000 + n, 2100 + n, 2200 + n)) for n in (1, 2, 3)]
    directory.save_ensemble(servers)
    east = cluster_of(directory, "east")
    assert [each.label for each in members(directory, east, ["zk3"])] == ["zookeeper 3"]
    with pytest.raises(LocalError, match="zk1, zk2, zk3"):
        members(directory, east, ["zk"])


def test_the_cluster_is_named_unless_there_is_one(directory: Directory, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="choose one by --name"):
        cluster_of(directory, None)
    with pytest.raises(LocalError, match="no cluster north"):
        cluster_of(directory, "north")
    with pytest.raises(LocalError, match="start one with"):
        cluster_of(Directory(tmp_path / "empty"), None)


@pytest.mark.parametrize("size", [10, 40_000])
def test_the_last_lines_are_whole(tmp_path: Path, size: int) -> None:
    """Long lines: the file is read backwards in blocks."""
    log = tmp_path / "log"
    lines = [b"%d " % n + b"x" * size for n in range(6)]
    log.write_bytes(b"".join(line + b"\n" for line in lines) + b"not yet wh")
    for count in (0, 1, 3, 6, 9):
        found, position = last_lines(log, count)
        assert found == (lines[-count:] if count else [])
        assert log.read_bytes()[position:] == b"not yet wh"
    assert last_lines(tmp_path / "missing", 3) == ([], 0)


def test_new_lines_are_followed_also_in_a_truncated_log(tmp_path: Path) -> None:
    one, two = Member("one", None, tmp_path / "one"), Member("two", None, tmp_path / "two")
    one.log.write_bytes(b"old\nha")
    turns = itertools.count()

    def wait(_seconds: float) -> None:
        turn = next(turns)
        if turn == 0:
            with one.log.open("ab") as file:
                file.write(b"lf\n")
            two.log.write_bytes(b"first\nsecond\n")
        elif turn == 1:
            two.log.write_bytes(b"again\n")
        else:
            raise KeyboardInterrupt

    found: list[tuple[str, bytes]] = []
    with pytest.raises(KeyboardInterrupt):
        found.extend((member.label, line) for member, line in follow([one, two], [4, 0], wait))
    assert found == [("one", b"half"), ("two", b"first"), ("two", b"second"), ("two", b"again")]


def test_a_line_longer_than_a_block_is_followed_too(tmp_path: Path) -> None:
    member = Member("one", None, tmp_path / "one")
    line = b"x" * 200_000
    member.log.write_bytes(line + b"\nshort\n")

    def wait(_seconds: float) -> None:
        raise KeyboardInterrupt

    found: list[bytes] = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(line for _, line in follow([member], [0], wait))
    assert found == [line, b"short"]
