"""The command lines that `kbroker local` advises: they have the options of the user, and a shell can run them."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli.local import local
from kbroker.local import orphan_reaper
from kbroker.local.cluster import planned
from kbroker.local.state import BrokerState, ClusterState, Directory


@pytest.fixture(autouse=True)
def _no_default_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KBROKER_LOCAL_DIR", raising=False)
    monkeypatch.chdir(tmp_path)


def saved(path: Path, name: str, *, brokers: int = 3, port: int = 19092) -> None:
    """Save a cluster of which nothing runs."""
    path.mkdir(exist_ok=True)
    states = [BrokerState(n, port + n - 1) for n in range(1, brokers + 1)]
    Directory(path).save_cluster(ClusterState(name, states))


def error_of(*arguments: str) -> str:
    done = CliRunner().invoke(local, arguments)
    assert done.exit_code == 1, done.output
    return done.stderr


def advised(text: str) -> list[list[str]]:
    """Return the words of each `kbroker local` line of *text*, as a shell reads them."""
    lines = [line.strip() for line in text.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("kbroker local ")]


@pytest.mark.long
def test_another_shape_is_advised_with_the_options_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "my clusters"
    saved(path, "east")
    where = ["--dir", str(path), "--name", "east"]
    text = error_of("up", *where, "--brokers", "1", "--override", "num.partitions=7")
    assert "there already, with 3 brokers from port 19092" in text
    assert advised(text) == [
        ["kbroker", "local", "up", *where, "--override", "num.partitions=7"],
        ["kbroker", "local", "purge", *where],
    ]
    # What is advised is what the command takes.
    saved(path, "west", brokers=1)
    assert "1 broker from" in error_of("up", "--dir", str(path), "--name", "west", "-n", "2")
    [_, (*_, verb, option, value, _, _)] = advised(text)
    assert CliRunner().invoke(local, [verb, option, value, "--name", "east"]).exit_code == 0
    assert not (path / "east").exists()


def test_what_was_not_given_is_not_advised() -> None:
    saved(Path("kbroker-local"), "local")
    text = error_of("up", "--brokers", "1")
    assert advised(text) == [
        ["kbroker", "local", "up"],
        ["kbroker", "local", "purge", "--name", "local"],
    ]


def test_a_default_that_a_variable_replaced_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    saved(Path("kbroker-local"), "local")
    monkeypatch.setenv("KBROKER_LOCAL_DIR", "elsewhere")
    text = error_of("up", "--dir", "kbroker-local", "--brokers", "1")
    assert advised(text)[0] == ["kbroker", "local", "up", "--dir", "kbroker-local"]


def test_a_missing_cluster_is_started_with_the_same_options(tmp_path: Path) -> None:
    where = ["--dir", f"{tmp_path}/it's", "--name", "east"]
    for command in ("status", "env"):
        assert advised(error_of(command, *where)) == [["kbroker", "local", "up", *where]]


def test_the_port_of_a_cluster_that_exists_cannot_be_chosen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        saved(Path("kbroker-local"), "local", brokers=1, port=port)
        text = error_of("up")
        assert f"port {port} is in use by another program" in text
        assert "choose another --port" not in text
        assert advised(text) == [["kbroker", "local", "purge", "--name", "local"]]
        assert "choose another --port" in error_of(
            "up", "--name", "b", "-n", "1", "--port", f"{port}"
        )


def test_port_0_stands_for_free_ports_in_a_row(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [broker.port for broker in planned(Directory(tmp_path), "a", 3, 0).brokers]
        assert ports == [*range(ports[0], ports[0] + 3)]
        assert ports[0] > 0
        assert taken.getsockname()[1] not in ports


def test_no_brokers_or_servers_at_all_are_refused(tmp_path: Path) -> None:
    """They were three, and one: 0 was taken for an option that is not there."""
    assert "--brokers 0: between 1 and 100" in error_of("up", "--dir", str(tmp_path), "-n", "0")
    any_port = ["--dir", str(tmp_path), "--port", "0"]
    assert "--zookeepers 0: between 1 and 9" in error_of("up", *any_port, "--zk", "0")


def test_a_command_line_is_quoted_for_a_shell() -> None:
    directory = Directory(Path("a b"))
    assert directory.command("status") == "kbroker local status --dir 'a b'"
    assert Directory(Path("kbroker-local")).command("status") == "kbroker local status"


@pytest.mark.parametrize("count", ["50000", "101", "0", "-1"])
@pytest.mark.parametrize("where", [["--ephemeral"], []])
def test_the_number_of_brokers_has_the_same_bounds_in_every_cluster(
    where: list[str], count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --ephemeral the search for so many free ports ended with a traceback."""
    monkeypatch.setattr(
        orphan_reaper, "start", lambda *_, **__: pytest.fail("a process is started")
    )
    assert f"--brokers {count}: between 1 and 100" in error_of("up", *where, "--brokers", count)
