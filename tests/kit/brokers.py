"""Real broker processes for tests: start on free ports, kill, pause, restart, and read their logs.

A test that asks for `broker_clusters` makes clusters with it; at its end every broker is gone, and the
test fails if any broker's log holds a traceback or an unhandled error.
"""

from __future__ import annotations

import itertools
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kbroker.local.cluster import broker_command, broker_environment
from kbroker.local.zookeeper import free_ports
from tests.kit.fork_server import start_bound_to_us
from tests.kit.hosts import LOOPBACK, Host
from tests.kit.zookeeper import Ensemble

READY_TIMEOUT = 45.0
_BAD = re.compile(r"Traceback \(most recent call last\)|Unhandled error|\bFATAL\b")

DEFAULTS: Mapping[str, str] = {
    "zookeeper.session.timeout.ms": "4000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
    "offsets.topic.replication.factor": "1",
}


@dataclass
class Broker:
    """One broker of a `Cluster`."""

    broker_id: int
    port: int
    home: Path
    host: Host = LOOPBACK
    process: subprocess.Popen[bytes] | None = None
    ready_after: float = 0.0
    """Seconds from the last start to the ready line."""
    environment: dict[str, str] = field(default_factory=dict)
    """What its process finds in its environment besides ours."""
    noted_turns: Path | None = None
    """Where it notes the turns of its reactor (`benchmarks.turns`), if it does."""
    noted_stacks: str = "-"
    """"stacks": with the lines of ours that took the time."""
    _output: bytes = field(default=b"", repr=False)

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self.host.address}:{self.port}"

    @property
    def data(self) -> Path:
        """Its log directory."""
        return self.home / "data"

    @property
    def log(self) -> str:
        """Everything it wrote to stderr, over all its runs."""
        path = self.home / "broker.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid


class Cluster:
    """N brokers on one ZooKeeper chroot. Ids count from 1."""

    def __init__(
        self,
        directory: Path,
        zookeeper_connect: str,
        brokers: int = 1,
        *,
        overrides: Mapping[str, str] | None = None,
        hosts: Callable[[int], Host] = lambda _broker_id: LOOPBACK,
        forked: bool = True,
    ) -> None:
        self.forked = forked
        """Whether brokers are forked by `FORK_SERVER`, not spawned as a user does."""
        self.zookeeper_connect = zookeeper_connect
        self.settings = {**DEFAULTS, **(overrides or {})}
        self.allowed: list[str] = []
        """Regular expressions of log lines that a test provokes on purpose."""
        ports = free_ports(brokers)
        self.brokers = {
            n: Broker(n, port, directory / f"broker-{n}", hosts(n))
            for n, port in zip(range(1, brokers + 1), ports, strict=True)
        }

    @property
    def bootstrap(self) -> str:
        """All addresses, as in bootstrap.servers."""
        return ",".join(broker.address for broker in self.brokers.values())

    def __getitem__(self, broker_id: int) -> Broker:
        return self.brokers[broker_id]

    # --- life ---

    def start(self, *broker_ids: int, wait: bool = True, **overrides: str) -> None:
        """Start the brokers with these ids, or all, and wait until they are ready.

        Keyword *overrides* have underscores for the dots of Kafka's names.
        """
        chosen = [self.brokers[n] for n in broker_ids or self.brokers]
        settings = {key.replace("_", "."): value for key, value in overrides.items()}
        for broker in chosen:
            self._launch(broker, settings)
        if wait:
            self.wait_ready(*(broker.broker_id for broker in chosen))

    def _launch(self, broker: Broker, overrides: Mapping[str, str]) -> None:
        broker.home.mkdir(parents=True, exist_ok=True)
        settings = {
            "broker.id": str(broker.broker_id),
            "listeners": f"PLAINTEXT://{broker.address}",
            "zookeeper.connect": self.zookeeper_connect,
            "log.dirs": str(broker.data),
            **self.settings,
            **overrides,
        }
        path = broker.home / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        broker._output = b""
        broker.ready_after = -time.monotonic()
        with (broker.home / "broker.log").open("ab") as log:
            broker.process = start_bound_to_us(
                [*broker.host.prefix, *self._command(broker, path)],
                output=log,
                stdout=subprocess.PIPE,
                environment={**broker_environment(), **broker.environment},
                forked=self.forked,
            )

    @staticmethod
    def _command(broker: Broker, properties: Path) -> list[str]:
        command = broker_command(properties)
        if broker.noted_turns is None:
            return command
        program = ["-m", "benchmarks.turns", "broker", str(broker.noted_turns), broker.noted_stacks]
        return [command[0], *program, *command[3:]]

    def wait_ready(self, *broker_ids: int, timeout: float = READY_TIMEOUT) -> None:
        """Wait for the ready lines of the brokers with these ids, or all."""
        deadline = time.monotonic() + timeout
        for broker in (self.brokers[n] for n in broker_ids or self.brokers):
            process = broker.process
            assert process is not None
            assert process.stdout is not None
            while b"READY broker.id=" not in broker._output:
                left = max(0.0, deadline - time.monotonic())
                if select.select([process.stdout], [], [], left)[0]:
                    piece = process.stdout.read1(65536)  # type: ignore[attr-defined]
                    if not piece:
                        process.wait(5)
                        raise AssertionError(
                            f"broker {broker.broker_id} ended with {process.returncode}:\n"
                            + broker.log[-3000:]
                        )
                    broker._output += piece
                else:
                    raise AssertionError(
                        f"broker {broker.broker_id} is not ready after {timeout:g} s:\n"
                        + broker.log[-3000:]
                    )
            broker.ready_after += time.monotonic()

    def kill(self, *broker_ids: int) -> None:
        """kill -9."""
        for broker in (self.brokers[n] for n in broker_ids or self.brokers):
            if broker.process is not None:
                broker.process.kill()
                self._reap(broker, 10)

    def pause(self, broker_id: int) -> None:
        """SIGSTOP."""
        self._signal(broker_id, signal.SIGSTOP)

    def resume(self, broker_id: int) -> None:
        """SIGCONT."""
        self._signal(broker_id, signal.SIGCONT)

    def terminate(self, *broker_ids: int, timeout: float = 20.0) -> None:
        """SIGTERM, and wait for a clean exit."""
        chosen = [self.brokers[n] for n in broker_ids or self.brokers]
        for broker in chosen:
            self._signal(broker.broker_id, signal.SIGTERM)
        for broker in chosen:
            code = self._reap(broker, timeout)
            assert code == 0, f"broker {broker.broker_id} exited with {code}:\n{broker.log[-3000:]}"

    @property
    def down(self) -> list[int]:
        """The ids of the brokers that do not run."""
        return [n for n, broker in self.brokers.items() if broker.process is None]

    def restart(self, broker_id: int, **overrides: str) -> None:
        """kill -9, and start again at once."""
        self.kill(broker_id)
        self.start(broker_id, wait=True, **overrides)

    def _signal(self, broker_id: int, number: signal.Signals) -> None:
        process = self.brokers[broker_id].process
        assert process is not None
        process.send_signal(number)

    @staticmethod
    def _reap(broker: Broker, timeout: float) -> int:
        process = broker.process
        assert process is not None
        code = process.wait(timeout)
        if process.stdout is not None:
            process.stdout.close()
        broker.process = None
        return code

    # --- judgement ---

    def stop_all(self) -> None:
        """End every broker, however it stands."""
        for broker in self.brokers.values():
            if broker.process is not None:
                broker.process.send_signal(signal.SIGCONT)
                broker.process.kill()
                self._reap(broker, 10)

    def complaints(self) -> list[str]:
        """Return the lines of all logs that no broker should ever write."""
        found = []
        for broker in self.brokers.values():
            lines = broker.log.splitlines()
            for number, line in enumerate(lines):
                if not _BAD.search(line):
                    continue
                around = "\n".join(lines[max(0, number - 2) : number + 25])
                if not any(re.search(pattern, around) for pattern in self.allowed):
                    found.append(f"broker {broker.broker_id}:\n{around}")
        return found


