"""Metadata answers and the cache behind them."""

from types import SimpleNamespace
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred

from kbroker.apis.api03_metadata import AUTO_CREATE_BURST, Budget, Metadata
from kbroker.apis.api06_update_metadata import UpdateMetadata
from kbroker.apis.api60_describe_cluster import DescribeCluster
from kbroker.apis.api_specs import API_SPECS
from kbroker.apis.request import RequestContext
from kbroker.common.turns import WithoutTurns
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.network.service import Peer
from kclient.wire import messages
from kclient.wire.errors import (
    ErrorCode,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidUpdateVersion,
    MismatchedEndpointType,
    StaleBrokerEpoch,
    StaleControllerEpoch,
    TopicAlreadyExists,
)
from kclient.wire.interbroker import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.describe_cluster import DescribeClusterRequest
from kclient.wire.schema.metadata import MetadataRequest, MetadataRequestTopic
from kclient.wire.versions import ApiKey
from tests.kit.scripted_broker import Outcome

T, U, V = UUID(int=1), UUID(int=2), UUID(int=3)


def partition(index, leader=1, epoch=0):
    return UpdateMetadataPartitionState(
        partition_index=index, leader=leader, leader_epoch=epoch, isr=[1], replicas=[1, 2]
    )


def topic(name="t", topic_id=T, *partitions):
    return UpdateMetadataTopicState(name, topic_id, list(partitions or (partition(0),)))


def broker(broker_id, *listeners):
    return UpdateMetadataBroker(
        broker_id,
        [
            UpdateMetadataEndpoint(9000 + broker_id, f"{name}-{broker_id}".lower(), name, 0)
            for name in listeners or ("PLAINTEXT", "INTERNAL")
        ],
        f"rack{broker_id}",
    )


def update(*topics, epoch=1, full=False, brokers=(1, 2), broker_epoch=-1, number=-1):
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=epoch,
        broker_epoch=broker_epoch,
        type=2 if full else 1,
        topic_states=list(topics),
        live_brokers=[b if isinstance(b, UpdateMetadataBroker) else broker(b) for b in brokers],
        request_number=number,
    )


@pytest.fixture
def cache():
    made = MetadataCache("the-cluster")
    known = topic("t", T, partition(0), partition(1, leader=2), partition(2, -1))
    made.update(update(known, full=True))
    return made


class InMemoryTopics:
    """Creates topics in memory: at once, unless *error* is set or *led* is false."""

    def __init__(self, cache, *, error=None, led=True):
        self.cache, self.error, self.led = cache, error, led
        self.created = []

    async def create(self, new):
        self.created.append(new.name)
        if self.error is not None:
            raise self.error
        if self.led:
            topic_id = UUID(int=100 + len(self.created))
            self.cache.update(update(topic(new.name, topic_id)))

    async def create_offsets_topic(self):
        self.created.append("__consumer_offsets")

    async def until_led(self, name, partitions, timeout):
        return self.cache.is_led(name, partitions)


class Asker:
    """Asks a Metadata handler over its real codec."""

    def __init__(self, cache, topics=None, *, auto_create=False):
        self.topics = topics or InMemoryTopics(cache)
        self.handler = Metadata(cache, self.topics, lambda: auto_create, lambda: 0.0)

    def bytes(self, request, version=12, listener="PLAINTEXT"):
        header = RequestHeader(ApiKey.METADATA, version, 77, "me")
        frame = memoryview(messages.encode_request(header, request))
        header, offset = messages.decode_request_header(frame)
        context = RequestContext(
            header, Peer("10.0.0.1", 1234, listener), API_SPECS[3].budget, WithoutTurns()
        )
        answer = self.handler(context, frame[offset:])
        if isinstance(answer, Deferred):
            results = []
            answer.addBoth(results.append)
            (answer,) = results
        return b"".join(bytes(part) for part in answer)

    def __call__(self, request, version=12, listener="PLAINTEXT"):
        whole = self.bytes(request, version, listener)
        correlation_id, response = messages.decode_response(ApiKey.METADATA, version, whole)
        assert correlation_id == 77
        return response


def named(*names, auto=True):
    return MetadataRequest([MetadataRequestTopic(name=n) for n in names], auto)


