"""kmirror beside MirrorMaker 2: the same records between the same two kbrokers."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
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
from kclient import Consumer, KafkaError, Producer, TopicPartition

RECORDS = 3_000_000
RECORDS_OF_MM2 = 1_000_000
LONGEST_WAIT_S = 0.1
"""Between two requests for the records at the target."""

PARTITIONS = (1, 4, 1000)
USUAL = 4
"""The partitions of the topic that memory and the first record are measured with."""
SIZE = 1000
LAG_RECORDS_S = 200
"""Records a second of the measurement of the lag."""
LAG_S = 20.0
LATE_S = 5.0
"""How long records are waited for after that."""
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
    """Reads the number of records of a topic in the target: one request, however many partitions."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        from confluent_kafka import TopicPartition as Place
        from confluent_kafka.admin import AdminClient, OffsetSpec

        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        latest = OffsetSpec.latest()
        self._wanted = {Place(topic, number): latest for number in range(partitions)}

    def count(self) -> int:
        """Return the number of records in the partitions that exist."""
        asked = self._admin.list_offsets(self._wanted, request_timeout=2)
        return sum(0 if each.exception() else each.result().offset for each in asked.values())


def _follow(
    process: subprocess.Popen[bytes], started: float, watch: RecordCounter, count: int
) -> Run:
    """Wait until the target has all records; measure time, CPU and memory."""
    first_at, first, cpu, memory = 0.0, 0, 0.0, 0.0
    deadline = started + _PATIENCE_S
    while True:
        asked = time.monotonic()
        there = watch.count()
        now = time.monotonic()
        if 0 < there < count and not first_at:
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
            if not first_at:
                raise RuntimeError("all records were there at the first answer: give it more")
            break
        if now > deadline:
            raise RuntimeError(f"{there} of {count} records after {_PATIENCE_S:.0f} s")
        # The request costs the target CPU, too; but the end must not be noticed late.
        time.sleep(min(0.02 + 4 * (now - asked), LONGEST_WAIT_S))
    elapsed = now - first_at
    return Run(
        first_at - started,
        (count - first) * SIZE / 1e6 / elapsed,
        cpu / (count * SIZE / 1e9),
        memory,
    )


Command = Callable[[Path, str, Broker, Broker], list[str]]
"""Writes the configuration of a mirror of a topic into a directory, and returns the command that runs it."""


def _ours(directory: Path, topic: str, source: Broker, target: Broker) -> list[str]:
    config = directory / f"{topic}.properties"
    config.write_text(_OURS.format(source=source.bootstrap, target=target.bootstrap, topic=topic))
    return [sys.executable, "-m", "mirrormaker", "run", str(config), "--quiet"]


def _mirrormaker(jars: Path) -> Command:
    def command(directory: Path, topic: str, source: Broker, target: Broker) -> list[str]:
        config = directory / f"{topic}.properties"
        config.write_text(
            _MM2.format(source=source.bootstrap, target=target.bootstrap, topic=topic)
        )
        (directory / "log4j.properties").write_text(
            "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
        )
        return [
            *("java", "-Xmx1g", f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}"),
            *("-cp", f"{jars}/*", "org.apache.kafka.connect.mirror.MirrorMaker", str(config)),
        ]

    return command


def _mirror(
    command: list[str], log: Path, target: Broker, topic: str, partitions: int, count: int
) -> Run:
    """Run *command* until the target has *count* records."""
    started = time.monotonic()
    with running(command, log) as process:
        watch = RecordCounter(target.bootstrap, topic, partitions)
        try:
            return _follow(process, started, watch, count)
        except RuntimeError as problem:
            raise RuntimeError(f"{problem}\n{log.read_text(errors='replace')[-1500:]}") from None


def _exists(consumer: Consumer, topic: str) -> bool:
    try:
        return bool(consumer.partitions_for_topic(topic))
    except KafkaError:
        return False


