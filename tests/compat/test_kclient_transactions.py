"""kclient's transactional producer on Apache Kafka and on kbroker: commit, abort, offsets, fencing, a kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kclient import AdminClient, Consumer, OffsetAndMetadata, Producer, TopicPartition
from kclient.errors import TransactionAborted
from kclient.wire.errors import ProducerFenced
from tests.kit.apache_kafka import ApacheKafka, running_kafka, with_kafka
from tests.kit.brokers import MakeCluster
from tests.kit.waiting import eventually
from tests.kit.zookeeper import Ensemble

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.timeout(180),
    with_kafka,
]

_numbers = count(1)
SETTINGS = {
    "zookeeper.session.timeout.ms": "6000",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}


@contextmanager
def two_brokers(home: Path, zookeeper_server: Ensemble) -> Iterator[list[ApacheKafka]]:
    """Start a cluster of brokers 1 and 2."""
    zookeeper = f"{zookeeper_server.connect}/transactions-{next(_numbers)}-{time.time_ns()}"
    with ExitStack() as stack:
        made = [
            stack.enter_context(
                running_kafka(home / str(n), zookeeper, {**SETTINGS, "broker.id": str(n)})
            )
            for n in (1, 2)
        ]
        with AdminClient(bootstrap_servers=made[0].bootstrap) as admin:
            eventually("both brokers", lambda: len(admin.describe_cluster().brokers) == 2)
        yield made


def addresses(brokers: list[ApacheKafka]) -> str:
    """Return the bootstrap servers."""
    return ",".join(broker.bootstrap for broker in brokers)


@pytest.fixture(scope="module", params=["Apache Kafka", "kbroker"])
def bootstrap(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    zookeeper_server: Ensemble,
    module_clusters: MakeCluster,
) -> Iterator[str]:
    if request.param == "kbroker":
        yield module_clusters(2, SETTINGS).bootstrap
        return
    with two_brokers(tmp_path_factory.mktemp("transactions"), zookeeper_server) as made:
        yield addresses(made)


def make_topic(bootstrap: str, partitions: int = 2) -> str:
    """Create a topic with a new name and two replicas; return the name."""
    name = f"topic-{next(_numbers)}"
    with AdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 2}})
        admin.wait_for_topics([name])
    return name


def producing(bootstrap: str, name: str | None = None, **settings: Any) -> Producer:
    """Return a producer that has its epoch."""
    made: Producer = Producer(
        bootstrap_servers=bootstrap,
        transactional_id=name or f"tx-{next(_numbers)}",
        **settings,
    )
    made.init_transactions()
    return made


def committed(bootstrap: str, topic: str, partitions: int = 2) -> list[bytes]:
    """Return the values that a consumer with read_committed sees, sorted."""
    tps = [TopicPartition(topic, number) for number in range(partitions)]
    found: list[bytes] = []
    with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign(tps, dict.fromkeys(tps, 0))
        ends = consumer.end_offsets(tps)
        deadline = time.monotonic() + 30
        while any(consumer.position(tp) < ends[tp] for tp in tps):
            assert time.monotonic() < deadline
            for records in consumer.poll(timeout=0.2).values():
                found += [record.value for record in records]
    return sorted(found)


def test_committed_records_are_visible_and_aborted_ones_are_not(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with producing(bootstrap) as producer:
        for number in range(20):
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send(topic, b"%02d-%d" % (number, partition), partition=partition)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    expected = [b"%02d-%d" % (n, p) for n in range(0, 20, 2) for p in (0, 1)]
    assert committed(bootstrap, topic) == expected


def test_a_block_commits_or_aborts(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with producing(bootstrap) as producer:
        with producer.transaction():
            producer.send(topic, b"kept", partition=0)
        with pytest.raises(ZeroDivisionError):
            _fail_in_a_block(producer, topic)
        with producer.transaction():
            producer.send(topic, b"kept, too", partition=0)
    assert committed(bootstrap, topic) == [b"kept", b"kept, too"]


def _fail_in_a_block(producer: Producer, topic: str) -> None:
    with producer.transaction():
        producer.send(topic, b"aborted", partition=0).result(20)
        raise ZeroDivisionError


def test_offsets_are_committed_with_the_records(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap), f"group-{next(_numbers)}"
    tp = TopicPartition(topic, 0)
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
    }
    with producing(bootstrap) as producer, Consumer(topic, config=settings) as consumer:
        with producer.transaction():
            producer.send(topic, b"1", partition=0)
        eventually("the record", lambda: bool(consumer.poll(timeout=0.2)), 30)
        producer.begin_transaction()
        producer.send_offsets_to_transaction({tp: OffsetAndMetadata(1)}, consumer.group_metadata())
        producer.abort_transaction()
        assert consumer.committed([tp]) == {tp: None}
        with producer.transaction():
            producer.send_offsets_to_transaction({tp: 1}, consumer.group_metadata())
        assert consumer.committed([tp])[tp] == OffsetAndMetadata(1)
        stale = consumer.group_metadata()._replace(generation_id=0)
        producer.begin_transaction()
        with pytest.raises(TransactionAborted):
            producer.send_offsets_to_transaction({tp: 0}, stale)
        producer.abort_transaction()


def test_a_second_producer_fences_the_first_and_aborts_its_transaction(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with producing(bootstrap, "fenced") as first:
        first.begin_transaction()
        first.send(topic, b"of the first", partition=0).result(20)
        with producing(bootstrap, "fenced") as second, second.transaction():
            second.send(topic, b"of the second", partition=0)
        with pytest.raises(ProducerFenced):
            first.commit_transaction()
    assert committed(bootstrap, topic) == [b"of the second"]


def test_after_a_failed_record_the_epoch_is_raised_and_the_next_transaction_commits(
    bootstrap: str,
) -> None:
    topic = make_topic(bootstrap)
    with AdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topics({f"{topic}-small": {"configs": {"max.message.bytes": "500"}}})
        admin.wait_for_topics([f"{topic}-small"])
    with producing(bootstrap) as producer:
        producer.begin_transaction()
        producer.send(topic, b"aborted", partition=0)
        producer.send(f"{topic}-small", b"x" * 1000, partition=0)
        with pytest.raises(TransactionAborted):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"kept", partition=0)
    assert committed(bootstrap, topic) == [b"kept"]


def test_operators_see_transactions_and_fence_producers(bootstrap: str) -> None:
    topic, name = make_topic(bootstrap), f"tx-{next(_numbers)}"
    tp = TopicPartition(topic, 0)
    with producing(bootstrap, name) as producer, AdminClient(bootstrap_servers=bootstrap) as admin:
        producer.begin_transaction()
        producer.send(topic, b"v", partition=0).result(20)
        described = admin.describe_transactions([name])[name]
        assert (described.state, described.partitions) == ("Ongoing", (tp,))
        assert name in {
            each.transactional_id for each in admin.list_transactions(states=["Ongoing"])
        }
        (state,) = admin.describe_producers([tp])[tp]
        assert state.transaction_start_offset == 0
        assert admin.find_hanging_transactions([tp], older_than=0) == []
        fenced = admin.fence_producers([name])[name]
        assert fenced.epoch > described.producer_epoch
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()
    assert committed(bootstrap, topic) == []


def transactions_over_a_kill(bootstrap: str, kill: Callable[[int], object]) -> None:
    """Commit while *kill* ends the broker that coordinates, and once more after it."""
    topic, name = make_topic(bootstrap), "survivor"
    with producing(bootstrap, name, request_timeout_ms=5000, max_block_ms=90_000) as producer:
        with producer.transaction():
            producer.send(topic, b"before", partition=0)
        with AdminClient(bootstrap_servers=bootstrap) as admin:
            coordinator = admin.describe_transactions([name])[name].coordinator
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send(topic, b"across-%d" % partition, partition=partition).result(30)
        kill(coordinator)
        producer.commit_transaction()
        with producer.transaction():
            producer.send(topic, b"later", partition=1)
    left = bootstrap.split(",")[2 - coordinator]
    assert committed(left, topic) == [b"across-0", b"across-1", b"before", b"later"]


def test_transactions_go_on_when_the_coordinator_of_apache_kafka_is_killed(
    tmp_path: Path, zookeeper_server: Ensemble
) -> None:
    with two_brokers(tmp_path, zookeeper_server) as brokers:
        transactions_over_a_kill(addresses(brokers), lambda id: brokers[id - 1].process.kill())


def test_transactions_go_on_when_the_coordinator_is_killed(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(2, SETTINGS)
    transactions_over_a_kill(cluster.bootstrap, cluster.kill)