def test_all_topics_are_asked_for_by_null_and_in_version_0_by_nothing(cache):
    ask = Asker(cache)
    for version in range(1, 13):
        assert [t.name for t in ask(MetadataRequest(None), version).topics] == ["t"]
        assert ask(MetadataRequest([]), version).topics == []
    assert [t.name for t in ask(MetadataRequest([]), 0).topics] == ["t"]


def test_an_answer_names_brokers_controller_and_cluster(cache):
    response = Asker(cache)(MetadataRequest([]))
    assert response.cluster_id == "the-cluster"
    assert response.controller_id == 1
    assert [(b.node_id, b.host, b.port, b.rack) for b in response.brokers] == [
        (1, "plaintext-1", 9001, "rack1"),
        (2, "plaintext-2", 9002, "rack2"),
    ]


def test_brokers_are_named_by_the_listener_the_client_came_in_by(cache):
    response = Asker(cache)(MetadataRequest([]), listener="INTERNAL")
    assert [b.host for b in response.brokers] == ["internal-1", "internal-2"]


def test_a_leader_that_does_not_have_the_listener_cannot_be_named(cache):
    cache.update(update(brokers=(broker(1), broker(2, "INTERNAL"))))
    (found,) = Asker(cache)(named("t")).topics
    assert [(p.leader_id, p.error_code) for p in found.partitions] == [
        (1, 0),
        (-1, ErrorCode.LISTENER_NOT_FOUND),
        (-1, ErrorCode.LEADER_NOT_AVAILABLE),
    ]


def test_a_dead_leader_is_not_available(cache):
    cache.update(update(brokers=(1,)))
    (found,) = Asker(cache)(named("t")).topics
    assert found.partitions[1].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert Asker(cache)(MetadataRequest([])).controller_id == 1
    cache.update(update(brokers=(2,)))
    assert Asker(cache)(MetadataRequest([])).controller_id == -1


def test_an_id_beside_a_name_decides_as_javas_admin_sends_it(cache):
    ask = Asker(cache)
    asked = [MetadataRequestTopic(T, ""), MetadataRequestTopic(U, ""), MetadataRequestTopic(T, "u")]
    known, unknown = ask(MetadataRequest(asked)).topics
    assert (known.name, known.topic_id, known.error_code) == ("t", T, 0)
    assert (unknown.name, unknown.topic_id) == (None, U)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_topics_are_found_by_id(cache):
    ask = Asker(cache)
    by_id = MetadataRequest([MetadataRequestTopic(T, None), MetadataRequestTopic(U, None)])
    known, unknown = ask(by_id).topics
    assert (known.name, known.topic_id, known.error_code) == ("t", T, 0)
    assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
    (refused, _) = ask(by_id, 11).topics
    assert refused.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250, "a\0b"])
def test_illegal_names_are_refused_and_never_created(cache, name):
    ask = Asker(cache, auto_create=True)
    (found,) = ask(named(name)).topics
    assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert not ask.topics.created


def test_a_topic_named_twice_is_answered_once(cache):
    assert len(Asker(cache)(named("t", "t", "x", "x")).topics) == 2


def test_an_unknown_topic_is_created_only_if_broker_and_client_allow_it(cache):
    for auto_create, allowed, created in [
        (False, True, []),
        (True, False, []),
        (True, True, ["new"]),
    ]:
        ask = Asker(cache, auto_create=auto_create)
        (found,) = ask(named("new", auto=allowed)).topics
        assert ask.topics.created == created
        expected = 0 if created else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert found.error_code == expected
        assert len(found.partitions) == len(created)


