"""Consumer groups in a failback: no committed offset of the returned cluster may mean another record afterwards.

An offset above the divergence belongs to a record that was exported. It is set back to the divergence before the topic
is deleted. So it is right whether the brokers delete it with the topic or not. An offset that they delete, or
are about to, is committed again at the end, and never one that is there moved.

Owner: the command
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kclient.admin.groups import describe_groups, list_groups
from kclient.errors import (
    IllegalGeneration,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)
from kclient.net.cluster import Cluster
from kclient.net.group_offsets import Generation, commit_offsets, committed_offsets
from kclient.net.waiting import all_of, settled_by, sleep
from kclient.types import OffsetAndMetadata, TopicPartition
from mirrormaker.command_exit import Refused
from mirrormaker.export_manifest import Manifest
from mirrormaker.group_offsets import IDLE_STATES
from mirrormaker.group_sync import CONSUMER_PROTOCOLS

TIMEOUT = 60.0
"""Seconds for one request to a coordinator, retries included. A killed one is replaced when its session ends."""

_HAS_MEMBERS = (UnknownMemberId, IllegalGeneration, RebalanceInProgress)
"""The answers to a commit from outside of a group with members."""
_DELETED_AFTER = 5.0
"""Seconds after which an offset that is still there is not one of those that a coordinator deletes with the topic."""

Committed = dict[str, dict[TopicPartition, OffsetAndMetadata]]
"""Committed offsets by group."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What `restore` did."""

    count: int
    """Offsets that were committed again."""
    failed: Mapping[str, str]
    """By group, why its offsets are not all back."""


async def read_committed(cluster: Cluster, topics: Iterable[str]) -> Committed:
    """Return the committed offsets of all consumer groups in *topics*. Raise KafkaError."""
    wanted = set(topics)
    groups = [
        each.group_id
        for each in await list_groups(cluster, states=(), timeout=TIMEOUT)
        if each.protocol_type in CONSUMER_PROTOCOLS
    ]
    answers = await all_of(
        committed_offsets(cluster, group, None, timeout=TIMEOUT) for group in groups
    )
    found = {
        group: {tp: each for tp, each in offsets.items() if tp.topic in wanted}
        for group, offsets in zip(groups, answers, strict=True)
    }
    return {group: offsets for group, offsets in found.items() if offsets}


async def refuse_members(cluster: Cluster, groups: Iterable[str]) -> None:
    """Raise `Refused` if one of *groups* has members: they would commit again, and read the new topic."""
    names = list(groups)
    described = await describe_groups(cluster, names, timeout=TIMEOUT) if names else {}
    busy = []
    for group, answer in described.items():
        if isinstance(answer, KafkaError):
            raise answer
        if answer.state not in IDLE_STATES:
            busy.append(group)
    if busy:
        raise Refused(f"groups have members: {', '.join(sorted(busy))}. Stop their consumers")


async def set_back(
    cluster: Cluster, committed: Committed, until: Mapping[TopicPartition, int]
) -> int:
    """Set offsets above *until* back to it; return how many there were. Raise KafkaError."""
    count = 0
    for group, offsets in committed.items():
        wanted = {
            tp: OffsetAndMetadata(until[tp], each.metadata)
            for tp, each in offsets.items()
            if tp in until and each.offset > until[tp]
        }
        count += await _commit(cluster, group, wanted)
    return count


def of_topic(committed: Committed, topic: str) -> dict[str, dict[int, tuple[int, str]]]:
    """Return the offsets of *topic* as a manifest has them."""
    found = {
        group: {
            tp.partition: (o.offset, o.metadata) for tp, o in offsets.items() if tp.topic == topic
        }
        for group, offsets in committed.items()
    }
    return {group: offsets for group, offsets in found.items() if offsets}


def as_committed_now(manifest: Manifest, committed: Committed) -> Manifest:
    """Return *manifest*, of an earlier run, with the offsets that are *committed* now.

    One that the earlier run set back is in it as it was.
    """
    until = {each.partition: each.divergence.kept_until for each in manifest.partitions}
    groups = of_topic(committed, manifest.topic)
    for group, offsets in groups.items():
        for number, before in manifest.groups.get(group, {}).items():
            is_known = number in offsets and number in until
            if is_known and offsets[number][0] == min(before[0], until[number]):
                offsets[number] = before
    return replace(manifest, groups=groups)


async def restore(
    cluster: Cluster, committed: Committed, until: Mapping[TopicPartition, int]
) -> Restored:
    """Commit offsets that are gone again, at most at *until*. An error of one group is the result of that group.

    A coordinator deletes the offsets of a deleted topic some time later. So an offset that is still there, and was not
    moved, is committed again. One that was moved is of a consumer that reads the new topic.
    """

    async def restore_group(group: str) -> int:
        wanted = {
            tp: OffsetAndMetadata(min(each.offset, until[tp]), each.metadata)
            for tp, each in committed[group].items()
            if tp in until
        }
        if not wanted:
            return 0
        present = await committed_offsets(cluster, group, wanted, timeout=TIMEOUT)
        lost = {tp: each for tp, each in wanted.items() if tp not in present}
        still = {
            tp: each
            for tp, each in wanted.items()
            if tp in present and present[tp].offset == each.offset
        }
        try:
            await _commit(cluster, group, {**lost, **still})
        except _HAS_MEMBERS:
            if lost:
                raise
            await sleep(cluster.reactor, _DELETED_AFTER)
            if still.keys() - await committed_offsets(cluster, group, still, timeout=TIMEOUT):
                raise
        return len(lost)

    answers = await settled_by(committed, restore_group)
    return Restored(
        sum(each for each in answers.values() if isinstance(each, int)),
        {group: str(each) for group, each in answers.items() if isinstance(each, KafkaError)},
    )


async def _commit(
    cluster: Cluster, group: str, wanted: Mapping[TopicPartition, OffsetAndMetadata]
) -> int:
    """Commit *wanted*; return the number of offsets. Raise the KafkaError of the first one that is not committed."""
    answers = await commit_offsets(cluster, group, wanted, Generation(), timeout=TIMEOUT)
    for problem in answers.values():
        if problem is not None:
            raise problem
    return len(wanted)
