"""Apache Kafka as a peer: where its jars are, and the mark of tests that need them.

tools/setup.sh fetches them while it makes `.venv` for the tests (by benchmarks/apache.py), and continues without
them if that fails. A test with Apache Kafka is then skipped, with the reason.
"""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from benchmarks import apache
from kbroker.local import processes
from kbroker.local.zookeeper import free_ports
from tests.kit.jvm import SHORT_LIVED
from tests.kit.waiting import eventually

JARS = apache.folder()
CLASSPATH = f"{JARS}/*"
EXACTLY_ONCE_SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": "2",
}
"""Of three kbrokers that serve an application with exactly_once, and of which one is killed at a time."""

QUIET = "-Dlog4j.configuration=file:/dev/null"
"""Kafka's classes log nothing."""


def java(heap: str, *words: str) -> list[str]:
    """Return the command that runs *words* (options, a class or a source file, its arguments) with Kafka's jars."""
    return ["java", f"-Xmx{heap}", *SHORT_LIVED.split(), "-cp", CLASSPATH, *words]


with_kafka = pytest.mark.skipif(
    not apache.is_complete(JARS) or shutil.which("java") is None,
    reason=f"no Apache Kafka {apache.VERSION} in {JARS} (make venv fetches it by Maven), or no Java",
)

with_jdk = pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK, not only a JRE")


def with_module(name: str) -> pytest.MarkDecorator:
    """Return the mark of tests that need the module *name* of Apache Kafka, too."""
    return pytest.mark.skipif(
        not apache.is_complete(JARS, name),
        reason=f"no {name} of Apache Kafka {apache.VERSION} in {JARS} (make venv fetches it by Maven)",
    )


@dataclass
class ApacheKafka:
    """One broker of Apache Kafka."""

    bootstrap: str
    data: Path
    process: subprocess.Popen[bytes]


@contextmanager
def running_kafka(
    home: Path, zookeeper_connect: str, settings: Mapping[str, str] | None = None
) -> Iterator[ApacheKafka]:
    """Start a broker of Apache Kafka in *home*, and kill it at the end; *settings* of server.properties win."""
    home.mkdir()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    properties = {
        "broker.id": "1",
        "listeners": f"PLAINTEXT://{address}",
        "zookeeper.connect": zookeeper_connect,
        "log.dirs": str(home / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        **(settings or {}),
    }
    path = home / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    command = java("512m", "kafka.Kafka", str(path))
    with (home / "kafka.log").open("wb") as log:
        process = processes.start_bound_to_us(command, output=log)
    try:
        eventually("Apache Kafka", lambda: _answers(address), 90)
        yield ApacheKafka(address, home / "data", process)
    finally:
        process.kill()
        process.wait()


def _answers(address: str) -> bool:
    try:
        client = AdminClient({"bootstrap.servers": address, "log_level": 0})
        return bool(client.list_topics(timeout=1).brokers)
    except KafkaException:
        return False
