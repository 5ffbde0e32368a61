"""What the audit asks a cluster before it reads: topics, log ranges, settings, the span of time its records cover."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from kclient import AdminClient, Consumer, TopicPartition
from kclient.admin.configs import ConfigResource, ResourceType
from kclient.wire.errors import KafkaError
from spark_jobs.cut import LogRange
from spark_jobs.reconcile import Side

K = TypeVar("K")
V = TypeVar("V")


def _all_answered(answers: Mapping[K, V | KafkaError]) -> dict[K, V]:
    """Return *answers* after raising the first that is an error."""
    answered: dict[K, V] = {}
    for name, answer in answers.items():
        if isinstance(answer, KafkaError):
            raise answer
        answered[name] = answer
    return answered


class SideUnreadable(Exception):
    """A cluster could not be asked; the text names the side and the cause."""


def matching_topics(bootstrap: str, pattern: str) -> list[str]:
    """Return the topics of the cluster whose whole name matches *pattern*, internal ones left out."""
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        return [name for name in admin.list_topics() if re.fullmatch(pattern, name)]


def read_side(name: str, bootstrap: str, topics: Iterable[str]) -> Side:
    """Return the state of one side: log ranges of every partition of *topics* that it has, and topic settings.

    Topics it lacks are simply not in the ranges: on the target that is lag, not an error.
    """
    try:
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            cluster_id = admin.describe_cluster().cluster_id or ""
            present = set(admin.list_topics())
            wanted = [topic for topic in topics if topic in present]
            described = _all_answered(admin.describe_topics(wanted)) if wanted else {}
            places = [
                TopicPartition(topic, number)
                for topic, metadata in described.items()
                for number in metadata.partitions
            ]
            ends = (
                _all_answered(admin.list_offsets(dict.fromkeys(places, "latest"))) if places else {}
            )
            starts = (
                _all_answered(admin.list_offsets(dict.fromkeys(places, "earliest")))
                if places
                else {}
            )
            configs = _topic_configs(admin, wanted)
    except KafkaError as problem:
        raise SideUnreadable(f"{name} ({bootstrap}): {problem}") from problem
    ranges = {
        (tp.topic, tp.partition): LogRange(
            starts[tp].offset, max(starts[tp].offset, ends[tp].offset)
        )
        for tp in places
    }
    return Side(name, bootstrap, cluster_id, ranges, configs)


def _topic_configs(admin: AdminClient, topics: list[str]) -> dict[str, dict[str, str]]:
    """Return per topic its settings as they are in effect, whether set on it or inherited."""
    if not topics:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    return {
        resource.name: {
            entry.name: entry.value or "" for entry in entries.values() if not entry.sensitive
        }
        for resource, entries in _all_answered(admin.describe_configs(resources)).items()
    }


def time_span(side: Side) -> tuple[int, int]:
    """Return the first and last record timestamp in ms, as far as the ends of the logs tell; (0, 0) for empty logs.

    Only for the pictures: records outside are counted in the first or last bucket.
    """
    places = [
        TopicPartition(*place) for place, held in side.ranges.items() if held.end > held.start
    ]
    if not places:
        return 0, 0
    with AdminClient({"bootstrap.servers": side.bootstrap}) as admin:
        latest = _all_answered(admin.list_offsets(dict.fromkeys(places, "max_timestamp")))
    last = max(found.timestamp for found in latest.values())
    return min(last, _first_timestamp(side, places)), last


def _first_timestamp(side: Side, places: list[TopicPartition]) -> int:
    consumer = Consumer(
        config={"bootstrap.servers": side.bootstrap, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.assign(places)
        firsts: dict[TopicPartition, int] = {}
        for _ in range(50):
            for tp, batches in consumer.poll_batches(timeout_ms=200).items():
                firsts.setdefault(tp, batches[0][0].base_timestamp)
                consumer.pause(tp)
            if len(firsts) == len(places):
                break
        return min(firsts.values(), default=0)
    finally:
        consumer.close(timeout=2)
