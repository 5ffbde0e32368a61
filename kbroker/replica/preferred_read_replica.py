"""The preferred read replica of a consumer: `replica.core.replica_selector`, over the leader's state (KIP-392).

Only with replica.selector.class. A broker without it names no replica, but answers consumers that other brokers sent
here. Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from kbroker.config.cluster import RACK_AWARE_SELECTOR
from kbroker.metadata.metadata_cache import BrokerMetadata
from kbroker.replica.core.leader_state import LeaderState
from kbroker.replica.core.replica_selector import ReplicaView, select_replica

ReplicaSelector: TypeAlias = Callable[[LeaderState, str, int], int | None]
"""(leader state, the consumer's rack, offset) -> the follower to read from; None: the leader."""


def replica_selector(
    class_name: str, brokers: Callable[[], Mapping[int, BrokerMetadata]]
) -> ReplicaSelector | None:
    """Return the selector that replica.selector.class names; None: every consumer reads from the leader."""
    if class_name.rpartition(".")[2] != RACK_AWARE_SELECTOR:
        return None
    return rack_aware_selector(brokers)


def rack_aware_selector(brokers: Callable[[], Mapping[int, BrokerMetadata]]) -> ReplicaSelector:
    """Return a selector among *brokers*, the live ones."""

    def choose(leader_state: LeaderState, rack: str, offset: int) -> int | None:
        live = brokers()
        ours = live.get(leader_state.broker_id)
        leader = ReplicaView(
            leader_state.broker_id, ours.rack if ours else None, leader_state.log_end_offset, 0, 0.0
        )
        if leader.rack == rack:
            return None
        followers = (
            ReplicaView(replica, live[replica].rack, known.end, known.start, known.caught_up_at)
            for replica, known in leader_state.in_sync_followers()
            if replica in live
        )
        chosen = select_replica(rack, leader, followers, offset)
        return None if chosen == leader_state.broker_id else chosen

    return choose
