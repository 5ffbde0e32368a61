"""Kafka's own tools and `kclient kafka-...`, with the same command lines: outcomes, and how they are compared.

All of Kafka's tools run in one JVM, one after the other (tests/compat/java/ToolMains.java): a JVM for each would cost
two seconds of the processor.
"""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.kit.apache_kafka import java
from tests.kit.fork_server import run

SOURCE = Path(__file__).parents[1] / "compat" / "java" / "ToolMains.java"
_TOOLS = "org.apache.kafka.tools"
CLASSES: Mapping[str, str] = {
    "kafka-topics": f"{_TOOLS}.TopicCommand",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
    "kafka-console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "kafka-consumer-groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-get-offsets": f"{_TOOLS}.GetOffsetShell",
    "kafka-delete-records": f"{_TOOLS}.DeleteRecordsCommand",
    "kafka-leader-election": f"{_TOOLS}.LeaderElectionCommand",
    "kafka-reassign-partitions": f"{_TOOLS}.reassign.ReassignPartitionsCommand",
    "kafka-log-dirs": f"{_TOOLS}.LogDirsCommand",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-cluster": f"{_TOOLS}.ClusterTool",
    "kafka-transactions": f"{_TOOLS}.TransactionsCommand",
    "kafka-producer-perf-test": f"{_TOOLS}.ProducerPerformance",
    "kafka-consumer-perf-test": f"{_TOOLS}.ConsumerPerformance",
    "kafka-verifiable-producer": f"{_TOOLS}.VerifiableProducer",
    "kafka-verifiable-consumer": f"{_TOOLS}.VerifiableConsumer",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
}
_STACK_TRACE = re.compile(
    r"^(\tat |Caused by: |\t\.\.\. |java\.|joptsimple\.|org\.apache\.kafka\.[\w.]+Exception).*\n?",
    re.M,
)


class Outcome(NamedTuple):
    """What a tool printed, and its exit code."""

    code: int
    out: str
    err: str

    def lines(self) -> tuple[int, str]:
        """Return the exit code and standard output, without a Java stack trace."""
        return self.code, _STACK_TRACE.sub("", self.out).rstrip("\n")

    def refusal(self) -> str:
        """Return the first line of standard error, without the class of a Java exception."""
        first = (self.err.splitlines() or [""])[0]
        return re.sub(r"^[\w.]+Exception: ", "", first)


class Kafka:
    """Kafka's tools, in one JVM."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, tool: str, words: Sequence[str], stdin: str = "") -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        fields = (CLASSES[tool], stdin, *words)
        line = " ".join("." + base64.b64encode(each.encode()).decode() for each in fields)
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split()
        assert answer, f"the JVM has ended in {tool} {' '.join(words)}"
        out, err = (base64.b64decode(field[1:]).decode() for field in answer[1:])
        return Outcome(int(answer[0]), out, err)


@contextmanager
def kafka_tools(home: Path) -> Iterator[Kafka]:
    """Start the JVM for Kafka's tools; it logs nothing."""
    silent = home / "log4j.properties"
    silent.write_text("log4j.rootLogger=OFF\n")
    command = java("192m", f"-Dlog4j.configuration=file:{silent}", str(SOURCE))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Kafka(process)
        finally:
            process.kill()


def kclient(tool: str, words: Sequence[str], stdin: str = "") -> Outcome:
    """Run the tool of `kclient`."""
    done = run("kclient", tool, *words, stdin=stdin.encode())
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())
