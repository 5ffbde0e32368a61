"""Clusters of three brokers, kbroker or Apache Kafka, on one ZooKeeper: start, kill, terminate, restart."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.processes import cpu_seconds, free_port, peak_memory_mib, wait_for_port

BROKERS = (1, 2, 3)
SESSION_S = 6.0
"""zookeeper.session.timeout.ms of all brokers, in seconds."""

_PATIENCE_S = 90.0

_SETTINGS = """broker.id={id}
listeners=PLAINTEXT://127.0.0.1:{port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
zookeeper.connect=127.0.0.1:{zookeeper}/{chroot}
zookeeper.session.timeout.ms=6000
log.dirs={logs}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
group.initial.rebalance.delay.ms=0
auto.leader.rebalance.enable=false
log.retention.hours=1
"""


@dataclass
class Member:
    """One broker: its address, and its process while it runs."""

    broker_id: int
    port: int
    home: Path
    command: list[str]
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def bootstrap(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id; RuntimeError while it is not running."""
        if self.process is None:
            raise RuntimeError(f"broker {self.broker_id} is not running")
        return self.process.pid

    def cpu(self) -> float:
        """Return its CPU seconds so far."""
        return cpu_seconds(self.pid)

    def start(self) -> None:
        """Start the process."""
        with (self.home / "broker.log").open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=dict(os.environ),
                start_new_session=True,
            )

    def wait_until_up(self) -> None:
        """Wait until it accepts connections."""
        assert self.process is not None
        wait_for_port(self.port, self.process, self.home / "broker.log")

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._end(signal.SIGKILL)

    def terminate(self) -> float:
        """Terminate it with SIGTERM; return the seconds until it exited."""
        began = time.monotonic()
        self._end(signal.SIGTERM)
        return time.monotonic() - began

    def _end(self, by: signal.Signals) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, by)
            self.process.wait(_PATIENCE_S)
            self.process = None


class ThreeBrokers:
    """Three brokers of one cluster."""

    def __init__(self, members: Mapping[int, Member]) -> None:
        self.members = dict(members)

    def __getitem__(self, broker_id: int) -> Member:
        return self.members[broker_id]

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers."""
        return ",".join(member.bootstrap for member in self.members.values())

    def cpu(self) -> float:
        """Return the CPU seconds of all brokers so far."""
        return sum(member.cpu() for member in self.members.values())

    def peak_memory(self) -> float:
        """Return the largest peak of the three, in MiB."""
        return max(peak_memory_mib(member.pid) for member in self.members.values())


Program = Callable[[Path], list[str]]
"""The Python arguments that run a kbroker with the given home, instead of `-m kbroker`."""


def _command(make: str, properties: Path, jars: Path | None, program: Program) -> list[str]:
    if make == "ours":
        return [sys.executable, *program(properties.parent), "start", str(properties)]
    assert jars is not None
    return [
        *("java", "-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
        *("-Dlog4j.configuration=file:/dev/null", "-cp", f"{jars}/*"),
        *("kafka.Kafka", str(properties)),
    ]


@contextlib.contextmanager
def start_three(
    make: str,
    directory: Path,
    zookeeper_port: int,
    jars: Path | None,
    *,
    program: Program = lambda _home: ["-m", "kbroker"],
) -> Iterator[ThreeBrokers]:
    """Start three brokers; yield when each has all of them in its metadata."""
    members = {}
    for broker_id in BROKERS:
        home = directory / str(broker_id)
        home.mkdir(parents=True, exist_ok=True)
        port = free_port()
        properties = home / "server.properties"
        properties.write_text(
            _SETTINGS.format(
                id=broker_id,
                port=port,
                zookeeper=zookeeper_port,
                chroot=directory.name,
                logs=home / "logs",
            )
        )
        members[broker_id] = Member(
            broker_id, port, home, _command(make, properties, jars, program)
        )
    cluster = ThreeBrokers(members)
    try:
        for member in members.values():
            member.start()
        for member in members.values():
            member.wait_until_up()
        _all_known(cluster)
        yield cluster
    finally:
        for member in members.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.kill()


def _all_known(cluster: ThreeBrokers) -> None:
    from benchmarks.plain_client import PlainClient

    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            known = []
            for member in cluster.members.values():
                with PlainClient(member.port) as broker:
                    metadata = broker.metadata([])
                    known.append(len(metadata.brokers) if metadata.controller_id >= 0 else 0)
            if min(known) == len(cluster.members):
                return
        select.select([], [], [], 0.05)
    raise RuntimeError("the three brokers do not have each other in their metadata")
