"""Real broker processes for tests: start on free ports, kill, pause, restart, and read their logs.

A test that asks for `broker_clusters` makes clusters with it; at its end every broker is gone, and the
test fails if any broker's log holds a traceback or an unhandled error.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.testing.brokers import Broker as Broker
from kbroker.testing.brokers import Brokers
from kbroker.testing.hosts import LOOPBACK, Host
from tests.kit.zookeeper import Ensemble

_BAD = re.compile(r"Traceback \(most recent call last\)|Unhandled error|\bFATAL\b")

DEFAULTS: Mapping[str, str] = {
    "zookeeper.session.timeout.ms": "4000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
    "offsets.topic.replication.factor": "1",
}


class Cluster(Brokers):
    """Brokers with settings for tests, and the judgement of their logs."""

    def __init__(
        self,
        directory: Path,
        zookeeper_connect: str,
        brokers: int = 1,
        *,
        overrides: Mapping[str, str] | None = None,
        hosts: Callable[[int], Host] = lambda _broker_id: LOOPBACK,
        forked: bool = True,
    ) -> None:
        super().__init__(
            directory,
            zookeeper_connect,
            brokers,
            settings={**DEFAULTS, **(overrides or {})},
            hosts=hosts,
            forked=forked,
        )
        self.allowed: list[str] = []
        """Regular expressions of log lines that a test provokes on purpose."""

    def complaints(self) -> list[str]:
        """Return the lines of all logs that no broker should ever write."""
        return complaints_of(self, self.allowed)


def complaints_of(brokers: Brokers, allowed: Iterable[str] = ()) -> list[str]:
    """Return the lines of all logs that no broker should ever write, except those that match one of *allowed*."""
    found = []
    for broker in brokers.brokers.values():
        lines = broker.log.splitlines()
        for number, line in enumerate(lines):
            if not _BAD.search(line):
                continue
            around = "\n".join(lines[max(0, number - 2) : number + 25])
            if not any(re.search(pattern, around) for pattern in allowed):
                found.append(f"broker {broker.broker_id}:\n{around}")
    return found


MakeCluster = Callable[..., Cluster]


@contextmanager
def making_clusters(home: Path, zookeeper_connect: str) -> Iterator[MakeCluster]:
    """Make clusters below *home* and *zookeeper_connect*; in the end all are gone, and none had a complaint."""
    clusters: list[Cluster] = []
    names = itertools.count(1)

    def make(
        brokers: int = 1,
        overrides: Mapping[str, str] | None = None,
        *,
        zookeeper: str | None = None,
        racks: Mapping[int, str] | None = None,
        start: bool = True,
        forked: bool = True,
    ) -> Cluster:
        name = f"cluster-{next(names)}"
        connect = zookeeper or f"{zookeeper_connect}/{name}"
        cluster = Cluster(home / name, connect, brokers, overrides=overrides, forked=forked)
        clusters.append(cluster)
        for broker_id, rack in (racks or {}).items():
            cluster.start(broker_id, wait=False, broker_rack=rack)
        if racks:
            cluster.wait_ready()
        elif start:
            cluster.start()
        return cluster

    yield make
    for cluster in clusters:
        cluster.stop_all()
    complaints = [text for cluster in clusters for text in cluster.complaints()]
    assert not complaints, "\n".join(complaints[:5])


@pytest.fixture
def broker_clusters(tmp_path: Path, zookeeper_connect: str) -> Iterator[MakeCluster]:
    """Make clusters: ``broker_clusters(3, {"num.partitions": "4"})``, started and ready.

    Each has a chroot of its own; pass *zookeeper* to use another ensemble, *racks* for the rack of each broker,
    ``forked=False`` where the memory of brokers is looked at.
    """
    with making_clusters(tmp_path, zookeeper_connect) as make:
        yield make


@pytest.fixture(scope="module")
def module_clusters(
    tmp_path_factory: pytest.TempPathFactory, zookeeper_server: Ensemble
) -> Iterator[MakeCluster]:
    """Make clusters that all tests of a file share, as `broker_clusters` does for one test."""
    home = tmp_path_factory.mktemp("clusters")
    with making_clusters(home, f"{zookeeper_server.connect}/{home.name}") as make:
        yield make
