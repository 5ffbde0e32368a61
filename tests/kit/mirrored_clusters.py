"""Two clusters of one broker each, east and west, and mirrors from east to west; librdkafka's admin client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.mirrors import Mirror

MakeMirror = Callable[..., Mirror]
"""Makes a mirror with the settings given, or with the default ones."""


@pytest.fixture
def east(broker_clusters: MakeCluster) -> Cluster:
    return broker_clusters(1)


@pytest.fixture
def west(broker_clusters: MakeCluster) -> Cluster:
    return broker_clusters(1)


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
