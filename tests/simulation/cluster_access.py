"""What the parts of `Clients` use of it: members, transactional producers, producers of invalid batches."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from twisted.python.failure import Failure

from kclient.net.connection import Connection
from tests.simulation.clock import Process
from tests.simulation.node import Node
from tests.simulation.predicates import Observer


class ClusterAccess(Protocol):
    """The simulated cluster as its clients reach it."""

    process: Process
    nodes: dict[int, Node]
    observer: Observer
    trace: Callable[[str], None]
    rng: Random
    topics: dict[str, int]
    """The topics that are to exist, with their numbers of partitions."""
    compacted: set[str]
    """The topics with records that have keys."""
    acknowledged: int
    """Batches that were acknowledged."""
    consumed: int
    """Fetches that returned records."""

    def create(self, topic: str, partitions: int, kinds: tuple[str, ...] = ()) -> None:
        """Create a topic, if it is not there."""

    def coordinate(self) -> None:
        """Create the topic that groups need."""

    def leader(self, topic: str, partition: int, rng: Random | None = None) -> int | None:
        """Return a broker that considers itself leader."""

    async def connection(self, node: int, channel: str) -> Connection:
        """Return a connection to a broker."""
        ...

    async def pause(self) -> None:
        """Wait before the next attempt."""

    def failed(self, failure: Failure) -> None:
        """Keep what a client found wrong until the end of the step."""

    def offsets_fetched(self) -> None:
        """Count an answer with committed offsets."""

    def now_ms(self) -> int:
        """Return what a client's clock shows."""
        ...
