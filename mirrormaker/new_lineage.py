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

from kclient.errors import ClientError, KafkaError
from kclient.mirror_ledger import LINEAGE
from kclient.net.cluster import Cluster
from kclient.net.waiting import all_settled
from kclient.types import TopicPartition
from mirrormaker.catalog import Catalog
from mirrormaker.ledger import Ledger
from mirrormaker.lineage import text_of
from mirrormaker.link_state import Cause, Gap
from mirrormaker.log_ends import high_watermarks
from mirrormaker.topics import NewLineage, Plan


async def begin_lineages(
    plan: Plan, source: Catalog, target: Cluster, ledger: Ledger
) -> dict[str, str]:
    """Write the ledger entries of the lineages that *plan* begins; return source topics that have to wait, and why."""
    waiting = {}
    for each in plan.new_lineages:
        if not each.is_begun:
            try:
                await _begin(each, source, target, ledger)
            except KafkaError as problem:
                waiting[each.source] = f"{each.copy} waits: {problem}"
    return waiting


async def _begin(new: NewLineage, source: Catalog, target: Cluster, ledger: Ledger) -> None:
    """Write the entries of one lineage. Raise KafkaError."""
    found = text_of(await source.topic_id_at_controller(new.source))
    if found != new.after:
        raise NotConfirmed(
            f"the source's controller has {new.source} with topic id {found or 'unknown'}, not {new.after}"
        )
    tps = [TopicPartition(new.earlier, number) for number in range(new.partitions)]
    ends = await high_watermarks(target, dict.fromkeys(tps))
    offsets = []
    for tp in tps:
        end = ends[tp]
        if isinstance(end, KafkaError):
            raise end
        offsets.append((tp, end))

    async def record(tp: TopicPartition, end: int) -> None:
        gap = Gap(end, end, Cause.RECREATED, new.before, new.after)
        at_source = TopicPartition(new.source, tp.partition)
        await ledger.record(at_source, tp, gap, new.after, type=LINEAGE)

    for outcome in await all_settled(record(tp, end) for tp, end in offsets):
        if isinstance(outcome, KafkaError):
            raise outcome


class NotConfirmed(ClientError):
    """The source's controller has the topic with another topic id than the metadata."""
