"""kmirror beside MirrorMaker 2: the same records between the same two kbrokers."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import apache
from benchmarks.contenders import create_topic, load, print_progress, zookeeper_classpath
from benchmarks.processes import (
    Broker,
    cpu_seconds,
    our_broker,
    peak_memory_mib,
    running,
    zookeeper,
)
from benchmarks.results import Figure

PARTITIONS = 4
SIZE = 1000
MM2 = "MirrorMaker 2"
_PATIENCE_S = 300.0

_OURS = """clusters = source, target
source.bootstrap.servers = {source}
target.bootstrap.servers = {target}
source->target.enabled = true
source->target.topics = {topic}
replication.factor = 1
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
"""
_MM2 = (
    _OURS
    + """tasks.max = 4
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
dedicated.mode.enable.internal.rest = false
"""
)


@dataclass
class Run:
    """One mirrored topic."""

    first_s: float
    """From exec to the first record in the target."""
    rate: float
    """MB/s from the first record to the last."""
    cpu_per_gb: float
    memory_mib: float


class RecordCounter:
    """Reads the number of records of a topic in the target."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "watch", "log_level": 0}
        )
        self._partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]

    def count(self) -> int:
        """Return the number of records; 0 while the topic does not exist."""
        from confluent_kafka import KafkaException

        try:
            return sum(self._consumer.get_watermark_offsets(p, 5)[1] for p in self._partitions)
        except KafkaException:
            return 0


def _follow(
    process: subprocess.Popen[bytes], started: float, bootstrap: str, topic: str, count: int
) -> Run:
    """Wait until the target has all records; measure time, CPU and memory."""
    watch = RecordCounter(bootstrap, topic)
    first_at, first, cpu, memory = 0.0, 0, 0.0, 0.0
    deadline = started + _PATIENCE_S
    while True:
        there = watch.count()
        now = time.monotonic()
        if there and not first_at:
            first_at, first = now, there
        if process.poll() is None:
            with contextlib.suppress(FileNotFoundError, RuntimeError):
                cpu = cpu_seconds(process.pid)
                memory = peak_memory_mib(process.pid)
        elif there < count:
            raise RuntimeError(
                f"the mirror ended with {process.returncode} at {there} of {count} records"
            )
        if there >= count:
            break
        if now > deadline:
            raise RuntimeError(f"{there} of {count} records after {_PATIENCE_S:.0f} s")
        time.sleep(0.02)
    elapsed = now - first_at
    return Run(
        first_at - started,
        (count - first) * SIZE / 1e6 / elapsed,
        cpu / (count * SIZE / 1e9),
        memory,
    )


Make = Callable[[Path, str, Broker, Broker, int], Run]


def _ours(directory: Path, topic: str, source: Broker, target: Broker, count: int) -> Run:
    config = directory / f"{topic}.properties"
    config.write_text(_OURS.format(source=source.bootstrap, target=target.bootstrap, topic=topic))
    command = [sys.executable, "-m", "mirrormaker", "run", str(config), "--once", "--quiet"]
    started = time.monotonic()
    with running(command, directory / f"{topic}.log") as process:
        run = _follow(process, started, target.bootstrap, topic, count)
        if process.wait(30):
            raise RuntimeError((directory / f"{topic}.log").read_text()[-2000:])
    return run


def _mirrormaker(jars: Path) -> Make:
    def mirror(directory: Path, topic: str, source: Broker, target: Broker, count: int) -> Run:
        config = directory / f"{topic}.properties"
        config.write_text(
            _MM2.format(source=source.bootstrap, target=target.bootstrap, topic=topic)
        )
        (directory / "log4j.properties").write_text(
            "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
        )
        command = [
            *("java", "-Xmx1g", f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}"),
            *("-cp", f"{jars}/*", "org.apache.kafka.connect.mirror.MirrorMaker", str(config)),
        ]
        started = time.monotonic()
        with running(command, directory / f"{topic}.log") as process:
            try:
                return _follow(process, started, target.bootstrap, topic, count)
            except RuntimeError as problem:
                tail = (directory / f"{topic}.log").read_text(errors="replace")[-1500:]
                raise RuntimeError(f"{problem}\n{tail}") from None

    return mirror


