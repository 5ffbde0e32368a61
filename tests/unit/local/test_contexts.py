"""The contexts that `kbroker local` adds and removes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.local import contexts
from kbroker.local.cluster import down, purge
from kbroker.local.state import BrokerState, ClusterState, Directory
from kclient.contexts import Context, Contexts, changing, default_file, load


@pytest.fixture(autouse=True)
def _no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def cluster_in(path: Path, name: str, port: int = 19092) -> tuple[Directory, ClusterState]:
    path.mkdir(exist_ok=True)
    directory, cluster = Directory(path), ClusterState(name, [BrokerState(1, port)])
    directory.save_cluster(cluster)
    return directory, cluster


def ignore(_line: str) -> None:
    pass


def test_a_cluster_has_a_context_while_it_is_up(tmp_path: Path) -> None:
    lines: list[str] = []
    directory, east = cluster_in(tmp_path / "a", "east")
    contexts.add(directory, east, lines.append)
    assert lines == ["east: kclient finds it without -b"]
    found = load(default_file())
    assert found.current == "east"
    assert found.named("east").settings == {"bootstrap.servers": "127.0.0.1:19092"}
    down(directory, None, ignore)
    assert not default_file().exists()
    contexts.add(directory, east, ignore)
    purge(directory, None, ignore)
    assert not default_file().exists()


def test_the_end_of_a_cluster_in_another_directory_changes_nothing(tmp_path: Path) -> None:
    first, cluster = cluster_in(tmp_path / "a", "local", 19092)
    second, other = cluster_in(tmp_path / "b", "local", 29092)
    contexts.add(first, cluster, ignore)
    contexts.add(second, other, ignore)
    down(first, None, ignore)
    assert load(default_file()).named("local").settings["bootstrap.servers"] == "127.0.0.1:29092"


def test_the_current_context_of_the_user_stays(tmp_path: Path) -> None:
    with changing(default_file()) as versions:
        prod = Context("prod", {"bootstrap.servers": "prod:1"})
        versions.append(Contexts({"prod": prod}, "prod"))
    lines: list[str] = []
    contexts.add(*cluster_in(tmp_path / "a", "east"), lines.append)
    assert lines == [
        "east: kclient finds it with KCLIENT_CONTEXT=east; its current context is prod"
    ]
    contexts.add(*cluster_in(tmp_path / "a", "prod"), lines.append)
    assert "was not made by kbroker local" in lines[1]


def test_a_current_context_of_the_project_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kclient.toml").write_text('current = "prod"\n')
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    contexts.add(*cluster_in(tmp_path / "a", "east"), lines.append)
    assert lines == [
        "east: kclient finds it with KCLIENT_CONTEXT=east; its current context is prod"
    ]


def test_a_file_that_cannot_be_changed_is_one_line(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "config").write_text("no directory")
    directory, east = cluster_in(tmp_path / "a", "east")
    contexts.add(directory, east, lines.append)
    down(directory, None, lines.append)
    [line] = lines
    assert line.startswith("kclient's contexts are not changed: ")
