"""Transactions on real brokers, by other people's producers: all of one is visible, or nothing (KIP-98, S38)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kclient import Producer as KclientProducer
from kclient.testing.raw_connection import RawConnection
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.versions import ApiKey
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.cli import Cli
from tests.kit.replicated import Observer
from tests.kit.transactional_logs import transactional as transactional_batch
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(3, {"offsets.topic.num.partitions": "4"})


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = f"t{time.monotonic_ns()}"
    create(cluster, name)
    return name


def create(cluster: Cluster, name: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = NewTopic(name, partitions, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([new])[name].result(30)


def transactional(cluster: Cluster, name: str, **settings: Any) -> Any:
    """Return librdkafka's producer, initialised."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "log_level": 0,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    producer.init_transactions(60)
    return producer


def commit(producer: Any, topic: str, value: bytes, *, begin: bool = True) -> None:
    """Commit one record, in a new transaction or in the open one."""
    if begin:
        producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    producer.commit_transaction()


def values(cluster: Cluster, *topics: str, isolation: str = "read_committed") -> list[bytes]:
    """Return the values of *topics* up to their ends, as a consumer with *isolation* reads them."""
    consumer: Any = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        metadata = consumer.list_topics(timeout=20).topics
        left = {(topic, number) for topic in topics for number in metadata[topic].partitions}
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in left])
        found: list[bytes] = []
        deadline = time.monotonic() + 60
        while left:
            assert time.monotonic() < deadline, left
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is None:
                found.append(message.value())
            elif message.error().name() == "_PARTITION_EOF":
                left.discard((message.topic(), message.partition()))
        return found
    finally:
        consumer.close()


def test_a_committed_transaction_is_visible_and_an_aborted_one_is_not(
    cluster: Cluster, topic: str
) -> None:
    producer = transactional(cluster, f"{topic}-id")
    for end in ("commit", "abort", "commit"):
        producer.begin_transaction()
        for partition in (0, 1):
            for n in range(10):
                producer.produce(topic, f"{end} {n}".encode(), partition=partition)
        producer.flush(30)
        if end == "abort":
            assert values(cluster, topic).count(b"abort 1") == 0
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    found = Counter(values(cluster, topic))
    assert found == {f"commit {n}".encode(): 4 for n in range(10)}
    everything = Counter(values(cluster, topic, isolation="read_uncommitted"))
    times = {"commit": 4, "abort": 2}
    assert everything == {
        f"{end} {n}".encode(): count for end, count in times.items() for n in range(10)
    }


def test_an_open_transaction_holds_readers_back_until_its_end(cluster: Cluster, topic: str) -> None:
    open_one = transactional(cluster, f"{topic}-open")
    open_one.begin_transaction()
    open_one.produce(topic, b"open", partition=0)
    open_one.flush(30)
    plain: Any = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    plain.produce(topic, b"behind", partition=0)
    plain.flush(30)
    assert values(cluster, topic) == []
    open_one.commit_transaction(30)
    assert values(cluster, topic) == [b"open", b"behind"]


def test_a_producer_is_fenced_by_the_next_one_of_its_transactional_id(
    cluster: Cluster, topic: str
) -> None:
    first = transactional(cluster, f"{topic}-id")
    first.begin_transaction()
    first.produce(topic, b"of the first", partition=0)
    first.flush(30)
    second = transactional(cluster, f"{topic}-id")
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(30)
    assert caught.value.args[0].name() in ("_FENCED", "PRODUCER_FENCED"), caught.value
    second.begin_transaction()
    second.produce(topic, b"of the second", partition=0)
    second.commit_transaction(30)
    assert values(cluster, topic) == [b"of the second"]


def test_a_transaction_beyond_its_timeout_is_aborted(cluster: Cluster, topic: str) -> None:
    producer = transactional(cluster, f"{topic}-id", transaction_timeout_ms=1000)
    producer.begin_transaction()
    producer.produce(topic, b"too late", partition=0)
    producer.flush(30)
    plain: Any = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    plain.produce(topic, b"plain", partition=0)
    plain.flush(30)
    eventually("the abort", lambda: values(cluster, topic) == [b"plain"], timeout=40)
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)


def consumed(cluster: Cluster, topic: str, group: str) -> Any:
    consumer: Any = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    return consumer


def test_offsets_of_a_transaction_are_committed_with_it(cluster: Cluster, topic: str) -> None:
    create(cluster, f"{topic}-out")
    plain: Any = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for n in range(20):
        plain.produce(topic, b"%d" % n, partition=0)
    plain.flush(30)
    consumer = consumed(cluster, topic, f"{topic}-group")
    producer = transactional(cluster, f"{topic}-id")
    seen = 0
    for end in ("abort", "commit"):
        batch = []
        while len(batch) < 20:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            batch.append(message)
        producer.begin_transaction()
        for message in batch:
            producer.produce(f"{topic}-out", end.encode() + b" " + message.value())
        at = [TopicPartition(topic, 0, batch[-1].offset() + 1)]
        producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), 30)
        if end == "abort":
            producer.abort_transaction(30)
            (committed,) = consumer.committed([TopicPartition(topic, 0)], 30)
            assert committed.offset < 0
            consumer.seek(TopicPartition(topic, 0, 0))
        else:
            producer.commit_transaction(30)
            (committed,) = consumer.committed([TopicPartition(topic, 0)], 30)
            assert committed.offset == 20
        seen += len(batch)
    consumer.close()
    assert sorted(values(cluster, f"{topic}-out")) == sorted(b"commit %d" % n for n in range(20))


