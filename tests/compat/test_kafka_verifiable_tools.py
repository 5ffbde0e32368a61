"""Apache Kafka's tools for its own system tests: kafka-verifiable-producer, its transactional copier, and -consumer.

They print as JSON what was acknowledged, copied and read, while brokers and the copier are killed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker.local import processes
from tests.kit.apache_kafka import EXACTLY_ONCE_SETTINGS, QUIET, java, with_kafka
from tests.kit.brokers import MakeCluster
from tests.kit.replicated import Observer, eventually

MESSAGES = 2000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.timeout(240),
    with_kafka,
]


class Tool:
    """A tool that runs, and the events that it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process, self._output = process, output

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return its complete events, or those called *name*."""
        lines = self._output.read_text().rpartition("\n")[0].splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if name is None or event.get("name") == name]

    def wait(self) -> None:
        """Wait until it has ended well."""
        assert self.process.wait(120) == 0, self._output.read_text()[-3000:]


@contextmanager
def tool(home: Path, name: str, label: str, *words: str) -> Iterator[Tool]:
    """Run the tool *name*, and kill it at the end."""
    path = home / f"{label}.out"
    with path.open("wb") as output:
        process = processes.start_bound_to_us(
            java("192m", QUIET, f"org.apache.kafka.tools.{name}", *words), output=output
        )
    try:
        yield Tool(process, path)
    finally:
        process.kill()
        process.wait()


def test_what_was_acknowledged_is_copied_and_read_once_while_brokers_are_killed(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    cluster = broker_clusters(3, EXACTLY_ONCE_SETTINGS)
    observer = Observer(cluster)
    for name in ("in", "out"):
        observer.create(name, [[1, 2, 3]], {"min.insync.replicas": "2"})
    servers = ("--bootstrap-server", cluster.bootstrap)

    config = tmp_path / "producer.properties"
    config.write_text(
        "retries=1000\nenable.idempotence=true\n"
    )  # the tool's own setting is no retry
    written = (
        *("--topic", "in", "--max-messages", str(MESSAGES), "--throughput", "400"),
        *("--producer.config", str(config)),
    )
    with tool(tmp_path, "VerifiableProducer", "producer", *servers, *written) as producer:
        eventually("the first quarter", lambda: len(producer.events()) > MESSAGES / 4, 60)
        cluster.kill(1)
        eventually("the second quarter", lambda: len(producer.events()) > MESSAGES / 2, 60)
        cluster.start(1)
        producer.wait()
    acknowledged = [event["value"] for event in producer.events("producer_send_success")]
    assert acknowledged == [str(n) for n in range(MESSAGES)]

    copied = (
        *("--broker-list", cluster.bootstrap, "--input-topic", "in", "--input-partition", "0"),
        *("--output-topic", "out", "--consumer-group", "copier", "--transactional-id", "copier"),
        *("--transaction-size", "10", "--enable-random-aborts", "--use-group-metadata"),
    )
    # The next copier looks for its offset first: it waits for the end of the killed one's transaction. Its own
    # transactions wait for a new coordinator or leader, so that its timeout is the tool's default of a minute.
    killed = (*copied, "--transaction-timeout", "3000")
    with tool(tmp_path, "TransactionalMessageCopier", "killed", *killed) as copier:
        eventually("transactions", lambda: len(copier.events()) > 20, 60)
        cluster.kill(2)
    with tool(tmp_path, "TransactionalMessageCopier", "copier", *copied) as copier:
        eventually("more transactions", lambda: len(copier.events()) > 20, 60)
        cluster.start(2)
        observer.in_sync("in", 0, [1, 2, 3])
        cluster.kill(3)
        copier.wait()
    cluster.start(3)

    config = tmp_path / "consumer.properties"
    config.write_text("isolation.level=read_committed\n")
    read = (
        *("--topic", "out", "--group-id", "reader", "--verbose"),
        *("--max-messages", str(MESSAGES), "--consumer.config", str(config)),
    )
    with tool(tmp_path, "VerifiableConsumer", "consumer", *servers, *read) as consumer:
        consumer.wait()
    assert [event["value"] for event in consumer.events("record_data")] == acknowledged
