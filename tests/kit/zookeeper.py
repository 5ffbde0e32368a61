"""A real ZooKeeper for tests: one JVM per pytest worker, a chroot of its own for every test.

The kernel kills the JVM when the worker ends, however it ends. `Ensemble` is for tests that hurt
ZooKeeper itself; they make their own.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kbroker.local import processes, zookeeper
from kbroker.testing.hosts import LOOPBACK, Host

_numbers = itertools.count(1)


class Ensemble:
    """N ZooKeeper servers as children of this process (standalone if N is 1).

    *between* (source, target, port) gives the port by which one server connects to another's *port*, for example a
    proxy's.
    *hosts* gives each server its place in a network; the default is the loopback address of this process.
    """

    def __init__(
        self,
        directory: Path,
        servers: int = 1,
        *,
        tick_ms: int = 500,
        between: Callable[[int, int, int], int] = lambda _source, _target, port: port,
        hosts: Callable[[int], Host] = lambda _number: LOOPBACK,
    ) -> None:
        ports = iter(zookeeper.free_ports(3 * servers))
        self.servers = [
            zookeeper.Server(n, next(ports), next(ports), next(ports), hosts(n).address)
            for n in range(1, servers + 1)
        ]
        self._hosts = hosts
        self.directory = directory
        self.tick_ms = tick_ms
        self._between = between
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def connect(self) -> str:
        """The hosts as in zookeeper.connect, without a chroot."""
        return ",".join(server.address for server in self.servers)

    def start(self, *numbers: int, wait: bool = True) -> None:
        """Start the servers with these numbers, or all, and wait until they serve."""
        chosen = [s for s in self.servers if not numbers or s.number in numbers]
        for server in chosen:
            home = self.directory / f"zookeeper-{server.number}"
            home.mkdir(parents=True, exist_ok=True)
            configuration = zookeeper.write_configuration(
                home, server, self._as_seen_by(server), tick_ms=self.tick_ms
            )
            with (home / "zookeeper.log").open("ab") as log:
                self._processes[server.number] = processes.start_bound_to_us(
                    [
                        *self._hosts(server.number).prefix,
                        *zookeeper.command(configuration, fsync=False),
                    ],
                    output=log,
                )
        if wait:
            self.wait_until_serving(*(s.number for s in chosen))

    def _as_seen_by(self, caller: zookeeper.Server) -> list[zookeeper.Server]:
        """Return all servers with the ports by which *caller* follows them."""
        return [
            one
            if one is caller
            else replace(one, peer_port=self._between(caller.number, one.number, one.peer_port))
            for one in self.servers
        ]

    def wait_until_serving(self, *numbers: int, timeout: float = 45.0) -> None:
        """Wait for the servers with these numbers, or all."""
        chosen = [s for s in self.servers if not numbers or s.number in numbers]
        silent = zookeeper.wait_until_serving(chosen, timeout=timeout)
        if silent:
            raise AssertionError(f"ZooKeeper does not serve on {silent}:\n{self.logs()}")

    def logs(self) -> str:
        """Return the last lines that every server wrote."""
        paths = sorted(self.directory.glob("zookeeper-*/zookeeper.log"))
        return "\n".join(f"{p}:\n{p.read_text(errors='replace')[-2000:]}" for p in paths)

    def kill(self, *numbers: int) -> None:
        """kill -9 the servers with these numbers, or all."""
        for number in numbers or tuple(self._processes):
            process = self._processes.pop(number, None)
            if process is not None:
                process.kill()
                process.wait()

    def pause(self, *numbers: int) -> None:
        """SIGSTOP: the server keeps its connections and answers nothing."""
        for number in numbers or tuple(self._processes):
            self._processes[number].send_signal(signal.SIGSTOP)

    def resume(self, *numbers: int) -> None:
        """SIGCONT."""
        for number in numbers or tuple(self._processes):
            self._processes[number].send_signal(signal.SIGCONT)

    def leader(self) -> int:
        """Return the number of the server that leads now."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for server in self.servers:
                if zookeeper.mode(server) in ("leader", "standalone"):
                    return server.number
            time.sleep(0.05)
        raise AssertionError(f"no ZooKeeper server leads\n{self.logs()}")


@contextmanager
def zookeeper_at(connect: str) -> Iterator[KazooClient]:
    """Give a ZooKeeper client at *connect*, a chroot included."""
    client = KazooClient(connect)
    client.start(20)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[Ensemble]:
    """Run one ZooKeeper server for all tests of this worker. Never stop it; take `own_ensemble` for that."""
    directory = Path(tempfile.mkdtemp(prefix="kbroker-zookeeper-"))
    server = Ensemble(directory)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def zookeeper_connect(zookeeper_server: Ensemble) -> str:
    """Give a `zookeeper.connect` with a chroot of its own, which does not exist yet."""
    return f"{zookeeper_server.connect}/test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def own_ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    """Run a single server that the test may kill, pause and restart."""
    ensemble = Ensemble(tmp_path / "ensemble")
    ensemble.start()
    try:
        yield ensemble
    finally:
        ensemble.kill()
