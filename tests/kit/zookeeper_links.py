"""Every broker's connection to ZooKeeper through a switchboard, which can cut it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.testing.switchboard.board import Switchboard
from tests.kit.zookeeper import Ensemble

BROKERS = (1, 2, 3)


class ZooKeeperLinks:
    """One port of ZooKeeper for each of three brokers, to be cut."""

    def __init__(self, zookeeper: Ensemble) -> None:
        self.board = Switchboard()
        port = int(zookeeper.connect.rpartition(":")[2])
        self.ports = {n: self.board.route(f"broker-{n}", "zookeeper", port) for n in BROKERS}

    @contextmanager
    def cut(self, broker_id: int) -> Iterator[None]:
        """Let nothing through between a broker and ZooKeeper."""
        self.board.cut(f"broker-{broker_id}", "zookeeper")
        self.board.settle()
        try:
            yield
        finally:
            self.board.heal()
            self.board.settle()
