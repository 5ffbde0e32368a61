"""Where a watch begins in each partition, whether a checkpoint fits the clusters, and what is not watched. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kclient.types import TopicPartition
from spark_jobs.cut import LogRange
from spark_jobs.recreated_topics import RecreatedTopic, names_at_target
from spark_jobs.snapshot import WHOLE_TOPIC, ClusterSnapshot
from spark_jobs.watch_checkpoint import Start


def compacted_topics(source: ClusterSnapshot, target: ClusterSnapshot) -> list[str]:
    """Return the topics that one of the clusters compacts."""
    return sorted(
        {
            topic
            for cluster in (source, target)
            for topic, config in cluster.configs.items()
            if "compact" in config.get("cleanup.policy", "")
        }
    )


def begin_at(
    begin: str,
    topics: str,
    source: ClusterSnapshot,
    target: ClusterSnapshot,
    recreated: Sequence[RecreatedTopic] = (),
) -> Start:
    """Return the start of a new watch of all partitions that both clusters have.

    The topics of *recreated* and their earlier copies are left out: the target has them under other names.

    The first offset compared is that of the higher log start (earliest), or of the lower log end (latest) if it is
    above that. A log that ends below it is read from its own end on.
    """
    starts: dict[TopicPartition, int] = {}
    reads: tuple[dict[TopicPartition, int], dict[TopicPartition, int]] = ({}, {})
    elsewhere = names_at_target(recreated)
    for tp in sorted(source.ranges.keys() & target.ranges.keys()):
        if tp.topic in elsewhere:
            continue
        logs = source.ranges[tp], target.ranges[tp]
        start = max(each.start for each in logs)
        if begin == "latest":
            start = max(start, min(each.end for each in logs))
        starts[tp] = start
        for read, log in zip(reads, logs, strict=True):
            read[tp] = _inside(start, log)
    return Start(
        (source.cluster_id, target.cluster_id),
        (_ids(source, starts), _ids(target, starts)),
        topics,
        target.prefix,
        starts,
        reads,
    )


def _ids(cluster: ClusterSnapshot, starts: Mapping[TopicPartition, int]) -> dict[str, str]:
    return {tp.topic: cluster.topic_ids.get(tp.topic, "") for tp in starts}


def _inside(offset: int, log: LogRange) -> int:
    return min(max(offset, log.start), log.end)


def problem_with(
    start: Start, topics: str, source: ClusterSnapshot, target: ClusterSnapshot
) -> str | None:
    """Return why the watch that began at *start* cannot continue in these clusters; None if it can.

    A topic that a cluster does not describe is no reason: it is not known what became of it (`not_described`).
    """
    if (start.topics, start.prefix) != (topics, target.prefix):
        return (
            f"its watch has --topics {start.topics!r} and --target-prefix {start.prefix!r}, "
            f"not {topics!r} and {target.prefix!r}"
        )
    for cluster, known, ids in zip(
        (source, target), start.cluster_ids, start.topic_ids, strict=True
    ):
        if cluster.cluster_id != known:
            return f"{cluster.name} has cluster id {cluster.cluster_id}, its watch read {known}"
        for topic, topic_id in sorted(ids.items()):
            if TopicPartition(topic, WHOLE_TOPIC) in cluster.unreadable:
                continue
            now = cluster.topic_ids.get(topic, "")
            if now != topic_id:
                return f"topic {topic} of {cluster.name} was created again or deleted"
    return None


def not_described(start: Start, source: ClusterSnapshot, target: ClusterSnapshot) -> str | None:
    """Return a topic of the watch that a cluster does not describe now, with the cause; None if there is none.

    Nor does a cluster describe a topic if it refuses the settings: it could be compacted since the watch began.
    """
    for cluster, ids in zip((source, target), start.topic_ids, strict=True):
        for tp, cause in sorted(cluster.unreadable.items()):
            if tp.topic not in ids:
                continue
            if tp.partition == WHOLE_TOPIC or tp.topic not in cluster.configs:
                return f"{cluster.name} ({cluster.bootstrap}): topic {tp.topic}: {cause}"
    return None


def unwatched(
    start: Start,
    source: ClusterSnapshot,
    target: ClusterSnapshot,
    recreated: Sequence[RecreatedTopic] = (),
) -> list[str]:
    """Return the partitions in scope that are not watched, each with the reason."""
    found = []
    elsewhere = names_at_target(recreated)
    unreadable = source.unreadable.keys() | target.unreadable.keys()
    whole_topics = {tp.topic for tp in unreadable if tp.partition < 0}
    for tp in sorted({*source.ranges, *target.ranges} - start.starts.keys() - unreadable):
        if tp.topic in whole_topics:
            continue
        absent = [each.name for each in (source, target) if tp not in each.ranges]
        if tp.topic in elsewhere:
            reason = f"created again at the source: {elsewhere[tp.topic]} at the target"
        else:
            reason = f"not in {absent[0]}" if absent else "newer than the watch"
        found.append(f"{tp} ({reason})")
    for cluster in (source, target):
        found += [
            f"{tp.topic if tp.partition < 0 else tp} of {cluster.name}: {why}"
            for tp, why in sorted(cluster.unreadable.items())
        ]
    return found
