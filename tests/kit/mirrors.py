"""Mirror processes for tests, and what the logs of two clusters hold, read from the disk."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kbroker.local.cluster import broker_environment
from kbroker.testing.brokers import start_bound_to_us
from kclient.wire.batches import iterate
from tests.kit.brokers import Cluster
from tests.kit.fork_server import command_of, popen, run
from tests.kit.waiting import eventually

FLOW = "east->west"


class StoredBatch(NamedTuple):
    """A batch as it lies in a segment, without its leader epoch, which belongs to the cluster."""

    base_offset: int
    next_offset: int
    length: int
    rest: bytes
    """From the magic byte on: CRC, attributes, records."""


def stored(cluster: Cluster, topic: str, partition: int = 0) -> list[StoredBatch]:
    """Every batch of a partition, from the segment files of whichever broker has it."""
    while True:
        try:
            return _stored(cluster, topic, partition)
        except FileNotFoundError:  # retention or the cleaner removed a segment meanwhile
            continue


def _stored(cluster: Cluster, topic: str, partition: int) -> list[StoredBatch]:
    found = []
    for broker in cluster.brokers.values():
        for path in sorted((broker.data / f"{topic}-{partition}").glob("*.log")):
            data = path.read_bytes()
            for info in iterate(data):
                rest = data[info.position + 16 : info.end]
                found.append(StoredBatch(info.base_offset, info.next_offset, info.length, rest))
    return found


class HasBootstrap(Protocol):
    """A cluster that clients can connect to."""

    @property
    def bootstrap(self) -> str:
        """All addresses, as in bootstrap.servers."""


class Mirror:
    """`kmirror run` from *source* to *target*, with the configuration in *directory*."""

    def __init__(
        self,
        directory: Path,
        source: HasBootstrap,
        target: HasBootstrap,
        settings: dict[str, str] | None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "mirror.properties"
        self.log_file = directory / "mirror.log"
        values = {
            "clusters": "east, west",
            "east.bootstrap.servers": source.bootstrap,
            "west.bootstrap.servers": target.bootstrap,
            f"{FLOW}.enabled": "true",
            "refresh.topics.interval.seconds": "1",
            **(settings or {}),
        }
        self.path.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
        self.process: subprocess.Popen[bytes] | None = None
        self.forked = True
        """Whether `kmirror run` is forked by the `FORK_SERVER`, not spawned as a user does."""

    def start(self, *arguments: str) -> None:
        """Start it in the background."""
        command = command_of("mirrormaker", "run", str(self.path), *arguments)
        with self.log_file.open("ab") as log:
            self.process = start_bound_to_us(
                command,
                output=log,
                environment=broker_environment(),
                forked=self.forked,
            )

    def wait(self, timeout: float = 40.0) -> int:
        """Wait for its end; return the exit code."""
        assert self.process is not None
        code = self.process.wait(timeout)
        self.process = None
        return code

    def run_once(self, timeout: float = 40.0) -> int:
        """Run it with --once; return the exit code."""
        self.start("--once")
        return self.wait(timeout)

    def ask(self, command: str, *options: str, timeout: float = 30.0) -> tuple[int, str]:
        """Run another command on the same configuration; return exit code and output."""
        done = run("mirrormaker", command, str(self.path), *options, timeout=timeout)
        return done.returncode, (done.stdout + done.stderr).decode()

    def killed_after(self, line: str, command: str, *options: str) -> bool:
        """Run another command, and kill -9 it when it has written *line*; return whether it wrote it."""
        words = (command, str(self.path), *options)
        process = popen("mirrormaker", *words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert process.stderr is not None
        with process, process.stderr:
            for written in process.stderr:
                if line.encode() in written:
                    process.kill()
                    return True
        return False

    def signalled_after(
        self, line: str, number: signal.Signals, command: str, *options: str
    ) -> tuple[int, str]:
        """Run another command, and send *number* when it has written *line*; return exit code and stderr."""
        words = (command, str(self.path), *options)
        process = popen("mirrormaker", *words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert process.stderr is not None
        output = ""
        with process, process.stderr:
            for written in process.stderr:
                output += written.decode()
                if line.encode() in written:
                    process.send_signal(number)
        return process.returncode, output

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 15.0) -> int:
        """Signal it and wait for its end."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait(timeout)

    @property
    def output(self) -> str:
        """Everything it wrote, over all its runs."""
        return self.log_file.read_text() if self.log_file.exists() else ""


def until_same(
    source: Cluster, target: Cluster, topic: str, partitions: int = 1, **options: Any
) -> None:
    """Wait until the target's log of every partition is the source's, batch for batch."""

    def same() -> bool:
        return all(stored(source, topic, p) == stored(target, topic, p) for p in range(partitions))

    eventually(f"{topic} to be mirrored", same, **options)
