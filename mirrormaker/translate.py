"""``kmirror translate``: prints the committed offsets of groups as offsets of the target. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from kclient.errors import KafkaError
from kclient.types import TopicPartition
from mirrormaker.config import FlowConfig
from mirrormaker.group_sync import GroupMirror, GroupOffset
from mirrormaker.link_state import GapPolicy, LogEnds
from mirrormaker.mirror import Mirror
from mirrormaker.offset_pairs import Translated
from mirrormaker.prefix import judgement
from mirrormaker.status import Echo, planned_mirror
from mirrormaker.topics import Plan

OK = 0
PARTLY = 5


async def show_translation(
    reactor: Any, flow: FlowConfig, groups: str, echo: Echo, warn: Echo, *, as_json: bool
) -> int:
    """Print the offsets of the *groups* (regular expressions; "": those of the configuration); return the exit code.

    Raise KafkaError if a cluster fails. What cannot be translated is *warn*-ed of.
    """
    settings = flow.settings
    if groups:
        settings = replace(settings, groups=groups, groups_exclude="")
    async with planned_mirror(reactor, flow) as (mirror, plan):
        copies, problems = await _copies(mirror, plan)
        reading = GroupMirror(
            mirror.source,
            mirror.target,
            settings,
            alias=flow.source,
            copies=lambda: copies,
            translator=mirror.offsets.translator,
            report=lambda _about, _what: None,
        )
        found, unread = await reading.read()
    problems += [
        f"group {group} cannot be read at the source: {error}" for group, error in unread.items()
    ]
    if not as_json:
        echo(f"{flow.name}  ({flow.settings.guarantee})")
        echo(f"  {'group':<30} {'partition':<40} {'source offset':>14} {'target offset':>14}")
    for each in found:
        echo(json.dumps(_document(each)) if as_json else f"  {_row(each)}")
    for problem in problems:
        warn(problem)
    return PARTLY if problems or any(each.at is None for each in found) else OK


async def _copies(
    mirror: Mirror, plan: Plan
) -> tuple[dict[TopicPartition, TopicPartition], list[str]]:
    """Return the partitions that a run continues, source -> target, and why the others cannot be."""
    present = {name: topic.partitions for name, topic in mirror.target.metadata.topics.items()}
    counts = {name: mirror.topics.compared[name].partitions for name in plan.mirrored}
    pairs, problems = partitions_of(plan, counts, present)
    for tp, ends in (await mirror.offsets.read_ends(pairs)).items():
        problem = _problem(mirror, plan, tp, ends)
        if problem:
            problems.append(f"{tp}: {problem}")
            del pairs[tp]
    return pairs, problems


def partitions_of(
    plan: Plan, counts: Mapping[str, int], present: Mapping[str, Collection[int]]
) -> tuple[dict[TopicPartition, TopicPartition], list[str]]:
    """Return the partitions of *plan* that the target has, source -> target, and why the others are left out.

    *counts* are the numbers of partitions at the source, *present* the partitions of the target's topics.
    """
    pairs, problems = {}, []
    for name, copy in plan.mirrored.items():
        for number in range(counts[name]):
            tp, at_target = TopicPartition(name, number), TopicPartition(copy, number)
            if number in present.get(copy, ()):
                pairs[tp] = at_target
            else:
                problems.append(f"{tp}: {at_target} is not at the target yet")
    problems += [f"{name}: {conflict}" for name, conflict in plan.conflicts.items()]
    return pairs, problems


def _problem(mirror: Mirror, plan: Plan, tp: TopicPartition, ends: LogEnds | KafkaError) -> str:
    if isinstance(ends, KafkaError):
        return str(ends)
    found = judgement(
        ends,
        mirror.offsets.lineage_of(plan, tp),
        GapPolicy(mirror.config.settings.gap_policy),
        compacted=mirror.topics.compared[tp.topic].compacted,
    )
    return "" if found is None else str(found)


def _row(each: GroupOffset) -> str:
    at = "-" if each.at is None else str(each.at.offset)
    return f"{each.group:<30} {each.tp!s:<40} {each.committed:>14} {at:>14}  {_remark(each.at)}"


def _remark(at: Translated | None) -> str:
    if at is None:
        return "unknown"
    if at.ahead:
        return f"{at.ahead} offsets before it are not copied yet"
    return f"up to {at.again} offsets are consumed again" if at.again else "exact"


def _document(each: GroupOffset) -> dict[str, Any]:
    at = each.at
    return {
        "group": each.group,
        "topic": each.tp.topic,
        "partition": each.tp.partition,
        "source_offset": each.committed,
        "target_offset": None if at is None else at.offset,
        "consumed_again": None if at is None else at.again,
        "not_copied": None if at is None else at.ahead,
    }
