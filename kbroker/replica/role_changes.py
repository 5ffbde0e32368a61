"""RoleChanges: announcements of role changes to fetchers, waiting requests and leadership listeners.

`announce` runs after a change, when the state is consistent.

In: partitions with a changed role   Out: calls of the receivers   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, TypeAlias

from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.replica.partition import Partition

log = Logger()

Changed: TypeAlias = list[tuple[Partition, bool]]
"""Partitions with a changed role, and whether each was led from here before."""


class LeadershipListener(Protocol):
    """Receives the partitions that this broker begins or ceases to lead; the same epoch may be announced again."""

    def __call__(
        self, topic: str, partition: int, leader_epoch: int, zk_version: int, is_leader: bool, /
    ) -> None:
        """Handle one change."""


class RoleChanges:
    """The receivers of role changes.

    *fetch* receives the partitions with a changed role or leader. *wake* completes requests that wait for a partition.
    *listeners* receive each partition that this broker begins or ceases to lead.
    """

    def __init__(
        self,
        fetch: Callable[[list[Partition]], None],
        wake: Callable[[TopicPartition], None],
        listeners: Collection[LeadershipListener],
    ) -> None:
        self._fetch = fetch
        self._wake = wake
        self._listeners = tuple(listeners)

    def announce(self, changed: Changed) -> None:
        """Announce role changes to fetchers, waiting requests and the leadership listeners, in this order."""
        if not changed:
            return
        self._fetch([partition for partition, _ in changed])
        for partition, was_leader in changed:
            self._wake(partition.key)
            is_leader = partition.leader_state is not None
            if is_leader or was_leader:
                self._leadership_changed(partition, is_leader=is_leader)

    def _leadership_changed(self, partition: Partition, *, is_leader: bool) -> None:
        role = partition.role
        for listener in self._listeners:
            try:
                listener(*partition.key, role.leader_epoch, role.partition_epoch, is_leader)
            except Exception:
                log.failure(
                    "the leadership listener failed for {partition}", partition=repr(partition)
                )
