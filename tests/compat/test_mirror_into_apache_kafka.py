"""Apache Kafka as the target of a mirror, in transactions: whatever is killed, a consumer finds each record once."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from kclient import AdminClient as OurAdminClient
from kclient.types import TopicPartition as OurTopicPartition
from kclient.wire.record_reader import decode_columns
from spark_jobs.cluster import read_cluster
from spark_jobs.cut import OffsetRange
from spark_jobs.reader import Connection, Fetched, fetch_ranges
from tests.kit.apache_kafka import ApacheKafka, running_kafka, with_kafka
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.kaudit import reconciled
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
GROUPS = {"sync.group.offsets.enabled": "true", "emit.checkpoints.enabled": "true"}
COMMITTED = {0: 300, 1: RECORDS // 2}
"""The offsets that the group has committed at the source, by partition."""


@pytest.fixture
def apache(tmp_path: Path, zookeeper_connect: str) -> Iterator[ApacheKafka]:
    with running_kafka(tmp_path / "apache", f"{zookeeper_connect}/apache") as kafka:
        yield kafka


def ends(client: AdminClient, level: IsolationLevel) -> int:
    """The sum of the log ends, or of the last stable offsets."""
    found = client.list_offsets(dict.fromkeys(PLACES, OffsetSpec.latest()), isolation_level=level)
    return sum(future.result(10).offset for future in found.values())


def consumed(bootstrap: str, place: TopicPartition, isolation: str, offset: int = 0) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(place.topic, place.partition, offset)])
    values: list[bytes] = []
    while True:
        message = consumer.poll(20)
        assert message is not None, "the end of the partition is reached"
        if message.error():
            break
        values.append(message.value())
    consumer.close()
    return values


def the_group_continues_at_its_records(apache: ApacheKafka, mirror: Mirror) -> None:
    """Check that no record is left out, and that no more are consumed again than `kmirror translate` states."""
    with OurAdminClient({"bootstrap.servers": apache.bootstrap}) as client:
        found = client.list_group_offsets("billing")
    expected = [(COMMITTED[n], found[OurTopicPartition("t", n)].offset) for n in COMMITTED]

    def translated() -> dict[int, dict[str, int]]:
        """Return the rows when the coordinator has applied the last transaction to the position."""
        code, output = mirror.ask("translate", "--format", "json")
        assert code == 0, output
        rows = {row["partition"]: row for row in map(json.loads, output.splitlines())}
        pairs = [(rows[n]["source_offset"], rows[n]["target_offset"]) for n in COMMITTED]
        return rows if pairs == expected else {}

    rows = eventually("the offsets of the group", translated, 30)
    for n, committed in COMMITTED.items():
        row, at = rows[n], rows[n]["target_offset"]
        left = [
            int(value) // 2 for value in consumed(apache.bootstrap, PLACES[n], "read_committed", at)
        ]
        begin = RECORDS // 2 - len(left)
        assert left == list(range(begin, RECORDS // 2))
        assert committed - row["consumed_again"] <= begin <= committed
    assert rows[1]["consumed_again"] == 0, "it has consumed everything"
    topic = TopicPartition("east.checkpoints.internal", 0)
    checkpoints = consumed(apache.bootstrap, topic, "read_committed")
    assert {struct.unpack_from(">hqq", value)[1:] for value in checkpoints} == {
        (row["source_offset"], row["target_offset"]) for row in rows.values()
    }


def kaudit_reads_what_a_consumer_sees(apache: ApacheKafka) -> None:
    """Check the reader of `kaudit --renumbered`: no record of the transactions that the kills aborted."""
    snapshot = read_cluster("west", apache.bootstrap, ["t"], read_committed=True)
    for place in PLACES:
        held = snapshot.ranges[OurTopicPartition("t", place.partition)]
        middle = (held.start + held.end) // 2
        ranges = [
            OffsetRange("t", place.partition, held.start, middle),
            OffsetRange("t", place.partition, middle, held.end),
        ]
        connection = Connection(apache.bootstrap, (("isolation.level", "read_committed"),))
        values = []
        for each in fetch_ranges(connection, ranges):
            assert isinstance(each, Fetched), each
            if not each.info.is_control:
                columns = decode_columns(each.data, each.info)
                values += [
                    value
                    for offset, value in zip(columns.offsets, columns.values, strict=True)
                    if each.low <= offset < each.high
                ]
        assert values == consumed(apache.bootstrap, place, "read_committed")


def kaudit_proves_the_mirror(east: Cluster, apache: ApacheKafka, out: Path) -> None:
    """Check the verdict of the command: the aborted records at the target are no difference."""
    code, report = reconciled(east, apache, "t", out, "--renumbered", "--complete")
    assert (code, report["verdict"]) == (0, "CONSISTENT")
    assert report["totals"]["verified"] == RECORDS + 1


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

    def copied_all() -> bool:
        return (
            sum(len(consumed(apache.bootstrap, tp, "read_committed")) for tp in PLACES) == RECORDS
        )

    # Then it has no request on the way: one that fails while it is fenced makes it fence the second one in turn.
    eventually("the first mirror has copied all", copied_all, 60)
    with OurAdminClient({"bootstrap.servers": east.bootstrap}) as client:
        client.alter_group_offsets(
            "billing", {OurTopicPartition("t", n): offset for n, offset in COMMITTED.items()}
        )
    second = Mirror(tmp_path / "second", east, apache, SETTINGS | GROUPS)  # type: ignore[arg-type]
    assert second.run_once(90) == 0, second.output
    the_group_continues_at_its_records(apache, second)
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
    kaudit_reads_what_a_consumer_sees(apache)
    kaudit_proves_the_mirror(east, apache, tmp_path / "audit")
    code, output = second.ask("status", "--settle", "0.5")
    assert code == 0, output
    assert "exactly once for consumers with isolation.level=read_committed" in output

    another = Producer({"bootstrap.servers": apache.bootstrap, "log_level": 0})
    another.produce("t", b"of another producer", partition=0)
    assert another.flush(30) == 0
    assert second.run_once(60) == 5, second.output
    assert "STOPPED t-0: the target has records behind the position" in second.output
    assert "STOPPED t-1" not in second.output
