"""Brokers as processes of a test: start, kill, pause, restart, and read their logs.

The kernel kills them when the test's process ends, however it ends. They are forked from a process that has imported
the broker (`kbroker.local.fork_server`): a start takes a tenth of a second of processor time.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from kbroker.local import processes
from kbroker.local.cluster import broker_environment
from kbroker.local.fork_server import ForkServer
from kbroker.local.zookeeper import free_ports
from kbroker.testing.hosts import LOOPBACK, Host
from kbroker.testing.request_faults import PROGRAM as BROKER_WITH_FAULTS
from kbroker.testing.switchboard.remote import PROGRAM as SWITCHBOARD

READY_TIMEOUT = 45.0

FORK_SERVER = ForkServer(
    ("kbroker", "kclient", "mirrormaker", BROKER_WITH_FAULTS, SWITCHBOARD),
    broker_environment(),
    without=("kbroker.demo", "kbroker.testing", "kclient.testing"),
)
"""It begins with the first command."""

atexit.register(FORK_SERVER.close)


def start_bound_to_us(
    command: list[str],
    *,
    output: IO[bytes],
    stdout: int | IO[bytes] | None = None,
    environment: Mapping[str, str],
    forked: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a process as `processes.start_bound_to_us` does, and unless it is to be *forked*, by that."""
    if not forked:
        return processes.start_bound_to_us(
            command, output=output, stdout=stdout, environment=environment
        )
    return FORK_SERVER.popen(
        command,
        bound_to_us=True,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=output if stdout is None else stdout,
        stderr=output,
    )


@dataclass
class Broker:
    """One broker of `Brokers`."""

    broker_id: int
    port: int
    home: Path
    host: Host = LOOPBACK
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False
    """Whether `Brokers.pause` stopped it."""
    ready_after: float = 0.0
    """Seconds from the last start to the ready line."""
    settings: dict[str, str] = field(default_factory=dict)
    """Its settings besides those of all brokers."""
    environment: dict[str, str] = field(default_factory=dict)
    """What its process finds in its environment besides ours."""
    program: tuple[str, ...] = ("-m", "kbroker")
    """What Python runs, with `start` and the properties file as arguments."""
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
        return _running(self).pid


class Brokers:
    """N brokers on one ZooKeeper chroot. Ids count from 1."""

    def __init__(
        self,
        directory: Path,
        zookeeper_connect: str,
        brokers: int = 1,
        *,
        settings: Mapping[str, str],
        hosts: Callable[[int], Host] = lambda _broker_id: LOOPBACK,
        forked: bool = True,
    ) -> None:
        self.forked = forked
        """Whether brokers are forked by `FORK_SERVER`, not spawned as a user does."""
        self.zookeeper_connect = zookeeper_connect
        self.settings = dict(settings)
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
        try:
            return self.brokers[broker_id]
        except KeyError:
            known = ", ".join(map(str, self.brokers)) or "none"
            raise LookupError(f"no broker {broker_id!r}; the cluster has: {known}") from None

    def _chosen(self, broker_ids: Iterable[int]) -> list[Broker]:
        return [self[n] for n in broker_ids] or list(self.brokers.values())

    # --- life ---

    def start(self, *broker_ids: int, wait: bool = True, **overrides: str) -> None:
        """Start the brokers with these ids, or all, and wait until they are ready.

        Keyword *overrides* have underscores for the dots of Kafka's names.
        """
        chosen = self._chosen(broker_ids)
        settings = {key.replace("_", "."): str(value) for key, value in overrides.items()}
        for broker in chosen:
            if broker.process is not None and broker.process.poll() is None:
                raise RuntimeError(
                    f"broker {broker.broker_id} runs already: kill or terminate it first"
                )
        for broker in chosen:
            if broker.process is not None:  # it ended by itself
                self._reap(broker, 5)
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
            **broker.settings,
            **overrides,
        }
        path = broker.home / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        broker._output = b""
        broker.paused = False
        broker.ready_after = -time.monotonic()
        with (broker.home / "broker.log").open("ab") as log:
            broker.process = start_bound_to_us(
                [*broker.host.prefix, sys.executable, *broker.program, "start", str(path)],
                output=log,
                stdout=subprocess.PIPE,
                environment={**broker_environment(), **broker.environment},
                forked=self.forked,
            )

    def wait_ready(self, *broker_ids: int, timeout: float = READY_TIMEOUT) -> None:
        """Wait for the ready lines of the brokers with these ids, or all."""
        deadline = time.monotonic() + timeout
        for broker in self._chosen(broker_ids):
            process = _running(broker)
            assert process.stdout is not None
            while b"READY broker.id=" not in broker._output:
                left = max(0.0, deadline - time.monotonic())
                if select.select([process.stdout], [], [], left)[0]:
                    piece = process.stdout.read1(65536)  # type: ignore[attr-defined]
                    if not piece:
                        code = self._reap(broker, 5)
                        raise AssertionError(
                            f"broker {broker.broker_id} ended with {code}:\n{broker.log[-3000:]}"
                        )
                    broker._output += piece
                else:
                    raise AssertionError(
                        f"broker {broker.broker_id} is not ready after {timeout:g} s:\n"
                        + broker.log[-3000:]
                    )
            broker.ready_after += time.monotonic()

    def kill(self, *broker_ids: int) -> None:
        """Kill -9 the brokers with these ids, or all."""
        for broker in self._chosen(broker_ids):
            if broker.process is not None:
                broker.process.kill()
                self._reap(broker, 10)

    def pause(self, *broker_ids: int) -> None:
        """SIGSTOP: the brokers with these ids, or all, stand still, and their connections stay open."""
        for broker in self._chosen(broker_ids):
            _running(broker).send_signal(signal.SIGSTOP)
            broker.paused = True

    def resume(self, *broker_ids: int) -> None:
        """SIGCONT: paused brokers go on."""
        for broker in self._chosen(broker_ids):
            _running(broker).send_signal(signal.SIGCONT)
            broker.paused = False

    def terminate(self, *broker_ids: int, timeout: float = 20.0) -> None:
        """SIGTERM: a controlled shutdown of the brokers with these ids, or all; wait for a clean exit."""
        chosen = self._chosen(broker_ids)
        for broker in chosen:
            _running(broker).send_signal(signal.SIGTERM)
        for broker in chosen:
            code = self._reap(broker, timeout)
            assert code == 0, f"broker {broker.broker_id} exited with {code}:\n{broker.log[-3000:]}"

    @property
    def down(self) -> list[int]:
        """The ids of the brokers that do not run."""
        return [n for n, broker in self.brokers.items() if broker.process is None]

    def restart(self, broker_id: int, **overrides: str) -> None:
        """Kill -9, and start again at once."""
        self.kill(broker_id)
        self.start(broker_id, wait=True, **overrides)

    @staticmethod
    def _reap(broker: Broker, timeout: float) -> int:
        process = _running(broker)
        code = process.wait(timeout)
        if process.stdout is not None:
            process.stdout.close()
        broker.process = None
        return code

    def stop_all(self) -> None:
        """End every broker, however it stands."""
        for broker in self.brokers.values():
            if broker.process is not None:
                broker.process.kill()
                self._reap(broker, 10)


def _running(broker: Broker) -> subprocess.Popen[bytes]:
    if broker.process is None:
        raise RuntimeError(f"broker {broker.broker_id} does not run: start it first")
    return broker.process
