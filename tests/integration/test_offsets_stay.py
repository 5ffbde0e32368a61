"""S31: whatever is cut or stopped, no broker answers an offset from before the last acknowledged commit."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from kclient.testing.raw_connection import RawConnection
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.metadata import MetadataRequest, MetadataRequestTopic
from kclient.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kclient.wire.schema.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kclient.wire.versions import ApiKey
from tests.kit.brokers import Broker, Cluster, MakeCluster
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually
from tests.kit.zookeeper import Ensemble
from tests.kit.zookeeper_links import ZooKeeperLinks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SESSION = 3.0
SETTINGS = {
    "zookeeper.session.timeout.ms": str(int(SESSION * 1000)),
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "replica.fetch.backoff.ms": "200",
    "leader.imbalance.check.interval.seconds": "5",
}
OFFSETS, ALL = "__consumer_offsets", [1, 2, 3]
PATIENCE = 60.0


class Asking(threading.Thread):
    """Sends one request after another to one broker, over a new connection after each failure."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self.ending = threading.Event()
        self.answers: Counter[ErrorCode] = Counter()

    def run(self) -> None:
        while not self.ending.is_set():
            try:
                with RawConnection("127.0.0.1", self._broker.port, timeout=12) as connection:
                    while not self.ending.wait(0.005):
                        self.answers[self.ask(connection)] += 1
            except OSError:
                self.ending.wait(0.1)

    def ask(self, connection: RawConnection) -> ErrorCode:
        """Send a request and return the error in its answer."""
        raise NotImplementedError


class History:
    """The commits of one client, which commits ever larger offsets, and the answers that are past."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.attempted = 0
        self.acknowledged = -1
        self.past: list[tuple[int, int, int]] = []
        """(broker, offset that was acknowledged before the request was sent, offset answered)"""


class Commits(Asking):
    """Commits the next offset, whether this broker coordinates or not."""

    def __init__(self, broker: Broker, history: History) -> None:
        super().__init__(broker)
        self._history = history

    def ask(self, connection: RawConnection) -> ErrorCode:
        with self._history.lock:
            self._history.attempted += 1
            offset = self._history.attempted
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])]
        )
        response = connection.ask(ApiKey.OFFSET_COMMIT, 8, request)
        error = ErrorCode(response.topics[0].partitions[0].error_code)
        if error is ErrorCode.NONE:
            with self._history.lock:
                self._history.acknowledged = max(self._history.acknowledged, offset)
        return error


class Fetches(Asking):
    """Asks for the offset, and compares it with what was acknowledged before."""

    def __init__(self, broker: Broker, history: History) -> None:
        super().__init__(broker)
        self._history = history

    def ask(self, connection: RawConnection) -> ErrorCode:
        floor = self._history.acknowledged
        request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic("t", [0])])
        response = connection.ask(ApiKey.OFFSET_FETCH, 7, request)
        found = response.topics[0].partitions[0]
        if ErrorCode(response.error_code) is ErrorCode.NONE and found.committed_offset < floor:
            self._history.past.append((self._broker.broker_id, floor, found.committed_offset))
        return ErrorCode(response.error_code)


@pytest.fixture
def zookeeper_links(own_ensemble: Ensemble) -> Iterator[ZooKeeperLinks]:
    made = ZooKeeperLinks(own_ensemble)
    yield made
    made.board.close()


def acknowledges(history: History) -> None:
    """Wait for a commit that is not sent yet to be acknowledged."""
    attempted = history.attempted
    eventually("a commit", lambda: history.acknowledged > attempted, PATIENCE)


def led_by_another(cluster: Cluster, than: int) -> None:
    """Wait until a broker other than *than* leads, as the others know it: *than* itself may know nothing."""
    witness = next(broker for number, broker in cluster.brokers.items() if number != than)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=OFFSETS)])

    def leader() -> bool:
        with RawConnection("127.0.0.1", witness.port) as connection:
            (topic,) = connection.ask(ApiKey.METADATA, 9, request).topics
        return topic.partitions[0].leader_id not in (-1, than)

    eventually("another coordinator", leader, PATIENCE)


def answered(fetches: list[Fetches]) -> int:
    """Return how many offsets were answered."""
    return sum(fetch.answers[ErrorCode.NONE] for fetch in fetches)


def until_over(seconds: float) -> None:
    """Let time pass while the threads work."""
    threading.Event().wait(seconds)


def test_s31_no_offset_goes_back_behind_an_acknowledged_commit(
    broker_clusters: MakeCluster, own_ensemble: Ensemble, zookeeper_links: ZooKeeperLinks
) -> None:
    cluster: Cluster = broker_clusters(
        3, SETTINGS, zookeeper=f"{own_ensemble.connect}/stay", start=False
    )
    for broker_id, port in zookeeper_links.ports.items():
        cluster.start(broker_id, zookeeper_connect=f"127.0.0.1:{port}/stay")
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3]])
    observer.create(OFFSETS, [[1, 2, 3]])
    history = History()
    threads: list[Asking] = [Commits(broker, history) for broker in cluster.brokers.values()]
    fetches = [Fetches(broker, history) for broker in cluster.brokers.values() for _ in range(2)]
    threads += fetches
    for thread in threads:
        thread.start()
    try:
        acknowledges(history)
        for fault in ("cut", "pause", "outage", "cut", "pause"):
            observer.in_sync(OFFSETS, 0, ALL, PATIENCE)
            coordinator = observer.placement(OFFSETS).leader
            before = answered(fetches)
            if fault == "cut":
                with zookeeper_links.cut(coordinator):
                    led_by_another(cluster, coordinator)
                    acknowledges(history)
            elif fault == "pause":
                cluster.pause(coordinator)
                led_by_another(cluster, coordinator)
                acknowledges(history)
                cluster.resume(coordinator)
            else:
                own_ensemble.pause()
                began = time.monotonic()
                until_over(2 * SESSION)
                assert time.monotonic() >= began + 2 * SESSION
                assert answered(fetches) > before + 8
                own_ensemble.resume()
            acknowledges(history)
            now = answered(fetches)
            eventually("answers", lambda n=now: answered(fetches) > n + 100, PATIENCE)  # type: ignore[misc]
            assert history.past == [], fault
    finally:
        for thread in threads:
            thread.ending.set()
        for thread in threads:
            thread.join(20)
    refused = {error for thread in threads for error in thread.answers}
    assert refused <= {
        ErrorCode.NONE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
