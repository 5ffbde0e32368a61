"""Promotion: which topics can change their roles, and the record of what was done. Pure.

The state of a topic is in the marks of both clusters (docs/design/mirror-promotion.md has the table and the steps).

In: topics of both clusters, log ends   Out: a `Stage` or a refusal, the record   Owner: the command
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kclient.types import TopicPartition
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.topics import MARK, Topic, TopicPair

SCHEMA_VERSION = 1


class Stage(Enum):
    """How far the promotion of a topic is; operators read the value."""

    MIRRORED = "mirrored"
    """The target is a mirror of the source."""
    FENCED = "fenced"
    """Each is marked as a mirror of the other: no producer can write."""
    PROMOTED = "promoted"
    """The target is writable, and the source is its mirror."""


class Refused(Exception):
    """The promotion cannot go on; the text has the reason and what to do."""


def stage_of(pair: TopicPair) -> Stage:
    """Return the stage of *pair*. Raise `Refused`."""
    name, source, target = pair.name, pair.source, pair.target
    if target is None:
        raise Refused(f"{name}: {pair.copy} does not exist at the target; run kmirror first")
    if name != pair.copy:
        raise Refused(
            f"{name}: the target's name is {pair.copy}; roles can be exchanged only under one name "
            "(IdentityReplicationPolicy). --source-lost opens the target alone"
        )
    if target.partitions != source.partitions:
        raise Refused(
            f"{name}: {source.partitions} partitions at the source, {target.partitions} at the target"
        )
    fenced = source.overrides.get(MARK, "")
    if fenced not in ("", pair.target_id):
        raise Refused(f"{name}: the source's topic is itself a mirror, of cluster {fenced}")
    marked = target.overrides.get(MARK, "")
    if fenced and not marked:
        return Stage.PROMOTED
    if marked != pair.source_id:
        of = f"a mirror of cluster {marked}" if marked else "not marked as a mirror"
        raise Refused(f"{name}: the target's topic is {of}")
    copied, now = target.overrides.get(SOURCE_TOPIC_ID, ""), text_of(source.topic_id)
    if "" not in (copied, now) and copied != now:
        raise Refused(
            f"{name}: the target holds records of topic id {copied}, the source has {now}: it was created again"
        )
    return Stage.FENCED if fenced else Stage.MIRRORED


def stages(pairs: Iterable[TopicPair]) -> dict[str, Stage]:
    """Return the stage of each topic, by its name. Raise `Refused` with all reasons."""
    found, reasons = {}, []
    for pair in pairs:
        try:
            found[pair.name] = stage_of(pair)
        except Refused as refusal:
            reasons.append(str(refusal))
    if reasons:
        raise Refused("; ".join(reasons))
    if not found:
        raise Refused("no topic is selected")
    return found


def mirrors_of(
    topics: Mapping[str, Topic], selected: Iterable[str], source_id: str | None
) -> list[str]:
    """Return the target topics of *selected* that are mirrors of *source_id*; of the only source, if it is None.

    Raise `Refused` if there are none, or if several sources are possible.
    """
    chosen = set(selected)
    marks = {
        name: topic.overrides[MARK]
        for name, topic in topics.items()
        if name in chosen and topic.overrides.get(MARK)
    }
    sources = sorted(set(marks.values()))
    if source_id is None and len(sources) > 1:
        raise Refused(
            f"the target has mirrors of several clusters ({', '.join(sources)}): name one with --source-id"
        )
    found = sorted(name for name, mark in marks.items() if source_id in (None, mark))
    if not found:
        of = f" of cluster {source_id}" if source_id else ""
        raise Refused(f"the target has no mirror topics{of} to promote")
    return found


def not_at_the_cut(cuts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> str:
    """Return which partitions of the target do not end at the cut of the source; "" if all do."""
    wrong = [
        f"{tp} ends at {ends[tp]}, not at {cut}" for tp, cut in cuts.items() if ends[tp] != cut
    ]
    return "; ".join(wrong)


def not_proven(
    report: Mapping[str, Any],
    cuts: Mapping[TopicPartition, int],
    *,
    source_id: str,
    target_id: str,
) -> str:
    """Return what kaudit's *report* leaves open of the partitions below *cuts*; "" if it proves all of them."""
    ids = tuple((report.get(side) or {}).get("cluster_id") for side in ("source", "target"))
    if ids != (source_id, target_id):
        return f"the report compares clusters {ids[0]} and {ids[1]}"
    if report.get("verdict") != "CONSISTENT":
        return f"the verdict is {report.get('verdict')}"
    proven = {
        TopicPartition(topic["topic"], each["partition"]): each["proven_up_to"]
        for topic in report["topics"]
        for each in topic["partitions"]
    }
    open_ = [
        f"{tp} is proven up to {proven[tp]}, not to {cut}" if tp in proven else f"{tp} is not in it"
        for tp, cut in cuts.items()
        if proven.get(tp, -1) < cut
    ]
    return "; ".join(open_)


@dataclass(frozen=True, slots=True)
class PromotedPartition:
    """A partition that became writable at the target."""

    tp: TopicPartition
    """The partition at the target."""
    end: int
    """The target's log end offset before it became writable."""
    source_end: int | None = None
    """The source's log end offset after that; None if it was not read."""
    last_timestamp_ms: int | None = None
    """The largest timestamp of a copied record; None if it was not read, or without records."""

    @property
    def left_behind(self) -> int | None:
        """Offsets of the source that the target lacks; None if the source was not read."""
        return None if self.source_end is None else max(0, self.source_end - self.end)


@dataclass(frozen=True, slots=True)
class Record:
    """What a promotion did."""

    flow: str
    source_id: str | None
    target_id: str
    mode: str
    """``exchanged``, ``producers stopped`` or ``source lost``."""
    partitions: tuple[PromotedPartition, ...]
    audit: str | None = None
    """The run id of the audit that proved every record; None without one."""
    groups: int | None = None
    """Consumer groups with offsets of these partitions, which the target has now; None if they were left out."""

    @property
    def left_behind(self) -> int | None:
        """Offsets of the source that the target lacks; None if the source was not read."""
        each = [partition.left_behind for partition in self.partitions]
        known = [count for count in each if count is not None]
        return sum(known) if len(known) == len(each) else None

    def document(self, *, began_ms: int, ended_ms: int) -> dict[str, Any]:
        """Return the record as JSON-ready values; times in ms since the epoch."""
        return {
            "schema_version": SCHEMA_VERSION,
            "flow": self.flow,
            "mode": self.mode,
            "source_cluster_id": self.source_id,
            "target_cluster_id": self.target_id,
            "began_ms": began_ms,
            "ended_ms": ended_ms,
            "rpo_records": self.left_behind,
            "audit_run_id": self.audit,
            "groups": self.groups,
            "partitions": [
                {
                    "topic": each.tp.topic,
                    "partition": each.tp.partition,
                    "end": each.end,
                    "source_end": each.source_end,
                    "rpo_records": each.left_behind,
                    "last_timestamp_ms": each.last_timestamp_ms,
                }
                for each in self.partitions
            ],
        }
