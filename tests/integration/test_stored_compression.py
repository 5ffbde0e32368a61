"""compression.type of a topic: what producers of other codecs send is stored with the topic's, and reads the same."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kclient.wire.batches import iterate
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.replicated import Observer

CODEC = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(2)


@pytest.fixture
def topic() -> str:
    return f"t{time.monotonic_ns()}"


def produce(cluster: Cluster, topic: str, codec: str, values: list[bytes]) -> None:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": 5,
        }
    )
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def consume(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), 20)
        assert messages, f"{len(found)} of {count} records"
        found += [message.value() for message in messages]
    consumer.close()
    return found


def stored_codecs(cluster: Cluster, broker_id: int, topic: str) -> list[int]:
    """Return the codec of each batch in the log of a broker."""
    data = b"".join(
        path.read_bytes() for path in sorted((cluster[broker_id].data / f"{topic}-0").glob("*.log"))
    )
    return [info.codec for info in iterate(data)]


@pytest.mark.parametrize("sent", ["none", "lz4"])
def test_batches_are_stored_with_the_codec_of_the_topic_and_followers_copy_them(
    cluster: Cluster, topic: str, sent: str
) -> None:
    observer = Observer(cluster)
    observer.create(
        topic,
        [[1, 2]],
        {"compression.type": "gzip", "compression.gzip.level": "9", "preallocate": "true"},
    )
    values = [b"value %d" % (n * n) for n in range(3000)]
    produce(cluster, topic, sent, values[:2000])
    assert set(stored_codecs(cluster, 1, topic)) == {CODEC["gzip"]}
    observer.configure(topic, {"compression.type": "zstd", "compression.zstd.level": "1"})
    produce(cluster, topic, sent, values[2000:])
    assert consume(cluster, topic, len(values)) == values
    codecs = stored_codecs(cluster, 1, topic)
    assert codecs == stored_codecs(cluster, 2, topic)
    assert codecs[-1] == CODEC["zstd"]
    assert codecs == sorted(codecs)
