"""S22 for consumer groups: ZooKeeper is stopped for longer than every session, and the members consume on."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import KafkaException, TopicPartition

from kbroker.testing.switchboard.board import Switchboard
from kclient import Consumer as KclientConsumer
from kclient.testing.raw_connection import RawConnection
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.offset_fetch import OffsetFetchRequest
from kclient.wire.versions import ApiKey
from tests.integration.test_replicated_topics import until_progress
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually
from tests.kit.writers import LibrdkafkaWriter
from tests.kit.zookeeper import Ensemble, zookeeper_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SESSION = 4.0
OUTAGE = 15.0
LONGEST_GAP = 5.0
PARTITIONS, ALL = 3, [1, 2, 3]
SETTINGS = {
    "zookeeper.session.timeout.ms": str(int(SESSION * 1000)),
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
}


class Reader(threading.Thread):
    """A member of the group of its library's name that commits by itself, and notes when it got records."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.group = type(self).__name__
        self.ending = threading.Event()
        self.received: list[float] = []
        self.positions: dict[int, int] = {}
        self.repeated: list[tuple[int, int]] = []
        self.assignments = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            self.read()
        except BaseException as problem:
            self.problem = problem
            raise

    def read(self) -> None:
        """Consume until `ending`."""
        raise NotImplementedError

    def got(self, partition: int, offset: int) -> None:
        """Note a record."""
        self.received.append(time.monotonic())
        if offset < self.positions.get(partition, 0):
            self.repeated.append((partition, offset))
        self.positions[partition] = offset + 1

    def longest_gap(self, begin: float, end: float) -> float:
        """Return the longest time without a record."""
        times = [begin, *(at for at in self.received if begin <= at <= end), end]
        return max(after - before for before, after in pairwise(times))


class Librdkafka(Reader):
    def read(self) -> None:
        consumer = LibrdkafkaConsumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 1000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        consumer.subscribe(["t"], on_assign=self._assigned)
        while not self.ending.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    self.got(message.partition(), message.offset())
        consumer.close()

    def _assigned(self, _consumer: Any, _partitions: list[TopicPartition]) -> None:
        self.assignments += 1


class Kclient(Reader):
    def read(self) -> None:
        config = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": "500",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
        }
        with KclientConsumer(config=config) as consumer:
            consumer.subscribe(["t"], listener=self)
            while not self.ending.is_set():
                for records in consumer.poll(timeout=0.1).values():
                    for record in records:
                        self.got(record.partition, record.offset)

    def on_partitions_assigned(self, _partitions: Any) -> None:
        """Count a rebalance."""
        self.assignments += 1

    def on_partitions_revoked(self, _partitions: Any) -> None:
        """Let them go."""

    def on_partitions_lost(self, _partitions: Any) -> None:
        """Let them go."""


class Committed(threading.Thread):
    """Asks the coordinator of *group* again and again for its offsets, and notes what goes backward."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._group = group
        self.ending = threading.Event()
        self.answers: Counter[ErrorCode] = Counter()
        self.offsets: dict[int, int] = {}
        self.backward: list[tuple[int, int, int]] = []

    def run(self) -> None:
        request = OffsetFetchRequest(group_id=self._group, topics=None)
        with ExitStack() as stack:
            connections = [
                stack.enter_context(RawConnection("127.0.0.1", broker.port, timeout=30))
                for broker in self._cluster.brokers.values()
            ]
            while not self.ending.wait(0.1):
                for connection in connections:
                    self._note(connection.ask(ApiKey.OFFSET_FETCH, 7, request))

    def _note(self, response: Any) -> None:
        error = ErrorCode(response.error_code)
        self.answers[error] += 1
        for topic in response.topics if error is ErrorCode.NONE else ():
            for partition in topic.partitions:
                index, offset = partition.partition_index, partition.committed_offset
                if offset < self.offsets.get(index, -1):
                    self.backward.append((index, self.offsets[index], offset))
                self.offsets[index] = offset


def generation(zookeeper: str, group: str) -> int:
    """Return a group's generation as ZooKeeper has it."""
    with zookeeper_at(zookeeper) as client:
        return int(json.loads(client.get(f"/consumers/{group}/state")[0])["generation"])


