"""A server that a foreign suite starts: `python -m tests.compat.suites.server zookeeper|broker PROPERTIES`.

The suites start Apache Kafka by scripts or in a container. Stand-ins of these run this module instead: it starts a
real ZooKeeper server, or kbroker with the suite's own server.properties. `KBROKER_SUITES_BROKER=apache` starts Apache
Kafka 3.9.1 with the same properties: what fails there is no fault of kbroker's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from benchmarks import apache
from kbroker.config import properties
from kbroker.local import processes, zookeeper

DROPPED = ("authorizer.class.name", "allow.everyone.if.no.acl.found", "super.users")
"""Settings that kbroker refuses by name, or that name users: the suites run without an authorizer, on both brokers."""

START_TIMEOUT = 90.0


def _zookeeper(path: Path) -> tuple[subprocess.Popen[bytes], str]:
    given = properties.read(path).values
    port = int(given["clientPort"])
    server = zookeeper.Server(1, port, 0, 0)
    configuration = zookeeper.write_configuration(path.parent, server, [server])
    process = processes.start_bound_to_us(
        zookeeper.command(configuration, fsync=False), output=sys.stderr.buffer
    )
    if zookeeper.wait_until_serving([server], timeout=START_TIMEOUT):
        raise SystemExit("ZooKeeper does not serve")
    return process, f"binding to port {server.address}"


def _broker(path: Path) -> tuple[subprocess.Popen[bytes], str]:
    settings = properties.read(path).values
    for name in DROPPED:
        if settings.pop(name, None) is not None:
            sys.stderr.write(f"{name} is dropped\n")
    kept = path.with_suffix(".kept.properties")
    kept.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    process = processes.start_bound_to_us(_command(kept), output=sys.stderr.buffer)
    address = settings["listeners"].split(",")[0].split("://")[1]
    deadline = time.monotonic() + START_TIMEOUT
    while not _answers(address):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the broker does not start")
    return process, f"[KafkaServer id={settings['broker.id']}] started"


def _command(path: Path) -> Sequence[str]:
    if os.environ.get("KBROKER_SUITES_BROKER") == "apache":
        return ["java", "-Xmx512m", "-cp", f"{apache.jars()}/*", "kafka.Kafka", str(path)]
    return [sys.executable, "-m", "kbroker", "start", str(path)]


def _answers(address: str) -> bool:
    try:
        client = AdminClient({"bootstrap.servers": address, "log_level": 0})
        return bool(client.list_topics(timeout=1).brokers)
    except KafkaException:
        return False


def main() -> int:
    """Start the server, print the line that the suite waits for, and stop the server when this process is stopped."""
    kind, path = sys.argv[1], Path(sys.argv[2])
    process, ready = (_zookeeper if kind == "zookeeper" else _broker)(path)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    signal.signal(signal.SIGINT, lambda *_: process.terminate())
    sys.stdout.write(f"{ready}\n")
    sys.stdout.flush()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
