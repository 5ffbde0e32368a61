"""Reads the metadata of a cluster before its records: topics, log ranges, settings, and the time its records span."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeVar

from kclient import AdminClient, Consumer, TopicPartition
from kclient.admin.configs import ConfigEntry, ConfigResource, ConfigSource, ResourceType
from kclient.errors import KafkaTimeoutError
from kclient.mirror_evidence import Copied, is_evidence
from kclient.mirror_latency import is_latency, source_alias_of
from kclient.mirror_ledger import is_ledger, view, without_lineage
from kclient.wire.errors import KafkaError
from kclient.wire.uuids import encode_uuid
from spark_jobs.attribution import EvidenceRead
from spark_jobs.cut import LogRange
from spark_jobs.gap_ledger import LedgerRead
from spark_jobs.latency import LatencyRead, Scope
from spark_jobs.snapshot import WHOLE_TOPIC, ClusterSnapshot
from spark_jobs.target_names import name_at_target, name_in_audit

LEDGER_POLLS = 30
"""Polls of one second without progress after which a topic of a mirror counts as unreadable."""

CHECKPOINTS = ".checkpoints.internal"
"""The end of the names of topics with checkpoints, of kmirror and of MirrorMaker 2."""

K = TypeVar("K")
V = TypeVar("V")


def _all_answered(answers: Mapping[K, V | KafkaError]) -> dict[K, V]:
    """Return *answers*; raise the first that is an error."""
    answered: dict[K, V] = {}
    for name, answer in answers.items():
        if isinstance(answer, KafkaError):
            raise answer
        answered[name] = answer
    return answered


class ClusterUnreadable(Exception):
    """A cluster did not answer a metadata request; the text names the cluster and the cause."""


def matching_topics(
    name: str, bootstrap: str, pattern: re.Pattern[str], prefix: str = ""
) -> list[str]:
    """Return the audit's names of the topics of the cluster that match *pattern*.

    Here they have *prefix*, or that form (`spark_jobs.target_names`). Internal topics, and those that are not
    `is_audited`, are left out. Raise ClusterUnreadable when no broker answers.
    """
    try:
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            return [
                plain
                for topic in admin.list_topics()
                if (plain := name_in_audit(prefix, topic)) is not None
                and pattern.fullmatch(plain)
                and is_audited(topic)
            ]
    except KafkaError as problem:
        raise ClusterUnreadable(f"{name} ({bootstrap}): {problem}") from problem


def is_audited(topic: str) -> bool:
    """Return whether *topic* may be in an audit: a mirror's own topics are at one cluster only, and never copied."""
    return not (
        is_ledger(topic) or is_evidence(topic) or is_latency(topic) or topic.endswith(CHECKPOINTS)
    )


def _matches(topic: str, pattern: re.Pattern[str], prefix: str) -> bool:
    plain = name_in_audit(prefix, topic)
    return plain is not None and bool(pattern.fullmatch(plain))


def lineage_topics(
    name: str, bootstrap: str, pattern: re.Pattern[str], prefix: str = ""
) -> list[str]:
    """Return the topics ``lineage.<topic id>.<name>`` of names that match, as `matching_topics` does.

    Those that match by their whole name are left out: `matching_topics` returns them. Raise ClusterUnreadable.
    """
    try:
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            return [
                topic
                for topic in admin.list_topics()
                if (plain := without_lineage(topic)) != topic
                and _matches(plain, pattern, prefix)
                and not _matches(topic, pattern, prefix)
            ]
    except KafkaError as problem:
        raise ClusterUnreadable(f"{name} ({bootstrap}): {problem}") from problem


