"""Consumer groups in a failback: no committed offset of the returned cluster may mean another record afterwards.

An offset above the divergence belongs to a record that was exported. It is set back to the divergence before the topic
is deleted. So it is right whether the brokers delete it with the topic or not. An offset that they delete is committed
again at the end, and never one that is there moved.

Owner: the command
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kclient.admin.groups import describe_groups, list_groups
from kclient.errors import KafkaError
from kclient.net.cluster import Cluster
from kclient.net.group_offsets import Generation, commit_offsets, committed_offsets
from kclient.net.waiting import all_of, settled_by
from kclient.types import OffsetAndMetadata, TopicPartition
from mirrormaker.group_offsets import IDLE_STATES
from mirrormaker.group_sync import CONSUMER_PROTOCOLS
from mirrormaker.promotion import Refused

TIMEOUT = 60.0
"""Seconds for one request to a coordinator, retries included. A killed one is replaced when its session ends."""

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


async def restore(
    cluster: Cluster, committed: Committed, until: Mapping[TopicPartition, int]
) -> Restored:
    """Commit offsets that are gone again, at most at *until*. An error of one group is the result of that group."""

    async def restore_group(group: str) -> int:
        lost = {tp: each for tp, each in committed[group].items() if tp in until}
        if not lost:
            return 0
        present = await committed_offsets(cluster, group, lost, timeout=TIMEOUT)
        wanted = {
            tp: OffsetAndMetadata(min(each.offset, until[tp]), each.metadata)
            for tp, each in lost.items()
            if tp not in present
        }
        return await _commit(cluster, group, wanted)

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
