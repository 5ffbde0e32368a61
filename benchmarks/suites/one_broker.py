"""One kbroker and one Apache Kafka broker, measured in alternation: shared by the suites of single brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from benchmarks.contenders import (
    available,
    contender,
    in_turn,
    print_progress,
    zookeeper_classpath,
)
from benchmarks.processes import Broker, zookeeper
from benchmarks.results import Figure


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
    notes = [note]
    makes, jars = available(notes)
    with zookeeper(directory / "zookeeper", zookeeper_classpath()) as port:
        for turn, make in in_turn(makes, rounds):
            print_progress(f"round {turn + 1}: {make}")
            place = directory / f"{make.split()[0].lower()}-{turn}"
            with contender(make, place, port, jars) as broker:
                figures.take(make, broker)
    return figures.all(), notes