def read_cluster(
    name: str,
    bootstrap: str,
    topics: Iterable[str],
    prefix: str = "",
    *,
    read_committed: bool = False,
    stable: Literal["before", "after"] | None = None,
    renamed: Mapping[str, str] | None = None,
    configs: bool = True,
) -> ClusterSnapshot:
    """Return the log ranges of all partitions of *topics* in the cluster, and the topics' settings.

    In the cluster the topics' names have *prefix* (`spark_jobs.target_names`), or are those of *renamed*. A topic that
    the cluster lacks is missing from the ranges.
    Partitions with an error are `ClusterSnapshot.unreadable`, and so are all those of a topic of which the settings are
    refused: it could be compacted. Without *configs* no settings are read. *read_committed* is that of the snapshot.
    *stable*: whether last stable offsets are read before or after the log ends (`spark_jobs.cut`), or not at all.
    Raise ClusterUnreadable when no broker answers.
    """
    unreadable: dict[TopicPartition, str] = {}
    topic_ids: dict[str, str] = {}
    names = {(renamed or {}).get(topic, name_at_target(prefix, topic)): topic for topic in topics}
    try:
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            cluster_id = admin.describe_cluster().cluster_id or ""
            present = set(admin.list_topics())
            wanted = [topic for topic in names if topic in present]
            described = admin.describe_topics(wanted, raise_errors=False) if wanted else {}
            partitions = []
            for topic, metadata in described.items():
                if isinstance(metadata, KafkaError):
                    unreadable[TopicPartition(topic, WHOLE_TOPIC)] = str(metadata)
                else:
                    partitions += [TopicPartition(topic, number) for number in metadata.partitions]
                    if metadata.topic_id is not None:
                        topic_ids[names[topic]] = encode_uuid(metadata.topic_id)

            def ends_of(*, committed: bool) -> dict[TopicPartition, int]:
                return _offsets(admin, partitions, "latest", unreadable, read_committed=committed)

            early = ends_of(committed=True) if stable == "before" else {}
            ends = ends_of(committed=read_committed)
            stable_ends = ends_of(committed=True) if stable == "after" else early
            starts = _offsets(admin, partitions, "earliest", unreadable)
            entries, refused = _topic_configs(admin, wanted) if configs else ({}, {})
    except KafkaError as problem:
        raise ClusterUnreadable(f"{name} ({bootstrap}): {problem}") from problem

    unreadable = without_settings(partitions, refused) | unreadable

    def named(tp: TopicPartition) -> TopicPartition:
        return TopicPartition(names[tp.topic], tp.partition)

    return ClusterSnapshot(
        name,
        bootstrap,
        cluster_id,
        {
            named(tp): LogRange(starts[tp], max(starts[tp], ends[tp]), stable_ends.get(tp))
            for tp in partitions
            if tp not in unreadable
        },
        {
            names[topic]: {each.name: each.value or "" for each in of_topic}
            for topic, of_topic in entries.items()
        },
        {named(tp): cause for tp, cause in unreadable.items()},
        {
            names[topic]: frozenset(
                each.name for each in of_topic if each.source is ConfigSource.TOPIC
            )
            for topic, of_topic in entries.items()
        },
        prefix,
        topic_ids,
        read_committed,
        renamed or {},
    )


def read_ledgers(name: str, bootstrap: str) -> LedgerRead:
    """Return the entries of all gap ledgers of the cluster. A cluster that refuses them has none, and a problem."""
    topics: list[str] = []
    try:
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            topics = [topic for topic in admin.list_topics() if is_ledger(topic)]
        views = [view(_records(bootstrap, TopicPartition(topic, 0))) for topic in topics]
    except KafkaError as problem:
        return LedgerRead(tuple(topics), problem=f"{name} ({bootstrap}): {problem}")
    entries = [entry for each in views for entry in each.sorted()]
    return LedgerRead(tuple(topics), tuple(entries), sum(each.unreadable for each in views))


def read_evidence(name: str, bootstrap: str) -> EvidenceRead:
    """Return what mirrors have copied to the cluster. A cluster that refuses it has none, and a problem."""
    topics: list[str] = []
    copied = Copied()
    try:
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            topics = [topic for topic in admin.list_topics() if is_evidence(topic)]
        for topic in topics:
            copied.add(_records(bootstrap, TopicPartition(topic, 0)))
    except KafkaError as problem:
        return EvidenceRead(tuple(topics), problem=f"{name} ({bootstrap}): {problem}")
    return EvidenceRead(tuple(topics), copied)


def read_latencies(name: str, bootstrap: str, scope: Scope) -> LatencyRead:
    """Return the latencies in *scope* that mirrors measured at the cluster.

    A topic that cannot be read is `LatencyRead.failures`. All its partitions are read, although kmirror
    creates one. Raise ClusterUnreadable when no broker answers.
    """
    try:
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            topics = sorted(topic for topic in admin.list_topics() if is_latency(topic))
            described = admin.describe_topics(topics, raise_errors=False) if topics else {}
    except KafkaError as problem:
        raise ClusterUnreadable(f"{name} ({bootstrap}): {problem}") from problem
    read = LatencyRead(scope)
    for topic, metadata in described.items():
        alias = source_alias_of(topic)
        try:
            if isinstance(metadata, KafkaError):
                raise metadata
            for partition in sorted(metadata.partitions):
                read.add(alias, _records(bootstrap, TopicPartition(topic, partition)))
        except KafkaError as problem:
            read.failed(alias, str(problem))
    return read


