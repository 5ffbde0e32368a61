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


def clients_suite(directory: Path, rounds: int, divide: int) -> tuple[list[Figure], list[str]]:
    """Each client produces to its own topic and consumes it."""
    produce = Figure("client produce 100 B", "msg/s", goal="beyond aiokafka", goal_ratio=1.0)
    consume = Figure("client consume 100 B", "msg/s", goal="beyond aiokafka", goal_ratio=1.0)
    loops = _LoopFigures()
    lines = _LineFigures(directory)
    notes = [
        "ours is kclient's blocking API; acks=1, no idempotence, one process, one partition, "
        "on a broker of ours; confluent-kafka is C",
        f"loop: one call for each message; kclient's record codec is {description()}",
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
    if lines.missing:
        notes.append(lines.missing)
    return [produce, consume, *loops.figures, *lines.figures], notes


class _LoopFigures:
    """The usual Python loops of confluent-kafka and kclient, and kclient's tables: messages a second, CPU."""

    def __init__(self) -> None:
        self._rates = {
            way: Figure(f"loop: {way} 100 B", "msg/s", goal=">= 1.0 x", goal_ratio=1.0)
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
        return [*self._rates.values(), *self._cpu.values()]

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
            self._rates[way].add(label, got["messages"] / got["seconds"])
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