def _lag(
    command: list[str], log: Path, source: Broker, target: Broker, topic: str, partitions: int
) -> float:
    """Return the 99th percentile of the seconds from a record's send to its arrival at a consumer of the target.

    The records go to the *partitions* in turn.
    """
    lags: list[float] = []
    ended = threading.Event()
    places = [TopicPartition(topic, number) for number in range(partitions)]

    def produce() -> None:
        with Producer(bootstrap_servers=source.bootstrap, linger_ms=0) as producer:
            turns = cycle(range(partitions))
            while not ended.wait(1 / LAG_RECORDS_S):
                producer.send(topic, b"%d" % time.monotonic_ns(), partition=next(turns))

    with (
        running(command, log),
        Consumer(bootstrap_servers=target.bootstrap, allow_auto_create_topics=False) as consumer,
    ):
        sender = threading.Thread(target=produce)
        sender.start()
        try:
            deadline = time.monotonic() + _PATIENCE_S
            while not _exists(consumer, topic) and time.monotonic() < deadline:
                time.sleep(0.1)
            consumer.assign(places, dict.fromkeys(places, 0))
            settled = False
            began = time.monotonic()
            while not settled or time.monotonic() - began < LAG_S + LATE_S:
                for records in consumer.poll(timeout=0.5).values():
                    now = time.monotonic_ns()
                    sent = [int(record.value or b"0") for record in records]
                    if not settled and now - sent[-1] < 1_000_000_000:
                        settled, began = True, time.monotonic()
                    if settled:
                        # Not what was sent before and waited for the start, which other partitions may still have.
                        counted = range(int(began * 1e9), int((began + LAG_S) * 1e9))
                        lags += [(now - each) / 1e9 for each in sent if each in counted]
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"no record arrives:\n{log.read_text(errors='replace')[-1500:]}"
                    )
        finally:
            ended.set()
            sender.join()
    return statistics.quantiles(lags, n=100)[98]


IDLE_TOPICS = (10, 100)
IDLE_PARTITIONS = 100
_IDLE_PATIENCE_S = 900.0
"""The largest number of topics is created at the source, then by kmirror at the target."""
_IDLE_CONFIG = """clusters = source, target
source.bootstrap.servers = {source}
target.bootstrap.servers = {target}
source->target.enabled = true
replication.factor = 1
"""


def at_rest(status: str, partitions: int) -> bool:
    """Return whether the last line of *status*, the log of `kmirror run`, is that of *partitions* without lag."""
    if not status.endswith("\n"):
        return False
    line = status[:-1].rpartition("\n")[2]
    return "lag 0 rec" in line and line.rpartition("|")[2].strip() == f"{partitions} partitions"


def idle_cpu(directory: Path, source: Broker, target: Broker, topics: int, seconds: float) -> float:
    """Return the CPU of `kmirror run` with nothing to copy, in percent of a core per 1,000 partitions."""
    for number in range(topics):
        create_topic(source.bootstrap, f"idle-{number}", IDLE_PARTITIONS)
    total = topics * IDLE_PARTITIONS
    config, log = directory / "idle.properties", directory / "idle.log"
    config.write_text(_IDLE_CONFIG.format(source=source.bootstrap, target=target.bootstrap))
    command = [sys.executable, "-m", "mirrormaker", "run", str(config)]
    with running(command, log) as process:
        deadline = time.monotonic() + _IDLE_PATIENCE_S
        while not at_rest(last := log.read_text()[-300:], total):
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


