"""Requests that are reserved to brokers, sent by a client without a broker proof to a cluster of three.

The client runs on the brokers' host: its address is that of registered brokers, so only the proof can refuse it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from kbroker.zk import znodes
from kclient.testing.raw_connection import RawConnection
from kclient.wire.batches import LARGEST_COPIED_OFFSET, parse
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.interbroker import (
    ControlledShutdownRequest,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataRequest,
)
from kclient.wire.produce import (
    MIRROR_SOURCE_CONFIG,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceTopic,
)
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.wire.schema.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kclient.wire.versions import ApiKey
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.inter_broker import proof_in, prove
from tests.kit.logs import batch_of
from tests.kit.operators import Operator
from tests.kit.replicated import Observer, log_bytes, read_all, until_replicas_agree
from tests.kit.waiting import eventually
from tests.kit.zookeeper import zookeeper_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

_numbers = count(1)
MAX_EPOCH = 2**31 - 1
PREFERRED = 0
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    """Three brokers; `t-0` is led by broker 1, its ISR is 1, 2, 3 and stays so for a minute."""
    made = module_clusters(3, {"replica.lag.time.max.ms": "60000"})
    Observer(made).create("t", [[1, 2, 3]])
    return made


@pytest.fixture(autouse=True)
def broker_1_leads(cluster: Cluster) -> None:
    """Start the brokers that a failed test left down, and move `t-0` back to broker 1."""
    if cluster.down:
        cluster.start(*cluster.down)
    observer = Observer(cluster)
    if observer.placement("t").leader != 1:
        observer.in_sync("t", 0, (1, 2, 3))
        assert Operator(cluster).elect(PREFERRED, [("t", 0)])["t", 0] in ("", "ELECTION_NOT_NEEDED")
        assert observer.placement("t").leader == 1


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """The name of a topic that does not exist yet."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def client(cluster: Cluster) -> Iterator[RawConnection]:
    """A client's connection to broker 1."""
    with connected(cluster, 1) as connection:
        yield connection


def connected(cluster: Cluster, broker_id: int) -> RawConnection:
    return RawConnection("127.0.0.1", cluster[broker_id].port)


def controller_epoch(cluster: Cluster) -> bytes:
    with zookeeper_at(cluster.zookeeper_connect) as client:
        data: bytes = client.get("/controller_epoch")[0]
        return data


def stop_replica(controller_id: int) -> StopReplicaRequest:
    """Delete t-0, as a controller that deletes the topic does."""
    state = StopReplicaPartitionState(0, -2, delete_partition=True)
    return StopReplicaRequest(
        controller_id=controller_id,
        controller_epoch=MAX_EPOCH,
        broker_epoch=-1,
        topic_states=[StopReplicaTopicState("t", [state])],
    )


def leader_and_isr(controller_id: int) -> LeaderAndIsrRequest:
    state = LeaderAndIsrPartitionState(0, MAX_EPOCH, 3, 1000, [3], 1000, [1, 2, 3])
    return LeaderAndIsrRequest(
        controller_id=controller_id,
        controller_epoch=MAX_EPOCH,
        broker_epoch=-1,
        topic_states=[LeaderAndIsrTopicState("t", None, [state])],
    )


def append_one(
    connection: RawConnection, topic: str, partition: int = 0
) -> ProducePartitionResponse:
    """Append one record with acks=1."""
    records = ProducePartition(partition, batch_of(1000))
    response = connection.ask(
        ApiKey.PRODUCE, 9, ProduceRequest(1, 5000, [ProduceTopic(topic, [records])])
    )
    found: ProducePartitionResponse = response.topics[0].partitions[0]
    return found


def is_writable(connection: RawConnection, topic: str) -> bool:
    return append_one(connection, topic).error_code == 0


def produce(connection: RawConnection, topic: str, partition: int = 0) -> int:
    """Append one record with acks=1; return its offset."""
    outcome = append_one(connection, topic, partition)
    assert outcome.error_code == 0
    offset: int = outcome.base_offset
    return offset


def high_watermark(connection: RawConnection, topic: str) -> int:
    """Ask ListOffsets for the latest offset, as a consumer."""
    return list_offsets(connection, topic, replica_id=-1)[1]


def list_offsets(connection: RawConnection, topic: str, replica_id: int) -> tuple[int, int]:
    """Return (error code, latest offset)."""
    asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    request = ListOffsetsRequest(replica_id, 0, [ListOffsetsTopic(topic, [asked])])
    answer = connection.ask(ApiKey.LIST_OFFSETS, 6, request).topics[0].partitions[0]
    return answer.error_code, answer.offset


