"""One kbroker beside one Apache Kafka broker: acks=1, one partition, librdkafka."""

from __future__ import annotations

from pathlib import Path

from benchmarks.contenders import OURS, create_topic, load
from benchmarks.processes import Broker
from benchmarks.record_check import seconds_per_million
from benchmarks.results import Figure
from benchmarks.suites.one_broker import measure_in_turn


class BrokerFigures:
    """The figures of this suite; `take` measures one contender once."""

    def __init__(self, divide: int) -> None:
        self.small_count = 5_000_000 // divide
        self.large_count = 1_000_000 // divide
        self.latency_count = 5_000 // divide
        self.small = Figure("produce 100 B", "msg/s", goal=">= 1.2 x", goal_ratio=1.2)
        self.large = Figure("produce 1 KB", "MB/s", goal=">= 1.2 x", goal_ratio=1.2)
        self.consume = Figure("consume 1 KB", "MB/s", goal=">= 1.0 x", goal_ratio=1.0)
        self.p50 = Figure("latency p50 at 500 msg/s", "ms", False, "<= 0.8 x", 0.8)
        self.p99 = Figure("latency p99 at 500 msg/s", "ms", False, "<= 0.6 x", 0.6)
        self.cpu_small = Figure(
            "broker CPU per 1 M messages of 100 B", "s", False, "<= 0.75 x", 0.75
        )
        self.record_check = Figure(
            "the record check's share of it", "%", False, "<= 25 %", goal_value=25
        )
        self.cpu_large = Figure("broker CPU per GB produced at 1 KB", "s", False, "<= 0.8 x", 0.8)
        self.cpu_consume = Figure("broker CPU per GB consumed", "s", False, "<= 0.8 x", 0.8)
        self.memory = Figure("peak memory", "MiB", False, "<= 80 MiB", goal_value=80)
        self.ready = Figure("time to ready", "s", False, "<= 0.7 s", goal_value=0.7)

    def all(self) -> list[Figure]:
        """Return them in the order of the table."""
        return [
            *(self.small, self.large, self.consume, self.p50, self.p99),
            *(self.cpu_small, self.record_check, self.cpu_large, self.cpu_consume),
            *(self.memory, self.ready),
        ]

    def take(self, make: str, broker: Broker) -> None:
        """Measure one broker, after a warm-up for JIT compilers of a fifth of the work."""
        bootstrap = broker.bootstrap
        self.ready.add(make, broker.ready_s)
        for topic in ("warm", "small", "large", "latency"):
            create_topic(bootstrap, topic)
        load("rdkafka-produce", bootstrap, "warm", self.small_count // 5, 100)
        load("rdkafka-produce", bootstrap, "warm", self.large_count // 5, 1000)

        before = broker.cpu()
        got = load("rdkafka-produce", bootstrap, "small", self.small_count, 100)
        self.small.add(make, got["messages"] / got["seconds"])
        of_a_million = (broker.cpu() - before) / self.small_count * 1e6
        self.cpu_small.add(make, of_a_million)
        if make == OURS:
            self.record_check.add(make, 100 * seconds_per_million(100) / of_a_million)

        gigabytes = self.large_count * 1000 / 1e9
        before = broker.cpu()
        got = load("rdkafka-produce", bootstrap, "large", self.large_count, 1000)
        self.large.add(make, got["bytes"] / got["seconds"] / 1e6)
        self.cpu_large.add(make, (broker.cpu() - before) / gigabytes)

        before = broker.cpu()
        got = load("rdkafka-consume", bootstrap, "large", self.large_count, 1000)
        self.consume.add(make, got["bytes"] / got["seconds"] / 1e6)
        self.cpu_consume.add(make, (broker.cpu() - before) / gigabytes)

        got = load("rdkafka-latency", bootstrap, "latency", self.latency_count, 100)
        self.p50.add(make, got["p50_ms"])
        self.p99.add(make, got["p99_ms"])
        self.memory.add(make, broker.peak_memory())


def broker_suite(directory: Path, rounds: int, divide: int) -> tuple[list[Figure], list[str]]:
    """Measure both in alternation; the order changes with every round."""
    note = (
        "librdkafka, called without Python in the path of a message; acks=1, linger 5 ms, "
        "one partition; latency by confluent-kafka; a fifth of the work to warm up"
    )
    return measure_in_turn(BrokerFigures(divide), directory, rounds, note)
