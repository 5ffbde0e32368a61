"""Removes the fences of a promotion that is not to continue; other commands may be about to open its target.

docs/design/mirror-promotion.md has the rule, and why the wait is as long as it is.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kclient.errors import KafkaError
from kclient.net.waiting import settled_by, sleep
from kclient.wire.errors import InvalidConfig, UnknownTopicOrPartition
from mirrormaker import catalog
from mirrormaker.catalog import Catalog
from mirrormaker.cluster_waits import until_answered
from mirrormaker.promotion_fence import FenceState, fence_is_aborting, fence_state
from mirrormaker.topics import Topic

Configs = Mapping[str, str | None]
"""Configs of a topic to set; None: to reset."""

LONGEST_CHANGE = 3 * catalog.TIMEOUT
"""Seconds for the look at a fence and the change that follows it, which may be sent twice."""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Topics that stated that the target may be open."""

    names: set[str]
    """Those that take it back, or may do so: the outcome of a change that failed is unknown."""
    refused: set[str]
    """Those of *names* of which a broker refuses the change."""


class FenceRemoval:
    """Removes fences of topics at *source*, which a promotion to *target* has set (names for the operator)."""

    def __init__(self, reactor: Any, source: str, target: str, echo: Callable[[str], None]) -> None:
        self._reactor = reactor
        self._source = source
        self._target = target
        self._echo = echo

    async def take_back(self, topics: Catalog, names: Iterable[str]) -> TakenBack:
        """Let those of *names* that state that the target may be open take that back; wait, and return which do.

        Another command looks for that statement directly before it opens each topic. So after the wait here the
        target's marks are final. A topic that did not take it back keeps its fence (`remove`).
        """

        async def taken_back(name: str) -> bool:
            settings = await topics.overrides_of(name)
            configs = fence_is_aborting(Topic(0, None, settings))
            if configs and (problem := await topics.change(name, configs)):
                raise InvalidConfig(problem)
            return fence_state(settings) in (FenceState.OPENING, FenceState.ABORTING)

        answers = await settled_by(
            names, lambda name: until_answered(self._reactor, lambda: taken_back(name))
        )
        for name, answer in answers.items():
            if isinstance(answer, KafkaError):
                self._echo(
                    f"  {name}: {self._source} does not take back that {self._target} may be open: {answer}"
                )
        # The outcome of a change that failed is unknown.
        begun = [name for name, answer in answers.items() if answer is not False]
        if begun:
            self._echo(
                f"{self._source} is read-only for {LONGEST_CHANGE:g} s more: another command may be about to "
                f"open {', '.join(begun)} at {self._target}"
            )
            await sleep(self._reactor, LONGEST_CHANGE)
        refused = {name for name in begun if isinstance(answers[name], InvalidConfig)}
        return TakenBack({*begun}, refused)

    async def remove(
        self,
        topics: Catalog,
        fenced: Mapping[str, Configs],
        taken_back: Collection[str],
        give_up_at: float,
        ended: Collection[str] = (),
    ) -> tuple[list[str], dict[str, str], dict[str, KafkaError]]:
        """Set the configs *fenced* by topic, which remove the fence; return the topics of which it is removed.

        The second result has those that another command works on since the marks were read, with that as the reason.
        The third has those of which the fence cannot be read or removed. After *give_up_at*, in seconds of the reactor,
        an error of the cluster is the reason for the rest, too. *taken_back* are the names that `take_back` returned.
        *ended*: topics that stated before that an earlier promotion had opened the target.
        """
        removed: list[str] = []
        kept: dict[str, str] = {}
        failed: dict[str, KafkaError] = {}
        left = list(fenced)
        while left:
            name = left.pop(0)
            try:
                state = fence_state(await topics.overrides_of(name))
                if reason := _kept_by_another(state, name in taken_back, name in ended):
                    kept[name] = reason
                    continue
                await topics.change(name, fenced[name])
            except KafkaError as problem:
                failed[name] = problem
                is_of_all = problem.retriable and not isinstance(problem, UnknownTopicOrPartition)
                if is_of_all and self._reactor.seconds() >= give_up_at:
                    failed |= dict.fromkeys(left, problem)
                    break
            else:
                removed.append(name)
        return removed, kept, failed


def _kept_by_another(state: FenceState | None, is_taken_back: bool, is_ended: bool) -> str:
    """Return why a fence of this *state* is another command's to remove, or to keep; "" if it is not."""
    if state is FenceState.OPENING:
        return "another command has begun to open the target. If it was ended, the same command continues"
    if state is FenceState.ABORTING and not is_taken_back:
        return "another command has begun to remove its fence. If it was ended, --abort continues"
    if state is FenceState.OPENED and not is_ended:
        return "promoted by another command"
    if state is FenceState.UNKNOWN:
        return "kmirror of a later release has changed its fence"
    return ""
