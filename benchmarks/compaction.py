"""Measures one round of compaction over a large log: one kbroker beside one Apache Kafka, on the same records.

    python -m benchmarks.compaction [--gigabytes 10] [--value-bytes 1024] [--rounds 1]

Theory of operation
===================
Each contender gets a new directory and the same records, drawn from one seed: random values, and every key four times
on average. The topic has min.cleanable.dirty.ratio=1 until all is written, so that nothing is compacted before. Then
the ratio is lowered, and the round is over when the contender's cleaner-offset-checkpoint has reached the active
segment: it is written every 200 ms. Rates count the bytes of the sealed segments before the round.

kbroker's cleaner is a process of its own; Apache Kafka's is a thread of the broker. So CPU seconds and memory are those
of the broker and its children together. Memory is the growth of the anonymous pages during the round: those of the page
cache do not count, and of a heap that the JVM reserved at its start only what the round touched first.

A round needs up to twice the disk space of the log, and no other load. It writes no results file.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import results
from benchmarks.contenders import (
    OURS,
    available,
    in_turn,
    print_progress,
    zookeeper_classpath,
)
from benchmarks.processes import (
    Broker,
    apache_broker,
    cpu_seconds,
    fresh,
    our_broker,
    zookeeper,
)
from benchmarks.results import Figure

TOPIC = "compacted"
SEGMENT_BYTES = 256 << 20
MAP_BYTES = 128 << 20
"""log.cleaner.dedupe.buffer.size: the default."""
KEY_REPEATS = 4
MIB = 1 << 20
_PATIENCE_S = 3600.0
_EVERY_S = 0.05

SETTINGS = {
    "log.cleaner.threads": "1",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": str(MAP_BYTES),
    "replica.high.watermark.checkpoint.interval.ms": "200",
}
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT_BYTES),
    "min.cleanable.dirty.ratio": "1",
    "compression.type": "producer",
}


@dataclass
class Workload:
    """The size of the log."""

    records: int
    value_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes of all values."""
        return self.records * self.value_bytes


