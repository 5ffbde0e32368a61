"""What the controller made of one replica: leader, follower or nothing, and under which epochs.

Theory of operation
===================
LeaderAndIsr brings a leader epoch that only rises. A higher one is taken, the same one again was applied
already, a lower one is a message from the past. The controller's own epoch is checked once per request
(`ControllerFence`); it is kept per partition because a state write of the leader carries the epoch of
the controller that made it leader. The topic id is part of the identity: another id under the same name is
another topic, whose data must not be mixed with this one's (KIP-516).

Invariants:
1. leader_epoch never falls while the partition is hosted.
2. Whoever is not in `replicas` takes no role.

In: partition states of LeaderAndIsr, StopReplica   Out: verdicts   Owner: replica.replica_manager
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import EPOCH_DURING_DELETE, NO_EPOCH, LeaderAndIsrPartitionState


class Role(Enum):
    """What a replica is to its partition."""

    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


@dataclass(slots=True)
class PartitionRole:
    """The role of the local replica *broker_id* in one partition."""

    broker_id: int
    current: Role = Role.NONE
    topic_id: UUID | None = None
    leader: int = -1
    leader_epoch: int = -1
    controller_epoch: int = -1
    partition_epoch: int = -1
    """Version of the partition's state znode."""
    isr: frozenset[int] = field(default_factory=frozenset)
    replicas: tuple[int, ...] = ()

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition."""
        return self.current is Role.LEADER

    def check_leader_and_isr(
        self, state: LeaderAndIsrPartitionState, topic_id: UUID | None
    ) -> ErrorCode:
        """Say how *state* is answered, before anything is done; NONE: it is to be applied.

        STALE_CONTROLLER_EPOCH also stands for an order applied before, as in Kafka: the controller
        takes it for "nothing to do".
        """
        if topic_id is not None and self.topic_id is not None and topic_id != self.topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if state.leader_epoch <= self.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self.broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def take(self, state: LeaderAndIsrPartitionState, topic_id: UUID | None) -> None:
        """Take the role that *state* gives; `check_leader_and_isr` found nothing against it."""
        self.topic_id = topic_id or self.topic_id
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.controller_epoch = state.controller_epoch
        self.partition_epoch = state.partition_epoch
        self.isr = frozenset(state.isr)
        self.replicas = tuple(state.replicas)
        self.current = Role.LEADER if state.leader == self.broker_id else Role.FOLLOWER

    def check_stop_replica(self, leader_epoch: int) -> ErrorCode:
        """Say how a StopReplica with *leader_epoch* is answered (KIP-570)."""
        if leader_epoch in (NO_EPOCH, EPOCH_DURING_DELETE) or leader_epoch >= self.leader_epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH

    def check_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Compare the leader epoch that a client goes by with ours (KIP-320); -1: it has none."""
        if current_leader_epoch in (-1, self.leader_epoch):
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH
