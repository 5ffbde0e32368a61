"""The part of a direction that this process copies: all of it, or the share of one worker among several.

Theory of operation
===================
`WholeDirection` belongs to a process without workers: it copies every partition, and it changes the target's topics.
`SharedDirection` belongs to a worker. It joins the assignment of the partitions (`mirrormaker.workers`) with the
registration of this process (`mirrormaker.worker_registry`).

A comparison of the topics reads `is_elected` and `share`. Every change of the workers calls *changed*, and the mirror
compares the topics again at once. The mirror calls `compared` after every comparison that succeeds, and
`update_registration` after every comparison. A worker without a successful comparison for `LEAVE` seconds leaves its
partitions to others.

In: comparisons, rejected appends   Out: the partitions to copy, a registration   Owner: the reactor's thread
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from twisted.python.failure import Failure

from kclient.types import TopicPartition
from mirrormaker.config import FlowConfig
from mirrormaker.topics import Plan, Topic
from mirrormaker.workers import Workers, WorkerState, group_of, partitions_of

LEAVE = 30.0
"""Seconds without a comparison of the topics after which a worker leaves its partitions to others."""


class WholeDirection:
    """The direction of a process that shares nothing."""

    workers: Workers | None = None
    """The workers of this direction; None: this process copies everything."""

    @property
    def is_elected(self) -> bool:
        """Whether this process changes topics at the target."""
        return True

    @property
    def copies_groups(self) -> bool:
        """Whether this process copies the committed offsets of its partitions."""
        return True

    def share(self, plan: Plan, source: Mapping[str, Topic]) -> frozenset[TopicPartition]:
        """Return the source partitions that this process copies."""
        return frozenset(partitions_of(plan, source))

    def rejected(self, tp: TopicPartition) -> bool:
        """Handle that the target rejected an append to *tp*; return whether another worker copies it."""
        return False

    def enter(self, source_id: str) -> None:
        """Handle the first comparison: register this worker, and follow the others."""

    def compared(self) -> None:
        """Handle a comparison of the topics that succeeded."""

    def update_registration(self, counts: Mapping[str, int]) -> None:
        """Show *counts* to `kmirror status`; leave the partitions to others if a cluster cannot be read."""

    async def stop(self) -> None:
        """End the registration."""


class SharedDirection(WholeDirection):
    """The direction of one worker. *report* gets (subject, event) for the operator.

    *changed* is called when the workers change; *defect* with a failure that is a bug. *client* creates the ZooKeeper
    client. *worker_id* names this worker; None draws one.
    """

    workers: Workers

    def __init__(
        self,
        reactor: Any,
        config: FlowConfig,
        *,
        changed: Callable[[], None],
        report: Callable[[str, str], None],
        defect: Callable[[Failure], None],
        client: Callable[..., Any] | None,
        worker_id: str | None,
    ) -> None:
        from mirrormaker.worker_registry import WorkerRegistry

        assert config.workers is not None
        self._reactor = reactor
        group = group_of(config.source, config.target, config.settings)
        self.workers = Workers(worker_id or secrets.token_hex(8), group)
        self._registry = WorkerRegistry(
            reactor,
            config.workers,
            self.workers,
            changed=changed,
            report=report,
            defect=defect,
            client=client,
        )
        self._compared_at = 0.0
        """When the topics were compared last, in monotonic seconds."""

    @property
    def is_elected(self) -> bool:
        """Whether this worker is the elected one."""
        return self.workers.is_elected

    @property
    def copies_groups(self) -> bool:
        """Whether this worker is a member: otherwise another one may copy the offsets of its partitions."""
        return self.workers.state is WorkerState.MEMBER

    def share(self, plan: Plan, source: Mapping[str, Topic]) -> frozenset[TopicPartition]:
        """Return the source partitions that the assignment gives to this worker."""
        unmarked = {name for name, copy in plan.mirrored.items() if copy in plan.unmarked}
        return self.workers.share(partitions_of(plan, source), unmarked, self._reactor.seconds())

    def rejected(self, tp: TopicPartition) -> bool:
        """Return whether to leave *tp* alone for now, since another worker copies it."""
        return self.workers.rejected(tp, self._reactor.seconds())

    def enter(self, source_id: str) -> None:
        """Register this worker, and follow the others."""
        self._registry.enter(source_id)

    def compared(self) -> None:
        """Put off the time at which this worker leaves."""
        self._compared_at = self._reactor.seconds()

    def update_registration(self, counts: Mapping[str, int]) -> None:
        """Write *counts* into the registration; leave after `LEAVE` seconds, come back after a comparison."""
        if self._reactor.seconds() - self._compared_at >= LEAVE:
            self._registry.leave()
            return
        self._registry.come_back()
        self._registry.publish(counts)

    async def stop(self) -> None:
        """End the session: the other workers take the partitions at once."""
        await self._registry.stop()