def create(bootstrap: str) -> None:
    """Create the topic."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIGS)])[TOPIC].result(30)


def start_compaction(bootstrap: str) -> None:
    """Lower the dirty ratio of the topic."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    ratio = ConfigEntry(
        "min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[ratio])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def produce(bootstrap: str, work: Workload) -> None:
    """Write the records: the same for each contender."""
    from confluent_kafka import Producer

    rng = random.Random(1)
    noise = rng.randbytes(1 << 20)
    keys = max(work.records // KEY_REPEATS, 1)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "linger.ms": 20,
            "batch.size": 16_384,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 1_000_000,
            "log_level": 0,
        }
    )
    refused: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            refused.append(error)

    for number in range(work.records):
        key = b"key-%d" % rng.randrange(keys)
        at = rng.randrange(len(noise) - work.value_bytes)
        value = noise[at : at + work.value_bytes]
        while True:
            try:
                producer.produce(TOPIC, value, key, partition=0, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 1000:
            producer.poll(0)
    if left := producer.flush(600):
        raise RuntimeError(f"{left} records were not delivered")
    if refused:
        raise RuntimeError(f"{len(refused)} records were not delivered: {refused[0]}")


class Partition:
    """The files of the partition."""

    def __init__(self, logs: Path) -> None:
        self._checkpoint = logs / "cleaner-offset-checkpoint"
        self._directory = logs / f"{TOPIC}-0"

    def segments(self) -> list[Path]:
        """Return the segments, the active one last."""
        return sorted(self._directory.glob("*.log"))

    def size(self) -> int:
        """Return the bytes of the sealed segments."""
        return sum(each.stat().st_size for each in self.segments()[:-1])

    def cleaned_below(self) -> int:
        """Return the first dirty offset; 0 before the first round."""
        with contextlib.suppress(FileNotFoundError):
            for line in self._checkpoint.read_text().splitlines()[2:]:
                topic, partition, offset = line.split()
                if (topic, partition) == (TOPIC, "0"):
                    return int(offset)
        return 0


class BrokerProcesses:
    """A broker's process and its children."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu: dict[int, float] = {}
        self.peak_mib = 0.0
        """The most anonymous memory of all at one time."""
        self.child_peak_mib = 0.0
        """That of the children: kbroker's cleaner."""

    def read(self) -> None:
        """Read CPU and memory once."""
        own = _anonymous_mib(self._pid)
        self._cpu[self._pid] = cpu_seconds(self._pid)
        others = 0.0
        for pid in _children(self._pid):
            with contextlib.suppress(OSError):  # it ended
                others += _anonymous_mib(pid)
                self._cpu[pid] = cpu_seconds(pid)
        self.peak_mib = max(self.peak_mib, own + others)
        self.child_peak_mib = max(self.child_peak_mib, others)

    @property
    def cpu(self) -> float:
        """CPU seconds of all so far, as last read."""
        return sum(self._cpu.values())


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread ended
            found += map(int, path.read_text().split())
    return found


def _anonymous_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


@contextlib.contextmanager
def sampled(processes: BrokerProcesses) -> Iterator[None]:
    """Read *processes* periodically, meanwhile."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_EVERY_S):
            with contextlib.suppress(OSError):
                processes.read()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class CompactionFigures:
    """The figures; `take` measures one contender once."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self.rate = Figure("compact, on the clock", "MB/s")
        self.per_core = Figure("compact, per CPU second of all processes", "MB")
        self.memory = Figure("growth of memory during the round", "MiB", False)
        self.left = Figure("of the log is left", "%", False)
        self.notes: list[str] = []

    def all(self) -> list[Figure]:
        """Return them in the order of the table."""
        return [self.rate, self.per_core, self.memory, self.left]

    def take(self, make: str, broker: Broker, logs: Path) -> None:
        """Write the records, and compact them once."""
        create(broker.bootstrap)
        print_progress(f"{make}: writes {self._work.bytes / 1e9:.1f} GB")
        produce(broker.bootstrap, self._work)
        partition = Partition(logs)
        active = int(partition.segments()[-1].stem)
        before = partition.size()
        if not before:
            raise RuntimeError("the log has no sealed segment: write more")
        if partition.cleaned_below():
            raise RuntimeError(f"{make} compacted before it was to")
        time.sleep(5)  # flushes of the writes are not part of the round
        processes = BrokerProcesses(broker.process.pid)
        processes.read()
        cpu, memory = processes.cpu, processes.peak_mib
        print_progress(f"{make}: compacts {before / 1e9:.1f} GB")
        began = time.monotonic()
        with sampled(processes):
            start_compaction(broker.bootstrap)
            while partition.cleaned_below() < active:
                if time.monotonic() > began + _PATIENCE_S:
                    raise RuntimeError(f"{make} did not compact within {_PATIENCE_S:.0f} s")
                time.sleep(_EVERY_S)
            seconds = time.monotonic() - began
        processes.read()
        spent = processes.cpu - cpu
        self.rate.add(make, before / 1e6 / seconds)
        self.per_core.add(make, before / 1e6 / max(spent, 0.01))
        self.memory.add(make, processes.peak_mib - memory)
        self.left.add(make, 100 * partition.size() / before)
        if make == OURS:
            self.notes.append(
                f"kbroker's cleaner took {processes.child_peak_mib:.0f} MiB at most; its offset map has"
                f" {MAP_BYTES // MIB} MiB"
            )


def measure(directory: Path, work: Workload, rounds: int) -> tuple[list[Figure], list[str]]:
    """Measure both contenders *rounds* times, in alternating order; return figures and notes."""
    free = shutil.disk_usage(directory).free
    if free < 2.2 * work.bytes:
        raise RuntimeError(
            f"{directory} has {free / 1e9:.1f} GB free; {2.2 * work.bytes / 1e9:.1f} GB are needed"
        )
    figures = CompactionFigures(work)
    makes, jars = available(figures.notes)
    with zookeeper(directory / "zookeeper", zookeeper_classpath()) as port:
        for turn, make in in_turn(makes, rounds):
            place = directory / f"{make.split()[0].lower()}-{turn}"
            if make == OURS:
                running = our_broker(place, port, chroot=place.name, settings=SETTINGS)
            else:
                assert jars is not None
                running = apache_broker(place, port, jars, chroot=place.name, settings=SETTINGS)
            with running as broker:
                figures.take(make, broker, place / "logs")
            fresh(place)  # the next one needs the space
    return figures.all(), figures.notes


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compaction", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0, help="bytes of values (10^9)")
    parser.add_argument("--value-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: temporary")
    arguments = parser.parse_args()
    work = Workload(int(arguments.gigabytes * 1e9) // arguments.value_bytes, arguments.value_bytes)
    with tempfile.TemporaryDirectory(
        prefix="kbroker-compaction-", dir=arguments.directory
    ) as directory:
        figures, notes = measure(Path(directory), work, arguments.rounds)
    print(results.as_text(figures))
    for note in notes:
        print(f"note: {note}")


if __name__ == "__main__":
    main()
