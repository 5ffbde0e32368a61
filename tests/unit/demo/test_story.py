"""What `kbroker demo` does to its directory, and which error it ends with."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.demo import cli, story
from kbroker.demo.stage import DemoFailed, LocalClusters
from kbroker.demo.story import MARK, Choices, make_room, play


def tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def purged(_directory: Path) -> None:
    raise AssertionError("there is no cluster to purge")


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_and_an_empty_directory_are_marked(tmp_path: Path, *, exists: bool) -> None:
    out = tmp_path / "a" / "demo-out"
    if exists:
        out.mkdir(parents=True)
    make_room(out, purged)
    assert tree(out) == {MARK}


def test_a_directory_with_other_files_is_refused_and_stays(tmp_path: Path) -> None:
    for name in ("mirror.properties", "thesis.tex"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "clusters").mkdir()
    before = tree(tmp_path)
    with pytest.raises(DemoFailed, match=r"--dir.*no demo has written: clusters, mirror\.prop.*\n"):
        make_room(tmp_path, purged)
    assert tree(tmp_path) == before


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DemoFailed, match=r"--dir .*/file/out: Not a directory"):
        make_room(tmp_path / "file" / "out", purged)


def test_only_what_an_earlier_demo_left_is_removed(tmp_path: Path) -> None:
    make_room(tmp_path, purged)
    for name in ("clusters/east/broker-1", "report-1", "report-2", "report-3"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    for name in ("mirror.properties", "notes.txt"):
        (tmp_path / name).touch()
    done: list[Path] = []
    make_room(tmp_path, done.append)
    assert done == [tmp_path / "clusters"]
    assert tree(tmp_path) == {MARK, "notes.txt", "report-3", "report-3/file"}


def test_a_link_under_a_name_of_the_demo_is_removed_without_what_it_names(tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    make_room(out, purged)
    kept.mkdir()
    (kept / "file").touch()
    (out / "report-1").symlink_to(kept)
    make_room(out, purged)
    assert tree(out) == {MARK}
    assert tree(kept) == {"file"}


def test_the_first_error_is_raised_though_the_clusters_cannot_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(_narrator: object, clusters: LocalClusters, _port: int) -> tuple[str, str]:
        clusters.directory.mkdir()
        raise DemoFailed("no free ports")

    def down_all(_clusters: LocalClusters) -> None:
        raise DemoFailed("`kbroker local down` ended with 1")

    monkeypatch.setattr(story, "_start", start)
    monkeypatch.setattr(LocalClusters, "down_all", down_all)
    with pytest.raises(DemoFailed, match="no free ports"):
        play(Choices(tmp_path, 1, keep=False, port=19092))
    assert "kbroker local down" in capsys.readouterr().out


def test_nothing_is_stopped_before_there_is_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_ports(_first: int, _count: int) -> int:
        raise DemoFailed("no free ports")

    monkeypatch.setattr(story, "free_ports", no_ports)
    monkeypatch.setattr(LocalClusters, "down_all", lambda _: pytest.fail("there is none"))
    with pytest.raises(DemoFailed, match="no free ports"):
        play(Choices(tmp_path / "out", 1, keep=False, port=19092))


@pytest.mark.parametrize("port", ["-1", "0", "60000", "70000"])
def test_a_port_out_of_range_is_a_usage_error(port: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = CliRunner().invoke(cli.demo, ["--dir", str(out), "--port", port])
    assert ended.exit_code == 2
    assert "--port" in ended.output
    assert not out.exists()
