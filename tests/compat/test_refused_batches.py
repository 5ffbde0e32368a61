"""The same hand-made batches to Apache Kafka and to our broker: the same errors, but for the differences listed.

docs/design/record-validation.md has the differences and their reasons.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kclient.wire import batches
from kclient.wire.error_codes import ErrorCode as E
from kclient.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceTopic,
    decode_response,
    encode_request,
)
from kclient.wire.records import Record, encode_batch
from tests.kit.apache_kafka import running_kafka, with_kafka
from tests.kit.brokers import MakeCluster
from tests.kit.record_batches import rebuilt, some_records

pytestmark = [pytest.mark.compat, pytest.mark.slow, pytest.mark.timeout(200), with_kafka]

ONE = b"\x0c\0\0\0\1\1\0"
"""A record of timestamp and offset delta 0 without key and value."""

KEYED = encode_batch(some_records(3))
COMPRESSED = encode_batch(some_records(3), codec=4)
KEYLESS = encode_batch([Record(n, 1000, None if n else b"k", b"v", ()) for n in range(3)])
LATE = encode_batch([Record(n, (0, 1 << 42)[n], b"k", b"v", ()) for n in range(2)])
TRANSACTIONAL = encode_batch(
    some_records(1),
    producer_id=5,
    producer_epoch=0,
    base_sequence=0,
    attributes=batches.TRANSACTIONAL,
)


def of(records: bytes, count: int = 1, codec: int = 0) -> bytes:
    return batches.build(
        records,
        record_count=count,
        last_offset_delta=count - 1,
        base_timestamp=1000,
        max_timestamp=1000,
        attributes=codec,
    )


CASES: list[tuple[str, bytes, str, E, E]] = [
    # what, batch, topic, theirs, ours
    ("keyed", KEYED, "compacted", E.NONE, E.NONE),
    ("compressed", COMPRESSED, "compacted", E.NONE, E.NONE),
    ("null keys", KEYLESS, "compacted", E.INVALID_RECORD, E.INVALID_RECORD),
    ("null keys elsewhere", KEYLESS, "plain", E.NONE, E.NONE),
    ("old timestamp", LATE, "bounded", E.INVALID_TIMESTAMP, E.INVALID_TIMESTAMP),
    ("old timestamp elsewhere", LATE, "plain", E.NONE, E.NONE),
    ("wrong max timestamp", rebuilt(KEYED, max_timestamp=7), "plain", E.NONE, E.NONE),
    ("base offset", rebuilt(KEYED, base_offset=5), "plain", E.INVALID_RECORD, E.INVALID_RECORD),
    ("truncated", of(b"\x7e" + ONE[1:]), "plain", E.INVALID_RECORD, E.INVALID_RECORD),
    ("trailing bytes", of(ONE + b"\0"), "plain", E.INVALID_RECORD, E.INVALID_RECORD),
    ("fewer than the count", of(ONE, 2), "plain", E.INVALID_RECORD, E.INVALID_RECORD),
    ("two batches", KEYED + KEYED, "plain", E.INVALID_RECORD, E.INVALID_RECORD),
    ("control", rebuilt(KEYED, attributes=32), "plain", E.INVALID_RECORD, E.INVALID_RECORD),
    ("no zstd", of(ONE * 9, 9, 4), "plain", E.UNKNOWN_SERVER_ERROR, E.INVALID_RECORD),
    ("offset deltas", of(ONE + ONE, 2), "plain", E.NONE, E.INVALID_RECORD),
    ("attributes", of(b"\x0c\xff" + ONE[2:]), "plain", E.NONE, E.INVALID_RECORD),
]


def produced(
    address: str, topic: str, batch: bytes, transactional_id: str | None = None
) -> ProducePartitionResponse:
    asked = ProduceRequest(
        1, 5000, [ProduceTopic(topic, [ProducePartition(0, batch)])], transactional_id
    )
    frame = b"".join(encode_request(asked, 9, 7, "by hand"))
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(len(frame).to_bytes(4, "big") + frame)
        with line.makefile("rb") as file:
            answer = file.read(int.from_bytes(file.read(4), "big"))
    return decode_response(memoryview(answer), 9)[1].topics[0].partitions[0]


def test_kafka_and_we_refuse_the_same_batches(
    tmp_path: Path, zookeeper_connect: str, broker_clusters: MakeCluster
) -> None:
    ours = broker_clusters(1).bootstrap
    with running_kafka(tmp_path / "apache", f"{zookeeper_connect}/apache") as apache:
        theirs = apache.bootstrap
        topics = {
            "plain": {},
            "compacted": {"cleanup.policy": "compact"},
            "bounded": {"message.timestamp.difference.max.ms": "86400000"},
        }
        for address in (theirs, ours):
            admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
            made = [NewTopic(name, 1, 1, config=config) for name, config in topics.items()]
            for each in admin.create_topics(made).values():
                each.result(30)
        found = {}
        for what, batch, topic, *_ in CASES:
            answers = [produced(address, topic, batch) for address in (theirs, ours)]
            indexes = [[error.batch_index for error in each.record_errors] for each in answers]
            assert indexes[0] == indexes[1], what
            found[what] = tuple(E(each.error_code).name for each in answers)
        assert found == {what: (a.name, b.name) for what, _, _, a, b in CASES}
        # Without a transaction coordinator both have NOT_ENOUGH_REPLICAS, which is retriable.
        for address in (theirs, ours):
            settings = {"bootstrap.servers": address, "transactional.id": "begun", "log_level": 0}
            Producer(settings).init_transactions(60)
        for transactional_id in (None, "never-begun"):
            codes = {
                E(produced(address, "plain", TRANSACTIONAL, transactional_id).error_code).name
                for address in (theirs, ours)
            }
            assert len(codes) == 1, codes
