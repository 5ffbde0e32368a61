"""Two clusters of one broker each, east and west, and mirrors from east to west; librdkafka's admin client."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from kclient import Consumer
from kclient.types import TopicPartition as OurTopicPartition
from kclient.wire.batches import iterate
from kclient.wire.crc import crc32c
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.mirrors import Mirror
from tests.kit.waiting import eventually

MARK = "kbroker.mirror.source.cluster.id"
"""The setting of a target topic that names its source cluster."""

TOPIC_ID = "kbroker.mirror.source.topic.id"
"""The setting of a target topic that names the topic id at the source."""

OFFSETS_TOPIC = "__consumer_offsets"

MakeMirror = Callable[..., Mirror]
"""Makes a mirror with the settings given, or with the default ones."""


@pytest.fixture(scope="module")
def shared_clusters(module_clusters: MakeCluster) -> tuple[Cluster, Cluster]:
    """East and west for the tests of a file with the mark `shared_clusters`."""
    return module_clusters(1), module_clusters(1)


@pytest.fixture
def east(request: pytest.FixtureRequest) -> Cluster:
    return _cluster(request, 0)


@pytest.fixture
def west(request: pytest.FixtureRequest) -> Cluster:
    return _cluster(request, 1)


def _cluster(request: pytest.FixtureRequest, number: int) -> Cluster:
    """Return a cluster for one test: that of its file, empty again, if the test has the mark `shared_clusters`.

    The second attempt of a test gets a cluster of its own: the first one may have left anything.
    """
    is_first = getattr(request.node, "execution_count", 1) == 1
    if is_first and request.node.get_closest_marker("shared_clusters"):
        shared: tuple[Cluster, Cluster] = request.getfixturevalue("shared_clusters")
        make_empty(shared[number])
        return shared[number]
    made: Cluster = request.getfixturevalue("broker_clusters")(1)
    return made


def make_empty(cluster: Cluster) -> None:
    """Start the brokers that are down, and delete all topics and groups but for the partitions of their offsets."""
    if cluster.down:
        cluster.start(*cluster.down)
    client = admin(cluster)

    def is_empty() -> bool:
        listed = client.list_consumer_groups().result(10)
        groups = [each.group_id for each in listed.valid]
        topics = [name for name in topic_names(cluster) if name != OFFSETS_TOPIC]
        for deleted in (
            *(client.delete_topics(topics).values() if topics else ()),
            *(client.delete_consumer_groups(groups).values() if groups else ()),
        ):
            deleted.result(10)
        return not (groups or listed.errors or topics or _log_names(cluster))

    eventually("an empty cluster", is_empty)


def _log_names(cluster: Cluster) -> list[str]:
    """Return the directories of logs, but for those of `OFFSETS_TOPIC` and of deleted topics."""
    return [
        path.name
        for broker in cluster.brokers.values()
        for path in broker.data.glob("*-*")
        if re.fullmatch(r".+-\d+", path.name) and not path.name.startswith(OFFSETS_TOPIC)
    ]


@pytest.fixture
def mirror(tmp_path: Path, east: Cluster, west: Cluster) -> Iterator[MakeMirror]:
    with making_mirrors(tmp_path, east, west) as make:
        yield make


@contextmanager
def making_mirrors(
    home: Path, source: Cluster, target: Cluster, defaults: Mapping[str, str] | None = None
) -> Iterator[MakeMirror]:
    """Return a maker of mirrors with files below *home*. At the end all are killed, and none wrote a traceback."""
    made: list[Mirror] = []

    def make(settings: dict[str, str] | None = None) -> Mirror:
        chosen = dict(defaults or {}) if settings is None else settings
        made.append(Mirror(home / f"mirror-{len(made)}", source, target, chosen))
        return made[-1]

    yield make
    for each in made:
        each.kill()
        assert "Traceback" not in each.output, each.output


def admin(cluster: Cluster) -> AdminClient:
    """Return librdkafka's admin client."""
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def make_topic(cluster: Cluster, name: str, partitions: int = 1, **config: str) -> None:
    """Create a topic; *config* has the names of settings with underscores or dots."""
    topic = NewTopic(
        name, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()}
    )
    client = admin(cluster)
    client.create_topics([topic])[name].result(10)


def delete_records(cluster: Cluster, topic: str, before: int, partition: int = 0) -> None:
    """Delete the records below the offset *before*."""
    client, cut = admin(cluster), TopicPartition(topic, partition, before)
    client.delete_records([cut])[cut].result(10)


def topic_names(cluster: Cluster) -> set[str]:
    client = admin(cluster)
    return set(client.list_topics(timeout=10).topics)


