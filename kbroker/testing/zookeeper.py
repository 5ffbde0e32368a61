"""One ZooKeeper server for a whole test session, which ends with it.

A ZooKeeper server is a JVM of 0.7 s of processor time. All clusters of a session share one, each under a chroot of its
own; the workers of pytest-xdist do so, too.

    process that needs it            keeper (`python -m kbroker.testing.zookeeper PID DIR`)
    locks DIR/.lock
    no DIR/server.json: starts -->   starts the JVM, which the kernel kills when the keeper ends
    writes DIR/server.json           waits until the session PID or the JVM ends
    unlocks, waits until it serves   kills the JVM, and removes DIR

PID is the session: the pytest process that the user started (the controller of pytest-xdist), or the process that uses
`KafkaCluster` without pytest. The keeper sees its end however it comes, `kill -9` too. DIR also has the clusters of the
session, so nothing of it stays on the disk.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kbroker.local import processes, zookeeper
from kbroker.local.cluster import broker_environment
from kbroker.local.processes import ProcessIdentity
from kbroker.local.zookeeper import LocalError, Server

SERVING_TIMEOUT = 45.0
_TICK_MS = 500
"""Session timeouts are between 2 and 20 ticks."""

_ENDED = "ended"
"""The file with the reason why the server of a session ended."""


def new_directory() -> Path:
    """Return the path for the directory of a session. It is made when its ZooKeeper server starts."""
    return Path(tempfile.gettempdir(), f"kbroker-testing-{os.urandom(6).hex()}")


class SessionZooKeeper:
    """The ZooKeeper server of the session with the process *pid* and the directory *directory*."""

    def __init__(self, pid: int, directory: Path) -> None:
        self.pid = pid
        self.directory = directory

    @classmethod
    def of_this_process(cls) -> SessionZooKeeper:
        """Return a session that ends with this process."""
        return cls(os.getpid(), new_directory())

    def begin(self) -> Server:
        """Start the server if no process of the session has done so, and return it: `wait` until it serves."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = self.directory / "server.json"
        with _locked(self.directory / ".lock"):
            if not state.exists():
                try:
                    self._start(state)
                except BaseException:  # no keeper is there to remove it
                    shutil.rmtree(self.directory, ignore_errors=True)
                    raise
        return Server(1, json.loads(state.read_text())["client_port"], 0, 0)

    def _start(self, state: Path) -> None:
        (client_port,) = zookeeper.free_ports(1)
        keeper = processes.start_in_background(
            [sys.executable, "-m", __name__, str(self.pid), str(self.directory), str(client_port)],
            log=self.directory / "zookeeper.log",
            cwd=Path("/"),
            environment=broker_environment(),
        )
        state.write_text(json.dumps({"client_port": client_port, "keeper": keeper.to_json()}))

    def wait(self, server: Server) -> None:
        """Wait until *server* serves; raise LocalError with the reason if it does not."""
        deadline = time.monotonic() + SERVING_TIMEOUT
        keeper = ProcessIdentity.from_json(
            json.loads((self.directory / "server.json").read_text())["keeper"]
        )
        while not zookeeper.mode(server):
            if (ended := self.directory / _ENDED).exists():
                raise LocalError(ended.read_text())
            if keeper is None or not keeper.alive or time.monotonic() > deadline:
                raise LocalError(
                    f"the test session's ZooKeeper does not serve on port {server.client_port}. Its last log lines:\n"
                    + _last_lines(self.directory)
                )
            time.sleep(0.01)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _last_lines(directory: Path) -> str:
    try:
        lines = (directory / "zookeeper.log").read_text(errors="replace").splitlines()
    except OSError:
        return "    (no log)"
    return "\n".join(f"    {line}" for line in lines[-12:])


# --- the keeper -----------------------------------------------------------------------------------


def _keep(pid: int, directory: Path, client_port: int) -> None:
    """Run the server until process *pid* ends, then remove *directory*."""
    session = ProcessIdentity.of(pid)
    server = Server(1, client_port, 0, 0)
    home = directory / "zookeeper"
    home.mkdir(exist_ok=True)
    jvm: subprocess.Popen[bytes] | None = None
    try:
        configuration = zookeeper.write_configuration(home, server, [server], tick_ms=_TICK_MS)
        with (directory / "zookeeper.log").open("ab") as log:
            jvm = processes.start_bound_to_us(
                zookeeper.command(configuration, fsync=False), output=log
            )
        _wait_for_end(session, jvm)
        if jvm.poll() is not None:
            _give_reason(
                directory,
                f"the test session's ZooKeeper ended with {jvm.returncode}. Its last log lines:\n"
                + _last_lines(directory),
            )
    except LocalError as problem:
        _give_reason(directory, str(problem))
    _wait_for_end(session)
    if jvm is not None:
        jvm.kill()
        jvm.wait()
    shutil.rmtree(directory, ignore_errors=True)


def _give_reason(directory: Path, reason: str) -> None:
    part = directory / f"{_ENDED}.part"
    part.write_text(reason)
    part.replace(directory / _ENDED)


def _wait_for_end(
    session: ProcessIdentity | None, jvm: subprocess.Popen[bytes] | None = None
) -> None:
    """Wait until one of the two has ended."""
    poll = select.poll()
    descriptors = []
    for pid in [session.pid if session else 0, jvm.pid if jvm else 0]:
        if pid and hasattr(os, "pidfd_open"):
            try:
                descriptors.append(os.pidfd_open(pid))
            except OSError:
                continue
            poll.register(descriptors[-1], select.POLLIN)
    # The descriptor was opened by number: it is that of the session if the session is still there now.
    while session is not None and session.alive and (jvm is None or jvm.poll() is None):
        poll.poll(60_000 if descriptors else 500)
    for descriptor in descriptors:
        os.close(descriptor)


if __name__ == "__main__":
    _keep(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
