"""Faults of requests in a `KafkaCluster`, as clients of several libraries meet them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient as ConfluentAdmin

from kbroker.testing import Acknowledged, KafkaCluster
from kclient import AdminClient, Consumer, Producer
from kclient.errors import (
    GroupAuthorizationFailed,
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationFailed,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated"),  # of kafka-python's import
]

RETRIABLE = "NOT_ENOUGH_REPLICAS"


@pytest.fixture(scope="module")
def whole() -> Iterator[KafkaCluster]:
    with KafkaCluster(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole: KafkaCluster) -> Iterator[KafkaCluster]:
    """Give the cluster; it has no faults afterwards."""
    yield whole
    whole.heal()
    whole.start()


@pytest.fixture
def topic(cluster: KafkaCluster) -> str:
    return cluster.create_topic(f"t{os.urandom(4).hex()}", assignment={0: [1, 2, 3]})


def librdkafka(cluster: KafkaCluster, **settings: Any) -> Any:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            **{k.replace("_", "."): v for k, v in settings.items()},
        }
    )


# -- errors ----------------------------------------------------------------------------------------


def test_kclient_retries_an_error_as_often_as_the_test_asks_for(
    cluster: KafkaCluster, topic: str
) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        fault = cluster.fail_requests("Produce", RETRIABLE, times=3)
        assert producer.send(topic, b"1").result(timeout=20).offset == 0
        assert fault.count == 3
        with (
            cluster.fail_requests("Produce", TopicAuthorizationFailed) as fault,
            pytest.raises(TopicAuthorizationFailed),
        ):
            producer.send(topic, b"2").result(timeout=20)
        assert fault.count == 1
        assert producer.send(topic, b"3").result(timeout=20).offset == 1
    assert [record.value for record in cluster.read_topic(topic)] == [b"1", b"3"]


def test_librdkafka_retries_an_error_too(cluster: KafkaCluster, topic: str) -> None:
    acked = Acknowledged()
    producer = librdkafka(cluster, retry_backoff_ms=20)
    fault = cluster.fail_requests("Produce", RETRIABLE, times=3)
    for n in range(100):
        producer.produce(topic, b"%d" % n, on_delivery=acked.on_delivery)
    assert producer.flush(30) == 0
    assert fault.count == 3
    cluster.assert_acked_equals_consumed(acked)


def test_kafka_python_reports_the_error_that_remains(cluster: KafkaCluster, topic: str) -> None:
    import kafka as kafka_python  # its import warns
    from kafka.errors import NotEnoughReplicasError

    producer = kafka_python.KafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        retries=1,
        retry_backoff_ms=20,
        enable_idempotence=False,
    )
    try:
        with cluster.fail_requests("Produce", RETRIABLE) as fault:
            failed = producer.send(topic, b"1")
            with pytest.raises(NotEnoughReplicasError):
                failed.get(timeout=20)
        assert fault.count == 2
        assert producer.send(topic, b"2").get(timeout=20).offset == 0
    finally:
        producer.close()


def test_faults_of_one_api_come_one_after_the_other(cluster: KafkaCluster, topic: str) -> None:
    first = cluster.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", times=1)
    second = cluster.fail_requests("Produce", "TOPIC_AUTHORIZATION_FAILED", times=1)
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        with pytest.raises(TopicAuthorizationFailed):
            producer.send(topic, b"1").result(timeout=20)
        assert (first.count, second.count) == (1, 1)
        producer.send(topic, b"2").result(timeout=20)


@pytest.mark.parametrize("library", ["kclient", "librdkafka"])
def test_a_consumer_within_a_session_gets_the_error_of_its_partitions(
    cluster: KafkaCluster, topic: str, library: str
) -> None:
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": topic,
        "auto.offset.reset": "earliest",
    }
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        producer.send(topic, b"1").result(timeout=20)
        consumer: Any = (
            Consumer(settings, [topic])
            if library == "kclient"
            else confluent_kafka.Consumer(settings)
        )
        if library == "librdkafka":
            consumer.subscribe([topic])
        assert len(consumer.consume(1, timeout=30)) == 1
        fault = cluster.fail_requests("Fetch", "NOT_LEADER_OR_FOLLOWER", times=2, client_id="")
        while fault.count < 2:  # the fetch that waits at the broker has none yet
            assert consumer.consume(1, timeout=0.2) == []
        producer.send(topic, b"2").result(timeout=20)
        (record,) = consumer.consume(1, timeout=30)
        assert (record.value() if library == "librdkafka" else record.value) == b"2"
        consumer.close()


def test_metadata_with_an_error_still_has_the_brokers(cluster: KafkaCluster, topic: str) -> None:
    fault = cluster.fail_requests("Metadata", "LEADER_NOT_AVAILABLE", times=3)
    admin = ConfluentAdmin({"bootstrap.servers": cluster.bootstrap})
    seen = admin.list_topics(topic, timeout=10)
    while fault.count < 3:
        assert len(seen.brokers) == 3
        assert seen.topics[topic].error.name() == "LEADER_NOT_AVAILABLE"
        assert not seen.topics[topic].partitions
        seen = admin.list_topics(topic, timeout=10)
    seen = admin.list_topics(topic, timeout=10)
    assert len(seen.topics[topic].partitions) == 1


@pytest.mark.parametrize(
    ("api", "error"), [("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"), ("JoinGroup", "NOT_COORDINATOR"),
                       ("SyncGroup", "REBALANCE_IN_PROGRESS"), ("Heartbeat", "REBALANCE_IN_PROGRESS"),
                       ("OffsetFetch", "UNSTABLE_OFFSET_COMMIT"), ("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS"),
                       ("ApiVersions", "UNKNOWN_SERVER_ERROR")],
)  # fmt: skip
@pytest.mark.parametrize("library", ["kclient", "librdkafka"])
def test_members_of_a_group_survive_the_errors_of_a_coordinator(
    cluster: KafkaCluster, topic: str, library: str, api: str, error: str
) -> None:
    settings = {
        "bootstrap.servers": cluster.bootstrap, "group.id": topic, "auto.offset.reset": "earliest",
        "heartbeat.interval.ms": 200, "enable.auto.commit": False,
    }  # fmt: skip
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        producer.send(topic, b"1").result(timeout=20)
    fault = cluster.fail_requests(api, error, times=1)
    consumer: Any
    if library == "kclient":
        consumer = Consumer(settings, [topic])
    else:
        consumer = confluent_kafka.Consumer({**settings, "topic.metadata.refresh.interval.ms": 500})
        consumer.subscribe([topic])
    assert len(consumer.consume(1, timeout=40)) == 1
    deadline = time.monotonic() + 30
    committed = False
    while not (committed and fault.count):
        assert time.monotonic() < deadline
        try:
            consumer.commit() if library == "kclient" else consumer.commit(asynchronous=False)
            committed = True
        except (KafkaError, confluent_kafka.KafkaException):
            committed = False
        consumer.consume(1, timeout=0.2)  # it rejoins where it has to
    consumer.close()
    assert fault.count == 1


def test_only_clients_with_that_id_and_only_that_broker(cluster: KafkaCluster, topic: str) -> None:
    leader = cluster.leader(topic)
    other = next(n for n in cluster.brokers if n != leader)
    elsewhere = cluster.fail_requests("Produce", "TOPIC_AUTHORIZATION_FAILED", broker=other)
    theirs = cluster.fail_requests("Produce", "TOPIC_AUTHORIZATION_FAILED", client_id="orders")
    with Producer({"bootstrap.servers": cluster.bootstrap, "client.id": "billing"}) as producer:
        producer.send(topic, b"1").result(timeout=20)
    with (
        Producer({"bootstrap.servers": cluster.bootstrap, "client.id": "orders-2"}) as producer,
        pytest.raises(TopicAuthorizationFailed),
    ):
        producer.send(topic, b"2").result(timeout=20)
    assert (elsewhere.count, theirs.count) == (0, 1)


def test_what_the_cluster_itself_asks_has_no_fault(cluster: KafkaCluster) -> None:
    apis = ("Metadata", "CreateTopics", "Fetch", "ListOffsets", "ApiVersions", "DescribeCluster")
    faults = [cluster.fail_requests(api, "CLUSTER_AUTHORIZATION_FAILED") for api in apis]
    topic = cluster.create_topic(f"u{os.urandom(4).hex()}")
    assert cluster.read_topic(topic) == []
    assert [fault.count for fault in faults] == [0] * len(apis)


# -- delays and lost connections -------------------------------------------------------------------


def test_a_delay_is_what_a_client_waits(cluster: KafkaCluster, topic: str) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        producer.send(topic, b"0").result(timeout=20)
        fault = cluster.delay_requests("Produce", 0.7, times=1)
        began = time.monotonic()
        producer.send(topic, b"1").result(timeout=20)
        assert time.monotonic() - began >= 0.7
        assert fault.count == 1


def test_a_request_that_takes_too_long_fails_with_its_cause(cluster: KafkaCluster) -> None:
    short = {"request.timeout.ms": 300, "default.api.timeout.ms": 600}
    with (
        AdminClient({"bootstrap.servers": cluster.bootstrap, **short}) as admin,
        cluster.delay_requests("ListGroups", 5),
        pytest.raises(KafkaTimeoutError),
    ):
        admin.list_groups()


@pytest.mark.parametrize("library", ["kclient", "librdkafka"])
def test_an_idempotent_producer_writes_a_record_once_after_a_lost_response(
    cluster: KafkaCluster, topic: str, library: str
) -> None:
    acked = Acknowledged()
    lost = [cluster.lose_responses("Produce", times=2), cluster.lose_requests("Produce", times=2)]
    if library == "kclient":
        with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
            for n in range(200):
                acked.track(producer.send(topic, b"%d" % n), b"%d" % n)
            assert producer.flush(timeout=30) == 0
    else:
        theirs = librdkafka(cluster, enable_idempotence=True, retry_backoff_ms=20)
        for n in range(200):
            theirs.produce(topic, b"%d" % n, on_delivery=acked.on_delivery)
        assert theirs.flush(30) == 0
    assert [fault.count for fault in lost] == [2, 2]
    assert len(acked) == 200
    cluster.assert_acked_equals_consumed(acked)


def test_without_idempotence_a_lost_response_is_a_record_written_twice(
    cluster: KafkaCluster, topic: str
) -> None:
    with Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": False, "retries": 5}
    ) as producer:
        cluster.lose_responses("Produce", times=1)
        producer.send(topic, b"1").result(timeout=20)
    assert [record.value for record in cluster.read_topic(topic)] == [b"1", b"1"]


# -- from the beginning of a fault to its end ----------------------------------------------------


def test_a_fault_outlives_a_broker_and_ends_when_it_is_healed(
    cluster: KafkaCluster, topic: str
) -> None:
    fault = cluster.fail_requests("Produce", "TOPIC_AUTHORIZATION_FAILED")
    cluster.restart(cluster.leader(topic))
    cluster.wait_leader(topic)
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        with pytest.raises(TopicAuthorizationFailed):
            producer.send(topic, b"1").result(timeout=20)
        assert fault.count == 1
        fault.heal()
        fault.heal()
        producer.send(topic, b"2").result(timeout=20)
        cluster.fail_requests("Produce", GroupAuthorizationFailed)
        cluster.heal()
        producer.send(topic, b"3").result(timeout=20)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"times": 0}, "times=0: 1 or more requests"),
        ({"times": 1.5}, "times=1.5"),
        ({"delay": -1}, "delay=-1"),
        ({"delay": float("nan")}, "delay=nan"),
        ({"broker": 9}, "no broker 9; the cluster has: 1, 2, 3"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    cluster: KafkaCluster, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises((ValueError, LookupError), match=problem):
        cluster.fail_requests("Produce", RETRIABLE, **arguments)
    with pytest.raises(ValueError, match="seconds=0"):
        cluster.delay_requests("Produce", 0)


def test_before_the_start_and_after_the_end_there_is_nothing_to_fail() -> None:
    cluster = KafkaCluster(1)
    with pytest.raises(RuntimeError, match="does not run"):
        cluster.fail_requests("Produce", RETRIABLE)
    cluster.close()
    with pytest.raises(RuntimeError, match="does not run"):
        cluster.lose_requests(None)