def _records(bootstrap: str, tp: TopicPartition) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield keys and values of the whole partition, up to the log end of now. Raise KafkaError."""
    with reader(bootstrap) as consumer:
        end = consumer.end_offsets([tp])[tp]
        consumer.assign([tp], consumer.beginning_offsets([tp]))
        yield from records_until(consumer, tp, end)


def reader(bootstrap: str) -> Consumer[bytes, bytes]:
    """Return a consumer for `records_until`.

    The log start may pass its position. It then reads what is left, and not only what arrives from then on.
    """
    return Consumer(config={"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"})


def records_until(
    consumer: Consumer[bytes, bytes], tp: TopicPartition, end: int
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield keys and values from the position of *consumer* up to *end*. Raise KafkaError, also if nothing arrives."""
    before, silent_polls = -1, 0
    while (position := consumer.position(tp)) < end:
        silent_polls = silent_polls + 1 if position == before else 0
        if silent_polls > LEDGER_POLLS:
            raise KafkaTimeoutError(f"{tp}: nothing arrives at offset {position} of {end}")
        before = position
        for each in consumer.consume(1000, 1.0):
            yield each.key, each.value


def _offsets(
    admin: AdminClient,
    partitions: list[TopicPartition],
    which: Literal["latest", "earliest"],
    unreadable: dict[TopicPartition, str],
    *,
    read_committed: bool = False,
) -> dict[TopicPartition, int]:
    """Return the first or last offset of each partition; add those with an error to *unreadable*.

    Those that are there already are not asked for again: a partition without a leader takes the whole timeout.
    """
    offsets = {}
    asked = [tp for tp in partitions if tp not in unreadable]
    answers = (
        admin.list_offsets(
            dict.fromkeys(asked, which), read_committed=read_committed, raise_errors=False
        )
        if asked
        else {}
    )
    for tp, answer in answers.items():
        if isinstance(answer, KafkaError):
            unreadable[tp] = str(answer)
        else:
            offsets[tp] = answer.offset
    return offsets


def log_ends(
    cluster: ClusterSnapshot, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return where the logs of *partitions*, named as in the audit, end now; none if no broker answers."""
    names = {TopicPartition(cluster.topic_of(tp.topic), tp.partition): tp for tp in partitions}
    try:
        with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
            ends = _offsets(admin, list(names), "latest", {}, read_committed=cluster.read_committed)
    except KafkaError:
        return {}
    return {names[tp]: end for tp, end in ends.items()}


def without_settings(
    partitions: Iterable[TopicPartition], refused: Mapping[str, KafkaError]
) -> dict[TopicPartition, str]:
    """Return those of *partitions* that are unreadable, with the cause: their topic's settings are *refused*."""
    return {tp: f"its settings: {refused[tp.topic]}" for tp in partitions if tp.topic in refused}


def _topic_configs(
    admin: AdminClient, topics: list[str]
) -> tuple[dict[str, list[ConfigEntry]], dict[str, KafkaError]]:
    """Return the effective settings of each topic, set on it or inherited, without sensitive ones; and the errors."""
    found: dict[str, list[ConfigEntry]] = {}
    refused: dict[str, KafkaError] = {}
    if not topics:
        return found, refused
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    for resource, answer in admin.describe_configs(resources, raise_errors=False).items():
        if isinstance(answer, KafkaError):
            refused[resource.name] = answer
        else:
            found[resource.name] = [each for each in answer.values() if not each.sensitive]
    return found, refused


def time_span(cluster: ClusterSnapshot) -> tuple[int, int]:
    """Return the first and last record timestamp in ms since the epoch; (0, 0) if all logs are empty or not readable.

    The first is the lowest base timestamp of all first batches. Only the charts use the span: they count records
    outside it in the first or last bucket.
    """
    partitions = [tp for tp, held in cluster.ranges.items() if held.end > held.start]
    if not partitions:
        return 0, 0
    try:
        with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
            latest = _all_answered(admin.list_offsets(dict.fromkeys(partitions, "max_timestamp")))
        last = max(found.timestamp for found in latest.values())
        return min(last, _first_timestamp(cluster, partitions)), last
    except KafkaError:
        return 0, 0


def _first_timestamp(cluster: ClusterSnapshot, partitions: list[TopicPartition]) -> int:
    consumer = Consumer(
        config={"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.assign(partitions)
        firsts: dict[TopicPartition, int] = {}
        for _ in range(50):
            for tp, batches in consumer.poll_batches(timeout_ms=200).items():
                firsts.setdefault(tp, batches[0][0].base_timestamp)
                consumer.pause(tp)
            if len(firsts) == len(partitions):
                break
        return min(firsts.values(), default=0)
    finally:
        consumer.close(timeout=2)
