"""Tracks the target topics that are marked as mirrors, and decides when an unmarked one may be marked. Pure.

The target's brokers accept conditional appends only for marked topics. kmirror creates its topics with the mark. A
topic that an operator created gets the mark after the prefix check. All its partitions are located, and each is a
prefix of the source's partition. Until then the mirror appends to none of them. So an ordinary topic with the name of a
mirror stays unmarked and unchanged. See docs/design/mirror-mark.md.

The mark has two settings: the id of the source cluster, and the topic id at the source (`mirrormaker.lineage`). A topic
with another topic id counts as unmarked.

In: names of marked topics, links   Out: whether to mark a topic   Owner: the flow
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrormaker.link import PartitionLink
from mirrormaker.link_state import Cause, LinkState

NO_PREFIX = frozenset(
    {
        Cause.TARGET_AHEAD,
        Cause.TARGET_LOST,
        Cause.TARGET_WRITTEN,
        Cause.DIVERGED,
        Cause.STRADDLES,
        Cause.RETENTION,
        Cause.RECREATED,
        Cause.UNPROVEN,
    }
)
"""Causes that leave open whether a target partition is a prefix of the source's."""


class Marks:
    """The marks of one target."""

    def __init__(self) -> None:
        self._marked: set[str] = set()
        self._under_way: set[str] = set()

    def known(self, topics: Iterable[str], unmarked: Iterable[str]) -> None:
        """Record that *topics* are marked, and that *unmarked* are not."""
        self._marked.difference_update(unmarked)
        self._marked.update(topics)

    def has(self, topic: str) -> bool:
        """Return whether *topic* is marked."""
        return topic in self._marked

    def begin(self, topic: str) -> bool:
        """Return whether to mark *topic* now; False while an earlier attempt is in flight."""
        if topic in self._under_way:
            return False
        self._under_way.add(topic)
        return True

    def ended(self, topic: str, *, marked: bool) -> None:
        """Record the end of an attempt to mark *topic*."""
        self._under_way.discard(topic)
        if marked:
            self._marked.add(topic)


def is_checked(links: Iterable[PartitionLink]) -> bool:
    """Return whether all *links* of one topic have passed or failed the prefix check, and their gaps are recorded."""
    return all(link.state not in (LinkState.LOCATING, LinkState.RECORDING) for link in links)


def is_prefix(link: PartitionLink) -> bool:
    """Return whether the target partition was compared and is a prefix of the source's, as far as *link* knows."""
    if link.problem is None:
        return link.is_checked
    return link.is_checked and link.problem.cause not in {*NO_PREFIX, Cause.NO_MIRROR}


def first_without_prefix(links: Iterable[PartitionLink]) -> PartitionLink | None:
    """Return the first link with a target partition that is not a prefix of the source's, or that was not compared."""
    for link in links:
        problem = link.problem
        if problem is not None and (problem.cause in NO_PREFIX or not link.is_checked):
            return link
    return None
