"""The plan: which topics to mirror under which names, and what to create and change at the target. Pure.

Theory of operation
===================
Every refresh compares the topics of both clusters. A topic that matches ``topics`` and not ``topics.exclude`` is
mirrored. If the target lacks it, it is created with the same partition count and configs; if the target has fewer
partitions, they are added. Partition numbers and offsets are the same on both sides, so a target topic with *more*
partitions is a conflict. It is reported and not changed.

Copied configs are those set on the source topic, except ``config.properties.exclude``, which belong to a cluster and
not to the data. The mirror sets two itself. ``message.timestamp.type=CreateTime``, because with LogAppendTime the
target would replace the records' timestamps. And ``max.message.bytes``, raised to the source's effective value where
the target's is lower, because batches are copied whole.

The target's brokers accept the mirror's appends only for topics with the mark ``kbroker.mirror.source.cluster.id``.
The mirror creates topics with the mark, and with the topic id of the source (`mirrormaker.lineage`). It marks a topic
that an operator created after every partition has passed the prefix check (`mirrormaker.marks`). A topic with an empty
mark or that of another source is a conflict.

A topic is skipped if its records come from the target. Otherwise two mirrors would mark the same topic in both
clusters, and a ring of clusters would copy for ever. A mirror of a mirror states the clusters before its source.

In: topics of both clusters   Out: a `Plan`   Owner: the flow
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from kclient.mirror_evidence import is_evidence
from kclient.mirror_latency import is_latency
from kclient.mirror_ledger import is_ledger, lineage_topic, without_lineage
from kclient.wire.produce import MIRROR_SOURCE_CONFIG
from mirrormaker.lineage import SOURCE_TOPIC_ID, Lineage, copy_for, text_of
from mirrormaker.link_state import GapPolicy
from mirrormaker.mm2_records import checkpoints_topic, is_heartbeats
from mirrormaker.patterns import compiled
from mirrormaker.replication_policy import (
    DefaultReplicationPolicy,
    ReplicationPolicy,
    load_policy,
    sources,
)
from mirrormaker.settings import LinkSettings

MARK = MIRROR_SOURCE_CONFIG
PATH = "kbroker.mirror.source.path"
"""Topic setting of a mirror of a mirror: ids of the clusters before the source, the origin first, with commas."""
MARKS = (MARK, SOURCE_TOPIC_ID, PATH)
"""The settings of a mirror topic that state its source."""
PROMOTION = "kbroker.mirror.promotion"
"""Topic setting of a promoted topic: what its promotion found (`mirrormaker.promotion_record.Opened`)."""
_COMPARED = "compared"
"""Field of `PROMOTION` at a topic that came back: when the promotion began with which it was compared."""
SOURCE_LOST = "source lost"
"""The mode of a promotion without the source, in `PROMOTION`."""
OWN = (*MARKS, PROMOTION)
"""The settings that kmirror writes for itself, and never copies."""
CREATE_TIME = {"message.timestamp.type": "CreateTime"}
NEEDED = frozenset({*MARKS, *CREATE_TIME, "max.message.bytes"})
"""Configs without which the target could not keep the records unchanged."""
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default. If a source broker has another default, the mirror sets it on the target's topics."""

_INTERNAL = re.compile(r"__.*")


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of one cluster.

    *overrides* are the configs set on the topic; *effective* holds the values of `EFFECTIVE`, set or inherited.
    """

    partitions: int
    topic_id: UUID | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    effective: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = 0
    """The least number of replicas of a partition; 0 if unknown."""

    @property
    def upstream(self) -> tuple[str, ...]:
        """The ids of the clusters that its records came through, the origin first; empty unless it is a mirror."""
        source = self.overrides.get(MARK, "")
        if not source:
            return ()
        return (*(part for part in self.overrides.get(PATH, "").split(",") if part), source)

    @property
    def copied_topic_id(self) -> str:
        """The topic id at another cluster that it states its records were copied of; "" if it states none."""
        return self.overrides.get(SOURCE_TOPIC_ID, "")

    @property
    def compacted(self) -> bool:
        """Whether compaction may rewrite its batches without some of their records."""
        return "compact" in self.effective.get("cleanup.policy", "")

    def with_batches_of(self, size: int) -> Topic:
        """Return the topic as if it accepted batches of *size* bytes: it has one, from before its limit was lowered."""
        if size <= self.max_message_bytes:
            return self
        limit = {"max.message.bytes": str(size)}
        return replace(
            self, overrides={**self.overrides, **limit}, effective={**self.effective, **limit}
        )

    @property
    def max_message_bytes(self) -> int:
        """The largest batch in bytes that the topic accepts; 0 if unknown."""
        return int(self.effective.get("max.message.bytes", 0))


EFFECTIVE = ("cleanup.policy", "max.message.bytes")
"""The configs of which the plan needs the effective value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPair:
    """A topic of the source, and the one at the target that is named *copy*: None if there is none."""

    name: str
    source: Topic
    target: Topic | None
    copy: str
    source_id: str
    """The cluster id of the source."""
    target_id: str


