"""A mirror of a transactional topic: read_committed consumers get the same; open transactions end with the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.mirrored_clusters import deliver, make_topic
from tests.kit.mirrors import Mirror, stored
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

ONE_BROKER = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
}


def transactional(cluster: Cluster, name: str) -> Producer:
    """Return a producer in its first transaction."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    return producer


def send(producer: Producer, *values: bytes) -> None:
    """Have the broker append each of *values* as a batch."""
    for value in values:
        producer.produce("orders", value)
        assert producer.flush(20) == 0


def committed(cluster: Cluster, count: int) -> list[bytes]:
    """Return what a read_committed consumer gets until it has *count* records."""
    consumer: Any = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "r",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    place = TopicPartition("orders", 0, OFFSET_BEGINNING)
    consumer.assign([place])
    found: list[bytes] = []

    def read() -> bool:
        found.extend(m.value() for m in consumer.consume(100, 0.1) if m.error() is None)
        return len(found) >= count

    eventually(f"{count} records", read)
    consumer.close()
    return found


def last_stable_offset(cluster: Cluster) -> int:
    consumer: Any = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "l",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    end: int = consumer.get_watermark_offsets(TopicPartition("orders", 0), 10)[1]
    consumer.close()
    return end


def test_read_committed_gets_the_same_and_open_transactions_end_with_the_source(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east, west = broker_clusters(1, ONE_BROKER), broker_clusters(1)
    make_topic(east, "orders")
    done = transactional(east, "done")
    send(done, b"1", b"2")
    done.commit_transaction(20)
    done.begin_transaction()
    send(done, b"aborted")
    done.abort_transaction(20)
    first, second = transactional(east, "first"), transactional(east, "second")
    send(first, b"of the first")
    send(second, b"of the second")
    send(first, b"more of the first")
    first.commit_transaction(20)
    mirror = Mirror(tmp_path / "mirror", east, west, None)
    assert mirror.run_once() == 0, mirror.output
    assert committed(east, 3) == [b"1", b"2", b"of the first"]

    # The copy ends at the source's last stable offset: behind the first record of `first`, before its marker.
    assert stored(west, "orders")[-1].next_offset == last_stable_offset(east) == 6
    assert committed(west, 2) == [b"1", b"2"]
    assert last_stable_offset(west) == 5
    east.kill(1)
    code, output = mirror.ask("promote", "--source-lost")
    assert code == 0, output
    assert deliver(west, "orders", b"after") is None
    assert committed(west, 3) == [b"1", b"2", b"after"]
    assert last_stable_offset(west) == stored(west, "orders")[-1].next_offset == 8
