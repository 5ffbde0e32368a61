"""Which topics with a partition that no replica of its ISR can lead allow an unclean election (S18).

unclean.leader.election.enable is read when the state machine has found such a partition. It is read again every
`RETRY_SECONDS` while the partition is without a leader: an operator may allow an unclean election then.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from kbroker.common.gather import all_of
from kbroker.common.reactor import Clock
from kbroker.controller.controller_events import UncleanElectionCheck
from kbroker.controller.core.context import ControllerContext
from kbroker.controller.event_manager import ControllerEventManager
from kbroker.controller.zk_client import ControllerZkClient
from kclient.wire.interbroker import NO_LEADER

log = Logger()

RETRY_SECONDS = 3.0


class UncleanElection:
    """The leaderless topics of one epoch. *default* applies to topics without a setting of their own."""

    def __init__(
        self,
        clock: Clock,
        queue: ControllerEventManager,
        zk: ControllerZkClient,
        default: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._queue = queue
        self._zk = zk
        self._default = default
        self._leaderless: set[str] = set()
        """Topics of the next retry."""

    async def allowed(self, check: UncleanElectionCheck, context: ControllerContext) -> list[str]:
        """Read which topics of *check* allow an unclean election; the others are checked again later."""
        names = [name for name in check.topics if _is_leaderless(context, name)]
        if not check.is_retry:
            for name in names:
                log.warn("{name} has partitions that no replica in their ISR can lead", name=name)
        default = self._default()
        settings = await all_of(self._zk.read_unclean_election(name, default) for name in names)
        allowed = []
        for name, unclean in zip(names, settings, strict=True):
            if unclean:
                log.warn("{name} allows an unclean election: records may be lost", name=name)
                allowed.append(name)
                continue
            if not self._leaderless:
                self._clock.callLater(RETRY_SECONDS, self._retry)
            self._leaderless.add(name)
        return allowed

    def _retry(self) -> None:
        names, self._leaderless = self._leaderless, set()
        self._queue.put(UncleanElectionCheck(tuple(sorted(names)), is_retry=True))


def _is_leaderless(context: ControllerContext, name: str) -> bool:
    if name not in context.topics or name in context.deleting:
        return False
    states = map(context.leader_and_isr.get, context.partitions_of(name))
    return any(state is not None and state.leader == NO_LEADER for state in states)
