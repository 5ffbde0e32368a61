"""The common parts of all suites: contenders in alternation, loads in separate processes, topics."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import apache
from benchmarks.processes import Broker, apache_broker, fresh, our_broker

OURS, APACHE = "ours", "Apache Kafka"


def available(notes: list[str]) -> tuple[list[str], Path | None]:
    """Return the contenders and Apache Kafka's jars; without them kbroker alone, and the reason is added to *notes*."""
    try:
        return [OURS, APACHE], apache.jars()
    except apache.NotAvailable as not_available:
        notes.append(f"Apache Kafka was not measured: {not_available}")
        return [OURS], None


def in_turn(makes: list[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield (round, contender); every other round is in the opposite order."""
    for turn in range(rounds):
        for make in makes if turn % 2 == 0 else makes[::-1]:
            yield turn, make


def print_progress(text: str) -> None:
    """Print the current measurement."""
    print(f"   {text}", file=sys.stderr, flush=True)


def load(
    name: str, bootstrap: str, topic: str, count: int, size: int, partitions: int | None = None
) -> dict[str, float]:
    """Run one load in a separate process and return its figures."""
    numbers = [count, size] if partitions is None else [count, size, partitions]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load", name, bootstrap, topic, *map(str, numbers)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"load {name} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def create_topic(bootstrap: str, name: str, partitions: int = 1) -> None:
    """Create a topic and wait until it can be written; a lost request is repeated."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    for attempt in range(5):
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        made = admin.create_topics(
            [NewTopic(name, partitions, 1)], operation_timeout=20, request_timeout=25
        )
        try:
            made[name].result(30)
            return
        except (KafkaException, TimeoutError) as problem:
            known = isinstance(problem, KafkaException)
            if known and problem.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS and attempt:
                return
            last: Exception = problem
            print_progress(f"creating {name} failed: {problem!r}")
    raise last


def create_replicated(
    bootstrap: str, name: str, assignment: list[list[int]], timeout: float = 120.0
) -> float:
    """Create a topic on the given brokers; return the seconds until all have leaders and full ISRs."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    began = time.monotonic()
    new = NewTopic(name, len(assignment), replica_assignment=assignment)
    made = admin.create_topics([new], operation_timeout=60, request_timeout=90)
    made[name].result(timeout)
    while time.monotonic() - began < timeout:
        known = admin.list_topics(name, timeout=30).topics[name].partitions
        if len(known) == len(assignment) and all(
            each.leader in each.isrs and sorted(each.isrs) == sorted(assignment[index])
            for index, each in known.items()
        ):
            return time.monotonic() - began
        time.sleep(0.1)  # metadata of thousands of partitions would load the brokers
    raise RuntimeError(f"{name} was not in sync after {timeout:.0f} s")


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic, to free the page cache for the next contender."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.delete_topics([name]).values():
        future.result(30)


def zookeeper_classpath() -> str:
    """Return the class path that holds a ZooKeeper server."""
    import pyspark

    return f"{Path(pyspark.__file__).parent}/jars/*"


@contextlib.contextmanager
def contender(
    name: str, directory: Path, zookeeper_port: int, jars: Path | None
) -> Iterator[Broker]:
    """Run a broker of the named make on a new directory, which is emptied at the end."""
    if name == OURS:
        running = our_broker(directory, zookeeper_port, chroot=directory.name)
    else:
        assert jars is not None
        running = apache_broker(directory, zookeeper_port, jars, chroot=directory.name)
    with running as broker:
        yield broker
    fresh(directory)
