"""The states of partitions and replicas as the controller sees them, with their valid moves.

Kafka's own tables (`PartitionState` and `ReplicaState` of kafka.controller): `VALID_FROM[s]` names the
states from which *s* may be entered.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class PartitionState(Enum):
    """Where a partition stands."""

    NON_EXISTENT = "NonExistent"
    """Never created, or created and deleted."""
    NEW = "New"
    """It has replicas, but no leader and ISR yet."""
    ONLINE = "Online"
    """It has a leader, and that leader is alive."""
    OFFLINE = "Offline"
    """It had a leader, which died; no other replica could be elected."""


class ReplicaState(Enum):
    """Where one replica of a partition stands."""

    NON_EXISTENT = "NonExistent"
    """Deleted, or never there."""
    NEW = "New"
    """Just assigned; it can only become a follower or leader."""
    ONLINE = "Online"
    """Started; leader or follower."""
    OFFLINE = "Offline"
    """Its broker is down, or its log directory has failed."""
    DELETION_STARTED = "ReplicaDeletionStarted"
    """Its broker was sent a StopReplica with delete."""
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    """Its broker confirmed that it is deleted."""
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"
    """It cannot be deleted now: its broker is down, or failed to. Tried again when the broker joins."""


PARTITION_VALID_FROM: Final[dict[PartitionState, frozenset[PartitionState]]] = {
    PartitionState.NON_EXISTENT: frozenset({PartitionState.OFFLINE}),
    PartitionState.NEW: frozenset({PartitionState.NON_EXISTENT}),
    PartitionState.ONLINE: frozenset(
        {PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}
    ),
    PartitionState.OFFLINE: frozenset(
        {PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}
    ),
}

_ALIVE_OR_NOT = frozenset(
    {
        ReplicaState.NEW,
        ReplicaState.ONLINE,
        ReplicaState.OFFLINE,
        ReplicaState.DELETION_INELIGIBLE,
    }
)

REPLICA_VALID_FROM: Final[dict[ReplicaState, frozenset[ReplicaState]]] = {
    ReplicaState.NON_EXISTENT: frozenset({ReplicaState.DELETION_SUCCESSFUL}),
    ReplicaState.NEW: frozenset({ReplicaState.NON_EXISTENT}),
    ReplicaState.ONLINE: _ALIVE_OR_NOT,
    ReplicaState.OFFLINE: _ALIVE_OR_NOT,
    ReplicaState.DELETION_STARTED: frozenset({ReplicaState.OFFLINE}),
    ReplicaState.DELETION_SUCCESSFUL: frozenset({ReplicaState.DELETION_STARTED}),
    ReplicaState.DELETION_INELIGIBLE: frozenset(
        {ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED}
    ),
}


class InvalidStateChangeError(Exception):
    """A move that the tables do not allow: a bug of the controller, never of its input."""
