"""Three brokers of one make on one ZooKeeper: started together, killed, ended and started again one by one."""

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

APACHE = "Apache Kafka"
BROKERS = (1, 2, 3)
SESSION_S = 6.0
"""zookeeper.session.timeout.ms of all brokers."""

_PATIENCE_S = 90.0

_SETTINGS = """broker.id={id}
listeners=PLAINTEXT://127.0.0.1:{port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
zookeeper.connect=127.0.0.1:{zookeeper}/{chroot}
zookeeper.session.timeout.ms=6000
log.dirs={logs}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.leader.rebalance.enable=false
log.retention.hours=1
"""


@dataclass
class Member:
    """One broker: where it is, and its process while it runs."""

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
        """Its process id; RuntimeError while it does not run."""
        if self.process is None:
            raise RuntimeError(f"broker {self.broker_id} does not run")
        return self.process.pid

    def cpu(self) -> float:
        """Return its CPU seconds so far."""
        return cpu_seconds(self.pid)

    def start(self) -> None:
        """Run it."""
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
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    def terminate(self) -> float:
        """End it with SIGTERM; return the seconds until it was gone."""
        began = time.monotonic()
        self._end(signal.SIGTERM)
        return time.monotonic() - began

    def _end(self, by: signal.Signals) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, by)
            self.process.wait(_PATIENCE_S)
            self.process = None


class Trio:
    """Three brokers of one cluster."""

    def __init__(self, members: Mapping[int, Member]) -> None:
        self.members = dict(members)

    def __getitem__(self, broker_id: int) -> Member:
        return self.members[broker_id]

    @property
    def bootstrap(self) -> str:
        """All three, for a client."""
        return ",".join(member.bootstrap for member in self.members.values())

    def cpu(self) -> float:
        """Return the CPU seconds of all brokers so far."""
        return sum(member.cpu() for member in self.members.values())

    def peak_memory(self) -> float:
        """Return the largest peak of the three, in MiB."""
        return max(peak_memory_mib(member.pid) for member in self.members.values())


Program = Callable[[Path], list[str]]
"""Arguments of python that run a broker of ours with the home given, in place of `-m kbroker`."""


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
def three(
    make: str,
    directory: Path,
    zookeeper_port: int,
    jars: Path | None,
    *,
    program: Program = lambda _home: ["-m", "kbroker"],
) -> Iterator[Trio]:
    """Run three brokers; ready when all of them are in each other's metadata."""
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
    trio = Trio(members)
    try:
        for member in members.values():
            member.start()
        for member in members.values():
            member.wait_until_up()
        _all_known(trio)
        yield trio
    finally:
        for member in members.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.kill()


def _all_known(trio: Trio) -> None:
    from benchmarks.asking import Asking

    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            known = []
            for member in trio.members.values():
                with Asking(member.port) as broker:
                    metadata = broker.metadata([])
                    known.append(len(metadata.brokers) if metadata.controller_id >= 0 else 0)
            if min(known) == len(trio.members):
                return
        select.select([], [], [], 0.05)
    raise RuntimeError("three brokers did not find each other")