@dataclass(frozen=True, slots=True)
class Creation:
    """A topic to create at the target."""

    name: str
    partitions: int
    configs: Mapping[str, str]

    @property
    def needed(self) -> dict[str, str]:
        """The configs in `NEEDED`."""
        return {name: value for name, value in self.configs.items() if name in NEEDED}

    @property
    def optional(self) -> dict[str, str]:
        """The other configs: the topic is copied without them if the target refuses them."""
        return {name: value for name, value in self.configs.items() if name not in NEEDED}


@dataclass(frozen=True, slots=True)
class NewLineage:
    """A source topic that was created again: *earlier* keeps the records of *before*, *copy* gets those of *after*."""

    source: str
    earlier: str
    copy: str
    before: str
    after: str
    partitions: int
    """The partitions of *earlier*."""
    is_begun: bool
    """Whether *copy* exists."""

    def __str__(self) -> str:
        return (
            f"has the records of topic id {self.before}, and gets no more; {self.source} was created again: topic id "
            f"{self.after} is copied to {self.copy}"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes to make at the target, and the topics to mirror after them.

    *mirrored* maps source topics to target topics; *conflicts* and *skipped* map source topics to the reason. A
    skipped topic needs no copy: its records come from the target, or reach it on another way.
    """

    mirrored: Mapping[str, str] = field(default_factory=dict)
    create: tuple[Creation, ...] = ()
    add_partitions: Mapping[str, int] = field(default_factory=dict)
    set_configs: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    conflicts: Mapping[str, str] = field(default_factory=dict)
    unmarked: frozenset[str] = frozenset()
    """Target topics without the mark of a mirror, or with another topic id."""
    lineages: Mapping[str, Lineage] = field(default_factory=dict)
    """The lineage of each target topic."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    drift: Mapping[str, str] = field(default_factory=dict)
    """Target topics that differ from the configuration in a way that kmirror does not change."""
    new_lineages: tuple[NewLineage, ...] = ()
    """Topics that are copied beside the copy of an earlier topic of the same name."""
    orphans: Mapping[str, str] = field(default_factory=dict)
    """With topic.deletion.policy=delete: mirrors of deleted source topics, with the topic id of those."""

    def without(self, waiting: Mapping[str, str]) -> Plan:
        """Return the plan without the source topics *waiting*, which are conflicts with these reasons."""
        if not waiting:
            return self
        copies = {self.mirrored[name] for name in waiting}
        return replace(
            self,
            mirrored={name: copy for name, copy in self.mirrored.items() if name not in waiting},
            create=tuple(each for each in self.create if each.name not in copies),
            conflicts={**self.conflicts, **waiting},
        )


class Selection:
    """Selects the topics of *source* to mirror and names them at the target."""

    def __init__(self, source: str, target: str, settings: LinkSettings) -> None:
        self._topics = compiled(settings.topics)
        self._exclude = compiled(settings.topics_exclude)
        self._excluded_configs = compiled(settings.excluded_configs)
        self._policy = load_policy(settings.replication_policy, settings.separator)
        self._heartbeats_policy = DefaultReplicationPolicy(separator=settings.separator)
        self._source = source
        self._target = target
        self._replicas = settings.replication_factor
        self._separator = settings.separator
        self._emits_heartbeats = settings.emit_heartbeats
        self._sync_configs = settings.sync_configs
        self._renumbers = settings.renumbers
        self._begins_lineages = settings.gap_policy == GapPolicy.NEW_LINEAGE.value

    def wants(self, topic: str) -> bool:
        """Return whether the source topic *topic* is to be mirrored."""
        if _INTERNAL.fullmatch(topic):
            return False
        if is_ledger(topic) or is_evidence(topic) or is_latency(topic):
            return False
        if self._is_checkpoints(topic):
            return False
        if self.is_heartbeats(topic):
            return True
        if self._exclude.fullmatch(topic):
            return False
        return self._topics.fullmatch(topic) is not None

    def target_name(self, topic: str) -> str:
        """Return the name of *topic* at the target."""
        return self._policy_of(topic).format_remote_topic(self._source, topic)

    def source_name(self, copy: str) -> str | None:
        """Return the source topic that is mirrored to *copy*; None if there can be none."""
        plain = without_lineage(copy)
        for policy in (self._policy, self._heartbeats_policy):
            name = policy.upstream_topic(plain)
            if name and self.target_name(name) == plain and self.wants(name):
                return name
        return None

    def named_after(self, copy: str) -> str | None:
        """Return the topic that the policy gives the name *copy* at the target; None if there can be none.

        A lineage is a topic of its own here. *copy* itself is returned if the policy finds no source in any name.
        """
        name = self._policy.upstream_topic(copy)
        if name and self.target_name(name) == copy:
            return name
        finds_none = self._policy.upstream_topic(self._policy.format_remote_topic("a", "t")) is None
        return copy if finds_none else None

    def _policy_of(self, topic: str) -> ReplicationPolicy:
        """Return the policy that names *topic*; heartbeats are always renamed, as by MirrorMaker 2."""
        return self._heartbeats_policy if self.is_heartbeats(topic) else self._policy

    def is_heartbeats(self, topic: str) -> bool:
        """Return whether *topic* has heartbeats, if they are emitted: they are mirrored with any other setting."""
        return self._emits_heartbeats and is_heartbeats(topic, self._separator)

    def _is_checkpoints(self, topic: str) -> bool:
        return topic.endswith(checkpoints_topic("", self._separator))

    def plan(
        self,
        source: Mapping[str, Topic],
        target: Mapping[str, Topic],
        source_id: str,
        target_id: str,
    ) -> Plan:
        """Compare both clusters; *source* and *target* may contain topics that are not selected.

        *source_id* and *target_id* are the cluster ids; that of the source is the value of the mark.
        """
        mirrored: dict[str, str] = {}
        create: list[Creation] = []
        add: dict[str, int] = {}
        configs: dict[str, dict[str, str | None]] = {}
        conflicts: dict[str, str] = {}
        skipped: dict[str, str] = {}
        unmarked: set[str] = set()
        lineages: dict[str, Lineage] = {}
        drift: dict[str, str] = {}
        names = sorted(filter(self.wants, source))
        copies = Counter(map(self.target_name, names))
        for name in names:
            wanted, plain = source[name], self.target_name(name)
            copy = self._copy_for(plain, wanted, target, source_id)
            existing = target.get(copy)
            conflict = existing and _conflict(wanted, copy, existing, source_id, target_id)
            if copies[plain] > 1:
                conflict = f"the replication policy gives {copies[plain]} source topics the name {plain} at the target"
            if conflict:
                conflicts[name] = conflict
                continue
            skip = self._skip(name, wanted, existing, source_id, target_id)
            if skip:
                skipped[name] = skip
                continue
            mirrored[name] = copy
            if existing is None:
                topic_id = text_of(wanted.topic_id)
                lineages[copy] = Lineage(topic_id, topic_id)
                settings = self.configs_for(wanted)
                if not self._renumbers:  # the other brokers do not know the marks
                    settings |= mark_of(source_id, topic_id, wanted.upstream)
                create.append(Creation(copy, wanted.partitions, settings))
                continue
            lineages[copy] = lineage_of(wanted, existing)
            upstream = (*wanted.upstream, source_id)
            is_marked = existing.upstream == upstream and lineages[copy].is_stated
            if not is_marked and not self._renumbers:
                unmarked.add(copy)
            if existing.replication_factor not in (0, self._replicas) and self._replicas > 0:
                drift[copy] = (
                    f"replication factor {existing.replication_factor} at the target, "
                    f"replication.factor={self._replicas} is for new topics: reassign it"
                )
            if existing.partitions < wanted.partitions:
                add[copy] = wanted.partitions
            changes = self._changes(wanted, existing)
            if changes:
                configs[copy] = changes
        new_lineages = self._new_lineages(mirrored, source, target)
        drift |= {each.earlier: str(each) for each in new_lineages}
        return Plan(
            mirrored,
            tuple(create),
            add,
            configs,
            conflicts,
            frozenset(unmarked),
            lineages,
            skipped,
            drift,
            new_lineages=new_lineages,
        )

    def _copy_for(
        self, plain: str, wanted: Topic, target: Mapping[str, Topic], source_id: str
    ) -> str:
        """Return the target topic for *wanted*; *plain* is its name by the replication policy."""
        now, existing = text_of(wanted.topic_id), target.get(plain)
        return copy_for(
            plain,
            now,
            None if existing is None else existing.copied_topic_id,
            has_later=lineage_topic(plain, now) in target,
            is_mirror=existing is not None and existing.overrides.get(MARK) == source_id,
            begins=self._begins_lineages,
        )

    def _new_lineages(
        self,
        mirrored: Mapping[str, str],
        source: Mapping[str, Topic],
        target: Mapping[str, Topic],
    ) -> tuple[NewLineage, ...]:
        """Return which topics are copied beside the copy of an earlier topic of their name."""
        found = []
        for name, copy in mirrored.items():
            earlier = self.target_name(name)
            if copy != earlier and earlier in target:
                before, after = target[earlier].copied_topic_id, text_of(source[name].topic_id)
                partitions = target[earlier].partitions
                found.append(
                    NewLineage(name, earlier, copy, before, after, partitions, copy in target)
                )
        return tuple(found)

    def target_names(self, topic: str, topic_id: UUID | None) -> set[str]:
        """Return the names that *topic* may have at the target: that of the policy, and that of a new lineage."""
        plain = self.target_name(topic)
        return {plain, lineage_topic(plain, text_of(topic_id))} if topic_id else {plain}

    def _skip(
        self, name: str, wanted: Topic, existing: Topic | None, source_id: str, target_id: str
    ) -> str:
        """Return why *wanted* needs no copy; "" if it does.

        A prefix anywhere in the name counts, as in MirrorMaker 2: clusters on the way may have other aliases here.
        """
        prefixed = self._target in sources(self._policy_of(name), name)
        if target_id in wanted.upstream or prefixed:
            return f"its records come from {self._target}"
        other = existing.upstream if existing is not None else ()
        if other and other[-1] != source_id:
            return f"the target has it from cluster {other[-1]}, with the same origin"
        return ""

    def configs_for(self, wanted: Topic) -> dict[str, str]:
        """Return the configs to set on the target topic."""
        kept = {
            name: value
            for name, value in wanted.overrides.items()
            if name not in OWN and not self._excluded_configs.fullmatch(name)
        }
        if wanted.max_message_bytes not in (0, DEFAULT_MAX_MESSAGE_BYTES):
            kept.setdefault("max.message.bytes", str(wanted.max_message_bytes))
        return {**kept, **CREATE_TIME}

    def _changes(self, wanted: Topic, existing: Topic) -> dict[str, str | None]:
        """Return the configs to set (None: to delete) on *existing*, so that it accepts and resembles *wanted*."""
        desired = self.configs_for(wanted)
        if existing.max_message_bytes < wanted.max_message_bytes:
            desired.setdefault("max.message.bytes", str(wanted.max_message_bytes))
        if not self._sync_configs:  # without these the target could not keep the records unchanged
            needed = {**CREATE_TIME}
            if existing.max_message_bytes < wanted.max_message_bytes:
                needed["max.message.bytes"] = str(wanted.max_message_bytes)
            desired = needed
        changes: dict[str, str | None] = {
            name: value for name, value in desired.items() if existing.overrides.get(name) != value
        }
        if self._sync_configs:
            changes.update(
                (name, None)
                for name in existing.overrides
                if name not in desired and not self._keeps(name, wanted, existing)
            )
        return changes

    def _keeps(self, name: str, wanted: Topic, existing: Topic) -> bool:
        """Return whether the target keeps a config that only the target has set."""
        if name in OWN:
            return True
        if name == "max.message.bytes":
            return existing.max_message_bytes >= wanted.max_message_bytes
        return self._excluded_configs.fullmatch(name) is not None


def mark_of(source_id: str, topic_id: str, upstream: tuple[str, ...]) -> dict[str, str]:
    """Return the settings that mark a mirror of *topic_id* ("": unknown) in the cluster *source_id*.

    *upstream* are the clusters before the source, if the source's topic is a mirror, too.
    """
    settings = {MARK: source_id, SOURCE_TOPIC_ID: topic_id, PATH: ",".join(upstream)}
    return {name: value for name, value in settings.items() if value}


def _conflict(
    wanted: Topic, copy: str, existing: Topic, source_id: str, target_id: str
) -> str | None:
    """Return why the target topic *existing* cannot be the mirror of *wanted*."""
    if target_id in wanted.upstream and source_id in existing.upstream:
        return f"{copy} is marked as a mirror at both clusters: continue with kmirror promote, or end it with --abort"
    if target_id in wanted.upstream:
        return None
    if (existing.compacted or wanted.compacted) and has_come_back(existing, wanted, target_id):
        return (
            f"{copy} was lost with its cluster, and may have records that the source never received; it is compacted, "
            "so batches do not show it. Delete it, if they are not needed: kmirror copies it again"
        )
    origins = (*wanted.upstream, source_id)[0], (*existing.upstream, source_id)[0]
    mark = existing.overrides.get(MARK, source_id)
    if mark != source_id and (not mark or origins[0] != origins[1]):
        return f"{copy} has {MARK}={mark}: it is not a mirror of {source_id}"
    if existing.partitions > wanted.partitions:
        return (
            f"{copy} has {existing.partitions} partitions at the target, "
            f"{wanted.partitions} at the source: it is not its mirror"
        )
    return None


def promotion_fields(topic: Topic) -> dict[str, Any]:
    """Return the fields of `PROMOTION`; none if the topic does not have it, or in another form."""
    try:
        found = json.loads(topic.overrides.get(PROMOTION, ""))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_promoted_without(promoted: Topic, cluster_id: str) -> bool:
    """Return whether *promoted* was a mirror of the cluster *cluster_id*, which was lost when it was promoted."""
    found = promotion_fields(promoted)
    was_lost = (found.get("mode"), found.get("source")) == (SOURCE_LOST, cluster_id)
    return was_lost and not promoted.overrides.get(MARK)


def has_come_back(topic: Topic, promoted: Topic, cluster_id: str) -> bool:
    """Return whether *promoted* was a mirror of *topic* when the cluster *cluster_id*, which has it, was lost.

    It may have records that *promoted* never received, unless it states that it was compared since (`compared_with`).
    """
    is_same = promoted.copied_topic_id == text_of(topic.topic_id) != ""
    if not is_same or not is_promoted_without(promoted, cluster_id):
        return False
    compared = promotion_fields(topic).get(_COMPARED)
    return compared is None or compared != promotion_fields(promoted).get("began_ms")


def compared_with(promoted: Topic, cluster_id: str) -> dict[str, str]:
    """Return the setting of a topic at *cluster_id* that was compared with *promoted*, and is a prefix of it.

    There is none if *promoted* was not promoted without that cluster.
    """
    if not is_promoted_without(promoted, cluster_id):
        return {}
    found = {_COMPARED: promotion_fields(promoted).get("began_ms")}
    return {PROMOTION: json.dumps(found, separators=(",", ":"))}


def lineage_of(source: Topic, target: Topic) -> Lineage:
    """Return the lineage of an existing target topic.

    The mark alone is a proof only for a source without topic ids: there is nothing better.
    """
    now, copied = text_of(source.topic_id), target.overrides.get(SOURCE_TOPIC_ID, "")
    return Lineage(now, copied, bool(copied) or (not now and MARK in target.overrides))
