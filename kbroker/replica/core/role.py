"""The role of the local replica in one partition, as LeaderAndIsr assigned it.

Theory of operation
===================
LeaderAndIsr carries a leader epoch that only rises. A higher one is applied, an equal one was applied already, and a
lower one is stale. The controller epoch is checked once per request (`ControllerFence`). It is stored per partition
because an ISR write of the leader carries the epoch of the controller that elected it. The topic id is part of the
identity: another id under the same name is another topic, with other data (KIP-516).

Invariants:
1. leader_epoch never falls while the partition is hosted.
2. A broker outside `replicas` takes no role.

In: partition states of LeaderAndIsr, StopReplica   Out: error codes   Owner: replica.replica_manager
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import EPOCH_DURING_DELETE, NO_EPOCH, LeaderAndIsrPartitionState


class Role(Enum):
    """A replica's role in its partition."""

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
        """Return the error code for *state*, before anything is done; NONE: apply it.

        STALE_CONTROLLER_EPOCH also stands for a state that was applied before, as in Kafka: the controller treats it as
        "nothing to do".
        """
        if topic_id is not None and self.topic_id is not None and topic_id != self.topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if state.leader_epoch <= self.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self.broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def take(self, state: LeaderAndIsrPartitionState, topic_id: UUID | None) -> None:
        """Take the role in *state*, which passed `check_leader_and_isr`."""
        self.topic_id = topic_id or self.topic_id
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.controller_epoch = state.controller_epoch
        self.partition_epoch = state.partition_epoch
        self.isr = frozenset(state.isr)
        self.replicas = tuple(state.replicas)
        self.current = Role.LEADER if state.leader == self.broker_id else Role.FOLLOWER

    def check_stop_replica(self, leader_epoch: int) -> ErrorCode:
        """Return the error code for a StopReplica with *leader_epoch* (KIP-570)."""
        if leader_epoch in (NO_EPOCH, EPOCH_DURING_DELETE) or leader_epoch >= self.leader_epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH

    def check_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Return the error code for a client's current leader epoch (KIP-320); -1: it sent none."""
        if current_leader_epoch in (-1, self.leader_epoch):
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH
