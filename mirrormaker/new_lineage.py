"""gap.policy=new-lineage: a topic that was created again at the source is copied to another topic of the target.

Theory of operation
===================
The target topic keeps the records of the earlier topic. It stays a mirror, and read-only, and its log ends where the
copy ended. The later topic is copied from its start to ``lineage.<topic id>.<name>``, so its offsets stay the same,
too. Nothing is removed at the target.

Nothing is stored for it: `copy_for` computes the target topic from the topic ids that the source has and the target's
topics state. A kmirror that is killed at any step computes the same. Before the topic is created, the source's
controller confirms the topic id, because metadata of another broker may be old. Then each partition of the earlier copy
gets an entry in the ledger, of the type `LINEAGE`, with the offset where it ends.

The order: confirmed -> entries acknowledged -> topic created with its marks -> links. The target may have the entries
and no topic (killed between), never the topic without the entries.

In: topic ids of both clusters   Out: entries of the ledger; the mirror creates the topic   Owner: the mirror
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from uuid import UUID

from kclient.errors import ClientError, KafkaError
from kclient.net.waiting import all_settled
from kclient.types import TopicPartition
from mirrormaker.lineage import text_of
from mirrormaker.link_state import Cause, Gap
from mirrormaker.topics import NewLineage

_ReadsEnds = Callable[
    [Mapping[TopicPartition, None]], Awaitable[Mapping[TopicPartition, int | KafkaError]]
]


async def begin_lineages(
    new_lineages: Iterable[NewLineage],
    *,
    topic_id_of: Callable[[str], Awaitable[UUID | None]],
    ends_of: _ReadsEnds,
    record: Callable[[TopicPartition, TopicPartition, Gap, str], Awaitable[None]],
) -> dict[str, str]:
    """Write the ledger entries of lineages that are not begun; return the source topics that have to wait, and why.

    *topic_id_of* asks the source's controller, *ends_of* reads high watermarks of the target. *record* writes an entry
    of the type `LINEAGE` and returns when it is durable.
    """

    async def begin(new: NewLineage) -> None:
        gaps = await _ends(new, topic_id_of, ends_of)
        writing = [
            record(TopicPartition(new.source, tp.partition), tp, gap, new.after)
            for tp, gap in gaps.items()
        ]
        for outcome in await all_settled(writing):
            if isinstance(outcome, KafkaError):
                raise outcome

    waiting = {}
    for each in new_lineages:
        if not each.is_begun:
            try:
                await begin(each)
            except KafkaError as problem:
                waiting[each.source] = f"{each.copy} waits: {problem}"
    return waiting


async def _ends(
    new: NewLineage,
    topic_id_of: Callable[[str], Awaitable[UUID | None]],
    ends_of: _ReadsEnds,
) -> dict[TopicPartition, Gap]:
    """Return where the earlier copy ends, by its partition. Raise KafkaError, also if the controller does not agree."""
    found = text_of(await topic_id_of(new.source))
    if found != new.after:
        raise NotConfirmed(
            f"the source's controller has {new.source} with topic id {found or 'unknown'}, not {new.after}"
        )
    tps = [TopicPartition(new.earlier, number) for number in range(new.partitions)]
    gaps = {}
    for tp, end in (await ends_of(dict.fromkeys(tps))).items():
        if isinstance(end, KafkaError):
            raise end
        gaps[tp] = Gap(end, end, Cause.RECREATED, new.before, new.after)
    return gaps


class NotConfirmed(ClientError):
    """The source's controller has the topic with another topic id than the metadata."""
