"""The cost of partitions and of connections, loaded and idle: one kbroker and one Apache Kafka broker."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contenders import create_topic, load
from benchmarks.processes import Broker
from benchmarks.results import Figure
from benchmarks.suites.one_broker import measure_in_turn
from kclient.wire import messages
from kclient.wire.framing import framed
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.api_versions import ApiVersionsRequest
from kclient.wire.versions import ApiKey

PARTITIONS = (1, 10, 100, 1000)
CONNECTIONS = (10, 1000)
_IDLE_S = 5.0


def _partitions(number: int) -> str:
    return f"{number:,} partition{'s' * (number > 1)}"


@contextlib.contextmanager
def _connected(bootstrap: str, number: int) -> Iterator[None]:
    """Hold *number* idle connections, each after one request."""
    host, _, port = bootstrap.partition(":")
    header = RequestHeader(ApiKey.API_VERSIONS, 2, 1, "idle")
    hello = framed(messages.encode_request(header, ApiVersionsRequest()))
    with contextlib.ExitStack() as open_ones:
        for _ in range(number):
            connection = open_ones.enter_context(socket.create_connection((host, int(port)), 10))
            connection.sendall(hello)
            if not connection.recv(1 << 16):
                raise RuntimeError("the broker closed a connection")
        yield


class GrowthFigures:
    """The figures of this suite; `take` measures one contender once."""

    def __init__(self, divide: int) -> None:
        self.count = 2_000_000 // divide
        self.creation = {
            n: Figure(f"create a topic of {_partitions(n)}", "s", False) for n in PARTITIONS
        }
        self.rate = {n: Figure(f"produce 100 B to {_partitions(n)}", "msg/s") for n in PARTITIONS}
        self.cost = {
            n: Figure(f"broker CPU per 1 M messages, {_partitions(n)}", "s", False)
            for n in PARTITIONS
        }
        self.idle = Figure("idle CPU with 1,111 partitions", "% of a core", False)
        self.per_partition = Figure("memory of an idle partition", "KiB", False)
        self.connected = {
            n: Figure(f"produce 100 B beside {n:,} idle connections", "msg/s") for n in CONNECTIONS
        }
        self.per_connection = Figure("memory of an idle connection", "KiB", False)

    def all(self) -> list[Figure]:
        """Return them in the order of the table."""
        return [
            *self.creation.values(),
            *self.rate.values(),
            *self.cost.values(),
            *(self.idle, self.per_partition),
            *(*self.connected.values(), self.per_connection),
        ]

    def take(self, make: str, broker: Broker) -> None:
        """Measure one broker: idle partitions first, because partitions keep memory after a produce."""
        bootstrap = broker.bootstrap
        create_topic(bootstrap, "warm")
        load("rdkafka-produce", bootstrap, "warm", self.count, 100)
        before = broker.memory()
        for number in PARTITIONS:
            started = time.monotonic()
            create_topic(bootstrap, f"p{number}", number)
            self.creation[number].add(make, time.monotonic() - started)
        time.sleep(2)
        self.per_partition.add(make, (broker.memory() - before) * 1024 / sum(PARTITIONS))
        cpu = broker.cpu()
        time.sleep(_IDLE_S)
        self.idle.add(make, (broker.cpu() - cpu) / _IDLE_S * 100)
        for number in PARTITIONS:
            cpu = broker.cpu()
            got = load("rdkafka-produce", bootstrap, f"p{number}", self.count, 100, number)
            self.rate[number].add(make, got["messages"] / got["seconds"])
            self.cost[number].add(make, (broker.cpu() - cpu) / self.count * 1e6)
        for number in CONNECTIONS:
            before = broker.memory()
            with _connected(bootstrap, number):
                if number == CONNECTIONS[-1]:
                    self.per_connection.add(make, (broker.memory() - before) * 1024 / number)
                got = load("rdkafka-produce", bootstrap, "warm", self.count, 100)
            self.connected[number].add(make, got["messages"] / got["seconds"])


def growth_suite(directory: Path, rounds: int, divide: int) -> tuple[list[Figure], list[str]]:
    """Measure both in alternation."""
    note = "no goals, but no cost may grow faster than the number of partitions or connections; memory is resident"
    return measure_in_turn(GrowthFigures(divide), directory, rounds, note)
