"""`zookeeper.connect`: hosts, ports and a chroot."""

from __future__ import annotations

import pytest

from kbroker.zk.session_state import parse_connect


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("a:2181", "a:2181", ""),
        ("a", "a", ""),
        ("a:1,b:2, c:3/east", "a:1,b:2,c:3", "/east"),
        ("a:1/", "a:1", ""),
        ("a:1/x/y/", "a:1", "/x/y"),
        ("[::1]:2181/k", "[::1]:2181", "/k"),
    ],
)
def test_hosts_and_chroot_are_separated(text: str, hosts: str, chroot: str) -> None:
    assert parse_connect(text) == (hosts, chroot)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/x",
        "a:b",
        "a:1,,b:2",
        "a:1 b:2",
        "a:1//x",
        "a:123456",
        "a:0",
        "a:1,b:99999",
        "[::1]:65536/x",
    ],
)
def test_what_makes_no_sense_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a (list of ZooKeeper servers|path|port)"):
        parse_connect(text)
