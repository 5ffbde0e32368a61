"""Topics that were created again at the source: which topic of the target has which records. Pure.

Theory of operation
===================
With ``gap.policy=new-lineage`` kmirror copies the later source topic to ``lineage.<topic id>.<name>``. The topic with
the plain name keeps the records of the earlier one (docs/design/mirror.md, "Gap policies"). The audit names topics as
the source does, and compares the present topic id. Earlier copies get the name that kmirror would give them:

    source, topic id B     orders
    target                 lineage.B.orders    orders, of topic id A
    name in the audit      orders              lineage.A.orders

The source has deleted what is in an earlier copy, so its offsets have aged out: they are in scope, and not compared.
Its log has to reach the offset that the ledger has as the end of the copy.

What decides is kmirror's own rule, `mirrormaker.lineage.copy_for`, and the ledger. Without an entry `LINEAGE` for the
present topic id, no topic takes the place of another one. A false entry cannot make a verdict CONSISTENT, because the
topic with the plain name is then an earlier copy.

In: entries of the ledger, both clusters at the cut   Out: both clusters with the audit's names   Owner: the caller
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kclient.mirror_ledger import LINEAGE, GapEntry, lineage_topic
from kclient.types import TopicPartition
from kclient.wire.produce import MIRROR_SOURCE_TOPIC_CONFIG
from spark_jobs.cut import LogRange
from spark_jobs.snapshot import ClusterSnapshot

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EarlierCopy:
    """A topic of the target with records of a topic that the source has deleted."""

    name: str
    """In the audit."""
    topic: str
    """At the target."""
    topic_id: str
    """At the source, of the deleted topic."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """Where the copy ended, by partition, if the ledger has it."""


@dataclass(frozen=True, slots=True)
class RecreatedTopic:
    """A source topic that was created again, and its copies at the target."""

    topic: str
    """In the audit, and at the source."""
    topic_id: str
    """At the source, now."""
    copy: str
    """The target's topic for the records of `topic_id`; it may not exist yet."""
    earlier: tuple[EarlierCopy, ...] = ()


def recreated_topics(
    entries: Sequence[GapEntry], source: ClusterSnapshot, target: ClusterSnapshot
) -> tuple[RecreatedTopic, ...]:
    """Return the topics of *source* that are copied to another topic of *target* than that of their name.

    *target* still has the names of the cluster.
    """
    changes: dict[str, list[GapEntry]] = defaultdict(list)
    for entry in entries:
        here = source.cluster_id and entry.source_cluster_id == source.cluster_id
        name = target.name_of(entry.topic)
        if here and entry.type == LINEAGE and name is not None and source.topic_ids.get(name):
            changes[name].append(entry)
    present = {tp.topic for tp in (*target.ranges, *target.unreadable)}
    found = [
        _recreated(name, of_topic, source, target, present) for name, of_topic in changes.items()
    ]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.topic))


def _recreated(
    name: str,
    changes: Sequence[GapEntry],
    source: ClusterSnapshot,
    target: ClusterSnapshot,
    present: Collection[str],
) -> RecreatedTopic | None:
    now, plain = source.topic_ids[name], target.topic_of(name)
    stated = target.configs.get(name, {}).get(MIRROR_SOURCE_TOPIC_CONFIG, "")
    copy = lineage_topic(plain, now)
    if stated == now or now not in {entry.source_topic_id_after for entry in changes}:
        return None
    if name not in present and copy not in present:
        return None
    copies: dict[str, str] = {}
    """The topic id by topic of the target."""
    ends: dict[int, int] = {}
    for entry in changes:
        if entry.target_topic_id in ("", target.topic_ids.get(name)):
            ends[entry.partition] = max(entry.first, ends.get(entry.partition, 0))
        if name in present:
            copies[plain] = stated or entry.source_topic_id_before
        later = lineage_topic(plain, entry.source_topic_id_after)
        if later in present and later != copy:
            copies[later] = entry.source_topic_id_after
    return RecreatedTopic(
        name,
        now,
        copy,
        tuple(
            EarlierCopy(
                lineage_topic(name, topic_id), topic, topic_id, ends if topic == plain else {}
            )
            for topic, topic_id in sorted(copies.items())
        ),
    )


def names_at_target(found: Sequence[RecreatedTopic]) -> dict[str, str]:
    """Return the target's topic by the audit's name, for all copies of *found*."""
    names = {each.topic: each.copy for each in found}
    return names | {old.name: old.topic for each in found for old in each.earlier}


def named_by_source(
    found: Sequence[RecreatedTopic], target: ClusterSnapshot, candidates: Collection[str] = ()
) -> ClusterSnapshot:
    """Return *target* with the audit's names, and without those *candidates* that are no copy of *found*."""
    renamed_to = names_at_target(found)
    names = {topic: name for name, topic in renamed_to.items()}

    def renamed(held: Mapping[str, T]) -> dict[str, T]:
        return {
            name: value
            for name, value in ((naming(topic), value) for topic, value in held.items())
            if name is not None
        }

    def partitions(held: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
        return {
            TopicPartition(name, tp.partition): value
            for name, tp, value in ((naming(tp.topic), tp, value) for tp, value in held.items())
            if name is not None
        }

    def naming(topic: str) -> str | None:
        at_target = target.topic_of(topic)
        return names.get(at_target, None if at_target in candidates else topic)

    return replace(
        target,
        ranges=partitions(target.ranges),
        unreadable=partitions(target.unreadable),
        configs=renamed(target.configs),
        overrides=renamed(target.overrides),
        topic_ids=renamed(target.topic_ids),
        renamed=renamed_to,
    )


def with_deleted(
    found: Sequence[RecreatedTopic], source: ClusterSnapshot, target: ClusterSnapshot
) -> ClusterSnapshot:
    """Return *source* with empty logs for the earlier copies of *target*: it has deleted all that was in them."""
    ranges, topic_ids = dict(source.ranges), dict(source.topic_ids)
    for each in found:
        for old in each.earlier:
            topic_ids[old.name] = old.topic_id
            for tp, log in target.ranges.items():
                if tp.topic == old.name:
                    end = max(log.end, old.ends.get(tp.partition, 0))
                    ranges[tp] = LogRange(end, end)
    return replace(source, ranges=ranges, topic_ids=topic_ids)
