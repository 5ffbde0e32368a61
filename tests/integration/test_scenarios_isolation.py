"""S11: the answers of a leader that is cut off from ZooKeeper to a client that knows no other broker."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from kclient.wire import fetch_request, fetch_response, produce
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.records import Record, encode_batch
from tests.kit.brokers import Broker, Cluster
from tests.kit.replicated import Observer, read_all, until_replicas_agree
from tests.kit.waiting import eventually
from tests.kit.zookeeper import Ensemble
from tests.kit.zookeeper_links import ZooKeeperLinks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SETTINGS = {
    "zookeeper.session.timeout.ms": "4000",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.backoff.ms": "200",
}
PATIENCE = 40.0
_LENGTH = struct.Struct(">i")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def zookeeper_links(zookeeper_server: Ensemble) -> Iterator[ZooKeeperLinks]:
    made = ZooKeeperLinks(zookeeper_server)
    yield made
    made.board.close()


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
    zookeeper_server: Ensemble,
    zookeeper_links: ZooKeeperLinks,
) -> Iterator[Cluster]:
    """Three brokers; every test leaves them running."""
    chroot = f"{zookeeper_server.connect}/isolation"
    made = Cluster(tmp_path_factory.mktemp("isolation"), chroot, 3, overrides=SETTINGS)
    for broker_id in zookeeper_links.ports:
        start(made, zookeeper_links, broker_id)
    yield made
    made.stop_all()
    assert not made.complaints(), "\n".join(made.complaints()[:5])


@pytest.fixture(autouse=True)
def every_broker_runs(cluster: Cluster, zookeeper_links: ZooKeeperLinks) -> None:
    """Start the brokers that a failed attempt left down."""
    for broker_id in cluster.down:
        start(cluster, zookeeper_links, broker_id)


def start(cluster: Cluster, zookeeper_links: ZooKeeperLinks, broker_id: int) -> None:
    """Start a broker behind its wire to ZooKeeper."""
    cluster.start(
        broker_id, zookeeper_connect=f"127.0.0.1:{zookeeper_links.ports[broker_id]}/isolation"
    )


def exchange(broker: Broker, frame: bytes) -> bytes:
    """Send one request to one broker; return its answer without the length."""
    with socket.create_connection(("127.0.0.1", broker.port), 5) as connection:
        connection.settimeout(15)
        connection.sendall(_LENGTH.pack(len(frame)) + frame)
        with connection.makefile("rb") as file:
            return file.read(_LENGTH.unpack(file.read(4))[0])


def produce_to(broker: Broker, topic: str, value: bytes, acks: int = -1) -> str:
    """Produce to one broker, leader or not; return the name of the error, NONE without one."""
    records = [Record(0, 1_700_000_000_000, None, value, [])]
    batch = ProducePartition(0, encode_batch(records))
    request = ProduceRequest(acks, 3000, [ProduceTopic(topic, [batch])])
    pieces = produce.encode_request(request, 9, next(_numbers), "direct")
    _, response = produce.decode_response(memoryview(exchange(broker, b"".join(pieces))), 9)
    return ErrorCode(response.topics[0].partitions[0].error_code).name


def read_from(broker: Broker, topic: str) -> str:
    """Fetch from one broker; return the name of the error."""
    wanted = FetchTopic(topic, [FetchPartition(0, 0, 1 << 20)])
    request = FetchRequest(100, 0, [wanted], max_bytes=1 << 20)
    frame = fetch_request.encode_request(request, 11, next(_numbers), "direct")
    answer = exchange(broker, bytes(frame))
    _, response = fetch_response.decode_response(memoryview(answer), 11)
    return ErrorCode(response.topics[0].partitions[0].error_code).name


def test_s11_a_leader_with_an_expired_session_serves_no_client_until_it_leads_again(
    cluster: Cluster, zookeeper_links: ZooKeeperLinks
) -> None:
    observer = Observer(cluster)
    controller = eventually("a controller", lambda: max(observer.controller(), 0), PATIENCE)
    leader, *others = [b for b in cluster.brokers if b != controller] + [controller]
    left = f"left-{next(_numbers)}"
    observer.create(left, [[leader, *others]], {"min.insync.replicas": "2"})
    assert produce_to(cluster[leader], left, b"before") == "NONE"
    with zookeeper_links.cut(leader):
        observer.led_by_another(left, 0, leader, PATIENCE)
        refused = ErrorCode.NOT_LEADER_OR_FOLLOWER.name
        eventually("refusal", lambda: produce_to(cluster[leader], left, b"1", 1) == refused)
        assert produce_to(cluster[leader], left, b"all") == refused
        assert read_from(cluster[leader], left) == refused
        now = observer.placement(left).leader
        assert produce_to(cluster[now], left, b"after") == "NONE"
    observer.in_sync(left, 0, cluster.brokers, PATIENCE)
    values = list(read_all(cluster.bootstrap, left, 1)[0].values())
    assert (values[0], values[-1]) == (b"before", b"after")
    assert b"all" not in values
    until_replicas_agree(cluster, left, 0, cluster.brokers, PATIENCE)


def test_s11_alone_in_the_isr_a_leader_that_is_cut_off_acknowledges_nothing(
    cluster: Cluster, zookeeper_links: ZooKeeperLinks
) -> None:
    observer = Observer(cluster)
    controller = eventually("a controller", lambda: max(observer.controller(), 0), PATIENCE)
    leader, follower = (b for b in cluster.brokers if b != controller)
    alone = f"alone-{next(_numbers)}"
    observer.create(alone, [[leader, follower]])
    only = f"only-{next(_numbers)}"
    observer.create(only, [[leader]])
    cluster.terminate(follower)
    observer.in_sync(alone, 0, [leader], PATIENCE)
    assert produce_to(cluster[leader], alone, b"before") == "NONE"
    with zookeeper_links.cut(leader):
        eventually("no leader", lambda: observer.placement(alone).leader == -1, PATIENCE)
        assert produce_to(cluster[leader], alone, b"cut off") == "NOT_LEADER_OR_FOLLOWER"
        # Without another replica no other broker can lead: reads stay correct.
        assert produce_to(cluster[leader], only, b"cut off") == "NONE"
    eventually("the leader is back", lambda: observer.placement(alone).leader == leader, PATIENCE)
    eventually(
        "it serves", lambda: produce_to(cluster[leader], alone, b"after") == "NONE", PATIENCE
    )
    assert list(read_all(cluster.bootstrap, alone, 1)[0].values()) == [b"before", b"after"]
    eventually("it serves", lambda: produce_to(cluster[leader], only, b"after") == "NONE", PATIENCE)
    start(cluster, zookeeper_links, follower)
    observer.in_sync(alone, 0, [leader, follower], PATIENCE)


def test_s04_a_leader_cut_off_for_a_moment_goes_on_as_before(
    cluster: Cluster, zookeeper_links: ZooKeeperLinks
) -> None:
    observer = Observer(cluster)
    controller = eventually("a controller", lambda: max(observer.controller(), 0), PATIENCE)
    leader, *others = [b for b in cluster.brokers if b != controller] + [controller]
    moment = f"moment-{next(_numbers)}"
    observer.create(moment, [[leader, *others]], {"min.insync.replicas": "2"})
    # ZooKeeper has the full ISR before the leader has the request to lead.
    eventually(
        "a leader", lambda: produce_to(cluster[leader], moment, b"first") == "NONE", PATIENCE
    )
    for _ in range(3):
        with zookeeper_links.cut(leader):
            over = time.monotonic() + 1.0  # shorter than the session
            while time.monotonic() < over:
                assert produce_to(cluster[leader], moment, b"on") == "NONE"
        assert observer.placement(moment).leader == leader
    observer.in_sync(moment, 0, cluster.brokers, PATIENCE)
