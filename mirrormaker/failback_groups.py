"""Consumer groups in a failback: no committed offset of the returned cluster may mean another record afterwards.

An offset above the divergence belongs to a record that was exported. It is set back to the divergence before the topic
is deleted. So it is right whether the brokers delete it with the topic or not. An offset that they delete is committed
again at the end, and never one that is there moved.

Owner: the command
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kclient.admin.groups import describe_groups, list_groups
from kclient.errors import KafkaError
from kclient.net.cluster import Cluster
from kclient.net.group_offsets import Generation, commit_offsets, committed_offsets
from kclient.net.waiting import all_of
from kclient.types import OffsetAndMetadata, TopicPartition
from mirrormaker.group_offsets import IDLE_STATES
from mirrormaker.group_sync import CONSUMER_PROTOCOLS
from mirrormaker.promotion import Refused

TIMEOUT = 60.0
"""Seconds for one request to a coordinator, retries included. A killed one is replaced when its session ends."""

Committed = dict[str, dict[TopicPartition, OffsetAndMetadata]]
"""Committed offsets by group."""


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
    return await _commit(
        cluster,
        {
            group: {
                tp: OffsetAndMetadata(until[tp], each.metadata)
                for tp, each in offsets.items()
                if tp in until and each.offset > until[tp]
            }
            for group, offsets in committed.items()
        },
    )


async def restore(
    cluster: Cluster, committed: Committed, until: Mapping[TopicPartition, int]
) -> int:
    """Commit offsets that are gone again, at most at *until*; return how many there were. Raise KafkaError."""
    present = await read_committed(cluster, {tp.topic for tp in until})
    return await _commit(
        cluster,
        {
            group: {
                tp: OffsetAndMetadata(min(each.offset, until[tp]), each.metadata)
                for tp, each in offsets.items()
                if tp in until and tp not in present.get(group, {})
            }
            for group, offsets in committed.items()
        },
    )


async def _commit(cluster: Cluster, wanted: Committed) -> int:
    count = 0
    for group, offsets in wanted.items():
        answers = await commit_offsets(cluster, group, offsets, Generation(), timeout=TIMEOUT)
        for problem in answers.values():
            if problem is not None:
                raise problem
        count += len(offsets)
    return count
