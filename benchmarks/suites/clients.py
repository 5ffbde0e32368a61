"""Python clients, and command lines, on one kbroker: 100 B, one partition."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.contenders import (
    create_topic,
    delete_topic,
    load,
    print_progress,
    zookeeper_classpath,
)
from benchmarks.processes import our_broker, zookeeper
from benchmarks.results import Figure
from kclient.build import description

COUNTS = {
    "aiokafka": 500_000,
    "kclient": 1_000_000,
    "kafka-python": 300_000,
    "confluent-kafka": 2_000_000,
}


LOOP_COUNT = LINE_COUNT = 1_000_000

NOTES = (
    "1 M lines, produce: Python uses one core, kcat two; 0.17 s of ours are the start of Python and Twisted",
    "produce: batch.size is 200,000 for every loop, and columns.batch.size 1,000,000, the default, for send_columns",
    "starts: the fastest of ten runs of a command; `kbroker local up` and `kclient produce` for the first record",
)

COMMAND_RUNS = 10
"""Runs of each command; the fastest counts."""


def clients_suite(directory: Path, rounds: int, divide: int) -> tuple[list[Figure], list[str]]:
    """Each client produces to its own topic and consumes it."""
    produce = Figure("client produce 100 B", "msg/s", goal="beyond aiokafka", goal_ratio=1.0)
    consume = Figure("client consume 100 B", "msg/s", goal="beyond aiokafka", goal_ratio=1.0)
    loops = _LoopFigures()
    lines = _LineFigures(directory)
    starts = _StartFigures()
    notes = [
        "ours is kclient's blocking API; acks=1, no idempotence, one process, one partition, "
        "on a broker of ours; confluent-kafka is C",
        f"loop: one call for each message; kclient's record codec is {description()}",
        *NOTES,
    ]
    with (
        zookeeper(directory / "zookeeper", zookeeper_classpath()) as port,
        our_broker(directory / "broker", port) as broker,
    ):
        for turn in range(rounds):
            for name, number in COUNTS.items():
                print_progress(f"round {turn + 1}: {name}")
                topic, count = f"{name}-{turn}", number // divide
                label = "ours" if name == "kclient" else name
                create_topic(broker.bootstrap, topic)
                got = load(f"{name}-produce", broker.bootstrap, topic, count, 100)
                produce.add(label, got["messages"] / got["seconds"])
                got = load(f"{name}-consume", broker.bootstrap, topic, count, 100)
                consume.add(label, got["messages"] / got["seconds"])
                delete_topic(broker.bootstrap, topic)
            print_progress(f"round {turn + 1}: loops")
            loops.run(broker.bootstrap, f"loops-{turn}", LOOP_COUNT // divide)
            lines.run(broker.bootstrap, f"lines-{turn}", LINE_COUNT // divide)
            print_progress(f"round {turn + 1}: starts")
            starts.run(directory / f"starts-{turn}", broker.bootstrap)
    if lines.missing:
        notes.append(lines.missing)
    return [produce, consume, *loops.figures, *lines.figures, *starts.figures], notes


class _LoopFigures:
    """The usual Python loops of confluent-kafka and kclient, and kclient's tables: messages a second, CPU."""

    def __init__(self) -> None:
        self._rates = {
            way: Figure(f"loop: {way} 100 B", "msg/s", goal=">= 1.0 x", goal_ratio=1.0)
            for way in ("produce", "consume")
        }
        self._columns = {
            way: Figure(f"columns: {way} 100 B", "msg/s", goal=">= 3.0 x", goal_ratio=3.0)
            for way in ("produce", "consume")
        }
        self._cpu = {
            way: Figure(
                f"loop: CPU per 1 M messages {way}d",
                "s",
                higher_is_better=False,
                goal="<= 1.0 x",
                goal_ratio=1.0,
            )
            for way in ("produce", "consume")
        }

    @property
    def figures(self) -> list[Figure]:
        """Return all figures."""
        return [*self._rates.values(), *self._columns.values(), *self._cpu.values()]

    def run(self, bootstrap: str, topic: str, count: int) -> None:
        """Run each loop once."""
        create_topic(bootstrap, topic)
        for way, name, label in (
            ("produce", "confluent-kafka-loop", "confluent-kafka"),
            ("produce", "kclient-loop", "ours"),
            ("produce", "kclient-columns", "kclient send_columns"),
            ("consume", "confluent-kafka-loop", "confluent-kafka"),
            ("consume", "kclient-loop", "ours"),
            ("consume", "kclient-arrow", "kclient poll_arrow"),
        ):
            got = load(f"{name}-{way}", bootstrap, topic, count, 100)
            rate = got["messages"] / got["seconds"]
            if label in ("ours", "confluent-kafka"):
                self._rates[way].add(label, rate)
            if label != "ours":
                self._columns[way].add("ours" if label.startswith("kclient") else label, rate)
            self._cpu[way].add(label, got["cpu"] / got["messages"] * 1_000_000)
        delete_topic(bootstrap, topic)


