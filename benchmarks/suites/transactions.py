"""Transactional produce beside Apache Kafka: three brokers, RF=3, 100 records of 100 B a transaction, librdkafka."""

from __future__ import annotations

from pathlib import Path

from benchmarks.clusters import ThreeBrokers, start_three
from benchmarks.contenders import (
    available,
    create_replicated,
    in_turn,
    load,
    print_progress,
    zookeeper_classpath,
)
from benchmarks.processes import fresh, zookeeper
from benchmarks.replicated_scale import rotated
from benchmarks.results import Figure

PARTITIONS = 6
RECORD_BYTES = 100
PRODUCERS = (1, 8)


class TransactionFigures:
    """Rate, latency of a commit and CPU, for one producer and for several at a time."""

    def __init__(self, divide: int) -> None:
        self._transactions = 2_000 // divide
        self.rates, self.p50, self.p99, self.cpu = (
            {
                count: Figure(f"{what}, {count} producer{'s' * (count > 1)}", unit, better, *goal)
                for count in PRODUCERS
            }
            for what, unit, better, goal in (
                ("transactions of 100 records", "tx/s", True, (">= 1.0 x", 1)),
                ("commit latency p50", "ms", False, ()),
                ("commit latency p99", "ms", False, ()),
                ("CPU of three brokers per 1,000 transactions", "s", False, ()),
            )
        )

    def all(self) -> list[Figure]:
        """Return them in the order of the table."""
        return [
            of[count] for count in PRODUCERS for of in (self.rates, self.p50, self.p99, self.cpu)
        ]

    def take(self, make: str, cluster: ThreeBrokers) -> None:
        """Measure one cluster, after a warm-up of a fifth of the work."""
        create_replicated(cluster.bootstrap, "t", rotated(PARTITIONS))
        for count in PRODUCERS:
            name = f"rdkafka-transactions-{count}"
            load(name, cluster.bootstrap, "t", self._transactions // 5, RECORD_BYTES, PARTITIONS)
            before = cluster.cpu()
            got = load(name, cluster.bootstrap, "t", self._transactions, RECORD_BYTES, PARTITIONS)
            done = got["transactions"]
            self.rates[count].add(make, done / got["seconds"])
            self.p50[count].add(make, got["p50_ms"])
            self.p99[count].add(make, got["p99_ms"])
            self.cpu[count].add(make, (cluster.cpu() - before) / done * 1000)


def transactions_suite(directory: Path, rounds: int, divide: int) -> tuple[list[Figure], list[str]]:
    """Measure both in alternating order."""
    notes = [
        "each producer begins, sends 100 records to six partitions, and commits, one transaction after the other;"
        " three brokers, one ZooKeeper and the client share the machine; RF=3, also of __transaction_state"
    ]
    makes, jars = available(notes)
    figures = TransactionFigures(divide)
    with zookeeper(directory / "zookeeper", zookeeper_classpath()) as port:
        for turn, make in in_turn(makes, rounds):
            print_progress(f"round {turn + 1}: {make}")
            place = directory / f"{make.split()[0].lower()}-{turn}"
            with start_three(make, place, port, jars) as cluster:
                figures.take(make, cluster)
            fresh(place)
    return figures.all(), notes