class _MirrorFigures:
    """The figures of the suite."""

    def __init__(self) -> None:
        self.rate = {
            number: Figure(f"mirror 1 KB, {_of(number)}", "MB/s", goal=">= 8 x", goal_ratio=8)
            for number in PARTITIONS
        }
        self.cpu = {
            number: Figure(f"CPU per GB of it, {_of(number)}", "s", False) for number in PARTITIONS
        }
        self.memory = Figure("mirror peak memory", "MiB", False)
        self.first = Figure("first record after start", "s", False, "< 1 s", goal_value=1.0)
        self.lag = {
            number: Figure(
                f"lag p99 at {LAG_RECORDS_S} records/s, {_of(number)}",
                "s",
                False,
                "<= 0.2 s",
                goal_value=0.2,
            )
            for number in PARTITIONS
        }
        self.idle = {
            topics: Figure(
                f"idle mirror of {topics * IDLE_PARTITIONS:,} partitions, CPU per 1,000 of them",
                "% of a core",
                False,
                "< 2",
                goal_value=2.0,
            )
            for topics in IDLE_TOPICS
        }

    def all(self) -> list[Figure]:
        """Return them in the order of the table."""
        return [
            *self.rate.values(),
            *self.cpu.values(),
            self.memory,
            self.first,
            *self.lag.values(),
            *self.idle.values(),
        ]


def _of(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions:,} partitions"


def mirror_suite(directory: Path, rounds: int, divide: int) -> tuple[list[Figure], list[str]]:
    """Fill topics and mirror them; each run has a new pair of brokers."""
    figures = _MirrorFigures()
    notes = [
        "1,000-byte records, not compressed; both clusters are single brokers of ours. "
        f"Lag: {LAG_RECORDS_S} records of some bytes a second, to the partitions in turn, for {LAG_S:g} s, "
        "from a producer's send to a consumer of the target. Idle: nothing is written meanwhile. "
        f"{RECORDS / 1e6:g} M records, {MM2}: {RECORDS_OF_MM2 / 1e6:g} M, so that either takes some seconds"
    ]
    commands: dict[str, Command] = {"ours": _ours}
    counts = {"ours": RECORDS // divide, MM2: RECORDS_OF_MM2 // divide}
    try:
        commands[MM2] = _mirrormaker(apache.jars())
    except apache.NotAvailable as not_available:
        notes.append(f"MirrorMaker 2 was not measured: {not_available}")
    with zookeeper(directory / "zookeeper", zookeeper_classpath()) as port:
        for turn in range(rounds):
            for name, command in commands.items():
                for partitions in PARTITIONS:
                    print_progress(f"round {turn + 1}: {name}, {_of(partitions)}")
                    place = directory / f"{name[:4]}-{turn}-{partitions}"
                    with _pair(place, port) as (source, target):
                        create_topic(source.bootstrap, "t", partitions)
                        load(
                            "rdkafka-produce", source.bootstrap, "t", counts[name], SIZE, partitions
                        )
                        words = command(place, "t", source, target)
                        run = _mirror(words, place / "log", target, "t", partitions, counts[name])
                    shutil.rmtree(place, ignore_errors=True)  # gigabytes
                    figures.rate[partitions].add(name, run.rate)
                    figures.cpu[partitions].add(name, run.cpu_per_gb)
                    if partitions == USUAL:
                        figures.memory.add(name, run.memory_mib)
                        figures.first.add(name, run.first_s)
                for partitions in PARTITIONS:
                    print_progress(f"round {turn + 1}: {name}, lag, {_of(partitions)}")
                    place = directory / f"{name[:4]}-{turn}-lag-{partitions}"
                    with _pair(place, port) as (source, target):
                        create_topic(source.bootstrap, "t", partitions)
                        words = command(place, "t", source, target)
                        lag = _lag(words, place / "log", source, target, "t", partitions)
                        figures.lag[partitions].add(name, lag)
        for topics in IDLE_TOPICS:
            print_progress(f"idle, {topics} topics of {IDLE_PARTITIONS} partitions")
            place = directory / f"pair-idle-{topics}"
            with _pair(place, port) as (source, target):
                share = idle_cpu(place, source, target, topics, 60.0 / divide)
                figures.idle[topics].add("ours", share)
            shutil.rmtree(place, ignore_errors=True)
    return figures.all(), notes
