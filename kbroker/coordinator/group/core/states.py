"""The states of a consumer group, as a table.

Empty ──► PreparingRebalance ──► CompletingRebalance ──► Stable
  ▲             │  ▲   ▲                  │                 │
  └─────────────┘  │   └──────────────────┘                 │
                   └────────────────────────────────────────┘

Dead is entered from every state: the group was deleted, or moved to another coordinator.
"""

from collections.abc import Mapping
from enum import Enum


class GroupState(Enum):
    """A state of a classic consumer group; the value is Kafka's name of it on the wire."""

    EMPTY = "Empty"
    """No members. May hold committed offsets; simple consumers (assign()) may commit."""

    PREPARING_REBALANCE = "PreparingRebalance"
    """Answers to heartbeats ask the members to rejoin; JoinGroup requests wait."""

    COMPLETING_REBALANCE = "CompletingRebalance"
    """Every member has the new generation; SyncGroup requests wait for the leader's assignment."""

    STABLE = "Stable"
    """Every member knows its assignment."""

    DEAD = "Dead"
    """This coordinator has unloaded the group."""


VALID_FROM: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
"""By state, the states before it (Kafka's ``validPreviousStates``)."""
