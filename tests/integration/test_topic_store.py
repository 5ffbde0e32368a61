"""Topics and settings as znode writes, on a real ZooKeeper."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import gatherResults

from kbroker.apis.api19_create_topics import CreateTopics
from kbroker.apis.api20_delete_topics import DeleteTopics
from kbroker.apis.api32_describe_configs import DescribeConfigs
from kbroker.apis.api33_alter_configs import AlterConfigs
from kbroker.apis.api37_create_partitions import CreatePartitions
from kbroker.apis.api44_incremental_alter_configs import IncrementalAlterConfigs
from kbroker.apis.budgets import RequestBudget
from kbroker.apis.request import RequestContext
from kbroker.common.gather import all_of
from kbroker.common.logger_levels import LoggerLevels
from kbroker.common.turns import WithoutTurns
from kbroker.metadata.broker_registration import ensure_paths
from kbroker.metadata.core.config_entries import Change
from kbroker.metadata.core.topic_rules import MAX_PARTITIONS
from kbroker.metadata.topic_placement import NewTopic
from kbroker.network.service import Peer
from kbroker.zk import znodes
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.reconnect import CONNECT_TIMEOUT
from kclient.wire.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopicException,
    KafkaError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.alter_configs import AlterableConfig as OldConfig
from kclient.wire.schema.alter_configs import AlterConfigsRequest
from kclient.wire.schema.alter_configs import AlterConfigsResource as OldResource
from kclient.wire.schema.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kclient.wire.schema.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kclient.wire.schema.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kclient.wire.schema.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kclient.wire.schema.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.kit.controllers import ControlPlane, FakeBrokers, register
from tests.kit.waiting import until
from tests.kit.zookeeper import Ensemble

pytestmark = pytest.mark.slow
SET, DELETE, APPEND = 0, 1, 2


async def only_member(session: ZooKeeperClient) -> ControlPlane:
    """Begin a cluster with the one broker that is its controller."""
    await ensure_paths(session)
    await register(session, 1)
    member = ControlPlane(session, FakeBrokers(), 1)
    member.controller.start()
    await member.dynamic.start()
    await until(lambda: member.cache.brokers)
    return member


@pytest_twisted.async_yield_fixture
async def broker(zookeeper_connect: str) -> AsyncIterator[ControlPlane]:
    """One broker that is the controller."""
    session = ZooKeeperClient(reactor, zookeeper_connect, session_timeout=4.0)
    await session.start(10)
    member = await only_member(session)
    yield member
    member.controller.stop()
    member.dynamic.stop()
    await session.stop(2)


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (NewTopic(""), InvalidTopicException),
        (NewTopic(".."), InvalidTopicException),
        (NewTopic("a/b"), InvalidTopicException),
        (NewTopic("x" * 250), InvalidTopicException),
        (NewTopic("a_b"), InvalidTopicException),
        (NewTopic("t", 0), InvalidPartitions),
        (NewTopic("t", -2), InvalidPartitions),
        (NewTopic("t", MAX_PARTITIONS + 1), InvalidPartitions),
        (NewTopic("t", 10**6), InvalidPartitions),
        (NewTopic("t", 1, 0), InvalidReplicationFactor),
        (NewTopic("t", 1, 2), InvalidReplicationFactor),
        (NewTopic("t", 1, 32767), InvalidReplicationFactor),
        (NewTopic("t", assignment={0: [1, 1]}), InvalidReplicaAssignment),
        (NewTopic("t", assignment={0: [9]}), InvalidReplicaAssignment),
        (NewTopic("t", assignment={1: [1]}), InvalidReplicaAssignment),
        (NewTopic("t", configs={"nonsense": "1"}), InvalidConfig),
        (NewTopic("t", configs={"retention.ms": None}), InvalidConfig),
        (NewTopic("a.b"), TopicAlreadyExists),
    ],
)
@pytest_twisted.ensureDeferred
async def test_an_invalid_topic_is_refused(
    broker: ControlPlane, new: NewTopic, error: type[KafkaError]
) -> None:
    await broker.topics.create(NewTopic("a.b"))
    assert await broker.topics.until_led("a.b", [0], 5)
    with pytest.raises(error):
        await broker.topics.create(new)
    assert (await broker.zk.children(znodes.TOPICS)).names == ["a.b"]
    assert (await broker.zk.children("/config/topics")).names == ["a.b"]


@pytest_twisted.ensureDeferred
async def test_there_are_no_more_replicas_than_live_brokers(broker: ControlPlane) -> None:
    with pytest.raises(InvalidReplicationFactor, match="1 available"):
        await broker.topics.create(NewTopic("t", 1, 2))
    await register(broker.zk, 2)
    await until(lambda: len(broker.cache.brokers) == 2)
    created = await broker.topics.create(NewTopic("t", 1, 2))
    assert sorted(created.assignment[0]) == [1, 2]


@pytest_twisted.ensureDeferred
async def test_racks_count_when_every_broker_has_one(broker: ControlPlane) -> None:
    for broker_id, rack in ((2, "east"), (3, "west"), (4, "west")):
        await register(broker.zk, broker_id, rack)
    await until(lambda: len(broker.cache.brokers) == 4)
    # Broker 1 has none: Kafka would refuse, while racks are being given to one broker after the other.
    mixed = await broker.topics.create(NewTopic("mixed", 12, 2))
    together = [sorted(replicas) for replicas in mixed.assignment.values()]
    assert [3, 4] in together or [1, 2] in together
    await broker.zk.delete(znodes.broker_path(1))
    await register(broker.zk, 1, "east")
    await until(lambda: 1 in broker.cache.brokers and broker.cache.brokers[1].rack == "east")
    racks = {1: "east", 2: "east", 3: "west", 4: "west"}
    spread = await broker.topics.create(NewTopic("spread", 12, 2))
    await broker.topics.add_partitions("spread", 16)
    topic = await broker.zk.get(znodes.topic_path("spread"))
    partitions = znodes.decode_topic("spread", topic.data).partitions
    assert len(partitions) == 16
    assert {p: a.replicas for p, a in partitions.items() if p < 12} == spread.assignment
    for assignment in partitions.values():
        assert {racks[n] for n in assignment.replicas} == {"east", "west"}
    first = [partitions[n].replicas[0] for n in range(16)]
    assert [first.count(n) for n in (1, 2, 3, 4)] == [4, 4, 4, 4]
    assert first[12:] == first[:4], "the round goes on"


@pytest_twisted.ensureDeferred
async def test_the_offsets_topic_has_as_many_replicas_as_brokers_are_alive(
    broker: ControlPlane,
) -> None:
    await register(broker.zk, 2)
    await until(lambda: len(broker.cache.brokers) == 2)
    await broker.topics.create_offsets_topic()
    topic = await broker.zk.get(znodes.topic_path("__consumer_offsets"))
    replicas = znodes.decode_topic("__consumer_offsets", topic.data).partitions[0].replicas
    assert sorted(replicas) == [1, 2]


@pytest_twisted.ensureDeferred
async def test_one_of_many_racing_creations_wins(broker: ControlPlane) -> None:
    outcomes = []

    async def create() -> None:
        try:
            outcomes.append((await broker.topics.create(NewTopic("t", 2))).topic_id)
        except TopicAlreadyExists:
            outcomes.append(None)

    await all_of(create() for _ in range(10))
    (winner,) = [topic_id for topic_id in outcomes if topic_id is not None]
    assert await broker.topics.until_led("t", [0, 1], 5)
    assert broker.cache.topic("t").topic_id == winner


@pytest_twisted.ensureDeferred
async def test_settings_left_by_a_broken_creation_do_not_stay(broker: ControlPlane) -> None:
    left = znodes.encode_config({"retention.ms": "1"})
    await broker.zk.create("/config/topics/t", left)
    await broker.topics.create(NewTopic("t", configs={"segment.ms": "7"}))
    assert await broker.dynamic.read("topics", "t") == {"segment.ms": "7"}


@pytest_twisted.ensureDeferred
async def test_partitions_grow_once_however_many_ask(broker: ControlPlane) -> None:
    await broker.topics.create(NewTopic("t", 2))
    outcomes = []

    async def grow(count: int) -> None:
        try:
            outcomes.append(await broker.topics.add_partitions("t", count))
        except InvalidPartitions:
            outcomes.append(None)

    await all_of(grow(4) for _ in range(5))
    assert [added for added in outcomes if added is not None] == [range(2, 4)]
    with pytest.raises(InvalidPartitions, match="taken away"):
        await broker.topics.add_partitions("t", 3)
    with pytest.raises(InvalidReplicaAssignment):
        await broker.topics.add_partitions("t", 6, [[1]])
    with pytest.raises(InvalidReplicaAssignment):
        await broker.topics.add_partitions("t", 5, [[9]])
    with pytest.raises(UnknownTopicOrPartition):
        await broker.topics.add_partitions("a/b", 5)
    assert await broker.topics.add_partitions("t", 5, validate_only=True) == range(4, 5)
    assert await broker.topics.until_led("t", range(4), 5)
    assert broker.cache.partition("t", 4) is None


CONTEXT = RequestContext(
    RequestHeader(0, 0, 1, None),
    Peer("127.0.0.1", 1, "PLAINTEXT"),
    RequestBudget(1 << 20, 1000),
    WithoutTurns(),
)

# -- the APIs ----------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_create_topics_answers_for_each_topic(broker: ControlPlane) -> None:
    now = reactor.seconds
    handler = CreateTopics(broker.controller, broker.topics, broker.dynamic, now)
    asked = [
        CreatableTopic("good", -1, -1, configs=[CreatableTopicConfig("retention.ms", "9")]),
        CreatableTopic("given", -1, -1, [CreatableReplicaAssignment(0, [1])]),
        CreatableTopic("both", 1, 1, [CreatableReplicaAssignment(0, [1])]),
        CreatableTopic("a b", 1, 1),
        CreatableTopic("twice", 1, 1),
        CreatableTopic("twice", 1, 1),
    ]
    response = await handler(CONTEXT, CreateTopicsRequest(asked, 5000))
    codes = {t.name: ErrorCode(t.error_code).name for t in response.topics}
    assert codes == {
        "good": "NONE",
        "given": "NONE",
        "both": "INVALID_REQUEST",
        "a b": "INVALID_TOPIC_EXCEPTION",
        "twice": "INVALID_REQUEST",
    }
    good = response.topics[0]
    assert (good.num_partitions, good.replication_factor) == (1, 1)
    assert good.topic_id == broker.cache.topic("good").topic_id
    configs = {c.name: (c.value, c.config_source) for c in good.configs}
    assert configs["retention.ms"] == ("9", 1)
    assert configs["segment.bytes"] == ("1073741824", 5)


@pytest_twisted.ensureDeferred
async def test_validate_only_creates_nothing(broker: ControlPlane) -> None:
    handler = CreateTopics(broker.controller, broker.topics, broker.dynamic, reactor.seconds)
    request = CreateTopicsRequest([CreatableTopic("t", 3, 1)], 5000, validate_only=True)
    (result,) = (await handler(CONTEXT, request)).topics
    assert (result.error_code, result.num_partitions, result.topic_id) == (0, 3, None)
    assert (await broker.zk.children(znodes.TOPICS)).names == []


@pytest_twisted.ensureDeferred
async def test_too_many_partitions_in_one_request_are_refused(broker: ControlPlane) -> None:
    handler = CreateTopics(broker.controller, broker.topics, broker.dynamic, reactor.seconds)
    asked = [CreatableTopic(f"t{n}", 6000, 1) for n in range(2)]
    response = await handler(CONTEXT, CreateTopicsRequest(asked, 5000))
    assert {t.error_code for t in response.topics} == {ErrorCode.POLICY_VIOLATION}


@pytest_twisted.ensureDeferred
async def test_a_topic_that_is_not_led_in_time_is_there_all_the_same(broker: ControlPlane) -> None:
    broker.cluster[1].reachable = False
    handler = CreateTopics(broker.controller, broker.topics, broker.dynamic, reactor.seconds)
    (result,) = (
        await handler(CONTEXT, CreateTopicsRequest([CreatableTopic("t", 1, 1)], 200))
    ).topics
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    broker.cluster[1].reachable = True
    assert await broker.topics.until_led("t", [0], 5)


@pytest_twisted.ensureDeferred
async def test_only_the_controller_creates_grows_and_deletes(broker: ControlPlane) -> None:
    await broker.topics.create(NewTopic("t"))
    broker.controller.stop()
    create = CreateTopics(broker.controller, broker.topics, broker.dynamic, reactor.seconds)
    (made,) = (await create(CONTEXT, CreateTopicsRequest([CreatableTopic("u", 1, 1)], 100))).topics
    delete = DeleteTopics(broker.controller, broker.topics, broker.cache, reactor.seconds)
    (gone,) = (await delete(CONTEXT, DeleteTopicsRequest(["t"], timeout_ms=100))).responses
    grow = CreatePartitions(broker.controller, broker.topics, reactor.seconds)
    more = CreatePartitionsRequest([CreatePartitionsTopic("t", 2, None)], 100)
    (grown,) = (await grow(CONTEXT, more)).results
    assert made.error_code == gone.error_code == grown.error_code == ErrorCode.NOT_CONTROLLER


@pytest_twisted.ensureDeferred
async def test_topics_are_deleted_by_name_and_by_id(broker: ControlPlane) -> None:
    for name in ("t", "u"):
        await broker.topics.create(NewTopic(name))
        assert await broker.topics.until_led(name, [0], 5)
    by_id = broker.cache.topic("u").topic_id
    handler = DeleteTopics(broker.controller, broker.topics, broker.cache, reactor.seconds)
    unknown = uuid.UUID(int=5)
    wanted = [
        DeleteTopicState("t"),
        DeleteTopicState(None, by_id),
        DeleteTopicState("nothing"),
        DeleteTopicState(None, unknown),
        DeleteTopicState("../x"),
    ]
    response = await handler(CONTEXT, DeleteTopicsRequest(topics=wanted, timeout_ms=5000))
    assert [ErrorCode(r.error_code).name for r in response.responses] == [
        "NONE",
        "NONE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_ID",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ]
    assert response.responses[1].name == "u"
    await until(lambda: not broker.cache.topics)


@pytest_twisted.ensureDeferred
async def test_partitions_are_added_through_the_api(broker: ControlPlane) -> None:
    await broker.topics.create(NewTopic("t", 2))
    assert await broker.topics.until_led("t", [0, 1], 5)
    handler = CreatePartitions(broker.controller, broker.topics, reactor.seconds)
    asked = [CreatePartitionsTopic("t", 4, None), CreatePartitionsTopic("nothing", 4, None)]
    response = await handler(CONTEXT, CreatePartitionsRequest(asked, 5000))
    assert [r.error_code for r in response.results] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert broker.cache.is_led("t", range(4))


@pytest_twisted.ensureDeferred
async def test_settings_are_changed_and_described_through_the_api(broker: ControlPlane) -> None:
    await broker.topics.create(NewTopic("t", configs={"retention.ms": "5"}))
    assert await broker.topics.until_led("t", [0], 5)
    levels = LoggerLevels()
    alter = IncrementalAlterConfigs(broker.config_changes, 1, levels)
    resources = [
        AlterConfigsResource(2, "t", [AlterableConfig("segment.ms", SET, "77")]),
        AlterConfigsResource(2, "nothing", [AlterableConfig("segment.ms", SET, "77")]),
        AlterConfigsResource(2, "a/b", [AlterableConfig("segment.ms", SET, "77")]),
        AlterConfigsResource(4, "1", [AlterableConfig("min.insync.replicas", SET, "2")]),
        AlterConfigsResource(4, "", [AlterableConfig("log.retention.ms", SET, "3")]),
        AlterConfigsResource(4, "2", []),
        AlterConfigsResource(8, "1", [AlterableConfig("kbroker.zk", SET, "DEBUG")]),
        AlterConfigsResource(8, "", [AlterableConfig("kbroker.zk", SET, "ERROR")]),
        AlterConfigsResource(16, "1", []),
    ]
    response = await alter(CONTEXT, IncrementalAlterConfigsRequest(resources))
    assert [ErrorCode(r.error_code).name for r in response.responses] == [
        "NONE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "NONE",
        "NONE",
        "INVALID_REQUEST",
        "NONE",
        "INVALID_REQUEST",
        "INVALID_REQUEST",
    ]
    await until(lambda: broker.dynamic.broker_config.log_retention_ms == 3)
    await until(lambda: broker.dynamic.broker_config.min_insync_replicas == 2)
    describe = DescribeConfigs(broker.dynamic, broker.cache, 1, levels)
    request = DescribeConfigsRequest(
        [
            DescribeConfigsResource(2, "t", None),
            DescribeConfigsResource(2, "t", []),
            DescribeConfigsResource(4, "1", ["min.insync.replicas"]),
            DescribeConfigsResource(4, "", None),
            DescribeConfigsResource(2, "nothing", None),
            DescribeConfigsResource(4, "7", None),
            DescribeConfigsResource(8, "1", ["kbroker.zk", "root"]),
            DescribeConfigsResource(8, "", None),
        ],
        include_synonyms=True,
    )
    described = (await describe(CONTEXT, request)).results
    assert [r.error_code for r in described] == [0, 0, 0, 3, 42, 0, 42]
    topic = {c.name: c for c in described[0].configs}
    assert (topic["segment.ms"].value, topic["segment.ms"].config_source) == ("77", 1)
    assert [s.source for s in topic["retention.ms"].synonyms] == [1, 3, 5]
    (own,) = described[1].configs
    assert (own.value, own.config_source, own.documentation) == ("2", 2, None)
    (default,) = described[2].configs
    assert (default.name, default.value) == ("log.retention.ms", "3")
    loggers = [(c.name, c.value, c.config_source) for c in described[5].configs]
    assert loggers == [("kbroker.zk", "DEBUG", 6), ("root", "INFO", 6)]


@pytest_twisted.ensureDeferred
async def test_alter_configs_replaces_everything(broker: ControlPlane) -> None:
    await broker.topics.create(NewTopic("t", configs={"retention.ms": "5", "segment.ms": "6"}))
    handler = AlterConfigs(broker.config_changes, 1)
    resources = [
        OldResource(2, "t", [OldConfig("segment.ms", "9")]),
        OldResource(4, "", [OldConfig("log.retention.ms", "9")]),
        OldResource(4, "5", [OldConfig("log.retention.ms", "9")]),
        OldResource(2, "a/b", [OldConfig("segment.ms", "9")]),
        OldResource(2, "t", [OldConfig("segment.ms", None)]),
    ]
    response = await handler(CONTEXT, AlterConfigsRequest(resources))
    assert [ErrorCode(r.error_code).name for r in response.responses] == [
        "NONE",
        "NONE",
        "INVALID_REQUEST",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_REQUEST",
    ]
    assert await broker.dynamic.read("topics", "t") == {"segment.ms": "9"}
    await until(lambda: broker.dynamic.broker_config.log_retention_ms == 9)


# -- dynamic settings --------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_a_loaded_topic_is_notified_of_changes(broker: ControlPlane) -> None:
    created = await broker.topics.create(NewTopic("t", configs={"retention.ms": "5"}))
    changes = []
    broker.dynamic.on_topic_config(
        lambda topics: changes.extend(
            (t, broker.dynamic.log_config(t).retention_ms) for t in topics
        )
    )
    assert broker.dynamic.log_config("t").retention_ms == 604800000
    await broker.dynamic.load_topics({"t": created.topic_id})
    assert broker.dynamic.log_config("t").retention_ms == 5
    await broker.config_changes.alter_topic("t", [Change("retention.ms", SET, "6")])
    await until(lambda: changes == [("t", 6)])
    await broker.config_changes.alter_broker(
        "<default>", [Change("log.segment.bytes", SET, "5000")]
    )
    await until(lambda: broker.dynamic.log_config("t").segment_bytes == 5000)


@pytest_twisted.ensureDeferred
async def test_a_namesake_does_not_inherit_settings(broker: ControlPlane) -> None:
    await broker.dynamic.load_topics({"t": uuid.UUID(int=1)})
    await broker.zk.create("/config/topics/t", znodes.encode_config({"retention.ms": "5"}))
    await broker.dynamic.load_topics({"t": uuid.UUID(int=1)})
    assert broker.dynamic.log_config("t").retention_ms == 604800000
    await broker.dynamic.load_topics({"t": uuid.UUID(int=2)})
    assert broker.dynamic.log_config("t").retention_ms == 5


@pytest_twisted.ensureDeferred
async def test_concurrent_changes_do_not_lose_each_other(broker: ControlPlane) -> None:
    await broker.topics.create(NewTopic("t"))
    names = ["retention.ms", "segment.ms", "flush.ms", "retention.bytes", "segment.bytes"]
    await all_of(
        broker.config_changes.alter_topic("t", [Change(name, SET, "100000")]) for name in names
    )
    assert await broker.dynamic.read("topics", "t") == dict.fromkeys(names, "100000")


@pytest_twisted.ensureDeferred
async def test_bad_values_in_zookeeper_are_ignored_and_good_ones_used(broker: ControlPlane) -> None:
    stored = {"retention.ms": "soon", "segment.ms": "7"}
    await broker.zk.create("/config/topics/t", znodes.encode_config(stored))
    await broker.zk.create("/config/topics/u", b"{poison")
    await broker.dynamic.load_all_topics()
    assert broker.dynamic.log_config("t").retention_ms == 604800000
    assert broker.dynamic.log_config("t").segment_ms == 7
    assert broker.dynamic.log_config("u").segment_ms == 604800000


@pytest_twisted.ensureDeferred
async def test_poison_and_old_notifications_are_survived_and_purged(broker: ControlPlane) -> None:
    await broker.topics.create(NewTopic("t"))
    await broker.dynamic.load_topics({"t": None})
    broker.dynamic._now_ms = lambda: 10**15  # all notifications are old
    await broker.zk.create(znodes.CONFIG_CHANGE_PREFIX, b"poison", sequential=True)
    await broker.config_changes.alter_topic("t", [Change("retention.ms", SET, "8")])
    await until(lambda: broker.dynamic.log_config("t").retention_ms == 8)
    for _ in range(200):
        if not (await broker.zk.children(znodes.CONFIG_CHANGES)).names:
            break
    assert not (await broker.zk.children(znodes.CONFIG_CHANGES)).names


@pytest_twisted.ensureDeferred
async def test_a_change_of_settings_that_changes_nothing_writes_nothing(
    broker: ControlPlane,
) -> None:
    await broker.topics.create(NewTopic("t", configs={"retention.ms": "5"}))
    await broker.config_changes.alter_topic("t", [Change("retention.ms", SET, "5")])
    await broker.config_changes.alter_topic(
        "t", [Change("retention.ms", SET, "6")], validate_only=True
    )
    assert (await broker.zk.children(znodes.CONFIG_CHANGES)).names == []
    stats = await gatherResults([broker.zk.exists("/config/topics/t")])
    assert stats[0].version == 0


@pytest_twisted.ensureDeferred
async def test_admin_requests_fail_with_a_retriable_code_while_zookeeper_is_away(
    own_ensemble: Ensemble,
) -> None:
    session = ZooKeeperClient(reactor, own_ensemble.connect, session_timeout=20.0)
    await session.start(10)
    member = await only_member(session)
    await member.topics.create(NewTopic("t"))
    own_ensemble.kill()
    await until(lambda: not session.connected)
    began = reactor.seconds()

    async def times_out(request: Awaitable[object]) -> None:
        with pytest.raises(RequestTimedOut):
            await request

    requests = [
        member.topics.create(NewTopic("u")),
        member.topics.add_partitions("t", 5),
        member.topics.delete("t"),
        member.config_changes.alter_topic("t", [Change("retention.ms", SET, "5")]),
    ]
    await all_of(times_out(request) for request in requests)
    assert reactor.seconds() - began < CONNECT_TIMEOUT + 3
    own_ensemble.start()
    await until(lambda: session.connected)
    await member.topics.create(NewTopic("u"))
    assert await member.topics.until_led("u", [0], 10)
    member.controller.stop()
    member.dynamic.stop()
    await session.stop(2)
