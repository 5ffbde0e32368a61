"""S23: the next coordinator and the next controller read from a ZooKeeper server that lags.

Three servers. A switchboard between the leader and its followers delivers to one of them seconds late: what is
committed on the others is not on it yet. Broker 2 connects to that server only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from kazoo.client import KazooClient

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.testing.switchboard.board import Switchboard
from kbroker.zk import znodes
from kbroker.zk.interface import Stat
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kclient.wire.versions import ApiKey
from tests.kit.brokers import Broker, MakeCluster
from tests.kit.operators import ask_broker
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually
from tests.kit.zookeeper import Ensemble, zookeeper_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LAG = 2.5
VERSION = 7
SAFE_TO_ASK_AGAIN = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
_numbers = itertools.count(1)


class LaggingEnsemble:
    """Three servers. The first joins the other two, of which the third leads, and can be made to lag."""

    def __init__(self, directory: Path) -> None:
        self._board = Switchboard()
        self.ensemble = Ensemble(directory, 3, between=self._route)
        self.laggard, _, self.leader = (server.address for server in self.ensemble.servers)
        self.ensemble.start(2, 3)
        self.ensemble.start(1)
        assert self.ensemble.leader() == 3

    def _route(self, source: int, target: int, port: int) -> int:
        return self._board.route("laggard", "leader", port) if (source, target) == (1, 3) else port

    def lag(self, seconds: float) -> None:
        """Delay everything to the laggard from now on."""
        self._board.delay("leader", "laggard", seconds)
        self._board.settle()

    def close(self) -> None:
        """End everything."""
        self.ensemble.kill()
        self._board.close()


@pytest.fixture
def lagging(tmp_path: Path) -> Iterator[LaggingEnsemble]:
    made = LaggingEnsemble(tmp_path / "ensemble")
    try:
        yield made
    finally:
        made.close()


def commit(bootstrap: str, offset: int) -> None:
    """Commit for group ``g``, and return when that is acknowledged."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0}
    committer = Consumer(settings)
    try:
        committer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    finally:
        committer.close()


def committed_at(broker: Broker) -> int | None:
    """Return the committed offset of group ``g`` from one broker; None while it answers with a retriable error."""
    request = OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0])])
    answer = ask_broker(broker.port, ApiKey.OFFSET_FETCH, request, VERSION)
    if answer.error_code:
        assert answer.error_code in SAFE_TO_ASK_AGAIN, ErrorCode(answer.error_code)
        return None
    (partition,) = answer.topics[0].partitions
    assert not partition.error_code
    return int(partition.committed_offset)


def state_of(zookeeper: KazooClient, topic: str) -> LeaderAndIsr:
    data, stat = zookeeper.get(znodes.partition_state_path(topic, 0))
    return znodes.decode_partition_state(topic, 0, data, Stat(*stat))


def epoch_of_controller(zookeeper: KazooClient) -> int:
    return int(zookeeper.get(znodes.CONTROLLER_EPOCH)[0])


def govern_for_a_moment(zookeeper: KazooClient) -> LeaderAndIsr:
    """Act as a controller that is elected, makes broker 3 lead ``t``, and dies; return what it wrote."""
    epoch = epoch_of_controller(zookeeper) + 1
    zookeeper.set(znodes.CONTROLLER_EPOCH, b"%d" % epoch)
    before = state_of(zookeeper, "t")
    after = LeaderAndIsr(3, before.leader_epoch + 5, (3, 2), epoch)
    path = znodes.partition_state_path("t", 0)
    zookeeper.set(path, znodes.encode_partition_state(after), version=before.zk_version)
    return after


def test_s23_a_broker_that_reads_from_a_lagging_server_waits_until_the_server_has_caught_up(
    broker_clusters: MakeCluster, lagging: LaggingEnsemble
) -> None:
    cluster = broker_clusters(
        3,
        {
            "zookeeper.session.timeout.ms": "10000",
            "offsets.topic.num.partitions": "1",
            "auto.leader.rebalance.enable": "false",
        },
        zookeeper=f"{lagging.leader}/s23",
        start=False,
    )
    cluster.start(3)  # the first one governs
    cluster.start(1)
    cluster.start(2, zookeeper_connect=f"{lagging.laggard}/s23")
    observer = Observer(cluster)
    observer.create(OFFSETS_TOPIC, [[1, 2]])
    observer.create("t", [[3, 2]])
    with (
        zookeeper_at(f"{lagging.leader}/s23") as ahead,
        zookeeper_at(f"{lagging.laggard}/s23") as behind,
    ):
        commit(cluster.bootstrap, 100)
        eventually("the coordinator to serve", lambda: committed_at(cluster[1]) == 100)

        # The coordinator goes; its successor reads where the last commit has not arrived.
        lagging.lag(LAG)
        commit(cluster.bootstrap, 200)
        assert behind.get(znodes.group_offset_path("g", "t", 0))[0] == b"100"
        cluster.terminate(1)
        assert behind.get(znodes.group_offset_path("g", "t", 0))[0] == b"100", "too late a failover"
        answers = []

        def answered() -> bool:
            found = committed_at(cluster[2])
            answers.append(found)
            return found is not None

        eventually("the next coordinator to serve", answered, 3 * LAG + 15)
        assert [found for found in answers if found is not None] == [200]

        # The controller dies, another one is elected and dies; the next one gets all of this late.
        eventually("the laggard to know", lambda: state_of(behind, "t") == state_of(ahead, "t"))
        cluster.terminate(3)
        assert ahead.exists(znodes.CONTROLLER) is None
        interim = govern_for_a_moment(ahead)
        assert behind.exists(znodes.CONTROLLER) is not None
        assert epoch_of_controller(behind) < interim.controller_epoch

        def next_controller() -> bool:
            return ahead.exists(znodes.CONTROLLER) is not None

        eventually("a controller", next_controller, 4 * LAG + 15)
        assert epoch_of_controller(ahead) == interim.controller_epoch + 1
        eventually("an election", lambda: state_of(ahead, "t").leader == 2, 2 * LAG + 15)
        elected = state_of(ahead, "t")
        assert elected.leader_epoch == interim.leader_epoch + 1
        assert elected.controller_epoch == interim.controller_epoch + 1
    lagging.lag(0.0)