IDLE_TOPICS = 10
IDLE_PARTITIONS = 100
_IDLE_CONFIG = """clusters = source, target
source.bootstrap.servers = {source}
target.bootstrap.servers = {target}
source->target.enabled = true
replication.factor = 1
"""


def idle_cpu(directory: Path, source: Broker, target: Broker, seconds: float) -> float:
    """Return the CPU of `kmirror run` with nothing to copy, in percent of a core per 1,000 partitions."""
    for number in range(IDLE_TOPICS):
        create_topic(source.bootstrap, f"idle-{number}", IDLE_PARTITIONS)
    total = IDLE_TOPICS * IDLE_PARTITIONS
    config, log = directory / "idle.properties", directory / "idle.log"
    config.write_text(_IDLE_CONFIG.format(source=source.bootstrap, target=target.bootstrap))
    command = [sys.executable, "-m", "mirrormaker", "run", str(config)]
    with running(command, log) as process:
        deadline = time.monotonic() + _PATIENCE_S
        settled = f"{total} partitions\n"
        while "lag 0 rec" not in (last := log.read_text()[-300:]) or not last.endswith(settled):
            if time.monotonic() > deadline:
                raise RuntimeError(f"kmirror does not come to rest:\n{last}")
            time.sleep(0.5)
        before, began = cpu_seconds(process.pid), time.monotonic()
        time.sleep(seconds)
        share = (cpu_seconds(process.pid) - before) / (time.monotonic() - began)
        process.kill()
    return 100 * share * 1000 / total


@contextlib.contextmanager
def _pair(directory: Path, zookeeper_port: int) -> Iterator[tuple[Broker, Broker]]:
    with (
        our_broker(directory / "source", zookeeper_port, chroot=f"{directory.name}-s") as source,
        our_broker(directory / "target", zookeeper_port, chroot=f"{directory.name}-t") as target,
    ):
        yield source, target


def mirror_suite(directory: Path, rounds: int, divide: int) -> tuple[list[Figure], list[str]]:
    """Fill a topic of four partitions and mirror it; each run has a new pair of brokers."""
    rate = Figure("mirror 1 KB", "MB/s", goal=">= 8 x", goal_ratio=8)
    cpu = Figure("mirror CPU per GB", "s", False)
    memory = Figure("mirror peak memory", "MiB", False)
    first = Figure("first record after start", "s", False, "< 1 s", goal_value=1.0)
    idle = Figure(
        "idle mirror, CPU per 1,000 partitions", "% of a core", False, "< 2", goal_value=2.0
    )
    notes = ["1,000-byte records, not compressed, 4 partitions; both clusters are of ours"]
    makes: dict[str, tuple[Make, int]] = {"ours": (_ours, 1_000_000 // divide)}
    try:
        makes[MM2] = (_mirrormaker(apache.jars()), 1_000_000 // divide)
    except apache.NotAvailable as not_available:
        notes.append(f"MirrorMaker 2 was not measured: {not_available}")
    with zookeeper(directory / "zookeeper", zookeeper_classpath()) as port:
        for turn in range(rounds):
            for number, (name, (mirror, count)) in enumerate(list(makes.items())):
                print_progress(f"round {turn + 1}: {name}")
                place = directory / f"pair-{turn}-{number}"
                with _pair(place, port) as (source, target):
                    create_topic(source.bootstrap, "t", PARTITIONS)
                    load("rdkafka-produce", source.bootstrap, "t", count, SIZE, PARTITIONS)
                    run = mirror(place, "t", source, target, count)
                rate.add(name, run.rate)
                cpu.add(name, run.cpu_per_gb)
                memory.add(name, run.memory_mib)
                first.add(name, run.first_s)
        place = directory / "pair-idle"
        with _pair(place, port) as (source, target):
            idle.add("ours", idle_cpu(place, source, target, 60.0 / divide))
    return [rate, cpu, memory, first, idle], notes
