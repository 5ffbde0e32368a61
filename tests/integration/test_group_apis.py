"""The group APIs in every version, as bytes through the pipeline to a coordinator on a real ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred, gatherResults

from kbroker.apis.api08_offset_commit import OffsetCommit
from kbroker.apis.api09_offset_fetch import OffsetFetch
from kbroker.apis.api10_find_coordinator import FindCoordinator
from kbroker.apis.api11_join_group import JoinGroup
from kbroker.apis.api12_heartbeat import Heartbeat
from kbroker.apis.api13_leave_group import LeaveGroup
from kbroker.apis.api14_sync_group import SyncGroup
from kbroker.apis.api15_describe_groups import DescribeGroups
from kbroker.apis.api16_list_groups import ListGroups
from kbroker.apis.api22_init_producer_id import InitProducerId
from kbroker.apis.api42_delete_groups import DeleteGroups
from kbroker.apis.api47_offset_delete import OffsetDelete
from kbroker.app.world import World
from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.transaction.producer_id_manager import (
    BLOCK_SIZE,
    ProducerIdManager,
    first_producer_id,
)
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.metadata import broker_registration
from kbroker.metadata.admin_manager import AdminManager
from kbroker.metadata.metadata_cache import (
    BrokerMetadata,
    MetadataCache,
    PartitionMetadata,
    TopicMetadata,
)
from kbroker.network.service import Peer
from kbroker.zk import znodes
from kbroker.zk.client import ZooKeeperClient
from kclient.wire import messages
from kclient.wire.errors import ErrorCode
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.delete_groups import DeleteGroupsRequest
from kclient.wire.schema.describe_groups import DescribeGroupsRequest
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.schema.heartbeat import HeartbeatRequest
from kclient.wire.schema.init_producer_id import InitProducerIdRequest
from kclient.wire.schema.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kclient.wire.schema.leave_group import LeaveGroupRequest
from kclient.wire.schema.leave_group import MemberIdentity as LeavingMember
from kclient.wire.schema.list_groups import ListGroupsRequest
from kclient.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kclient.wire.schema.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kclient.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kclient.wire.schema.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kclient.wire.versions import SERVED, ApiKey
from tests.kit.groups import LIMITS
from tests.kit.inter_broker import authorizer_of
from tests.kit.request_pipelines import open_pipeline
from tests.kit.waiting import until

pytestmark = pytest.mark.slow


class NoTopics:
    """Stands where topics are created."""

    def __init__(self) -> None:
        self.asked = 0

    async def create_offsets_topic(self) -> None:
        self.asked += 1

    create_transactions_topic = create_offsets_topic


class Client:
    """Sends requests of any version to the handlers of one broker."""

    def __init__(self, zk: ZooKeeperClient) -> None:
        self.zk = zk
        self.coordinator = GroupCoordinator(
            reactor,
            zk,
            broker_id=1,
            limits=replace(LIMITS, initial_rebalance_delay=0.0),
            now_ms=World().now_ms,
            no_successor_at=lambda _partition, _epoch: reactor.seconds(),
            is_alone=lambda _partition, _epoch: False,
        )
        self.metadata = MetadataCache("cluster")
        self.topics = NoTopics()
        self.producer_ids = ProducerIdManager(zk, 1)
        groups, topics = self.coordinator, cast(AdminManager, self.topics)
        self.pipeline = open_pipeline(
            {
                ApiKey.OFFSET_COMMIT: lambda: OffsetCommit(groups, self.metadata),
                ApiKey.OFFSET_FETCH: lambda: OffsetFetch(groups),
                ApiKey.FIND_COORDINATOR: lambda: FindCoordinator(self.metadata, topics),
                ApiKey.JOIN_GROUP: lambda: JoinGroup(groups),
                ApiKey.HEARTBEAT: lambda: Heartbeat(groups),
                ApiKey.LEAVE_GROUP: lambda: LeaveGroup(groups),
                ApiKey.SYNC_GROUP: lambda: SyncGroup(groups),
                ApiKey.DESCRIBE_GROUPS: lambda: DescribeGroups(groups),
                ApiKey.LIST_GROUPS: lambda: ListGroups(groups),
                ApiKey.INIT_PRODUCER_ID: lambda: InitProducerId(
                    self.producer_ids,
                    cast(TransactionCoordinator, None),  # no transactional id here
                ),
                ApiKey.DELETE_GROUPS: lambda: DeleteGroups(groups),
                ApiKey.OFFSET_DELETE: lambda: OffsetDelete(groups, self.metadata),
            },
            authorizer_of(1),
        )

    async def lead(self) -> None:
        replicas = {0: znodes.ReplicaAssignment((1,))}
        topic = znodes.encode_topic(znodes.TopicAssignment(uuid4(), replicas))
        await self.zk.create(znodes.topic_path(OFFSETS_TOPIC), topic, make_parents=True)
        state = znodes.encode_partition_state(LeaderAndIsr(1, 0, (1,), 1))
        path = znodes.partition_state_path(OFFSETS_TOPIC, 0)
        await self.zk.create(path, state, make_parents=True)
        self.coordinator.on_leadership(OFFSETS_TOPIC, 0, 0, 0, True)
        await until(lambda: self.coordinator._shards._partition_count and not self._loading())

    def _loading(self) -> bool:
        return self.coordinator.listing()[1] is not ErrorCode.NONE

    def knows(self, topic: str, partitions: int = 1, leader: int = 1) -> None:
        """Put a topic into the metadata cache."""
        known = {
            p: PartitionMetadata(p, leader, 0, (1,), (1,), (), 0, 1) for p in range(partitions)
        }
        self.metadata.topics[topic] = TopicMetadata(topic, uuid4(), known)
        self.metadata.brokers[1] = BrokerMetadata(1, {"PLAINTEXT": ("here", 9092)})

    async def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        """Send *request* and return the decoded response."""
        frame = messages.encode_request(RequestHeader(api, version, 7, "me"), request)
        answer = self.pipeline(memoryview(frame), Peer("127.0.0.1", 4711, "PLAINTEXT"))
        if isinstance(answer, Deferred):
            answer = await answer
        assert answer is not None
        data = b"".join(bytes(part) for part in answer)
        correlation_id, response = messages.decode_response(api, version, data)
        assert correlation_id == 7
        return response

    async def join(self, version: int, member_id: str = "", **changes: Any) -> Any:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", b"meta")],
        )
        return await self.ask(ApiKey.JOIN_GROUP, version, replace(request, **changes))


@pytest_twisted.async_yield_fixture
async def client(zookeeper_connect: str) -> AsyncIterator[Client]:
    zk = ZooKeeperClient(reactor, zookeeper_connect, session_timeout=4.0)
    await zk.start(10)
    await broker_registration.ensure_paths(zk)
    client = Client(zk)
    yield client
    client.coordinator.stop()
    await zk.stop(2)


def versions(api: ApiKey) -> list[int]:
    return list(range(SERVED[api].min, SERVED[api].max + 1))


Each = Callable[[int], Awaitable[None]]


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
@pytest_twisted.ensureDeferred
async def test_a_member_joins_in_every_version(client: Client, version: int) -> None:
    await client.lead()
    joined = await client.join(version)
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = await client.join(version, joined.member_id)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("me-")
    assert [(m.member_id, m.metadata) for m in joined.members] == [(joined.member_id, b"meta")]


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
@pytest_twisted.ensureDeferred
async def test_a_refused_join_is_answered_in_every_version(client: Client, version: int) -> None:
    await client.lead()
    refused = await client.join(version, session_timeout_ms=1)
    assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


async def become_leader(client: Client) -> str:
    """Join as the only member in generation 1; return the member id."""
    await client.lead()
    joined = await client.join(3)
    assert joined.generation_id == 1
    return str(joined.member_id)


async def sync(client: Client, version: int, member_id: str) -> Any:
    request = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id, b"mine")],
    )
    return await client.ask(ApiKey.SYNC_GROUP, version, request)


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
@pytest_twisted.ensureDeferred
async def test_the_assignment_arrives_in_every_version(client: Client, version: int) -> None:
    synced = await sync(client, version, await become_leader(client))
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


@pytest_twisted.ensureDeferred
async def test_from_version_5_a_sync_names_its_protocol(client: Client) -> None:
    member_id = await become_leader(client)
    request = SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id)
    synced = await client.ask(ApiKey.SYNC_GROUP, 5, request)
    assert synced.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
@pytest_twisted.ensureDeferred
async def test_heartbeats_in_every_version(client: Client, version: int) -> None:
    member_id = await become_leader(client)
    request = HeartbeatRequest("g", 1, member_id)
    assert (await client.ask(ApiKey.HEARTBEAT, version, request)).error_code == 0
    stale = await client.ask(ApiKey.HEARTBEAT, version, replace(request, generation_id=0))
    assert stale.error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
@pytest_twisted.ensureDeferred
async def test_members_leave_in_every_version(client: Client, version: int) -> None:
    member_id = await become_leader(client)
    request = LeaveGroupRequest("g", member_id, [LeavingMember(member_id, None, "enough")])
    left = await client.ask(ApiKey.LEAVE_GROUP, version, request)
    assert left.error_code == 0
    again = await client.ask(ApiKey.LEAVE_GROUP, version, request)
    error = again.members[0].error_code if version >= 3 else again.error_code
    assert error == ErrorCode.UNKNOWN_MEMBER_ID


def commit_request(
    member_id: str = "", generation: int = -1, **offsets: int
) -> OffsetCommitRequest:
    topics = [
        OffsetCommitRequestTopic(topic, [OffsetCommitRequestPartition(0, offset, 3, "note")])
        for topic, offset in offsets.items()
    ]
    return OffsetCommitRequest("g", generation, member_id, topics=topics)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
@pytest_twisted.ensureDeferred
async def test_offsets_are_committed_in_every_version(client: Client, version: int) -> None:
    await client.lead()
    client.knows("t")
    response = await client.ask(ApiKey.OFFSET_COMMIT, version, commit_request(t=5, u=6))
    errors = {topic.name: topic.partitions[0].error_code for topic in response.topics}
    assert errors == {"t": 0, "u": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    client.knows("u")
    negative = await client.ask(ApiKey.OFFSET_COMMIT, version, commit_request(u=-2))
    assert negative.topics[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest_twisted.ensureDeferred
async def test_members_of_a_group_that_does_not_exist_get_kafkas_errors(client: Client) -> None:
    """As Kafka orders its checks: for a member of a deleted group, and for one with a setting that is refused."""
    await client.lead()
    client.knows("t")
    committed = await client.ask(ApiKey.OFFSET_COMMIT, 8, commit_request("m", 3, t=5))
    assert committed.topics[0].partitions[0].error_code == ErrorCode.ILLEGAL_GENERATION
    assert (await client.ask(ApiKey.LIST_GROUPS, 4, ListGroupsRequest())).groups == []
    assert (await client.join(5, "m")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    refused = await client.join(5, "m", session_timeout_ms=1)
    assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    request = SyncGroupRequest("g", 1, "m", protocol_type="", protocol_name="range")
    synced = await client.ask(ApiKey.SYNC_GROUP, 5, request)
    assert synced.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
@pytest_twisted.ensureDeferred
async def test_offsets_are_fetched_in_every_version(client: Client, version: int) -> None:
    await client.lead()
    client.knows("t")
    await client.ask(ApiKey.OFFSET_COMMIT, 8, commit_request(t=5))
    if version >= 8:
        wanted = [OffsetFetchRequestTopics("t", [0, 1])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=wanted)])
        response = (await client.ask(ApiKey.OFFSET_FETCH, version, request)).groups[0]
    else:
        request = OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0, 1])])
        response = await client.ask(ApiKey.OFFSET_FETCH, version, request)
    assert response.error_code == 0
    first, second = response.topics[0].partitions
    assert (first.committed_offset, first.metadata) == (5, "note")
    assert (second.committed_offset, second.error_code) == (-1, 0)
    if version >= 5:
        assert (first.committed_leader_epoch, second.committed_leader_epoch) == (3, -1)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH)[1:])
@pytest_twisted.ensureDeferred
async def test_null_topics_ask_for_all_offsets(client: Client, version: int) -> None:
    await client.lead()
    client.knows("t")
    client.knows("u")
    await client.ask(ApiKey.OFFSET_COMMIT, 8, commit_request(t=5, u=6))
    request = OffsetFetchRequest("g", None, [OffsetFetchRequestGroup("g", topics=None)])
    response = await client.ask(ApiKey.OFFSET_FETCH, version, request)
    topics = response.groups[0].topics if version >= 8 else response.topics
    assert {t.name: t.partitions[0].committed_offset for t in topics} == {"t": 5, "u": 6}


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
@pytest_twisted.ensureDeferred
async def test_a_broker_that_does_not_coordinate_answers_not_coordinator(
    client: Client, version: int
) -> None:
    request = OffsetFetchRequest(
        "g",
        [OffsetFetchRequestTopic("t", [0])],
        [OffsetFetchRequestGroup("g", topics=[OffsetFetchRequestTopics("t", [0])])],
    )
    response = await client.ask(ApiKey.OFFSET_FETCH, version, request)
    if version == 1:
        error = response.topics[0].partitions[0].error_code
    else:
        error = (response.groups[0] if version >= 8 else response).error_code
    assert error == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
@pytest_twisted.ensureDeferred
async def test_the_coordinator_is_found_in_every_version(client: Client, version: int) -> None:
    async def find(key_type: int = 0) -> Any:
        request = FindCoordinatorRequest("g", key_type, ["g"])
        response = await client.ask(ApiKey.FIND_COORDINATOR, version, request)
        return response.coordinators[0] if version >= 4 else response

    assert (await find()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert client.topics.asked == 1
    client.knows(OFFSETS_TOPIC, partitions=50, leader=-1)
    assert (await find()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    client.knows(OFFSETS_TOPIC, partitions=50)
    found = await find()
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "here", 9092)
    if version >= 1:
        assert (await find(1)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert client.topics.asked == 2
        assert (await find(2)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
@pytest_twisted.ensureDeferred
async def test_groups_are_described_in_every_version(client: Client, version: int) -> None:
    member_id = await become_leader(client)
    request = DescribeGroupsRequest(["g", "none"])
    waiting, none = (await client.ask(ApiKey.DESCRIBE_GROUPS, version, request)).groups
    assert (waiting.group_state, waiting.members[0].member_metadata) == ("CompletingRebalance", b"")
    assert (none.group_state, none.error_code) == ("Dead", 0)
    await sync(client, 3, member_id)
    group = (await client.ask(ApiKey.DESCRIBE_GROUPS, version, request)).groups[0]
    assert (group.group_state, group.protocol_type, group.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    member = group.members[0]
    assert (member.member_id, member.client_id, member.client_host) == (
        member_id,
        "me",
        "/127.0.0.1",
    )
    assert (member.member_metadata, member.member_assignment) == (b"meta", b"mine")


@pytest.mark.parametrize(
    "version", [each for each in versions(ApiKey.DESCRIBE_GROUPS) if each >= 3]
)
@pytest_twisted.ensureDeferred
async def test_operations_on_groups_are_answered_when_asked(client: Client, version: int) -> None:
    await become_leader(client)
    for asked, operations in ((True, 1 << 3 | 1 << 6 | 1 << 8), (False, -(2**31))):
        request = DescribeGroupsRequest(["g", "none"], asked)
        groups = (await client.ask(ApiKey.DESCRIBE_GROUPS, version, request)).groups
        assert [group.authorized_operations for group in groups] == [operations] * 2


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
@pytest_twisted.ensureDeferred
async def test_groups_are_listed_in_every_version(client: Client, version: int) -> None:
    await sync(client, 3, await become_leader(client))
    listed = (await client.ask(ApiKey.LIST_GROUPS, version, ListGroupsRequest())).groups
    assert [(g.group_id, g.protocol_type) for g in listed] == [("g", "consumer")]
    if version >= 4:
        assert listed[0].group_state == "Stable"
        filtered = await client.ask(ApiKey.LIST_GROUPS, version, ListGroupsRequest(["empty"]))
        assert filtered.groups == []


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
@pytest_twisted.ensureDeferred
async def test_groups_are_deleted_in_every_version(client: Client, version: int) -> None:
    await client.lead()
    client.knows("t")
    await client.ask(ApiKey.OFFSET_COMMIT, 8, commit_request(t=5))
    request = DeleteGroupsRequest(["g", "none"])
    deleted = await client.ask(ApiKey.DELETE_GROUPS, version, request)
    errors = {result.group_id: result.error_code for result in deleted.results}
    assert errors == {"g": 0, "none": ErrorCode.GROUP_ID_NOT_FOUND}
    assert await client.zk.exists("/consumers/g") is None


@pytest_twisted.ensureDeferred
async def test_offsets_are_deleted(client: Client) -> None:
    await client.lead()
    client.knows("t")
    await client.ask(ApiKey.OFFSET_COMMIT, 8, commit_request(t=5))
    topics = [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])]
    request = OffsetDeleteRequest("g", topics)
    deleted = await client.ask(ApiKey.OFFSET_DELETE, 0, request)
    assert deleted.error_code == deleted.topics[0].partitions[0].error_code == 0
    missing = await client.ask(ApiKey.OFFSET_DELETE, 0, replace(request, group_id="none"))
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
@pytest_twisted.ensureDeferred
async def test_producer_ids_are_given_in_every_version(client: Client, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None)
    ids = [await client.ask(ApiKey.INIT_PRODUCER_ID, version, request) for _ in range(3)]
    assert [(i.error_code, i.producer_id, i.producer_epoch) for i in ids] == [
        (0, 0, 0),
        (0, 1, 0),
        (0, 2, 0),
    ]


@pytest_twisted.ensureDeferred
async def test_no_producer_id_is_given_twice(client: Client) -> None:
    brokers = [ProducerIdManager(client.zk, n) for n in (1, 2, 3)]
    waiting = [ensureDeferred(b.next()) for b in brokers for _ in range(BLOCK_SIZE + 10)]
    ids = await gatherResults(waiting)
    assert len(set(ids)) == len(ids)
    node = await client.zk.get(znodes.PRODUCER_ID_BLOCK)
    assert znodes.decode_producer_id_block(node.data).last == 6 * BLOCK_SIZE - 1


@pytest_twisted.ensureDeferred
async def test_a_counter_that_kafka_left_moves_to_where_the_cluster_counts(client: Client) -> None:
    """A mirror copies producer ids of other clusters, which may have started at 0 as well."""
    assert await ProducerIdManager(client.zk, 1).next() == 0
    first = first_producer_id("5L6g3nShT-eMCtK--X86sw")
    assert 2**28 <= first < 2**53
    assert first != first_producer_id("another")
    assert await ProducerIdManager(client.zk, 2, first=first).next() == first
    assert await ProducerIdManager(client.zk, 3, first=first).next() == first + BLOCK_SIZE
    assert await ProducerIdManager(client.zk, 4).next() == first + 2 * BLOCK_SIZE
