"""What to mirror: which topics, under which names, and what the target lacks for it. Pure.

Theory of operation
===================
Every refresh compares two pictures. A topic that matches ``topics`` and not ``topics.exclude`` is
mirrored; where the target lacks it, it is created with as many partitions and the same configs, where
it has fewer partitions, they are added. Partition numbers and offsets are the same on both sides, so
a target topic with *more* partitions is no mirror of it: a conflict, named and left alone.

Configs: those that were set for the topic at the source, but not those of
``config.properties.exclude`` (what belongs to a cluster, not to the data). Two are ours:
``message.timestamp.type=CreateTime``, for with LogAppendTime the target would not keep the records'
times; and ``max.message.bytes`` is raised to the source's effective value where the target's is
lower, because batches are copied whole.

A target's brokers take the mirror's appends only into topics that are marked (``kbroker.mirror.source.cluster.id``). A
topic that is created here has the mark from its beginning. One that an operator made is marked later, after every
partition of it proved to be a prefix of the source (`mirrormaker.marks`). One with the mark of another source, or with
an empty one, is a conflict.

In: topics of both clusters   Out: a `Plan`   Owner: the flow
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from kclient.wire.produce import MIRROR_SOURCE_CONFIG
from mirrormaker.patterns import compiled
from mirrormaker.settings import LinkSettings

MARK = MIRROR_SOURCE_CONFIG
CREATE_TIME = {"message.timestamp.type": "CreateTime"}
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own default; a source broker with another one has it copied to the topics."""

_INTERNAL = re.compile(r"__.*")


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of one cluster.

    *overrides* are the configs set for it; *effective* holds those asked for, wherever their value
    comes from.
    """

    partitions: int
    topic_id: UUID | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    effective: Mapping[str, str] = field(default_factory=dict)

    @property
    def compacted(self) -> bool:
        """Whether batches of it may be rewritten without some of their records."""
        return "compact" in self.effective.get("cleanup.policy", "")

    @property
    def max_message_bytes(self) -> int:
        """The largest batch it takes; 0 if that is not known."""
        return int(self.effective.get("max.message.bytes", 0))


EFFECTIVE = ("cleanup.policy", "max.message.bytes")
"""The configs whose effective value is needed."""


@dataclass(frozen=True, slots=True)
class Creation:
    """A topic to create at the target."""

    name: str
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done at the target, and what can be mirrored once that is done.

    Names in *mirrored* and *conflicts* are those of the source; it maps to the target's.
    """

    mirrored: Mapping[str, str] = field(default_factory=dict)
    create: tuple[Creation, ...] = ()
    add_partitions: Mapping[str, int] = field(default_factory=dict)
    set_configs: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    conflicts: Mapping[str, str] = field(default_factory=dict)
    unmarked: frozenset[str] = frozenset()
    """Topics of the target that lack the mark of a mirror."""


class Selection:
    """Which topics of *source* are mirrored, and how they are called at the target."""

    def __init__(self, source: str, target: str, settings: LinkSettings) -> None:
        self._topics = compiled(settings.topics)
        self._exclude = compiled(settings.topics_exclude)
        self._excluded_configs = compiled(settings.excluded_configs)
        self._prefixed = settings.replication_policy == "DefaultReplicationPolicy"
        self._prefix = f"{source}{settings.separator}"
        self._back = f"{target}{settings.separator}"
        self._sync_configs = settings.sync_configs

    def wants(self, topic: str) -> bool:
        """Return whether *topic* of the source is to be mirrored."""
        if _INTERNAL.fullmatch(topic) or self._exclude.fullmatch(topic):
            return False
        if self._prefixed and topic.startswith(self._back):
            return False  # it came from the target: a circle
        return self._topics.fullmatch(topic) is not None

    def target_name(self, topic: str) -> str:
        """Return what *topic* is called at the target."""
        return f"{self._prefix}{topic}" if self._prefixed else topic

    def plan(
        self, source: Mapping[str, Topic], target: Mapping[str, Topic], source_id: str
    ) -> Plan:
        """Compare both clusters; *source* and *target* may hold topics that are not wanted.

        *source_id* is the source cluster's, which marks its mirrors.
        """
        mirrored: dict[str, str] = {}
        create: list[Creation] = []
        add: dict[str, int] = {}
        configs: dict[str, dict[str, str | None]] = {}
        conflicts: dict[str, str] = {}
        unmarked: set[str] = set()
        for name in sorted(filter(self.wants, source)):
            wanted, copy = source[name], self.target_name(name)
            existing = target.get(copy)
            if existing is None:
                marked = {**self.configs_for(wanted), MARK: source_id}
                create.append(Creation(copy, wanted.partitions, marked))
            elif existing.partitions > wanted.partitions:
                conflicts[name] = (
                    f"{copy} has {existing.partitions} partitions at the target, "
                    f"{wanted.partitions} at the source: it is no mirror of it"
                )
                continue
            elif existing.overrides.get(MARK, source_id) != source_id:
                conflicts[name] = (
                    f"{copy} has {MARK}={existing.overrides[MARK]}: it is no mirror of {source_id}"
                )
                continue
            else:
                if MARK not in existing.overrides:
                    unmarked.add(copy)
                if existing.partitions < wanted.partitions:
                    add[copy] = wanted.partitions
                changes = self._changes(wanted, existing)
                if changes:
                    configs[copy] = changes
            mirrored[name] = copy
        return Plan(mirrored, tuple(create), add, configs, conflicts, frozenset(unmarked))

    def configs_for(self, wanted: Topic) -> dict[str, str]:
        """Return the configs that the target's topic is to have set."""
        kept = {
            name: value
            for name, value in wanted.overrides.items()
            if name != MARK and not self._excluded_configs.fullmatch(name)
        }
        if wanted.max_message_bytes not in (0, DEFAULT_MAX_MESSAGE_BYTES):
            kept.setdefault("max.message.bytes", str(wanted.max_message_bytes))
        return {**kept, **CREATE_TIME}

    def _changes(self, wanted: Topic, existing: Topic) -> dict[str, str | None]:
        """Return what has to be set (None: unset) so that *existing* can hold and resembles *wanted*."""
        desired = self.configs_for(wanted)
        if existing.max_message_bytes < wanted.max_message_bytes:
            desired.setdefault("max.message.bytes", str(wanted.max_message_bytes))
        if not self._sync_configs:  # without these records could not be copied as they are
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
        """Return whether a config that only the target has set stays as it is."""
        if name == MARK:
            return True
        if name == "max.message.bytes":
            return existing.max_message_bytes >= wanted.max_message_bytes
        return self._excluded_configs.fullmatch(name) is not None
