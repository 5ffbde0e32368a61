"""Routing and metadata: one request for many callers, retries, time limits, errors with their cause."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from twisted.internet.defer import Deferred

from kclient.config import AdminConfig
from kclient.errors import (
    Address,
    BootstrapError,
    Cause,
    ConnectError,
    KafkaTimeoutError,
    LeaderUnavailable,
)
from kclient.net.brokers import unreachable
from kclient.net.cluster import Cluster
from kclient.net.metadata import ClusterMetadata
from kclient.types import TopicPartition
from kclient.wire.errors import (
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    InvalidTopicException,
    NotLeaderOrFollower,
)
from kclient.wire.schema.find_coordinator import Coordinator, FindCoordinatorResponse
from kclient.wire.schema.metadata import MetadataResponse
from kclient.wire.versions import ApiKey
from tests.kit.scripted_broker import Outcome
from tests.kit.scripted_cluster import HELD, ScriptedCluster

CONFIG = AdminConfig.load(bootstrap_servers="one:1,two:2")


def started(coroutine: Any) -> Outcome:
    return Outcome(Deferred.fromCoroutine(coroutine))


def fresh(scripted: ScriptedCluster) -> Cluster:
    return scripted.attach(Cluster(scripted.clock, CONFIG))


def test_concurrent_callers_share_one_metadata_request() -> None:
    scripted = ScriptedCluster({"t": 2})
    cluster = fresh(scripted)
    both = [started(cluster.start()), started(cluster.start())]
    scripted.turn()
    assert scripted.count(ApiKey.METADATA) == 1
    assert [outcome.value.cluster_id for outcome in both] == ["scripted", "scripted"]


def test_no_broker_of_the_list_gives_every_address_with_its_cause() -> None:
    scripted = ScriptedCluster()
    scripted.down = {1}
    outcome = started(fresh(scripted).start())
    assert isinstance(outcome.error, BootstrapError)
    assert [str(a.address) for a in outcome.error.attempts] == ["one:1", "two:2"]
    assert "one:1: connection refused" in str(outcome.error)


def test_a_broker_without_known_brokers_is_retried() -> None:
    scripted = ScriptedCluster()
    knows_all = scripted.answers[ApiKey.METADATA]
    scripted.answers[ApiKey.METADATA] = lambda _: MetadataResponse(brokers=[])
    outcome = started(fresh(scripted).start())
    scripted.pass_time(1.0)
    assert not outcome.fired
    scripted.answers[ApiKey.METADATA] = knows_all
    scripted.pass_time(1.0)
    assert list(outcome.value.brokers) == [1]


def test_a_broker_that_never_knows_brokers_is_an_error() -> None:
    scripted = ScriptedCluster()
    scripted.answers[ApiKey.METADATA] = lambda _: MetadataResponse(brokers=[])
    outcome = started(fresh(scripted).start())
    scripted.pass_time(62.0, step=0.5)
    assert isinstance(outcome.error, BrokerNotAvailable)


def test_metadata_lost_on_the_way_are_asked_of_the_next_broker() -> None:
    scripted = ScriptedCluster({"t": 1}, brokers=2)
    cluster = scripted.cluster(CONFIG)
    scripted.answers[ApiKey.METADATA] = lambda _: HELD
    outcome = Outcome(cluster.refresh())
    scripted.one(ApiKey.METADATA).fail()
    del scripted.answers[ApiKey.METADATA]
    scripted.one(ApiKey.METADATA).answer(scripted._metadata(scripted.one(ApiKey.METADATA).message))
    assert outcome.value.brokers.keys() == {1, 2}


def test_wrong_metadata_are_updated_once_after_the_backoff() -> None:
    scripted = ScriptedCluster({"t": 1})
    cluster = scripted.cluster(CONFIG)
    scripted.turn(10)
    for _ in range(5):
        cluster.update_soon()
    scripted.pass_time(1)
    assert scripted.count(ApiKey.METADATA) == 2


def test_metadata_that_cannot_be_had_are_requested_at_the_pace_of_the_backoff() -> None:
    scripted = ScriptedCluster({"t": 1})
    cluster = scripted.cluster(CONFIG)
    scripted.turn(10)
    answers = 0

    def knows_no_brokers(_: object) -> object:
        nonlocal answers
        answers += 1
        return HELD if answers > 50 else MetadataResponse(brokers=[])

    scripted.answers[ApiKey.METADATA] = knows_no_brokers
    cluster.update_soon()
    scripted.pass_time(10)
    assert 8 <= answers <= 20, "0.1 s, 0.2 s, ... 1 s apart"


def test_a_listener_that_finds_the_metadata_wrong_gets_others_after_the_backoff() -> None:
    scripted = ScriptedCluster({"t": 1})
    cluster = scripted.cluster(CONFIG)
    received = []

    def listener(metadata: ClusterMetadata) -> None:
        received.append(metadata)
        if len(received) < 3:
            cluster.update_soon()

    cluster.on_change(listener)
    scripted.turn(10)
    cluster.update_soon()
    scripted.pass_time(3)
    assert len(received) == 3


def test_old_metadata_are_asked_again() -> None:
    scripted = ScriptedCluster({"t": 1})
    scripted.cluster(CONFIG)
    scripted.turn(301)
    scripted.turn()
    assert scripted.count(ApiKey.METADATA) == 2


def test_a_new_topic_is_found_without_another_call() -> None:
    scripted = ScriptedCluster()
    cluster = scripted.cluster(CONFIG)
    outcome = started(cluster.partitions("late", timeout=5))
    scripted.pass_time(1)
    assert not outcome.fired
    scripted.topics["late"] = 3
    scripted.pass_time(2)
    assert outcome.value == [0, 1, 2]


def test_a_topic_that_does_not_appear_fails_in_time_with_the_clusters_own_error() -> None:
    scripted = ScriptedCluster()
    cluster = scripted.cluster(CONFIG)
    outcome = started(cluster.partitions("never", timeout=2))
    scripted.pass_time(2.5)
    assert "UNKNOWN_TOPIC_OR_PARTITION: topic 'never'" in str(outcome.error)


def test_a_name_that_can_never_exist_fails_at_once() -> None:
    scripted = ScriptedCluster()
    scripted.topic_errors["no good"] = 17
    outcome = started(scripted.cluster(CONFIG).partitions("no good", timeout=60))
    scripted.turn()
    assert isinstance(outcome.error, InvalidTopicException)


def test_a_call_that_keeps_failing_ends_with_its_last_failure_not_a_bare_timeout() -> None:
    scripted = ScriptedCluster()
    cluster = scripted.cluster(CONFIG)
    tries: list[float] = []

    async def attempt() -> None:
        tries.append(scripted.clock.seconds())
        raise NotLeaderOrFollower("t-0")

    outcome = started(cluster.retrying(attempt, timeout=3, what="trying"))
    scripted.pass_time(4)
    assert isinstance(outcome.error, NotLeaderOrFollower)
    gaps = [b - a for a, b in pairwise(tries)]
    assert gaps[0] < 0.2
    assert 0.7 < gaps[-1] < 1.3


def test_a_call_that_waits_beyond_its_time_ends_with_its_last_failure() -> None:
    scripted = ScriptedCluster()
    cluster = scripted.cluster(CONFIG)
    tries: list[float] = []

    async def attempt() -> None:
        tries.append(scripted.clock.seconds())
        if len(tries) > 1:
            await Deferred[None]()
        raise NotLeaderOrFollower("t-0")

    outcome = started(cluster.retrying(attempt, timeout=3, what="trying"))
    # The process was paused during the wait between two attempts.
    scripted.clock.advance(10)
    scripted.pass_time(1)
    assert isinstance(outcome.error, NotLeaderOrFollower)
    assert len(tries) == 1


def test_a_call_that_hangs_ends_in_time_and_names_what_it_was() -> None:
    scripted = ScriptedCluster()
    cluster = scripted.cluster(CONFIG)
    never: Deferred[None] = Deferred()

    async def attempt() -> None:
        await never

    outcome = started(cluster.retrying(attempt, timeout=3, what="listing groups"))
    scripted.pass_time(4)
    assert isinstance(outcome.error, KafkaTimeoutError)
    assert "listing groups: gave up after 3 s" in str(outcome.error)


def test_a_failure_that_no_repetition_cures_is_raised_at_once() -> None:
    scripted = ScriptedCluster()
    cluster = scripted.cluster(CONFIG)

    async def attempt() -> None:
        raise InvalidTopicException("x")

    assert isinstance(
        started(cluster.retrying(attempt, timeout=3, what="x")).error, InvalidTopicException
    )


def test_the_coordinator_is_remembered_until_it_is_wrong() -> None:
    scripted = ScriptedCluster(brokers=2)
    cluster = scripted.cluster(CONFIG)
    for _ in range(2):
        outcome = started(cluster.coordinator("g"))
        scripted.turn()
        assert outcome.value.node == 1
    assert scripted.count(ApiKey.FIND_COORDINATOR) == 1
    cluster.coordinators.forget("g")
    scripted.coordinator = 2
    outcome = started(cluster.coordinator("g"))
    scripted.turn()
    assert outcome.value.node == 2


def test_a_missing_coordinator_is_coordinator_not_available() -> None:
    scripted = ScriptedCluster()
    cluster = scripted.cluster(CONFIG)
    missing = FindCoordinatorResponse(coordinators=[Coordinator(key="g", error_code=15)])
    scripted.answers[ApiKey.FIND_COORDINATOR] = lambda _: missing
    outcome = started(cluster.coordinator("g"))
    scripted.turn()
    assert isinstance(outcome.error, CoordinatorNotAvailable)


def test_a_coordinator_that_cannot_be_reached_is_forgotten() -> None:
    scripted = ScriptedCluster(brokers=2)
    cluster = scripted.cluster(CONFIG)
    scripted.coordinator = 2
    scripted.down = {2}
    outcome = started(cluster.coordinator("g"))
    scripted.turn()
    assert isinstance(outcome.error, ConnectError)
    assert cluster.coordinators.known("g") is None


def test_a_broker_that_left_the_cluster_is_looked_for_once_more() -> None:
    scripted = ScriptedCluster({"t": 1})
    cluster = scripted.cluster(CONFIG)
    outcome = started(cluster.connection(7))
    scripted.turn()
    assert isinstance(outcome.error, LeaderUnavailable)
    assert scripted.count(ApiKey.METADATA) == 2


def test_an_advertised_address_that_does_not_work_is_named_with_its_broker() -> None:
    problem = unreachable(2, ConnectError(Address("kafka", 29092), Cause.DNS))
    assert "broker 2 advertises kafka:29092, which does not resolve" in str(problem)
    assert "advertised.listeners" in str(problem)
    assert problem.cause is Cause.DNS


def test_a_leader_that_is_down_has_no_connection_but_a_cause() -> None:
    scripted = ScriptedCluster({"t": 2}, brokers=2)
    cluster = scripted.cluster(CONFIG)
    scripted.down = {2}
    assert cluster.leader_connection(TopicPartition("t", 1)) is None
    outcome = started(cluster.connection(2))
    assert "broker 2 advertises broker-2:9092, which refuses connections" in str(outcome.error)
