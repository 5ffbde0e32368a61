"""Apache Kafka as the target of a mirror, in transactions: whatever is killed, a consumer finds each record once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.kit.apache_kafka import ApacheKafka, running_kafka, with_kafka
from tests.kit.brokers import MakeCluster
from tests.kit.mirrors import Mirror
from tests.kit.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.timeout(240),  # a JVM of a whole Kafka has to start
    with_kafka,
]

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]
RECORDS = 1600
SETTINGS = {
    "target.offsets": "renumber",
    "west.producer.linger.ms": "10",
    "west.producer.transaction.max.bytes": "5000",
    "east.consumer.max.partition.fetch.bytes": "3000",
}


@pytest.fixture
def apache(tmp_path: Path, zookeeper_connect: str) -> Iterator[ApacheKafka]:
    with running_kafka(tmp_path / "apache", f"{zookeeper_connect}/apache") as kafka:
        yield kafka


def ends(client: AdminClient, level: IsolationLevel) -> int:
    """The sum of the log ends, or of the last stable offsets."""
    found = client.list_offsets(dict.fromkeys(PLACES, OffsetSpec.latest()), isolation_level=level)
    return sum(future.result(10).offset for future in found.values())


def consumed(bootstrap: str, place: TopicPartition, isolation: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(place.topic, place.partition, 0)])
    values: list[bytes] = []
    while True:
        message = consumer.poll(20)
        assert message is not None, "the end of the partition is reached"
        if message.error():
            break
        values.append(message.value())
    consumer.close()
    return values


def test_kills_and_a_second_mirror_double_nothing_and_lose_nothing(
    apache: ApacheKafka, broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east = broker_clusters(1)
    there = AdminClient({"bootstrap.servers": apache.bootstrap, "log_level": 0})
    source = AdminClient({"bootstrap.servers": east.bootstrap, "log_level": 0})
    source.create_topics([NewTopic("t", 2, 1)])["t"].result(10)
    producer = Producer(
        {"bootstrap.servers": east.bootstrap, "batch.num.messages": 20, "log_level": 0}
    )
    for n in range(RECORDS):
        producer.produce("t", b"%d" % n, b"key", partition=n % 2)
        producer.poll(0)
    assert producer.flush(30) == 0

    first = Mirror(tmp_path / "first", east, apache, SETTINGS)  # type: ignore[arg-type]
    code, output = first.ask("plan")
    assert code == 0, output
    assert "exactly once for consumers with isolation.level=read_committed" in output
    at = 0
    for _ in range(3):
        first.start()

        def transaction_is_open(at: int = at) -> bool:
            if "t" not in there.list_topics(timeout=5).topics:
                return False
            appended = ends(there, IsolationLevel.READ_UNCOMMITTED)
            return appended > at and appended > ends(there, IsolationLevel.READ_COMMITTED)

        eventually("records of an open transaction", transaction_is_open, 60)
        first.kill()
        at = ends(there, IsolationLevel.READ_UNCOMMITTED)

    first.start()
    eventually(
        "the first mirror copies again",
        lambda: ends(there, IsolationLevel.READ_COMMITTED) > at,
        60,
    )
    second = Mirror(tmp_path / "second", east, apache, SETTINGS)  # type: ignore[arg-type]
    assert second.run_once(90) == 0, second.output
    producer.produce("t", b"last", b"key", partition=0)
    assert producer.flush(30) == 0
    assert first.wait(60) == 1, "the first mirror was fenced by the second one"
    assert "another kmirror copies this direction" in first.output
    assert second.run_once(60) == 0, second.output

    assert consumed(apache.bootstrap, PLACES[0], "read_committed") == [
        *(b"%d" % n for n in range(0, RECORDS, 2)),
        b"last",
    ]
    assert consumed(apache.bootstrap, PLACES[1], "read_committed") == [
        b"%d" % n for n in range(1, RECORDS, 2)
    ]
    code, output = second.ask("status", "--settle", "0.5")
    assert code == 0, output
    assert "exactly once for consumers with isolation.level=read_committed" in output

    another = Producer({"bootstrap.servers": apache.bootstrap, "log_level": 0})
    another.produce("t", b"of another producer", partition=0)
    assert another.flush(30) == 0
    assert second.run_once(60) == 5, second.output
    assert "STOPPED t-0: the target has records behind the position" in second.output
    assert "STOPPED t-1" not in second.output
