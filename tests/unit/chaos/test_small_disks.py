"""Disks that are made full and given room; where that is not allowed, the scenario is skipped with the reason."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path

import pytest

from tests.chaos.skipped import Skipped
from tests.chaos.small_disks import SmallDisks


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[SmallDisks]:
    made = SmallDisks({n: tmp_path / f"broker-{n}" / "data" for n in (1, 2)})
    try:
        made.mount()
    except Skipped as reason:
        pytest.skip(str(reason))
    yield made
    made.unmount()


def write_pages(file: RawIOBase, pages: int) -> None:
    for _ in range(pages):
        assert file.write(bytes(4096)) == 4096


def test_a_disk_is_full_until_it_is_given_room(disks: SmallDisks, tmp_path: Path) -> None:
    disks.fill(1, 100_000)
    with (tmp_path / "broker-1/data/log").open("wb", buffering=0) as log:
        with pytest.raises(OSError, match="No space") as full:
            write_pages(log, 100)
        assert full.value.errno == errno.ENOSPC
        assert disks.free(1) == 0
        assert disks.free(2) > 100 << 20
        disks.give_room(1)
        write_pages(log, 1)


def test_what_is_in_them_is_kept(disks: SmallDisks, tmp_path: Path) -> None:
    (tmp_path / "broker-2/data/t-0").mkdir()
    (tmp_path / "broker-2/data/t-0/log").write_bytes(b"records")
    disks.unmount()
    assert not (tmp_path / "broker-2/data").is_mount()
    assert (tmp_path / "broker-2/data/t-0/log").read_bytes() == b"records"


def test_where_mounting_is_not_allowed_the_reason_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "bin" / "mount"
    mount.parent.mkdir()
    mount.write_text("#!/bin/sh\necho 'mount: only root can do that' >&2\nexit 1\n")
    mount.chmod(0o755)
    monkeypatch.setenv("PATH", str(mount.parent))
    with pytest.raises(Skipped, match="only root"):
        SmallDisks({1: tmp_path / "data"}).mount()