def delete_topic(cluster: Cluster, topic: str) -> None:
    client = admin(cluster)  # it has to outlive its answer
    client.delete_topics([topic])[topic].result(10)


def recreate_topic(cluster: Cluster, topic: str, partitions: int = 1) -> None:
    """Delete a topic and create an empty one of the same name."""
    delete_topic(cluster, topic)
    eventually("the deletion", lambda: not (cluster[1].data / f"{topic}-0").exists())
    make_topic(cluster, topic, partitions)


def replace_in_log(
    cluster: Cluster, topic: str, old: bytes, new: bytes, *, has_right_crcs: bool = False
) -> None:
    """Damage partition 0 of a topic with one segment, while its one broker is down: *old* becomes *new*.

    With right CRCs the log holds other records; otherwise it holds batches that no reader accepts.
    """
    assert len(old) == len(new)
    cluster.terminate(1)
    (segment,) = (cluster[1].data / f"{topic}-0").glob("*.log")
    whole = segment.read_bytes()
    assert old in whole
    changed = bytearray(whole.replace(old, new))
    for info in iterate(bytes(changed)) if has_right_crcs else ():
        crc = crc32c(changed[info.position + 21 : info.end])
        changed[info.position + 17 : info.position + 21] = crc.to_bytes(4, "big")
    segment.write_bytes(changed)
    cluster.start(1)


def set_mark(cluster: Cluster, topic: str, value: str) -> None:
    """Set the topic's mark: the cluster id of the source, or "" to promote a mirror."""
    alter(cluster, topic, MARK, value)


def alter(cluster: Cluster, topic: str, name: str, value: str | None) -> None:
    """Set a setting of a topic; None deletes it."""
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value or "", incremental_operation=operation)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    client = admin(cluster)
    client.incremental_alter_configs([resource])[resource].result(10)


def setting_of(cluster: Cluster, topic: str, name: str) -> str | None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    client = admin(cluster)
    (found,) = client.describe_configs([resource]).values()
    entry = found.result(10).get(name)
    return None if entry is None or entry.is_default else entry.value


def mark_of(cluster: Cluster, topic: str) -> str | None:
    """Return the topic's mark, None if it is not set for the topic."""
    return setting_of(cluster, topic, MARK)


def deliver(
    cluster: Cluster, topic: str, *values: bytes, partition: int = 0, **settings: Any
) -> KafkaError | None:
    """Produce *values* with librdkafka; return the first error of a delivery."""
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0, **settings})
    for value in values:
        producer.produce(
            topic,
            value,
            partition=partition,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(20) == 0
    return errors[0] if errors else None


def delivery_error(cluster: Cluster, topic: str, **settings: Any) -> KafkaError | None:
    """Return why a producer of librdkafka could not deliver one record; None if it was delivered."""
    return deliver(cluster, topic, b"ours", **settings)


def values(cluster: Cluster, topic: str, partition: int) -> list[bytes]:
    """Return the values of all records of a partition, as a consumer reads them."""
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        tp = OurTopicPartition(topic, partition)
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        found: list[bytes] = []
        while len(found) < end:
            found += [
                record.value or b""
                for batch in consumer.poll(timeout=1).values()
                for record in batch
            ]
        return found


def record_of(output: str) -> dict[str, Any]:
    """Return the record that a command of kmirror printed between its messages."""
    found: dict[str, Any] = json.JSONDecoder().raw_decode(output[output.index("{\n") :])[0]
    return found


def write_to_mirror(cluster: Cluster, topic: str, count: int) -> None:
    """Write to a mirror topic with an ordinary producer: promoted before, marked again after."""
    mark = mark_of(cluster, topic)
    assert mark
    set_mark(cluster, topic, "")
    eventually("a promoted topic", lambda: delivery_error(cluster, topic) is None)
    if count > 1:
        produce(cluster, topic, count - 1)
    set_mark(cluster, topic, mark)


def produce(
    cluster: Cluster,
    topic: str,
    count: int,
    *,
    partitions: int = 1,
    size: int = 100,
    **settings: Any,
) -> None:
    """Produce records that differ from each other, some with headers, null keys and null values."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "linger.ms": 1, "log_level": 0, **settings}
    )
    for n in range(count):
        producer.produce(
            topic,
            key=None if n % 3 == 0 else b"key-%d" % n,
            value=None if n % 7 == 0 else (b"%d " % n) * (size // 4),
            headers=[("h", b"1"), ("h", None), ("trace", b"%d" % n)] if n % 2 else None,
            partition=n % partitions,
        )
        if n % 1000 == 999:
            producer.poll(0)
    assert producer.flush(30) == 0
