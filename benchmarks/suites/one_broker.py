"""One kbroker and one Apache Kafka broker, measured in alternation: shared by the suites of single brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from benchmarks import apache
from benchmarks.contenders import contender, print_progress, zookeeper_classpath
from benchmarks.processes import Broker, zookeeper
from benchmarks.results import Figure

OURS, APACHE = "ours", "Apache Kafka"


class Figures(Protocol):
    """The figures of a suite."""

    def take(self, make: str, broker: Broker) -> None:
        """Measure the *broker* of one contender once."""

    def all(self) -> list[Figure]:
        """Return them in the order of the table."""


def measure_in_turn(
    figures: Figures, directory: Path, rounds: int, note: str
) -> tuple[list[Figure], list[str]]:
    """Measure both *rounds* times, in alternating order; return figures and notes, with *note* first."""
    notes, makes = [note], [OURS, APACHE]
    jars: Path | None = None
    try:
        jars = apache.jars()
    except apache.NotAvailable as not_available:
        notes.append(f"Apache Kafka was not measured: {not_available}")
        makes = [OURS]
    with zookeeper(directory / "zookeeper", zookeeper_classpath()) as port:
        for turn in range(rounds):
            for make in makes if turn % 2 == 0 else makes[::-1]:
                print_progress(f"round {turn + 1}: {make}")
                place = directory / f"{make.split()[0].lower()}-{turn}"
                with contender(make, place, port, jars) as broker:
                    figures.take(make, broker)
    return figures.all(), notes
