"""A stand-in for the `docker` package: its one container is ZooKeeper and a broker on this machine.

aiokafka's conftest.py starts its broker through that package. This module is on the path of its pytest only, and
imports nothing of ours: there the package `tests` is aiokafka's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).parents[4]


def _start(kind: str, path: Path, settings: dict[str, object]) -> subprocess.Popen[str]:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with (path.parent / f"{kind}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.compat.suites.server", kind, str(path)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(f"{kind} did not start: see {log.name}")
    return process


class Container:
    """ZooKeeper and a broker."""

    def __init__(self, environment: dict[str, Any]) -> None:
        home = Path(tempfile.mkdtemp(dir=os.environ["KBROKER_SUITES_HOME"]))
        (home / "zookeeper").mkdir()
        zookeeper_port = os.environ["KBROKER_SUITES_ZOOKEEPER_PORT"]
        self._processes = [
            _start("zookeeper", home / "zookeeper" / "given.cfg", {"clientPort": zookeeper_port}),
            _start(
                "broker",
                home / "server.properties",
                {
                    "broker.id": 0,
                    "listeners": f"PLAINTEXT://127.0.0.1:{environment['ADVERTISED_PORT']}",
                    "num.partitions": environment["NUM_PARTITIONS"],
                    "auto.create.topics.enable": "true",
                    "log.dirs": home / "data",
                    "zookeeper.connect": f"127.0.0.1:{zookeeper_port}",
                    # As config/server.properties in Apache Kafka's archive, which the container starts with.
                    "group.initial.rebalance.delay.ms": 0,
                    "offsets.topic.replication.factor": 1,
                    "transaction.state.log.replication.factor": 1,
                    "transaction.state.log.min.isr": 1,
                },
            ),
        ]

    def exec_run(self, command: str | list[str], **_options: Any) -> tuple[int, bytes]:
        """Run nothing: the commands are kafka-acls and kafka-configs for SASL users."""
        return 1, f"{command}: the broker has no SASL and no ACLs".encode()

    def stop(self) -> None:
        """Stop the broker, then ZooKeeper."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(30)


class _Containers:
    def run(self, *, environment: dict[str, Any], **_options: Any) -> Container:
        return Container(environment)


class _Client:
    containers = _Containers()

    def close(self) -> None:
        """Do nothing."""


models = SimpleNamespace(containers=SimpleNamespace(Container=Container))


def from_env() -> _Client:
    """Return the client."""
    return _Client()
