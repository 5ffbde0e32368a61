"""Which topics of the target are marked as mirrors, and when an unmarked one may be marked. Pure.

The target's brokers take conditional appends into marked topics only. A topic that kmirror creates has the mark. One
that an operator made gets it after the prefix check: when every partition is located, and none of them holds what the
source does not have. Until then nothing is appended to any of them. So an ordinary topic with the name of a mirror is
not marked, and stays what it is.

In: names of marked topics, links   Out: what is to be done about a topic   Owner: the flow
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrormaker.link import PartitionLink
from mirrormaker.words import Cause, LinkState

NO_PREFIX = frozenset({Cause.TARGET_AHEAD, Cause.DIVERGED, Cause.STRADDLES, Cause.RETENTION})
"""Why a partition of the target is not known to be a prefix of the source's."""


class Marks:
    """The marks of one target."""

    def __init__(self) -> None:
        self._marked: set[str] = set()
        self._under_way: set[str] = set()

    def known(self, topics: Iterable[str]) -> None:
        """Take note that *topics* are marked."""
        self._marked.update(topics)

    def has(self, topic: str) -> bool:
        """Return whether *topic* is marked."""
        return topic in self._marked

    def begin(self, topic: str) -> bool:
        """Return whether marking *topic* is to begin now: it is not under way."""
        if topic in self._under_way:
            return False
        self._under_way.add(topic)
        return True

    def ended(self, topic: str, *, marked: bool) -> None:
        """Take note of how marking *topic* ended."""
        self._under_way.discard(topic)
        if marked:
            self._marked.add(topic)


def is_checked(links: Iterable[PartitionLink]) -> bool:
    """Return whether the prefix check of all *links*, those of one topic, is over."""
    return all(link.state is not LinkState.LOCATING for link in links)


def no_prefix(links: Iterable[PartitionLink]) -> PartitionLink | None:
    """Return a link whose partition is no prefix of the source's, if there is one."""
    for link in links:
        if link.problem is not None and link.problem.cause in NO_PREFIX:
            return link
    return None