MakeCluster = Callable[..., Cluster]


@contextmanager
def making_clusters(home: Path, zookeeper_connect: str) -> Iterator[MakeCluster]:
    """Make clusters below *home* and *zookeeper_connect*; in the end all are gone, and none had a complaint."""
    clusters: list[Cluster] = []
    names = itertools.count(1)

    def make(
        brokers: int = 1,
        overrides: Mapping[str, str] | None = None,
        *,
        zookeeper: str | None = None,
        racks: Mapping[int, str] | None = None,
        start: bool = True,
        forked: bool = True,
    ) -> Cluster:
        name = f"cluster-{next(names)}"
        connect = zookeeper or f"{zookeeper_connect}/{name}"
        cluster = Cluster(home / name, connect, brokers, overrides=overrides, forked=forked)
        clusters.append(cluster)
        for broker_id, rack in (racks or {}).items():
            cluster.start(broker_id, wait=False, broker_rack=rack)
        if racks:
            cluster.wait_ready()
        elif start:
            cluster.start()
        return cluster

    yield make
    for cluster in clusters:
        cluster.stop_all()
    complaints = [text for cluster in clusters for text in cluster.complaints()]
    assert not complaints, "\n".join(complaints[:5])


@pytest.fixture
def broker_clusters(tmp_path: Path, zookeeper_connect: str) -> Iterator[MakeCluster]:
    """Make clusters: ``broker_clusters(3, {"num.partitions": "4"})``, started and ready.

    Each has a chroot of its own; pass *zookeeper* to use another ensemble, *racks* for the rack of each broker,
    ``forked=False`` where the memory of brokers is looked at.
    """
    with making_clusters(tmp_path, zookeeper_connect) as make:
        yield make


@pytest.fixture(scope="module")
def module_clusters(
    tmp_path_factory: pytest.TempPathFactory, zookeeper_server: Ensemble
) -> Iterator[MakeCluster]:
    """Make clusters that all tests of a file share, as `broker_clusters` does for one test."""
    home = tmp_path_factory.mktemp("clusters")
    with making_clusters(home, f"{zookeeper_server.connect}/{home.name}") as make:
        yield make
