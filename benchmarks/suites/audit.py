"""kaudit beside a full outer join over Spark's own Kafka connector: the same two logs, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import spark_connector
from benchmarks.contenders import create_topic, load, print_progress, zookeeper_classpath
from benchmarks.linear import growth
from benchmarks.process_tree import Tree, measured
from benchmarks.processes import Broker, our_broker, zookeeper
from benchmarks.results import Figure

JOIN = "full outer join"
RECORDS = 16_000_000
SIZE = 200
PARTITIONS = 4
MANY = 2000
LINEAR = 1.3
"""Between a cost of n and one of n^1.4. CPU times of three rounds differ by some per cent, slopes by more."""
_PATIENCE_S = 3600
_NO_ARCHIVE = {"KAUDIT_CLASS_ARCHIVE": "off"}

_MIRROR = """clusters = source, target
source.bootstrap.servers = {source}
target.bootstrap.servers = {target}
source->target.enabled = true
source->target.topics = {topic}
replication.factor = 1
"""


class AuditFigures:
    """The figures of the suite."""

    def __init__(self, count: int) -> None:
        name = f"{count / 1e6:g} M records a side"
        self.rate = Figure(f"audit of {name}", "M records/s", goal=">= 3 x", goal_ratio=3)
        self.rate_archived = Figure(
            "the same after `kaudit class-archive`", "M records/s", goal=">= 3 x", goal_ratio=3
        )
        self.cpu = Figure("CPU of it per 1 M records a side", "s", False)
        quarter, half, whole = (f"{count / 1e6 / part:g} M" for part in (4, 2, 1))
        self.cpu_to_half = Figure(f"CPU of each 1 M records from {quarter} to {half}", "s", False)
        self.cpu_to_whole = Figure(f"CPU of each 1 M records from {half} to {whole}", "s", False)
        self.linear = Figure(
            "the second of these to the first (1 is linear)",
            "ratio",
            False,
            f"<= {LINEAR:g}",
            goal_value=LINEAR,
        )
        self.memory = Figure("memory of a Python worker", "MiB", False, "< 1 GB", goal_value=1000)
        self.first = Figure("one record, first run with the self-test", "s", False)
        self.one = Figure("one record, every later run", "s", False)
        self.archived = Figure(
            "one record, after `kaudit class-archive`", "s", False, "< 12 s", goal_value=12
        )
        self.many = Figure(f"{MANY:,} partitions of a record", "s", False, "< 30 s", goal_value=30)

    def add_cpu(self, millions: float, quarter: float, half: float, whole: float) -> None:
        """Add the CPU seconds of audits of *millions* of records a side, of half and of a quarter of them."""
        self.cpu.add("ours", whole / millions)
        self.cpu_to_half.add("ours", (half - quarter) / (millions / 4))
        self.cpu_to_whole.add("ours", (whole - half) / (millions / 2))
        ratio = growth({millions / 4: quarter, millions / 2: half, millions: whole})
        if ratio is not None:
            self.linear.add("ours", ratio)

    def all(self) -> list[Figure]:
        """Return them in the order of the table."""
        return [
            self.rate,
            self.rate_archived,
            self.cpu,
            self.cpu_to_half,
            self.cpu_to_whole,
            self.linear,
            self.memory,
            self.first,
            self.one,
            self.archived,
            self.many,
        ]


def audit_suite(directory: Path, rounds: int, divide: int) -> tuple[list[Figure], list[str]]:
    """Fill and mirror five topics, then audit each."""
    count = RECORDS // divide
    figures = AuditFigures(count)
    notes = [
        f"{SIZE}-byte records, not compressed, {PARTITIONS} partitions; both clusters are single brokers of ours. "
        "Wall clock from the start of the process to its end, Spark's start included; the self-test, which runs once "
        "in an environment, is in its own row only"
    ]
    jars: Sequence[Path] = ()
    try:
        jars = spark_connector.jars()
    except spark_connector.NotAvailable as not_available:
        notes.append(f"the join was not measured: {not_available}")
    archive = {"KAUDIT_CLASS_ARCHIVE": str(directory / "spark-classes.jsa")}
    _run([sys.executable, "-m", "spark_jobs", "class-archive", *archive.values()], archive)
    with _mirrored(directory, count) as (source, target):
        # The self-test runs once per version and environment. It has a figure of its own, with one record.
        print_progress(f"self-test, and {count:,} records a side")
        _kaudit(directory, source, target, "large", "--self-test")
        for turn in range(rounds):
            print_progress(f"round {turn + 1}: kaudit, {count:,} records a side")
            seconds, tree = _kaudit(directory, source, target, "large")
            figures.rate.add("ours", count / 1e6 / seconds)
            half, quarter = (
                _kaudit(directory, source, target, topic)[1] for topic in ("half", "quarter")
            )
            figures.add_cpu(count / 1e6, quarter.cpu, half.cpu, tree.cpu)
            figures.memory.add("ours", tree.python_peak_mib)
            seconds, _ = _kaudit(directory, source, target, "large", environment=archive)
            figures.rate_archived.add("ours", count / 1e6 / seconds)
            if jars:
                print_progress(f"round {turn + 1}: {JOIN}")
                seconds, tree = _join(directory, source, target, jars)
                figures.rate.add(JOIN, count / 1e6 / seconds)
                figures.rate_archived.add(JOIN, count / 1e6 / seconds)
                figures.cpu.add(JOIN, tree.cpu / (count / 1e6))
            print_progress(f"round {turn + 1}: one record, and {MANY:,} partitions")
            figures.first.add("ours", _kaudit(directory, source, target, "one", "--self-test")[0])
            figures.one.add("ours", _kaudit(directory, source, target, "one")[0])
            figures.archived.add(
                "ours", _kaudit(directory, source, target, "one", environment=archive)[0]
            )
            figures.many.add("ours", _kaudit(directory, source, target, "many")[0])
    return figures.all(), notes


@contextlib.contextmanager
def _mirrored(directory: Path, count: int) -> Iterator[tuple[Broker, Broker]]:
    """Run two brokers; the source's topics large, half, quarter, one and many are mirrored to the target."""
    with (
        zookeeper(directory / "zookeeper", zookeeper_classpath()) as port,
        our_broker(directory / "source", port, chroot="source") as source,
        our_broker(directory / "target", port, chroot="target") as target,
    ):
        for topic, partitions, records in (
            ("large", PARTITIONS, count),
            ("half", PARTITIONS, count // 2),
            ("quarter", PARTITIONS, count // 4),
            ("one", 1, 1),
            ("many", MANY, MANY),
        ):
            print_progress(f"{records:,} records to {topic}")
            create_topic(source.bootstrap, topic, partitions)
            load("rdkafka-produce", source.bootstrap, topic, records, SIZE, partitions)
            config = directory / f"{topic}.properties"
            config.write_text(
                _MIRROR.format(source=source.bootstrap, target=target.bootstrap, topic=topic)
            )
            command = [sys.executable, "-m", "mirrormaker", "run", str(config), "--once", "--quiet"]
            subprocess.run(command, check=True, timeout=_PATIENCE_S, capture_output=True)
        yield source, target


def _kaudit(
    directory: Path,
    source: Broker,
    target: Broker,
    topic: str,
    *options: str,
    environment: Mapping[str, str] = _NO_ARCHIVE,
) -> tuple[float, Tree]:
    """Audit *topic*; return the seconds and the measurements. RuntimeError unless it is CONSISTENT."""
    out = directory / f"report-{topic}"
    sides = ("--source", source.bootstrap, "--target", target.bootstrap)
    chosen = ("--topics", topic, "--out", str(out), "--complete", "--quiet")
    seconds, tree, _ = _run(
        [sys.executable, "-m", "spark_jobs", "reconcile", *sides, *chosen, *options], environment
    )
    verdict = json.loads((out / "report.json").read_text())["verdict"]
    if verdict != "CONSISTENT":
        raise RuntimeError(f"kaudit: {verdict}, see {out}")
    return seconds, tree


def _join(
    directory: Path, source: Broker, target: Broker, jars: Sequence[Path]
) -> tuple[float, Tree]:
    del directory
    seconds, tree, printed = _run(
        [sys.executable, "-m", "benchmarks.outer_join", source.bootstrap, target.bootstrap, "large",
         *map(str, jars)]
    )  # fmt: skip
    if printed.split()[-1:] != ["0"]:
        raise RuntimeError(f"the join counted {printed!r} differences")
    return seconds, tree


def _run(
    command: list[str], environment: Mapping[str, str] = _NO_ARCHIVE
) -> tuple[float, Tree, str]:
    """Run *command* in a session of its own; return its seconds, measurements and output."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **environment},
    )
    with measured(process) as tree:
        output, errors = process.communicate(timeout=_PATIENCE_S)
    if process.returncode:
        raise RuntimeError(
            f"{command[2:4]} ended with {process.returncode}:\n{errors.decode()[-2000:]}"
        )
    return time.monotonic() - began, tree, output.decode()
