"""Reads kaudit's repair.json: which topics a repair copies again, and what it cannot repair. Pure.

A kbroker topic cannot get other records at offsets below its log end. So a repair copies a whole topic again from the
source, as a failback does (docs/design/mirror-failback.md). It does not if the target is a prefix of it.

In: repair.json, topics of both clusters, manifests   Out: a `RepairPlan`, a `Stage` or a refusal   Owner: the command
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mirrormaker.command_exit import Refused
from mirrormaker.export_manifest import Manifest
from mirrormaker.failback_stage import Stage
from mirrormaker.lineage import text_of
from mirrormaker.topics import MARK, TopicPair

SCHEMA_VERSION = 1
SOURCE_DAMAGED = "the source's own batch cannot be read"
"""kaudit's reason for offsets that no copy can read (`spark_jobs/report/repair.py`)."""


@dataclass(frozen=True, slots=True)
class Unrepairable:
    """Offsets that a copy does not repair, with kaudit's reason."""

    topic: str
    partition: int
    first: int
    until: int
    log: str
    finding: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition} offsets {self.first}-{self.until - 1} ({self.finding}, {self.log}): "
            f"{self.reason}"
        )


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What repair.json asks for."""

    source_id: str
    target_id: str
    copies: Mapping[str, str]
    """The name at the target, by topic."""
    ranges: Mapping[str, int]
    """The number of ranges to copy, by topic."""
    removed: tuple[Unrepairable, ...]
    """What only the target has: a topic that is created again does not have it, the export does."""
    beyond: tuple[Unrepairable, ...]
    """What the source itself does not have, or has damaged: no copy repairs it."""
    not_compared: int
    """Offsets that the audit did not compare."""

    @property
    def topics(self) -> list[str]:
        """The topics with something that a repair can do."""
        return sorted({*self.ranges, *(each.topic for each in self.removed)})

    @property
    def damaged(self) -> dict[str, Unrepairable]:
        """The topics that cannot be copied: the source's own batch is damaged."""
        return {each.topic: each for each in self.beyond if each.reason == SOURCE_DAMAGED}

    def lines(self) -> Iterator[str]:
        """Yield the plan for the operator."""
        for topic in self.topics:
            yield f"{topic}: {self.ranges.get(topic, 0)} ranges differ: is compared and, if needed, copied again"
        for each in self.removed:
            yield f"only at the target, a copy of the topic exports and removes it: {each}"
        for each in self.beyond:
            yield f"CANNOT be repaired: {each}"
        if self.not_compared:
            yield f"{self.not_compared} offsets were not compared by the audit: the plan does not cover them"


def read_plan(document: Any) -> RepairPlan:
    """Return the plan in *document*. Raise `Refused` if it is none, or one that kmirror cannot apply."""
    try:
        if document["schema_version"] != SCHEMA_VERSION:
            raise Refused(f"the plan has schema_version {document['schema_version']}")
        if document["renumbered"]:
            raise Refused("the plan is of an audit with --renumbered: offsets cannot be repaired")
        ranges: dict[str, int] = {}
        for each in document["copy"]:
            ranges[each["topic"]] = ranges.get(each["topic"], 0) + len(each["ranges"])
        left = [_unrepairable(each) for each in document["not_repairable"]]
        rows = (*document["copy"], *document["not_repairable"])
        not_compared = document["not_compared"]
        return RepairPlan(
            str(document["source"]["cluster_id"]),
            str(document["target"]["cluster_id"]),
            {str(each["topic"]): str(each["target_topic"]) for each in rows},
            ranges,
            tuple(each for each in left if each.log == "target"),
            tuple(each for each in left if each.log != "target"),
            int(not_compared["aged_out"]) + int(not_compared["not_read"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as problem:
        raise Refused(f"it is not a repair.json of kaudit: {problem!r}") from None


def _unrepairable(row: Mapping[str, Any]) -> Unrepairable:
    return Unrepairable(
        row["topic"],
        int(row["partition"]),
        int(row["from"]),
        int(row["until"]),
        row["log"],
        row["class"],
        row["reason"],
    )


def stage_of(plan: RepairPlan, pair: TopicPair, manifest: Manifest | None) -> Stage:
    """Return how far the repair of *pair* is. Raise `Refused`.

    *manifest* is that of an earlier run of the same plan.
    """
    name, source, target = pair.name, pair.source, pair.target
    if (plan.source_id, plan.target_id) != (pair.source_id, pair.target_id):
        raise Refused(
            f"{name}: the plan is of clusters {plan.source_id} and {plan.target_id}, "
            f"the flow is from {pair.source_id} to {pair.target_id}"
        )
    if name in plan.damaged:
        raise Refused(f"{name}: cannot be copied: {plan.damaged[name]}. --topics leaves it out")
    if plan.copies[name] != pair.copy:
        raise Refused(
            f"{name}: the plan is of the target's topic {plan.copies[name]}, the flow copies to {pair.copy}"
        )
    if source.compacted or (target is not None and target.compacted):
        raise Refused(f"{name}: is compacted: equal records may be in other batches")
    if target is None:
        if manifest is None:
            raise Refused(f"{name}: does not exist at the target: kmirror run copies it")
        return Stage.DELETED
    mark, copied = target.overrides.get(MARK, ""), target.copied_topic_id
    if mark != pair.source_id or not copied or copied != text_of(source.topic_id):
        raise Refused(
            f"{name}: the target's topic is no mirror of the source's: only a mirror is repaired"
        )
    if manifest is not None and (manifest.stays or manifest.topic_id != text_of(target.topic_id)):
        return Stage.MIRROR
    return Stage.FENCED