class _LineFigures:
    """1 M lines of 100 B through `kclient produce` and `kclient consume`, beside kcat: seconds, and CPU seconds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.missing = ""
        """Why nothing was measured."""
        if shutil.which("kcat") is None:
            self.missing = (
                "kcat is not installed: the commands were not measured (apt-get install kcat)"
            )
        self._figures = {
            (way, unit): Figure(
                f"1 M lines: {way}, {unit}",
                "s",
                higher_is_better=False,
                goal="<= 1.0 x",
                goal_ratio=1.0,
            )
            for way in ("produce", "consume")
            for unit in ("wall clock", "CPU")
        }

    @property
    def figures(self) -> list[Figure]:
        """Return all figures."""
        return [] if self.missing else list(self._figures.values())

    def run(self, bootstrap: str, topic: str, count: int) -> None:
        """Produce *count* lines with each command, and print them with each."""
        if self.missing:
            return
        source = self._directory / "lines"
        source.write_bytes(b"".join(b"%099d\n" % n for n in range(count)))
        kclient = [sys.executable, "-m", "kclient", "-b", bootstrap]
        for label, produce, consume in (
            (
                "kcat",
                ["kcat", "-b", bootstrap, "-P", "-t", f"{topic}-kcat", "-X", "acks=all"],
                [
                    "kcat",
                    "-b",
                    bootstrap,
                    "-C",
                    "-t",
                    f"{topic}-kcat",
                    "-o",
                    "beginning",
                    "-e",
                    "-q",
                ],
            ),
            (
                "ours",
                [*kclient, "produce", f"{topic}-ours"],
                [*kclient, "consume", f"{topic}-ours", "-e", "-f", "%v\\n"],
            ),
        ):
            print_progress(f"lines: {label}")
            create_topic(bootstrap, produce[-1] if label == "ours" else f"{topic}-kcat")
            for way, command in (("produce", produce), ("consume", consume)):
                seconds, cpu = self._timed(command, source, count, way)
                self._figures[way, "wall clock"].add(label, seconds / count * 1_000_000)
                self._figures[way, "CPU"].add(label, cpu / count * 1_000_000)
            delete_topic(bootstrap, f"{topic}-{label}")

    def _timed(self, command: list[str], source: Path, count: int, way: str) -> tuple[float, float]:
        """Run *command*; return its seconds and CPU seconds. All lines must come out again."""
        printed = self._directory / "printed"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        with source.open("rb") as given, printed.open("wb") as output:
            subprocess.run(command, stdin=given, stdout=output, check=True, timeout=600)
        seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if way == "consume" and printed.read_bytes() != source.read_bytes():
            raise RuntimeError(f"{command[0]} printed other than the {count} lines")
        return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


_CLUSTER = """
import time
began = time.monotonic()
from kbroker.testing import KafkaCluster
with KafkaCluster(brokers=3):
    print(time.monotonic() - began)
"""


class _StartFigures:
    """What a new user waits for: commands, the first record from nothing, a cluster in a test."""

    def __init__(self) -> None:
        self._help = Figure("kclient --help", "s", False, "< 0.15 s", goal_value=0.15)
        self._list = Figure("kclient topic list", "s", False, "< 0.25 s", goal_value=0.25)
        self._first = Figure(
            "first record from nothing, with ZooKeeper", "s", False, "< 2 s", goal_value=2.0
        )
        self._cluster = Figure(
            "KafkaCluster of 3 brokers, with ZooKeeper", "s", False, "< 2 s", goal_value=2.0
        )

    @property
    def figures(self) -> list[Figure]:
        """Return all figures."""
        return [self._help, self._list, self._first, self._cluster]

    def run(self, directory: Path, bootstrap: str) -> None:
        """Run each once more."""
        kclient = [sys.executable, "-m", "kclient"]
        self._help.add("ours", _fastest([*kclient, "--help"]))
        self._list.add("ours", _fastest([*kclient, "-b", bootstrap, "topic", "list"]))
        local = [sys.executable, "-m", "kbroker", "local"]
        place = ["--dir", str(directory)]
        began = time.monotonic()
        up = _output([*local, "up", *place, "--brokers", "1", "--port", "0"])
        brokers = up.rpartition("BROKERS=")[2].strip()
        _output([*kclient, "-b", brokers, "produce", "first"], given=b"hello\n")
        self._first.add("ours", time.monotonic() - began)
        _output([*local, "down", *place])
        self._cluster.add("ours", float(_output([sys.executable, "-c", _CLUSTER])))


def _fastest(command: list[str]) -> float:
    seconds = []
    for _ in range(COMMAND_RUNS):
        began = time.monotonic()
        _output(command)
        seconds.append(time.monotonic() - began)
    return min(seconds)


def _output(command: list[str], given: bytes = b"") -> str:
    done = subprocess.run(command, input=given, capture_output=True, check=True, timeout=60)
    return done.stdout.decode()
