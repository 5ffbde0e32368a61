"""S35: the wall clocks of the brokers jump by an hour, one forward, one back, and one goes to and fro by half a minute.

Nothing but timestamps and the age of records may go by them: sessions, elections, timers and groups do not notice.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kclient.wire import fetch
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.framing import framed
from tests.integration.test_replicated_topics import check_acknowledged, until_progress
from tests.kit.brokers import Broker, Cluster, MakeCluster
from tests.kit.replicated import Observer
from tests.kit.shifted_clock import ShiftedClock
from tests.kit.waiting import eventually
from tests.kit.writers import LibrdkafkaWriter
from tests.kit.zookeeper import zookeeper_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ALL = [1, 2, 3]
LEADERS = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
SESSION = 4.0
HOUR = 3600.0
RETENTION_MS = 2 * 3_600_000
OLD_MS = 4 * 3_600_000
"""Age of records that are beyond retention by any of the clocks."""
POLL_SECONDS = 0.5
_FETCH_BY_NAME = 11


def what_a_failure_would_change(connect: str) -> dict[str, object]:
    """Return the registrations and the controller with their times, and every leader epoch."""
    with zookeeper_at(connect) as zookeeper:
        found: dict[str, object] = {}
        for broker_id in zookeeper.get_children("/brokers/ids"):
            found[f"broker {broker_id}"] = zookeeper.exists(f"/brokers/ids/{broker_id}").czxid
        for topic in zookeeper.get_children("/brokers/topics"):
            for index in zookeeper.get_children(f"/brokers/topics/{topic}/partitions"):
                path = f"/brokers/topics/{topic}/partitions/{index}/state"
                found[f"{topic}-{index}"] = zookeeper.get(path)[0]
        found["controller epoch"] = zookeeper.get("/controller_epoch")[0]
        return found


def long_poll(broker: Broker, index: int) -> float:
    """Fetch of the end of ``quiet``, which waits for what does not come; return the seconds it took."""
    wanted = FetchPartition(index, 0, 1024)
    request = FetchRequest(
        int(POLL_SECONDS * 1000), 1, [FetchTopic("quiet", [wanted])], max_bytes=1024
    )
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", broker.port), 10) as connection:
        frame = fetch.encode_request(request, _FETCH_BY_NAME, 1, "s35")
        connection.sendall(framed(frame))
        stream = connection.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4))
        _, response = fetch.decode_response(memoryview(stream.read(size)), _FETCH_BY_NAME)
    (answer,) = response.topics[0].partitions
    assert (answer.error_code, len(answer.record_set)) == (0, 0)
    return time.monotonic() - began


class Member:
    """The only member of a group; counts how often it was given partitions, and lost them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.changes: list[str] = []
        self._ending = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "g",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._consumer.subscribe(
            [topic],
            on_assign=lambda _c, _p: self.changes.append("assigned"),
            on_revoke=lambda _c, _p: self.changes.append("revoked"),
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._consumer.poll(0.1)

    def end(self) -> list[str]:
        """Leave the group; return what happened to it before."""
        self._ending.set()
        self._thread.join(10)
        changes = list(self.changes)
        self._consumer.close()
        return changes


def write_old_records(cluster: Cluster) -> None:
    """Write to every partition of ``old`` what is beyond retention by any of the clocks."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    when = int(time.time() * 1000) - OLD_MS
    for index in range(3):
        producer.produce("old", b"x", partition=index, timestamp=when)
    assert producer.flush(10) == 0


def until_old_records_are_gone(cluster: Cluster) -> None:
    """Wait until retention has taken all of ``old``."""
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "x", "log_level": 0})
    try:
        for index in range(3):
            where = TopicPartition("old", index)

            def gone(where: TopicPartition = where) -> bool:
                first, end = reader.get_watermark_offsets(where, 5)
                return bool(first == end > 0)

            eventually(f"retention of old-{index}", gone, 30)
    finally:
        reader.close()


def test_s35_clocks_that_jump_by_an_hour_or_go_to_and_fro_stop_nothing(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    cluster = broker_clusters(
        3,
        {
            "zookeeper.session.timeout.ms": str(int(SESSION * 1000)),
            "log.retention.check.interval.ms": "300",
            "replica.lag.time.max.ms": "3000",
        },
        start=False,
    )
    clocks = {n: ShiftedClock(tmp_path / f"clock-{n}", os.getcwd()) for n in ALL}
    for broker_id, clock in clocks.items():
        cluster[broker_id].environment = clock.environment
    cluster.start()
    observer = Observer(cluster)
    aged = {"retention.ms": str(RETENTION_MS)}
    observer.create("t", LEADERS, {"min.insync.replicas": "2", **aged})
    observer.create("old", LEADERS, aged)
    observer.create("quiet", LEADERS)
    writer = LibrdkafkaWriter("t", 3, "all", cluster.bootstrap, idempotence=True)
    writer.start()
    member = Member(cluster.bootstrap, "t")
    until_progress([writer], 100)
    eventually("an assignment", lambda: member.changes)
    for path in tmp_path.rglob("t-*/*.log"):
        os.utime(path, (0, 0))  # no test depends on the age of a file
    before = what_a_failure_would_change(cluster.zookeeper_connect)

    clocks[1].shift(HOUR)
    clocks[2].shift(-HOUR)
    over = time.monotonic() + SESSION + 1
    for offset in itertools.cycle((30.0, -30.0)):
        clocks[3].shift(offset)
        time.sleep(0.05)
        if time.monotonic() > over:
            break
    until_progress([writer], 100)
    for index, broker_id in enumerate(ALL):
        assert POLL_SECONDS * 0.9 < long_poll(cluster[broker_id], index) < POLL_SECONDS + 5
    write_old_records(cluster)
    until_old_records_are_gone(cluster)
    for clock in clocks.values():
        clock.shift(0)
    until_progress([writer], 100)

    assert what_a_failure_would_change(cluster.zookeeper_connect) == before
    assert member.end() == ["assigned"]
    writer.finish()
    check_acknowledged(cluster, writer)
