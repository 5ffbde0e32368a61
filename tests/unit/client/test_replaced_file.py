"""Files are replaced whole: a reader sees the old content or the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kclient.replaced_file import replace_file, replaced


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_gets_its_new_content_and_nothing_stays_beside_it(
    tmp_path: Path, durable: bool
) -> None:
    path = tmp_path / "new" / "report.json"
    replace_file(path, "ä", durable=durable)
    replace_file(path, b"second", durable=durable)
    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def write_half() -> None:
        with replaced(path) as beside:
            beside.write_text("half of the n")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
