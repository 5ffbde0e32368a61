"""The part of the broker's configuration that the controller uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Times in seconds."""

    broker_id: int
    inter_broker_listener: str
    delete_topic_enable: bool
    control_plane_listener: str
    """The listener of brokers that the controller sends to; inter_broker_listener for a broker without it."""
    rebalance_seconds: float | None
    """leader.imbalance.check.interval.seconds; None: no preferred leader election by itself."""
    imbalance_percentage: int
    unclean_leader_election: Callable[[], bool]
    """unclean.leader.election.enable of topics without a setting of their own."""
    min_insync_replicas: Callable[[str], int]
    """A topic's min.insync.replicas."""
    is_extended: bool
    """Whether inter.broker.protocol.version allows our extensions of requests."""
    leave_seconds: float = 3.0
    """How long a broker that leads nothing any more waits for the other brokers to acknowledge that."""
    partitions_per_turn: int = 500
    """The most partitions in one turn of the reactor, and in one request: some 10 ms."""
    partitions_per_step: int = 250
    """Leaders that a controlled shutdown moves at a time: a broker applies a LeaderAndIsr of so many in some 20 ms."""