def test_controller_requests_of_a_client_end_no_controller_and_delete_no_log(
    cluster: Cluster, topic: str
) -> None:
    observer = Observer(cluster)
    with connected(cluster, 1) as connection:
        produce(connection, "t")
    log = until_replicas_agree(cluster, "t", 0, (1, 2, 3))
    controller, epoch = observer.controller(), controller_epoch(cluster)
    requests = [
        (ApiKey.STOP_REPLICA, 4, stop_replica(controller)),
        (ApiKey.LEADER_AND_ISR, 7, leader_and_isr(controller)),
        (
            ApiKey.UPDATE_METADATA,
            8,
            UpdateMetadataRequest(
                controller_id=controller, controller_epoch=MAX_EPOCH, broker_epoch=-1
            ),
        ),
        (
            ApiKey.CONTROLLED_SHUTDOWN,
            3,
            ControlledShutdownRequest(broker_id=1, broker_epoch=MAX_EPOCH),
        ),
    ]
    for broker_id in (1, 2, 3):
        with connected(cluster, broker_id) as connection:
            for api, version, request in requests:
                answer = connection.ask(api, version, request)
                assert answer.error_code == REFUSED, api.name
    assert observer.controller() == controller
    # The controller has sent this to every broker: a raised fence would have refused it.
    observer.create(topic, [[1, 2, 3]])
    assert controller_epoch(cluster) == epoch
    assert all(log_bytes(cluster, broker_id, "t", 0) == log for broker_id in (1, 2, 3))


def test_a_fetch_of_a_client_as_a_follower_moves_no_high_watermark(
    cluster: Cluster, client: RawConnection, topic: str
) -> None:
    Observer(cluster).create(topic, [[1, 2, 3]])
    produce(client, topic)
    until_replicas_agree(cluster, topic, 0, (1, 2, 3))
    cluster.pause(2)
    try:
        end = produce(client, topic) + 1
        before = high_watermark(client, topic)
        wanted = FetchTopic(topic, [FetchPartition(0, end, 1 << 20)])
        fetch = FetchRequest(
            max_wait_ms=0, min_bytes=1, topics=[wanted], replica_id=2, session_epoch=-1
        )
        answer = client.ask(ApiKey.FETCH, 12, fetch)
        assert answer.error_code == REFUSED
        assert answer.topics == []
        assert high_watermark(client, topic) == before == end - 1
    finally:
        cluster.resume(2)


def test_a_client_does_not_see_the_log_end_as_a_follower_does(
    cluster: Cluster, client: RawConnection
) -> None:
    assert list_offsets(client, "t", replica_id=2) == (REFUSED, -1)
    assert list_offsets(client, "t", replica_id=-1)[0] == 0
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    request = OffsetForLeaderEpochRequest(
        replica_id=2, topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])]
    )
    answer = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
    assert answer.topics[0].partitions[0].error_code == REFUSED


def append_copied(
    connection: RawConnection, topic: str, data: bytes, expected: int, previous: bytes = b""
) -> Any:
    """Append *data* as a mirror does, behind the batch *previous*."""
    crc = parse(previous).crc if previous else 0
    records = ProducePartition(0, data, expected, crc)
    request = ProduceRequest(1, 5000, [ProduceTopic(topic, [records])])
    return connection.ask(ApiKey.PRODUCE, 11, request).topics[0].partitions[0]


def test_a_conditional_append_needs_a_topic_that_is_marked_as_a_mirror(
    cluster: Cluster, client: RawConnection, topic: str
) -> None:
    Observer(cluster).create(topic, [[1, 2, 3]])
    batch = batch_of(1000, base_offset=2**40)
    outcome = append_copied(client, topic, batch, 2**40)
    assert outcome.error_code == ErrorCode.POLICY_VIOLATION
    assert MIRROR_SOURCE_CONFIG in outcome.error_message
    assert produce(client, topic) == 0


