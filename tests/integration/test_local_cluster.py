"""`kbroker local`: up, status, down, purge, as a person types them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.local.cluster import broker_environment
from kbroker.local.ephemeral import run_command
from kbroker.local.zookeeper import LocalError, free_ports
from tests.kit.waiting import eventually

pytestmark = pytest.mark.slow


class Local:
    """The command, on one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kbroker", "local", *arguments]
        done = subprocess.run(
            [*command, "--dir", str(self.directory)],
            capture_output=True,
            text=True,
            timeout=55,
            check=False,
            env=self.environment(),
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def environment(self) -> dict[str, str]:
        """The environment of a user without settings, and with a directory of settings."""
        ours = {"XDG_CONFIG_HOME": str(self.directory.parent / "config")}
        theirs = {k: v for k, v in os.environ.items() if not k.startswith("KCLIENT")}
        return {**theirs, **broker_environment(), **ours}

    def topics(self) -> subprocess.CompletedProcess[str]:
        """`kclient topic list`, without -b."""
        return subprocess.run(
            [sys.executable, "-m", "kclient", "topic", "list", "-i"],
            capture_output=True,
            text=True,
            timeout=55,
            check=False,
            env=self.environment(),
        )

    def up(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """`up`, with processes that end with this test run, even if it is killed."""
        return self("up", *arguments, "--die-with", str(os.getpid()), code=code)

    def properties(self) -> str:
        """What broker 1 of cluster east was started with."""
        return (self.directory / "east" / "broker-1" / "server.properties").read_text()

    def pids(self) -> list[int]:
        """Everything that runs."""
        state = json.loads(self("status", "--json", code=None).stdout)
        brokers = [b for c in state["clusters"] for b in c["brokers"]]
        return [m["pid"] for m in [*state["zookeeper"], *brokers] if m["pid"]]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    command = Local(tmp_path / "clusters")
    yield command
    command("purge")


def test_up_again_starts_what_is_missing_and_prints_the_same(local: Local) -> None:
    port = free_ports(3, consecutive=True)[0]
    first = local.up("--name", "east", "--brokers", "3", "--port", str(port))
    last = f"BROKERS=127.0.0.1:{port},127.0.0.1:{port + 1},127.0.0.1:{port + 2}"
    assert first.stdout.splitlines()[-1] == last
    assert "ready" in first.stderr
    assert "offsets.topic.replication.factor=3\n" in local.properties()
    pids = local.pids()
    local("pause", "2", "zk")
    states = local("status").stdout.splitlines()
    assert ["PAUSED" in line for line in states] == [True, False, True, False]
    local("resume", "2", "zk")
    assert "PAUSED" not in local("status").stdout
    local("kill", "3")
    assert len(local.pids()) == 3
    assert "broker 3 does not run" in local("kill", "3", code=1).stderr
    assert "its members are 1, 2, 3, zk1" in local("pause", "4", code=1).stderr
    shown = local("logs", "-n", "1").stdout.splitlines()
    assert [line.split(" | ")[0] for line in shown] == ["broker 1", "broker 2", "broker 3"]
    assert " | " not in local("logs", "-n", "1", "1").stdout
    assert local("status", code=4).stdout.count("STOPPED") == 1
    again = local.up("--name", "east")
    assert again.stdout.splitlines()[-1] == last
    assert "2 of 3 brokers are running already" in again.stderr
    assert local.pids()[:3] == pids[:3]
    other_shape = local.up("--name", "east", "--brokers", "2", code=1)
    assert "there already, with 3 brokers" in other_shape.stderr


def test_a_second_cluster_shares_the_ensemble(local: Local) -> None:
    one, two = free_ports(2)
    local.up("--name", "east", "--brokers", "1", "--port", str(one))
    west = local.up("--name", "west", "--brokers", "1", "--port", str(two))
    assert "ZooKeeper: starting" not in west.stderr
    assert len(local.pids()) == 3
    local("purge", "--name", "east")
    assert len(local.pids()) == 2
    # Nothing of the purged cluster is left in ZooKeeper: one of the same name starts empty.
    local.up("--name", "east", "--brokers", "1", "--port", str(one))


def test_down_keeps_data_and_purge_leaves_nothing(local: Local) -> None:
    [port] = free_ports(1)
    up = local.up("--name", "east", "--brokers", "1", "--port", str(port), "--zookeepers", "3")
    (local.directory / "mine.txt").write_text("not yours")
    assert "east: kclient finds it without -b" in up.stderr
    found = local.topics()
    assert (found.returncode, found.stderr) == (0, "")
    data = local.directory / "east" / "broker-1" / "data" / "meta.properties"
    identity = data.read_text()
    local("down")
    assert local.pids() == []
    assert not list((local.directory.parent / "config").glob("*/*"))
    assert data.read_text() == identity
    local.up("--name", "east")
    assert data.read_text() == identity
    local("purge")
    assert [path.name for path in local.directory.iterdir()] == ["mine.txt"]
    nothing = local("status", code=1)
    assert "kbroker local up" in nothing.stderr


def test_overrides_reach_the_brokers_and_are_remembered(local: Local) -> None:
    [port] = free_ports(1)
    arguments = ("--name", "east", "--brokers", "1", "--port", str(port))
    local.up(*arguments, "--override", "num.partitions=7")
    assert "offsets.topic.replication.factor=1\n" in local.properties()
    properties = local.directory / "east" / "broker-1" / "server.properties"
    assert "num.partitions=7\n" in properties.read_text()
    local("down")
    local.up("--name", "east")
    assert "num.partitions=7\n" in properties.read_text()


def test_settings_that_cannot_work_are_reported_before_a_process_starts(local: Local) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        errors = local.up("--name", "east", "--brokers", "1", "--port", port, code=1).stderr
        assert f"port {port} is in use" in errors
    assert "cannot be the name" in local.up("--name", "a/b", code=1).stderr
    assert "key=value" in local.up("--override", "x", code=1).stderr
    assert "set by `kbroker local`" in local.up("--override", "broker.id=3", code=1).stderr
    assert not list(local.directory.glob("*/broker-1"))


def test_a_broker_that_cannot_start_is_quoted(local: Local) -> None:
    [port] = free_ports(1)
    arguments = ("--name", "east", "--brokers", "1", "--port", str(port))
    errors = local.up(*arguments, "--override", "num.partitions=many", code=1).stderr
    assert "did not start" in errors
    assert "num.partitions" in errors


def test_java_missing_is_one_command_to_type(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kbroker", "local", "up", "--dir", str(tmp_path / "x")]
    done = subprocess.run(
        [*command, "--brokers", "1", "--port", str(free_ports(1)[0])],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, **broker_environment(), "PATH": str(tmp_path), "JAVA_HOME": ""},
    )
    assert done.returncode == 1
    assert "Java runtime, version 17" in done.stderr
    assert "install" in done.stderr


def test_clusters_die_with_the_process_that_wanted_them(local: Local) -> None:
    [port] = free_ports(1)
    with subprocess.Popen(["sleep", "60"]) as owner:
        arguments = ("--name", "east", "--brokers", "1", "--port", str(port))
        local("up", *arguments, "--die-with", str(owner.pid))
        assert len(local.pids()) == 2
        owner.kill()
    deadline = time.monotonic() + 30
    while local.pids():
        assert time.monotonic() < deadline, "the cluster outlived its owner"
        time.sleep(0.1)


def test_an_ephemeral_cluster_leaves_nothing_after_kill_9(local: Local, tmp_path: Path) -> None:
    up = [sys.executable, "-m", "kbroker", "local", "up", "--ephemeral", "--brokers", "1"]
    command = ["--", "sh", "-c", "echo $KCLIENT_BOOTSTRAP_SERVERS; exec sleep 60"]
    environment = {**local.environment(), "TMPDIR": str(tmp_path)}
    with (tmp_path / "errors").open("wb") as errors, subprocess.Popen(
        [*up, *command], stdout=subprocess.PIPE, stderr=errors, env=environment, text=True, start_new_session=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        host, _, port = process.stdout.readline().strip().partition(":")
        with socket.create_connection((host, int(port)), 5):
            [directory] = tmp_path.glob("kbroker-local-*")
        os.kill(process.pid, signal.SIGKILL)
        os.killpg(process.pid, signal.SIGKILL)
    eventually("the end", lambda: not directory.exists())
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0


def test_an_ephemeral_cluster_returns_the_exit_code_of_its_command(local: Local) -> None:
    refused = local("up", "--ephemeral", code=2)
    assert "remove --dir" in refused.stderr
    assert run_command(["sh", "-c", "test $BROKERS = a:1 && exit 7"], "a:1") == 7
    assert run_command(["sh", "-c", "kill -KILL $$"], "a:1") == 137
    with pytest.raises(LocalError, match="nosuch"):
        run_command(["nosuch-command"], "a:1")
