"""A target of three brokers: one is killed behind the fence of `kmirror promote`; new leaders have that of a mirror."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from kclient.wire import produce
from kclient.wire.error_codes import ErrorCode
from kclient.wire.framing import framed
from kclient.wire.produce import (
    CopiedTopics,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceTopic,
)
from kclient.wire.records import Record, encode_batch
from kclient.wire.uuids import encode_uuid
from tests.integration.test_mirror_promotion import Writer
from tests.kit.brokers import Broker, MakeCluster
from tests.kit.mirrored_clusters import (
    TOPIC_ID,
    admin,
    deliver,
    make_topic,
    making_mirrors,
    record_of,
    setting_of,
    values,
)
from tests.kit.mirrors import StoredBatch, stored
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 3
VERSION = 9
"""Of Produce: the first one with conditional appends."""
KILLED = 2


def leaders(client: AdminClient) -> dict[int, int]:
    """Return the leader of each partition."""
    (described,) = client.list_topics("orders", timeout=10).topics.values()
    return {number: each.leader for number, each in described.partitions.items()}


def in_sync(client: AdminClient) -> list[int]:
    """Return the number of in-sync replicas of each partition."""
    (described,) = client.list_topics("orders", timeout=10).topics.values()
    return [len(each.isrs) for each in described.partitions.values()]


def test_a_leader_that_is_killed_behind_the_fence_delays_the_promotion_and_loses_nothing(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east = broker_clusters(1)
    west = broker_clusters(3, {"offsets.topic.replication.factor": "3"})
    make_topic(east, "orders", PARTITIONS)
    client = admin(west)
    with making_mirrors(tmp_path, east, west) as make:
        one = make({"replication.factor": "3"})
        one.start()
        writers = [Writer(east, "orders", partition) for partition in range(PARTITIONS)]
        for n in range(PARTITIONS):
            eventually("records at the target", lambda n=n: len(stored(west, "orders", n)) > 3)  # type: ignore[misc]
        assert KILLED in leaders(client).values(), "the leaders are spread"

        process = subprocess.Popen(
            [sys.executable, "-m", "mirrormaker", "promote", str(one.path)],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        written = []
        assert process.stderr is not None
        assert process.stdout is not None
        with process, process.stderr, process.stdout:
            for line in process.stderr:
                written.append(line)
                if "is read-only" in line and KILLED not in west.down:
                    west.kill(KILLED)
            output = "".join(written) + process.stdout.read()
        assert process.returncode == 0, output
        assert KILLED in west.down, output
        record = record_of(output)
        assert record["rpo_records"] == 0
        for n, writer in enumerate(writers):
            writer.join()
            assert writer.refusal == "POLICY_VIOLATION"
            assert set(writer.acknowledged) <= set(values(west, "orders", n))

        # The broker that was down when the mark became empty leads again, and does not refuse producers.
        west.start(KILLED)
        eventually("all replicas in sync", lambda: in_sync(client) == [3] * PARTITIONS)
        tps = [TopicPartition("orders", n) for n in range(PARTITIONS)]
        client.elect_leaders(ElectionType.PREFERRED, tps).result(20)
        eventually("its leadership", lambda: KILLED in leaders(client).values())
        for n in range(PARTITIONS):
            assert deliver(west, "orders", b"after", partition=n) is None
            assert values(west, "orders", n)[-1] == b"after"
            refused = deliver(east, "orders", b"no", partition=n)
            assert refused is not None
            assert refused.name() == "POLICY_VIOLATION"


def answer_of(broker: Broker, request: ProduceRequest) -> ProducePartitionResponse:
    """Send *request* on a connection of its own; return the answer for its one partition."""
    frame = framed(b"".join(produce.encode_request(request, VERSION, 7, "raw")))
    with socket.create_connection(("127.0.0.1", broker.port), timeout=20) as line:
        line.sendall(frame)
        with line.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    _, response = produce.decode_response(memoryview(answer), VERSION)
    return response.topics[0].partitions[0]


def run_behind(last: StoredBatch, source_topic_id: str, value: bytes) -> ProduceRequest:
    """Return the append of a mirror that continues behind the batch *last* of `orders`."""
    at = last.next_offset
    record = Record(at, 1_700_000_000_000, None, value)
    (crc,) = struct.unpack_from(">I", last.rest, 1)
    partition = ProducePartition(
        0, encode_batch([record], base_offset=at), at, crc, CopiedTopics(source_topic_id)
    )
    return ProduceRequest(-1, 10_000, [ProduceTopic("orders", [partition])])


def test_each_new_leader_refuses_producers_and_the_runs_of_another_source_topic(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east, west = broker_clusters(1), broker_clusters(3)
    make_topic(east, "orders")
    assert deliver(east, "orders", b"1") is None
    with making_mirrors(tmp_path, east, west) as make:
        assert make({"replication.factor": "3"}).run_once() == 0
    client, topic_id = admin(west), setting_of(west, "orders", TOPIC_ID)
    assert topic_id
    other = encode_uuid(UUID(int=0xA))

    def check(value: bytes) -> None:
        """Check what the leader of the partition refuses, and that it accepts a run of the source topic."""
        leader = leaders(client)[0]
        refused = deliver(west, "orders", b"no")
        assert refused is not None
        assert refused.name() == "POLICY_VIOLATION"
        log = {each.base_offset: each for each in stored(west, "orders")}
        last = log[max(log)]
        wrong = answer_of(west[leader], run_behind(last, other, b"no"))
        assert wrong.error_code == ErrorCode.POLICY_VIOLATION
        assert other in (wrong.error_message or "")
        right = answer_of(west[leader], run_behind(last, topic_id, value))
        assert right.error_code == ErrorCode.NONE

    check(b"2")
    killed = leaders(client)[0]
    west.kill(killed)
    eventually("another leader", lambda: leaders(client)[0] not in (killed, -1))
    check(b"3")
    west.start(killed)
    eventually("all replicas in sync", lambda: in_sync(client) == [3])
    others = [each for each in (1, 2, 3) if each != killed]
    west.kill(*others)  # the broker that was down leads, without the others
    eventually("its leadership", lambda: leaders(admin(west))[0] == killed)
    check(b"4")
    west.start(*others)
    assert values(west, "orders", 0) == [b"1", b"2", b"3", b"4"]
