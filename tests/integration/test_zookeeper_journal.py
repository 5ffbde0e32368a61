"""ZooKeeper's journal, written by a real server: every change is there, in order, with its session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from tests.audits.zookeeper_journal import Change, keep_files, read_journal
from tests.kit.zookeeper import Ensemble, zookeeper_at

pytestmark = pytest.mark.slow


def changes(ensemble: Ensemble, shelf: Path, below: str) -> list[Change]:
    keep_files(ensemble.directory / "zookeeper-1" / "data", shelf)
    found = read_journal([shelf])
    return [change for change in found if change.path.startswith(below + "/")]


@pytest.fixture
def client(zookeeper_connect: str) -> Iterator[KazooClient]:
    hosts, _, chroot = zookeeper_connect.partition("/")
    with zookeeper_at(hosts) as client:
        client.ensure_path("/" + chroot)
        yield client


def test_every_change_is_in_the_journal(
    client: KazooClient, zookeeper_server: Ensemble, zookeeper_connect: str, tmp_path: Path
) -> None:
    root = "/" + zookeeper_connect.partition("/")[2]
    session = client.client_id[0]
    client.create(root + "/a", b"1")
    client.set(root + "/a", b"2")
    client.create(root + "/gone-with-us", b"x", ephemeral=True)
    client.create(root + "/deleted-before", b"x", ephemeral=True)
    client.delete(root + "/deleted-before")
    both = client.transaction()
    both.create(root + "/b", b"3")
    both.check(root + "/a", 1)
    both.set_data(root + "/a", b"4")
    both.commit()
    refused = client.transaction()
    refused.set_data(root + "/b", b"6")
    refused.set_data(root + "/a", b"5", version=77)
    assert any(isinstance(one, KazooException) for one in refused.commit())
    client.delete(root + "/b")
    client.stop()
    client.close()
    found = changes(zookeeper_server, tmp_path / "shelf", root)
    assert [(change.path.removeprefix(root), change.data) for change in found] == [
        ("/a", b"1"),
        ("/a", b"2"),
        ("/gone-with-us", b"x"),
        ("/deleted-before", b"x"),
        ("/deleted-before", None),
        ("/b", b"3"),
        ("/a", b"4"),
        ("/b", None),
        ("/gone-with-us", None),
    ]
    assert {change.session for change in found} == {session}
    assert [change.path.removeprefix(root) for change in found if change.ephemeral] == [
        "/gone-with-us",
        "/deleted-before",
    ]
    assert found[5].zxid == found[6].zxid
    zxids = [change.zxid for change in found]
    assert zxids == sorted(zxids)


def test_a_killed_servers_journal_is_read_up_to_where_it_ends(
    own_ensemble: Ensemble, tmp_path: Path
) -> None:
    for value in (b"1", b"2"):
        with zookeeper_at(own_ensemble.connect) as client:
            client.ensure_path("/root")
            client.create(f"/root/{value.decode()}", value)
            keep_files(own_ensemble.directory / "zookeeper-1" / "data", tmp_path / "shelf")
            own_ensemble.kill()
        own_ensemble.start()
    found = changes(own_ensemble, tmp_path / "shelf", "/root")
    assert [change.data for change in found] == [b"1", b"2"]
