"""Transactions that are wide, empty or doubled; their topics and coordinators move or go. None stays open (S38)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException

import kclient
from kclient import AdminClient, TopicPartition
from kclient.errors import TransactionAborted
from tests.integration.test_transactions import commit, create, transactional, values
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MANY = 60
IDLE = {"Empty", "CompleteCommit", "CompleteAbort"}


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    settings = {
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "6",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    return module_clusters(3, settings)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t{time.monotonic_ns()}"
    create(cluster, name)
    return name


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[AdminClient]:
    """An admin client; after the test, no transaction of the cluster is open."""
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as client:
        yield client
        eventually(
            "the end of every transaction",
            lambda: {each.state for each in client.list_transactions()} <= IDLE,
            timeout=30,
        )


def is_stable(admin: AdminClient, topic: str, partitions: int = 2) -> bool:
    """Return whether the last stable offset of each partition is its high watermark."""
    wanted = {TopicPartition(topic, p): "latest" for p in range(partitions)}
    ends = [
        {tp: each.offset for tp, each in admin.list_offsets(wanted, read_committed=one).items()}  # type: ignore[union-attr]
        for one in (False, True)
    ]
    return ends[0] == ends[1]


def own(cluster: Cluster, name: str, **settings: Any) -> Any:
    """Return our producer, initialised."""
    config = {"bootstrap.servers": cluster.bootstrap, "transactional.id": name}
    producer: Any = kclient.Producer({**config, **settings}).start()
    producer.init_transactions()
    return producer


def test_a_transaction_of_200_partitions_is_visible_in_all(
    cluster: Cluster, admin: AdminClient
) -> None:
    create(cluster, "wide", 200)
    for make in (own, transactional):
        producer = make(cluster, f"wide-{make.__name__}")
        for end in ("abort_transaction", "commit_transaction"):
            producer.begin_transaction()
            for partition in range(200):
                producer.produce("wide", end.encode(), partition=partition)
            producer.flush(30)
            getattr(producer, end)()
        if make is own:
            producer.close()
    eventually("the markers", lambda: is_stable(admin, "wide", 200))
    assert Counter(values(cluster, "wide")) == {b"commit_transaction": 400}


def test_an_empty_transaction_ends_and_the_next_one_counts(
    cluster: Cluster, admin: AdminClient, topic: str
) -> None:
    for make in (own, transactional):
        producer = make(cluster, f"{topic}-{make.__name__}")
        for end in ("commit_transaction", "abort_transaction"):
            producer.begin_transaction()
            getattr(producer, end)()
        producer.begin_transaction()
        producer.produce(topic, b"one", partition=0)
        producer.commit_transaction()
        if make is own:
            producer.close()
    eventually("the markers", lambda: is_stable(admin, topic))
    assert values(cluster, topic) == [b"one", b"one"]


def test_of_two_producers_with_one_transactional_id_the_newer_one_counts(
    cluster: Cluster, admin: AdminClient, topic: str
) -> None:
    expected = []
    for turn in range(4):
        older, newer = (
            make(cluster, f"{topic}-id") for make in ((own, transactional), (transactional, own))[turn % 2]
        )  # fmt: skip
        newer.begin_transaction()
        newer.produce(topic, b"newer %d" % turn, partition=0)
        newer.flush(30)
        with pytest.raises((KafkaException, kclient.KafkaError)):
            commit(older, topic, b"older %d" % turn)
        newer.commit_transaction()
        expected.append(b"newer %d" % turn)
        for each in (older, newer):
            if isinstance(each, kclient.Producer):
                each.close(1)
    eventually("the markers", lambda: is_stable(admin, topic))
    assert values(cluster, topic) == expected


def test_a_slow_client_is_fenced_after_a_second_and_its_next_transaction_counts(
    cluster: Cluster, admin: AdminClient, topic: str
) -> None:
    producer = own(cluster, f"{topic}-id", **{"transaction.timeout.ms": 1000})
    producer.begin_transaction()
    producer.produce(topic, b"slow", partition=0)
    producer.flush()
    eventually("the abort", lambda: is_stable(admin, topic))
    with pytest.raises(kclient.KafkaError):
        commit(producer, topic, b"late", begin=False)
    producer.close(1)
    producer = own(cluster, f"{topic}-id", **{"transaction.timeout.ms": 1000})
    with producer.transaction():
        producer.send(topic, b"quick", partition=1)
    producer.close()
    assert values(cluster, topic) == [b"quick"]


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_topic_is_deleted_within_a_transaction(
    cluster: Cluster, admin: AdminClient, topic: str, end: str
) -> None:
    gone = f"{topic}-gone"
    create(cluster, gone)
    producer = own(cluster, f"{topic}-id")
    producer.begin_transaction()
    for each in (gone, topic):
        producer.produce(each, b"first", partition=0)
    producer.flush()
    admin.delete_topics([gone])
    eventually("the deletion", lambda: gone not in admin.list_topics())
    getattr(producer, end)()
    with producer.transaction():
        producer.send(topic, b"second", partition=0)
    producer.close()
    eventually("the markers", lambda: is_stable(admin, topic))
    first = [b"first"] if end == "commit_transaction" else []
    assert values(cluster, topic) == [*first, b"second"]


def test_a_topic_is_created_again_within_a_transaction(
    cluster: Cluster, admin: AdminClient, topic: str
) -> None:
    again = f"{topic}-again"
    create(cluster, again)
    producer = own(cluster, f"{topic}-id")
    producer.begin_transaction()
    for each in (again, topic):
        producer.produce(each, b"first", partition=0)
    producer.flush()
    admin.delete_topics([again])
    eventually("the deletion", lambda: again not in admin.list_topics())
    create(cluster, again)
    producer.commit_transaction()
    eventually("the markers", lambda: is_stable(admin, topic) and is_stable(admin, again))
    # As in Apache Kafka, the new log knows the producer by its marker, and no sequence but 0 follows that. After the
    # abort the producer has the next epoch (KIP-360).
    with pytest.raises(TransactionAborted, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        commit(producer, again, b"refused")
    producer.abort_transaction()
    commit(producer, again, b"second")
    producer.close()
    eventually("the markers", lambda: is_stable(admin, again))
    assert values(cluster, topic) == [b"first"]
    assert values(cluster, again) == [b"second"]


def test_partitions_and_coordinators_move_within_a_transaction(
    cluster: Cluster, admin: AdminClient
) -> None:
    topic = "moved"
    admin.create_topics([kclient.NewTopic(topic, replica_assignment={0: [1, 2], 1: [2, 3]})])
    producer = own(cluster, "moved-id")
    other = transactional(cluster, "moved-other")
    for each in (producer, other):
        each.begin_transaction()
        for partition in (0, 1):
            each.produce(topic, b"before", partition=partition)
        each.flush(30)
    admin.alter_partition_reassignments(
        {TopicPartition(topic, 0): [3, 1], TopicPartition(topic, 1): [1, 2]}
    )
    eventually("the reassignment", lambda: not admin.list_partition_reassignments())
    coordinator = admin.describe_transactions(["moved-id"])["moved-id"].coordinator  # type: ignore[union-attr]
    cluster.terminate(coordinator)
    for each in (producer, other):
        for partition in (0, 1):
            each.produce(topic, b"between", partition=partition)
        each.flush(30)
    cluster.start(coordinator)
    eventually("the preferred leaders", lambda: elected(admin, coordinator), timeout=30)
    for each in (producer, other):
        for partition in (0, 1):
            each.produce(topic, b"after", partition=partition)
    producer.commit_transaction()
    other.abort_transaction(30)
    producer.close()
    eventually("the markers", lambda: is_stable(admin, topic))
    assert Counter(values(cluster, topic)) == dict.fromkeys((b"before", b"between", b"after"), 2)


def elected(admin: AdminClient, coordinator: int) -> bool:
    """Elect the preferred leaders; return whether *coordinator* leads what it is to coordinate."""
    admin.elect_leaders(raise_errors=False)
    (found,) = admin.describe_topics(["__transaction_state"]).values()
    return all(p.leader == p.replicas[0] for p in found.partitions.values())  # type: ignore[union-attr]


def test_many_transactional_ids_at_once(cluster: Cluster, admin: AdminClient, topic: str) -> None:
    producers = [own(cluster, f"{topic}-{n}") for n in range(MANY)]
    for n, producer in enumerate(producers):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, b"%d" % n, partition=partition)
    for n, producer in enumerate(producers):
        if n % 3:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    eventually("the markers", lambda: is_stable(admin, topic))
    assert Counter(values(cluster, topic)) == {b"%d" % n: 2 for n in range(MANY) if n % 3}
    for producer in producers:
        producer.close(1)
