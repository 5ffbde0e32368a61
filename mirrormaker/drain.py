"""Copies partitions up to a cut with the links of `kmirror run`, and waits for the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kclient.net.waiting import sleep
from kclient.types import TopicPartition
from mirrormaker.command_exit import Refused
from mirrormaker.lineage import Lineage, text_of
from mirrormaker.link import PartitionLink
from mirrormaker.mirror import Mirror
from mirrormaker.topics import Topic

_POLL = 0.05


async def drain(
    mirror: Mirror,
    topics: Mapping[str, Topic],
    cuts: Mapping[TopicPartition, int],
    *,
    copies: Mapping[str, str] | None = None,
    stall: float,
) -> None:
    """Copy the source's partitions of *cuts* up to them; *topics* are those of the source.

    *copies* has the names at the target; without it they are the same. Raise `Refused` if a link stops, or if nothing
    is copied for *stall* seconds that `fetch.max.bytes.per.second` allows.
    """
    flow = mirror.flow
    names = {tp.topic: tp.topic for tp in cuts} if copies is None else copies
    flow.marks.known({names[tp.topic] for tp in cuts}, ())
    for tp, cut in cuts.items():
        topic = topics[tp.topic]
        topic_id = text_of(topic.topic_id)
        link = PartitionLink(
            tp,
            topic_id=topic.topic_id,
            lineage=Lineage(topic_id, topic_id),
            cut=cut,
            compacted=topic.compacted,
        )
        flow.add(link, TopicPartition(names[tp.topic], tp.partition))
    while not flow.settled:
        await sleep(flow.reactor, _POLL)
        # The limit of bytes per second makes the next fetch wait: that is no stall.
        since = max(flow.progress.changed_at, flow.bandwidth.free_at)
        if flow.reactor.seconds() - since > stall:
            raise Refused(_why_stalled(flow.links.values(), cuts, stall))
    stopped = "; ".join(f"{link.tp}: {link.problem}" for link in mirror.flow.stopped_links)
    if stopped:
        raise Refused(stopped)


def _why_stalled(
    links: Iterable[PartitionLink], cuts: Mapping[TopicPartition, int], seconds: float
) -> str:
    for link in links:
        if link.appended_end < cuts[link.tp]:
            held = link.open_records
            why = f": {held} records belong to open transactions" if held else ""
            return (
                f"nothing was copied for {seconds:g} s; {link.tp} is at {link.appended_end} "
                f"of {cuts[link.tp]}{why}"
            )
    return f"nothing was copied for {seconds:g} s"