@contextmanager
def running(*threads: Any) -> Iterator[None]:
    """Run *threads*, and end them."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.ending.set()
        for thread in threads:
            thread.join(30)


def test_s22_members_consume_on_while_zookeeper_is_stopped(
    broker_clusters: MakeCluster, own_ensemble: Ensemble
) -> None:
    zookeeper = f"{own_ensemble.connect}/groups"
    cluster = broker_clusters(3, SETTINGS, zookeeper=zookeeper)
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], {"min.insync.replicas": "2"})
    writer = LibrdkafkaWriter("t", PARTITIONS, "all", cluster.bootstrap, idempotence=True)
    readers: list[Reader] = [Librdkafka(cluster.bootstrap), Kclient(cluster.bootstrap)]
    writer.start()
    with running(*readers):
        for reader in readers:
            eventually(f"{reader.group} to read", lambda r=reader: len(r.received) > 200)  # type: ignore[misc]
        for index in range(3):
            observer.in_sync("__consumer_offsets", index, ALL)
        before = {reader.group: generation(zookeeper, reader.group) for reader in readers}
        probes = [Committed(cluster, reader.group) for reader in readers]
        with running(*probes):
            for probe in probes:
                eventually("a committed offset", lambda p=probe: p.offsets)  # type: ignore[misc]
            own_ensemble.pause()
            began = time.monotonic()
            while time.monotonic() < began + OUTAGE:
                until_progress([writer], 20)
            middle = [Counter(probe.answers) for probe in probes]
            resumed = time.monotonic()
            own_ensemble.resume()
            for index in range(3):
                observer.in_sync("__consumer_offsets", index, ALL, 60)
            until_progress([writer], 200)
            behind = [dict(probe.offsets) for probe in probes]
            for probe, then in zip(probes, behind, strict=True):
                eventually(
                    "commits after the outage",
                    lambda p=probe, t=then: all(p.offsets[i] > t.get(i, 0) for i in p.offsets),  # type: ignore[misc]
                )
        writer.finish()
        ends = {
            index: acknowledged[-1].offset + 1
            for index, acknowledged in writer.acknowledged.items()
        }
        for reader in readers:
            eventually(
                f"{reader.group} to read all",
                lambda r=reader: all(r.positions[i] >= end for i, end in ends.items()),  # type: ignore[misc]
            )
        for reader in readers:
            assert reader.problem is None
            assert reader.longest_gap(began, resumed) < LONGEST_GAP, reader.group
            assert reader.assignments == 1, reader.group
            assert reader.repeated == [], reader.group
    for probe, answered in zip(probes, middle, strict=True):
        assert probe.backward == []
        assert answered[ErrorCode.NONE] > 20, answered
    after = {reader.group: generation(zookeeper, reader.group) for reader in readers}
    # Each member left at the end: one more generation, the empty one.
    assert after == {group: number + 1 for group, number in before.items()}
    _nothing_is_lost(cluster, readers)


def test_s11_members_go_from_a_coordinator_that_is_cut_off_to_the_next_one(
    broker_clusters: MakeCluster, own_ensemble: Ensemble
) -> None:
    board = Switchboard()
    port = int(own_ensemble.connect.rpartition(":")[2])
    cluster = broker_clusters(3, SETTINGS, zookeeper=f"{own_ensemble.connect}/groups", start=False)
    for number in ALL:
        route = board.route(f"broker-{number}", "zookeeper", port)
        cluster.start(number, zookeeper_connect=f"127.0.0.1:{route}/groups")
    observer = Observer(cluster)
    observer.create("__consumer_offsets", [[1, 2, 3]])
    observer.create("t", [[2, 3, 1], [3, 2, 1], [2, 3, 1]], {"min.insync.replicas": "2"})
    writer = LibrdkafkaWriter("t", PARTITIONS, "all", cluster.bootstrap, idempotence=True)
    readers: list[Reader] = [Librdkafka(cluster.bootstrap), Kclient(cluster.bootstrap)]
    writer.start()
    try:
        with running(*readers):
            for reader in readers:
                eventually(f"{reader.group} to read", lambda r=reader: len(r.received) > 200)  # type: ignore[misc]
            began = time.monotonic()
            board.cut("broker-1", "zookeeper")
            board.settle()
            while time.monotonic() < began + OUTAGE:
                until_progress([writer], 20)
            healed = time.monotonic()
            board.heal()
            board.settle()
            until_progress([writer], 100)
            writer.finish()
            for reader in readers:
                assert reader.problem is None
                assert reader.longest_gap(began, healed) < LONGEST_GAP, reader.group
                assert reader.assignments == 1, reader.group
                assert reader.repeated == [], reader.group
        _nothing_is_lost(cluster, readers)
    finally:
        board.close()


def _nothing_is_lost(cluster: Cluster, readers: list[Reader]) -> None:
    """Demand that what each group read last is committed: the last commit came with the end."""
    for reader in readers:
        consumer = LibrdkafkaConsumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": reader.group}
        )

        def committed(c: LibrdkafkaConsumer = consumer) -> dict[int, int] | None:
            try:
                found = c.committed([TopicPartition("t", i) for i in range(PARTITIONS)], 5)
            except KafkaException:
                return None
            return {partition.partition: partition.offset for partition in found}

        assert eventually("committed offsets", committed) == reader.positions, reader.group
        consumer.close()
