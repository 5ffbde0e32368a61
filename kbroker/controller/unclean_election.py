"""Topics with a partition that nobody in its ISR can lead: whether another replica may (S18).

unclean.leader.election.enable is read from the topic's settings when the controller's machine asks, and again every few
seconds while the partition is without a leader: an operator may allow it then. Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.logger import Logger

from kbroker.common.gather import all_of
from kbroker.common.reactor import Clock
from kbroker.controller.core.context import ControllerContext
from kbroker.controller.core.effects import CheckUncleanElection, WarnOfDataLoss
from kbroker.controller.core.events import Event, UncleanElectionEnabled
from kbroker.controller.zk_client import ControllerZkClient
from kclient.wire.interbroker import NO_LEADER

log = Logger()

LOOK_AGAIN_SECONDS = 3.0


class UncleanElection:
    """The leaderless topics of one term. *default* is what topics go by that do not say."""

    def __init__(
        self,
        clock: Clock,
        store: ControllerZkClient,
        default: Callable[[], bool],
        *,
        context: Callable[[], ControllerContext | None],
        feed: Callable[[Event], None],
        run: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._clock = clock
        self._store = store
        self._default = default
        self._context = context
        self._feed = feed
        self._run = run
        self._leaderless: set[str] = set()

    def consider(self, effect: CheckUncleanElection | WarnOfDataLoss) -> None:
        """Look whether topics allow it: UncleanElectionEnabled for those that do; or tell of a doubt."""
        if isinstance(effect, WarnOfDataLoss):
            report(effect)
            return
        names = effect.topics
        for name in names:
            log.warn("{name} has partitions that nobody in their ISR can lead", name=name)
        self._run(self._ask(names))

    async def _ask(self, names: tuple[str, ...]) -> None:
        default = self._default()
        allowed = await all_of(self._store.read_unclean_election(name, default) for name in names)
        for name, unclean in zip(names, allowed, strict=True):
            if unclean:
                log.warn("{name} allows an unclean election: records may be lost", name=name)
                self._feed(UncleanElectionEnabled(name))
                continue
            if not self._leaderless:
                self._clock.callLater(LOOK_AGAIN_SECONDS, self._look_again)
            self._leaderless.add(name)

    def _look_again(self) -> None:
        names, self._leaderless = self._leaderless, set()
        context = self._context()
        if context is None:
            return
        still = tuple(sorted(name for name in names if _is_leaderless(context, name)))
        if still:
            self._run(self._ask(still))


def _is_leaderless(context: ControllerContext, name: str) -> bool:
    if name not in context.topics or name in context.deleting:
        return False
    states = map(context.leader_and_isr.get, context.partitions_of(name))
    return any(state is not None and state.leader == NO_LEADER for state in states)


def report(warning: WarnOfDataLoss) -> None:
    """Tell the operator of replicas that may lack records, and what to do."""
    topic, index = warning.partition
    why = "; ".join(f"broker {broker}: {reason}" for broker, reason in warning.untrusted)
    if warning.leader >= 0:
        log.warn(
            "{topic}-{index} is led again by broker {leader} ({reason}), and may lack acknowledged records ({why})",
            topic=topic, index=index, leader=warning.leader, reason=warning.reason, why=why,
        )  # fmt: skip
        return
    log.error(
        "{topic}-{index} is OFFLINE: nobody who is alive is known to hold all its acknowledged records ({why}). "
        "Bring back what was there: another in-sync replica, the old disk, or the partition's directory; put it back "
        "while the broker is stopped. If there is nothing to "
        "bring back, accept the loss: an unclean election of {topic}-{index} (ElectLeaders, election type "
        "UNCLEAN), or unclean.leader.election.enable=true for the topic.",
        topic=topic, index=index, why=why,
    )  # fmt: skip
