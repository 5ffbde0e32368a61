"""LeadershipEvidence: what proves that no other broker leads a partition that this broker leads.

The coordinators confirm their leadership with it while ZooKeeper does not answer
(docs/design/groups-without-zookeeper.md).

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.config import KafkaConfig
from kbroker.replica.core.leader_state import LeaderState
from kbroker.replica.core.remote_replicas import NEVER, FollowerLiveness
from kbroker.replica.partition_registry import PartitionRegistry

SHORTEST_LIVENESS_TIMEOUT = 3.0
"""Seconds; longer where followers' fetches wait for longer (replica.fetch.wait.max.ms)."""


def follower_liveness(config: KafkaConfig) -> FollowerLiveness:
    """Return the liveness of the followers' brokers, none of which has fetched yet."""
    return FollowerLiveness(
        max(SHORTEST_LIVENESS_TIMEOUT, 4 * config.replica_fetch_wait_max_ms / 1000)
    )


class LeadershipEvidence:
    """Evidence of the partitions in *registry*, from the fetches of their *followers*; *now* is the reactor's clock."""

    def __init__(
        self, registry: PartitionRegistry, followers: FollowerLiveness, now: Callable[[], float]
    ) -> None:
        self._registry = registry
        self._followers = followers
        self._now = now

    def no_successor_at(self, topic: str, partition: int, leader_epoch: int) -> float:
        """Return a time at which certainly no broker led a partition in a later epoch than ours; or `NEVER`."""
        leader_state = self._leader_state_in(topic, partition, leader_epoch)
        if leader_state is None:
            return NEVER
        return leader_state.no_successor_at(self._followers, self._now())

    def is_alone_in_isr(self, topic: str, partition: int, leader_epoch: int) -> bool:
        """Return whether this broker leads a partition in *leader_epoch*, and no other replica can be in the ISR."""
        leader_state = self._leader_state_in(topic, partition, leader_epoch)
        return leader_state is not None and leader_state.is_alone

    def _leader_state_in(self, topic: str, partition: int, leader_epoch: int) -> LeaderState | None:
        found = self._registry.partitions.get((topic, partition))
        leader_state = found.leader_state if found is not None else None
        return (
            leader_state
            if leader_state is not None and leader_state.leader_epoch == leader_epoch
            else None
        )