@pytest.mark.parametrize("first", [0, LARGEST_COPIED_OFFSET - 1])
def test_at_the_largest_copied_offset_a_partition_goes_on_and_outlives_a_crash(
    cluster: Cluster, topic: str, first: int
) -> None:
    observer = Observer(cluster)
    observer.create(topic, [[1, 2, 3]], {MIRROR_SOURCE_CONFIG: "source"})
    begin = batch_of(1000, base_offset=first)
    end = batch_of(1000, base_offset=LARGEST_COPIED_OFFSET)
    beyond = batch_of(1000, base_offset=LARGEST_COPIED_OFFSET + 1)
    with connected(cluster, 1) as mirror:
        for batch in (batch_of(1000, base_offset=n) for n in (2**63 - 2, 2**63 - 1)):
            at = parse(batch).base_offset
            refused = append_copied(mirror, topic, batch, at)
            assert refused.error_code == ErrorCode.INVALID_RECORD
        assert append_copied(mirror, topic, begin, first).error_code == 0
        assert append_copied(mirror, topic, end, first + 1, begin).error_code == 0
        refused = append_copied(mirror, topic, beyond, LARGEST_COPIED_OFFSET + 1, end)
        assert refused.error_code == ErrorCode.INVALID_RECORD
        observer.configure(
            topic, {MIRROR_SOURCE_CONFIG: ""}
        )  # from now on ordinary producers append
        eventually("the topic to be writable", lambda: is_writable(mirror, topic))
        assert produce(mirror, topic) == LARGEST_COPIED_OFFSET + 2
    until_replicas_agree(cluster, topic, 0, (1, 2, 3))
    cluster.kill(1, 2, 3)
    cluster.start()
    observer.in_sync(topic, 0, (1, 2, 3))
    leader = observer.placement(topic).leader
    with connected(cluster, leader) as connection:
        assert produce(connection, topic) == LARGEST_COPIED_OFFSET + 3
    until_replicas_agree(cluster, topic, 0, (1, 2, 3))
    assert list(read_all(cluster.bootstrap, topic, 1)[0]) == [
        first,
        *range(LARGEST_COPIED_OFFSET, LARGEST_COPIED_OFFSET + 4),
    ]


def test_refused_requests_do_not_fill_the_log(cluster: Cluster) -> None:
    lines = len(cluster[2].log.splitlines())
    with connected(cluster, 2) as connection:
        for _ in range(300):
            assert connection.ask(ApiKey.STOP_REPLICA, 4, stop_replica(1)).error_code == REFUSED
    assert len(cluster[2].log.splitlines()) - lines <= 10


def test_a_broker_that_claims_an_epoch_that_zookeeper_does_not_have_is_refused(
    cluster: Cluster, topic: str
) -> None:
    observer = Observer(cluster)
    controller, epoch = observer.controller(), controller_epoch(cluster)
    receiver = 1 + controller % 3
    with connected(cluster, receiver) as connection:
        assert prove(connection, proof_in(cluster, controller, receiver)) == 0
        for _ in range(3):
            answer = connection.ask(ApiKey.STOP_REPLICA, 4, stop_replica(controller))
            assert answer.error_code == REFUSED
    observer.create(topic, [[1, 2, 3]])
    assert (observer.controller(), controller_epoch(cluster)) == (controller, epoch)


def test_a_proof_for_another_broker_is_refused(cluster: Cluster) -> None:
    with connected(cluster, 1) as connection:
        assert prove(connection, proof_in(cluster, 2, 3)) == REFUSED
        answer = connection.ask(ApiKey.STOP_REPLICA, 4, stop_replica(2))
        assert answer.error_code == REFUSED


def test_in_an_upgrade_a_registered_address_will_do_and_no_other(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(2, {"kbroker.inter.broker.proof.required": "false"})
    Observer(cluster).create("t", [[1, 2]])
    fetch = FetchRequest(
        max_wait_ms=0, min_bytes=1, topics=[FetchTopic("t", [FetchPartition(0, 0, 100)])],
        replica_id=2, session_epoch=-1,
    )  # fmt: skip
    with connected(cluster, 1) as registered:
        answer = registered.ask(ApiKey.FETCH, 12, fetch)
        assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
        answer = registered.ask(ApiKey.STOP_REPLICA, 4, stop_replica(2))
        assert answer.error_code == REFUSED, "there is no such controller epoch"
    for api, version, request in (
        (ApiKey.FETCH, 12, fetch),
        (ApiKey.STOP_REPLICA, 4, stop_replica(2)),
    ):
        port = cluster[1].port
        with (
            RawConnection("127.0.0.1", port, source="127.0.0.2") as elsewhere,
            pytest.raises(ConnectionError),
        ):
            elsewhere.ask(api, version, request)


def test_brokers_follow_each_other_after_the_secret_was_replaced(
    cluster: Cluster, topic: str
) -> None:
    observer = Observer(cluster)
    observer.create(topic, [[1, 2, 3]])
    with zookeeper_at(cluster.zookeeper_connect) as client:
        client.set(
            "/cluster/inter_broker_secret",
            znodes.encode_inter_broker_secret(secrets.token_bytes(32)),
        )
    cluster.restart(3)
    with connected(cluster, 1) as connection:
        produce(connection, topic)
    until_replicas_agree(cluster, topic, 0, (1, 2, 3), timeout=20.0)
    observer.in_sync(topic, 0, (1, 2, 3))