def test_kclient_and_aiokafka_commit_and_abort(cluster: Cluster, topic: str) -> None:
    with KclientProducer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}-kclient"}
    ) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"kclient commits", partition=0)
        producer.begin_transaction()
        producer.send(topic, b"kclient aborts", partition=1)
        producer.flush()
        producer.abort_transaction()

    async def by_aiokafka() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id=f"{topic}-aiokafka"
        )
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"aiokafka commits", partition=1)
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"aiokafka aborts", partition=0)
            await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(by_aiokafka())
    assert sorted(values(cluster, topic)) == [b"aiokafka commits", b"kclient commits"]


def test_an_operator_sees_and_ends_transactions(cluster: Cluster, topic: str) -> None:
    name = f"{topic}-id"
    producer = transactional(cluster, name)
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=0)
    producer.flush(30)
    cli = Cli(cluster)
    (found,) = cli.json("txn", "describe", name)
    assert (found["state"], found["partitions"]) == ("Ongoing", [f"{topic}-0"])
    listed = cli.json("txn", "list", "-s", "Ongoing")
    assert name in {each["transactional_id"] for each in listed}
    assert b"PrepareCommit" in cli.run("txn", "list", "-s", "Nonsense", code=2).stderr
    (state,) = cli.json("txn", "describe-producers", "-t", topic, "-p", "0")
    assert state["transaction_start_offset"] == 0
    assert cli.json("txn", "find-hanging", "-t", topic) == []
    begins = ("-t", topic, "-p", "0", "--start-offset")
    assert b"--yes" in cli.run("txn", "abort", *begins, "0", code=2).stderr
    refused = cli.run("txn", "abort", *begins, "7", "--yes", code=1).stderr
    assert b"no open transaction" in refused
    assert b"not know" in cli.run("txn", "describe", f"{topic}-none", code=1).stderr
    cli.run("txn", "fence", name, "--yes")
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    (found,) = cli.json("txn", "describe", name)
    assert found["partitions"] == []
    assert values(cluster, topic) == []


def test_an_operator_finds_and_aborts_a_hanging_transaction(cluster: Cluster) -> None:
    """A batch that arrives behind the end of its transaction, where brokers do not verify it (before KIP-890)."""
    topic, cli = f"t{time.monotonic_ns()}", Cli(cluster)
    Observer(cluster).create(topic, [[1]])
    producer = transactional(cluster, f"{topic}-id")
    commit(producer, topic, b"first")
    eventually("the marker", lambda: values(cluster, topic) == [b"first"])
    (state,) = cli.json("txn", "describe-producers", "-t", topic, "-p", "0")
    verification = "transaction.partition.verification.enable"
    cli.run("cluster", "config", "alter", "--set", f"{verification}=false")
    try:
        late = transactional_batch(
            state["producer_id"],
            b"late",
            epoch=state["producer_epoch"],
            sequence=state["last_sequence"] + 1,
        )
        partitions = [ProduceTopic(topic, [ProducePartition(0, late)])]
        host, _, port = cluster[1].address.rpartition(":")
        with RawConnection(host, int(port)) as raw:
            request = ProduceRequest(1, 1000, partitions, f"{topic}-id")
            eventually(
                "the setting at the leader",
                lambda: raw.ask(ApiKey.PRODUCE, 9, request).topics[0].partitions[0].error_code == 0,
            )
    finally:
        cli.run("cluster", "config", "alter", "--delete", verification)
    other = transactional(cluster, f"{topic}-other")
    commit(other, topic, b"behind it")
    assert values(cluster, topic) == [b"first"]
    find = ("txn", "find-hanging", "-t", topic, "--max-transaction-timeout")
    assert cli.json(*find, "15") == []
    (found,) = cli.json(*find, "0")
    assert (found["producer_id"], found["transactional_id"]) == (
        state["producer_id"],
        f"{topic}-id",
    )
    start = str(found["start_offset"])
    printed = cli.out("txn", "abort", "-t", topic, "-p", "0", "--start-offset", start, "--yes")
    assert (
        printed == f"Aborted the transaction of producer id {found['producer_id']} in {topic}-0.\n"
    )
    assert cli.json(*find, "0") == []
    assert values(cluster, topic) == [b"first", b"behind it"]
    assert sorted(values(cluster, topic, isolation="read_uncommitted")) == [
        b"behind it",
        b"first",
        b"late",
    ]
