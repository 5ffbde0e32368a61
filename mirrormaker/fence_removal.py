"""Removes the fences of a promotion that is not to continue; other commands may be about to open its target.

docs/design/mirror-promotion.md has the rule, and why the wait is as long as it is.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kclient.errors import KafkaError
from kclient.net.waiting import settled_by, sleep
from mirrormaker import catalog
from mirrormaker.catalog import Catalog
from mirrormaker.cluster_waits import until_answered
from mirrormaker.promotion_fence import FenceState, fence_is_aborting, fence_state
from mirrormaker.topics import Topic

Configs = Mapping[str, str | None]
"""Configs of a topic to set; None: to reset."""

LONGEST_CHANGE = 3 * catalog.TIMEOUT
"""Seconds for the look at a fence and the change that follows it, which may be sent twice."""


class FenceRemoval:
    """Removes fences of topics at *source*, which a promotion to *target* has set (names for the operator)."""

    def __init__(self, reactor: Any, source: str, target: str, echo: Callable[[str], None]) -> None:
        self._reactor = reactor
        self._source = source
        self._target = target
        self._echo = echo

    async def take_back(self, source_topics: Catalog, names: Iterable[str]) -> bool:
        """Let those of *names* that state that the target may be open take that back; return whether there are some.

        Another command looks for that statement directly before it opens each topic. So after the wait here the
        target's marks are final. A topic that did not take it back keeps its fence (`remove`).
        """

        async def taken_back(name: str) -> bool:
            settings = await source_topics.overrides_of(name)
            if configs := fence_is_aborting(Topic(0, None, settings)):
                await source_topics.change(name, configs)
            return fence_state(settings) in (FenceState.OPENING, FenceState.ABORTING)

        answers = await settled_by(
            names, lambda name: until_answered(self._reactor, lambda: taken_back(name))
        )
        # The outcome of a change that failed is unknown.
        begun = [name for name, answer in answers.items() if answer is not False]
        if begun:
            self._echo(
                f"{self._source} is read-only for {LONGEST_CHANGE:g} s more: another command may be about to "
                f"open {', '.join(begun)} at {self._target}"
            )
            await sleep(self._reactor, LONGEST_CHANGE)
        return bool(begun)

    async def remove(
        self, source_topics: Catalog, fenced: Mapping[str, Configs], ended: Collection[str] = ()
    ) -> tuple[list[str], dict[str, str], dict[str, KafkaError]]:
        """Set the configs *fenced* by topic, which remove the fence; return the topics of which it is removed.

        The second result has those that another command has begun to open since the marks were read, with that as the
        reason. The third has those of which the fence cannot be read or removed. *ended*: topics that stated before
        that an earlier promotion had opened the target.
        """
        removed: list[str] = []
        kept: dict[str, str] = {}
        failed: dict[str, KafkaError] = {}
        for name, configs in fenced.items():
            try:
                state = fence_state(await source_topics.overrides_of(name))
                if state is FenceState.OPENING:
                    kept[name] = (
                        "another command has begun to open the target. If it was ended, the same command continues"
                    )
                    continue
                if state is FenceState.OPENED and name not in ended:
                    kept[name] = "promoted by another command"
                    continue
                await source_topics.change(name, configs)
            except KafkaError as problem:
                failed[name] = problem
            else:
                removed.append(name)
        return removed, kept, failed