def test_a_broker_without_the_whole_metadata_denies_no_topic_and_creates_none():
    cache = MetadataCache("the-cluster")
    ask = Asker(cache, auto_create=True)
    (found,) = ask(named("t")).topics  # no metadata so far, not even the live brokers
    assert found.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    cache.update(update(topic("other", U)))
    for allowed in (False, True):
        (found,) = ask(named("t", auto=allowed)).topics
        assert found.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert not ask.topics.created
    cache.update(update(topic("other", U), full=True))
    (found,) = ask(named("t", auto=False)).topics
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_created_topic_without_leaders_yet_is_not_available(cache):
    ask = Asker(cache, InMemoryTopics(cache, led=False), auto_create=True)
    (found,) = ask(named("new")).topics
    assert found.error_code == ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TopicAlreadyExists("by another broker"), ErrorCode.LEADER_NOT_AVAILABLE),
        (InvalidReplicationFactor("too few"), ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_a_topic_that_cannot_be_created_has_the_cause(cache, error, code):
    ask = Asker(cache, InMemoryTopics(cache, error=error), auto_create=True)
    (found,) = ask(named("new")).topics
    assert found.error_code == code


@pytest.mark.long
def test_twenty_thousand_unknown_topics_are_not_created(cache):
    ask = Asker(cache, InMemoryTopics(cache, led=False), auto_create=True)
    response = ask(named(*(f"t{n}" for n in range(20_000))))
    assert len(response.topics) == 20_000
    assert len(ask.topics.created) == AUTO_CREATE_BURST
    assert response.topics[-1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_budget_grows_with_time():
    now = [0.0]
    budget = Budget(2, 1.0, lambda: now[0])
    assert [budget.take() for _ in range(3)] == [True, True, False]
    now[0] = 1.5
    assert [budget.take() for _ in range(2)] == [True, False]
    now[0] = 100
    assert [budget.take() for _ in range(3)] == [True, True, False]


def test_the_answer_for_all_topics_is_encoded_once_until_something_changes(cache):
    ask = Asker(cache)
    first = ask.bytes(MetadataRequest(None))
    kept = dict(cache._parts)
    assert ask.bytes(MetadataRequest(None)) == first
    assert cache._parts.keys() == kept.keys()
    assert all(cache._parts[key] is kept[key] for key in kept)
    cache.update(update(topic("u", U)))
    assert [t.name for t in ask(MetadataRequest(None)).topics] == ["t", "u"]


@pytest.mark.parametrize("full", [False, True])
def test_only_the_partitions_of_an_update_are_built_again(cache, full):
    made = Asker(cache).handler
    cache.update(update(topic("t", T, partition(0), partition(1), partition(2, leader=2))))
    before = made._known(cache.topics["t"], "PLAINTEXT").partitions
    states = [partition(0), partition(1, epoch=5), partition(2, leader=2)]
    cache.update(update(topic("t", T, *states), full=full, brokers=(1,)))
    after = made._known(cache.topics["t"], "PLAINTEXT").partitions
    assert after[0] is before[0]
    assert [p.leader_epoch for p in after] == [0, 5, 0]
    assert [p.leader_id for p in after] == [1, 1, -1]  # broker 2 died; the update has nothing else
    cache.update(update(topic("t", U, partition(0)), full=full))
    (namesake,) = made._known(cache.topics["t"], "PLAINTEXT").partitions
    assert namesake is not before[0]
    cache.update(update(topic("t", U, partition(0), partition(1, leader=2)), full=full))
    assert made._known(cache.topics["t"], "PLAINTEXT").partitions[1].leader_id == 2


def part(number, *topics, more=True, epoch=2, broker_epoch=7, brokers=(1, 2)):
    states = update(*topics, epoch=epoch, full=True, broker_epoch=broker_epoch, brokers=brokers)
    states.part, states.has_more = number, more
    return states


@pytest.fixture
def cache_with_a_part():
    """A cache with topic "old" that has received the first of two parts, of topic "t"."""
    made = MetadataCache("the-cluster")
    assert made.update(update(topic("old", U), full=True))
    assert not made.update(part(0, topic("t", T, partition(0))))
    return made


def test_a_full_update_in_parts_holds_when_the_last_is_there(cache_with_a_part):
    cache, generation = cache_with_a_part, cache_with_a_part.generation
    assert not cache.update(part(1, topic("t", T, partition(1))))
    assert (list(cache.topics), cache.generation) == (["old"], generation)
    assert cache.update(part(2, topic("t", T, partition(2)), more=False))
    assert sorted(cache.topics["t"].partitions) == [0, 1, 2]
    assert cache.topic_by_id(T) is cache.topics["t"]
    assert (list(cache.topics), cache.topic_by_id(U)) == (["t"], None)
    assert cache.generation == generation + 1


def test_a_cache_with_some_parts_is_not_whole():
    cache = MetadataCache("the-cluster")
    cache.update(part(0, topic("t", T, partition(0))))
    assert (cache.is_whole, list(cache.topics), sorted(cache.brokers)) == (False, [], [1, 2])
    cache.update(part(1, topic("u", U), more=False))
    assert (cache.is_whole, sorted(cache.topics)) == (True, ["t", "u"])


def test_a_part_that_comes_again_is_taken_once(cache_with_a_part):
    first, last = part(0, topic("t", T, partition(0))), part(2, topic("v", U), more=False)
    cache = cache_with_a_part
    assert not cache.update(first)  # its answer was lost
    assert not cache.update(part(1, topic("u", UUID(int=99))))
    assert not cache.update(first)  # by a connection that was given up
    assert cache.update(last)
    first.live_brokers = []
    assert not cache.update(first)
    assert not cache.update(last)
    assert sorted(cache.brokers) == [1, 2]
    assert sorted(cache.topics) == ["t", "u", "v"]


def test_a_part_is_refused_before_those_in_front_of_it(cache_with_a_part):
    with pytest.raises(InvalidRequest):
        cache_with_a_part.update(part(2, topic("u", U), more=False))
    with pytest.raises(InvalidRequest):
        cache_with_a_part.update(
            part(1, topic("u", U), more=False, epoch=3)
        )  # of another controller
    assert list(cache_with_a_part.topics) == ["old"]


@pytest.mark.parametrize("newer", [{"epoch": 3}, {"broker_epoch": 8}])
def test_parts_of_two_full_updates_are_not_mixed(cache_with_a_part, newer):
    cache = cache_with_a_part
    assert not cache.update(part(0, topic("u", U), **newer))
    if "epoch" not in newer:
        assert not cache.update(
            part(1, topic("v", T), more=False)
        )  # late, for the former broker epoch
    assert cache.update(part(1, topic("w", T), more=False, **newer))
    assert sorted(cache.topics) == ["u", "w"]


def test_a_full_update_that_arrives_once_more_after_a_later_one_replaces_nothing(cache):
    cache.update(update(full=True, number=1))
    cache.update(update(topic("u", U), number=2))
    with pytest.raises(InvalidUpdateVersion):
        cache.update(update(full=True, number=1))
    assert cache.topic("u") is not None
    cache.update(update(topic("u", U), number=2))


def test_one_full_update_follows_another(cache_with_a_part):
    assert cache_with_a_part.update(part(1, topic("u", U), more=False))
    assert not cache_with_a_part.update(part(2, topic("v", U)))
    assert cache_with_a_part.update(part(3, topic("w", T), more=False))
    assert sorted(cache_with_a_part.topics) == ["v", "w"]


def test_operations_are_answered_when_asked(cache):
    request = MetadataRequest(None, True, True, True)
    response = Asker(cache)(request, 8)
    assert response.cluster_authorized_operations == sum(
        1 << each for each in (5, 7, 8, 9, 10, 11, 12)
    )
    assert response.topics[0].topic_authorized_operations == sum(
        1 << each for each in (3, 4, 5, 6, 7, 8, 10, 11)
    )
    plain = Asker(cache)(MetadataRequest(None), 8)
    assert plain.topics[0].topic_authorized_operations == -(2**31)


def test_internal_topics_are_marked(cache):
    cache.update(update(topic("__consumer_offsets", U)))
    found = {t.name: t.is_internal for t in Asker(cache)(MetadataRequest(None)).topics}
    assert found == {"t": False, "__consumer_offsets": True}


# -- the cache ---------------------------------------------------------------------------------


def test_a_deposed_controller_is_refused(cache):
    cache.update(update(epoch=5))
    with pytest.raises(StaleControllerEpoch):
        cache.update(update(topic("x", U), epoch=4))
    assert cache.topic("x") is None


async def none_of(_names):
    return set()


def test_an_update_for_an_earlier_registration_is_refused_and_one_for_a_later_is_not(broker):
    broker.replica_manager.registered(10)
    handler = UpdateMetadata(broker.cache, broker.replica_manager, lambda *_topics: None, none_of)

    def send(epoch):
        return Outcome(Deferred.fromCoroutine(handler(None, update(broker_epoch=epoch))))

    assert isinstance(send(9).error, StaleBrokerEpoch)
    assert [send(epoch).value.error_code for epoch in (10, 11, -1)] == [0, 0, 0]


def test_the_settings_of_every_topic_are_followed_until_it_is_deleted(broker):
    followed = []
    handler = UpdateMetadata(
        broker.cache,
        broker.replica_manager,
        lambda topics, deleted: followed.append((topics, list(deleted))),
        none_of,
    )
    gone = topic("t", T, *(partition(p, leader=-2) for p in range(3)))
    for states in ([topic("t", T)], [gone, topic("u", U)], [gone, topic("t", U)]):
        Deferred.fromCoroutine(handler(None, update(*states)))
    assert followed == [({"t": T}, []), ({"u": U}, ["t"]), ({"t": U}, [])]


def test_topics_that_are_deleted_are_reported_once_with_the_update_that_deletes_them(cache):
    deleted = []
    cache.on_deletion(lambda topics: deleted.append(topics))
    t, u, v = topic("t", T), topic("u", U), topic("v", V)
    gone = topic("t", T, *(partition(p, leader=-2) for p in range(3)))
    cache.update(update(t, u, v, full=True))
    cache.update(update(u))
    assert deleted == []
    first = update(gone)
    first.has_more = True  # nothing is visible before the last part
    cache.update(first)
    assert deleted == []
    cache.update(update(v))
    cache.update(update(u, full=True))
    cache.update(update(gone))
    assert deleted == [{"t": T}, {"v": V}]
    cache.update(update(t))
    first = update(gone)
    first.has_more = True
    cache.update(first)
    cache.update(update(topic("t", V)))  # created again before the last part
    assert deleted == [{"t": T}, {"v": V}, {"t": T}]
    cache.update(update(topic("t", U), full=True))
    assert deleted[3:] == [{"t": V, "u": U}], "created again, seen in the whole metadata only"


def test_a_deleted_topic_disappears(cache):
    gone = [partition(p, leader=-2) for p in range(3)]
    cache.update(update(topic("t", T, gone[0])))
    assert cache.partition("t", 0) is None
    assert cache.partition("t", 1) is not None
    cache.update(update(topic("t", T, *gone)))
    assert cache.topic("t") is None
    assert cache.topic_by_id(T) is None


def test_a_namesake_does_not_inherit_partitions(cache):
    cache.update(update(topic("t", U, partition(0))))
    assert list(cache.topic("t").partitions) == [0]
    assert cache.topic_by_id(T) is None
    assert cache.topic_by_id(U) is cache.topic("t")


def test_the_late_deletion_of_a_namesake_does_not_affect_the_existing_topic(cache):
    ended = topic("t", T, *(partition(p, leader=-2) for p in range(3)))
    for order in ([ended, topic("t", U)], [topic("t", U), ended]):
        cache.update(update(*order))
        assert list(cache.topic("t").partitions) == [0]
        assert cache.topic("t").topic_id == U
        cache.update(update(ended))
        assert cache.topic("t").topic_id == U


def test_a_snapshot_replaces_everything(cache):
    cache.update(update(topic("u", U), full=True))
    assert set(cache.topics) == {"u"}
    assert cache.topic_by_id(T) is None


def test_a_wait_ends_when_its_condition_holds(cache):
    ended = []
    cache.until(lambda: cache.topic("u") is not None).addCallback(lambda _: ended.append("u"))
    forever = cache.until(lambda: False)
    forever.addErrback(lambda failure: None)
    cache.until(lambda: True).addCallback(lambda _: ended.append("now"))
    cache.update(update())
    assert ended == ["now"]
    cache.update(update(topic("u", U)))
    assert ended == ["now", "u"]
    forever.cancel()
    assert not cache._waiting


def test_thousands_of_waits_end_without_being_compared_with_each_other(cache):
    compared = []

    class Condition:
        __hash__ = object.__hash__

        def __call__(self):
            return cache.topic("u") is not None

        def __eq__(self, other):
            compared.append(other)
            return self is other

    ended = []
    for _ in range(50):
        cache.until(Condition()).addCallback(ended.append)
    cancelled = cache.until(Condition())
    cancelled.addErrback(lambda failure: None)
    cancelled.cancel()
    cache.update(update(topic("u", U)))
    assert len(ended) == 50
    assert not compared


def test_the_cluster_is_described(cache):
    handler = DescribeCluster(cache)
    context = SimpleNamespace(listener="PLAINTEXT")
    response = handler(context, DescribeClusterRequest())
    assert (response.cluster_id, response.controller_id) == ("the-cluster", 1)
    assert [b.host for b in response.brokers] == ["plaintext-1", "plaintext-2"]
    with pytest.raises(MismatchedEndpointType):
        handler(context, DescribeClusterRequest(endpoint_type=2))
