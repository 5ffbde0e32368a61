"""The events of the controller's queue: what watches, requests, timers and brokers' responses enqueue.

`EventHandler`s of `event_processor` turn them into facts for the state machine (`core/events.py`), after reading what
the fact needs from ZooKeeper. Facts that need no read are enqueued as they are: a broker's acknowledgement, for
example.

docs/design/controller-events.md has the table of events with Kafka's names and the order guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from twisted.internet.defer import Deferred

from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core import effects as fx
from kbroker.controller.core import events
from kbroker.zk.interface import Node

Remaining: TypeAlias = tuple[tuple[str, int], ...]
"""Partitions that a leaving broker still leads, because no other replica can."""
ElectionResults: TypeAlias = Mapping[TopicPartition, fx.ElectionResult]
ReassignmentResults: TypeAlias = Mapping[TopicPartition, fx.ReassignmentResult]


@dataclass(frozen=True, slots=True)
class Startup:
    """This broker won the election. Always the first event of an epoch."""


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """The children of /brokers/ids."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicChange:
    """Topics with a znode that is new or has changed, and topics without a znode."""

    changed: Mapping[str, Node] = field(default_factory=dict)
    vanished: frozenset[str] = frozenset()

    def after(self, earlier: TopicChange) -> TopicChange:
        """Return *earlier* and this event as one; this one decides on topics that are in both."""
        still_changed = {n: node for n, node in earlier.changed.items() if n not in self.vanished}
        return TopicChange(
            {**still_changed, **self.changed},
            (earlier.vanished | self.vanished) - self.changed.keys(),
        )


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """The children of /admin/delete_topics."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class IsrChangeNotification:
    """The children of /isr_change_notification."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogDirEventNotification:
    """The children of /log_dir_event_notification."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ZkPreferredElection:
    """The content of /admin/preferred_replica_election."""

    node: Node


@dataclass(frozen=True, slots=True)
class ZkReassignment:
    """/admin/reassign_partitions was created, changed or deleted.

    Without its content: the controller itself may have changed that before it processes the event.
    """

    exists: bool


@dataclass(frozen=True, slots=True)
class UncleanElectionCheck:
    """Topics with a partition that no replica of its ISR can lead: unclean.leader.election.enable is to be read.

    *is_retry*: it was read before, and did not allow an election.
    """

    topics: tuple[str, ...]
    is_retry: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ControlledShutdown:
    """A ControlledShutdown request, or a later step of it: *left* as in `ControlledShutdownRequested`."""

    broker_id: int
    broker_epoch: int
    left: tuple[TopicPartition, ...] | None = None
    answer: Deferred[Remaining] = field(default_factory=Deferred)


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaLeaderElection:
    """An ElectLeaders request; for all partitions with *partitions* None."""

    election: events.ElectionType
    partitions: frozenset[TopicPartition] | None
    answer: Deferred[ElectionResults] = field(default_factory=Deferred)


@dataclass(frozen=True, slots=True, eq=False)
class ApiPartitionReassignment:
    """An AlterPartitionReassignments request: replicas, preferred leader first; None cancels a reassignment."""

    targets: Mapping[TopicPartition, tuple[int, ...] | None]
    answer: Deferred[ReassignmentResults] = field(default_factory=Deferred)


Request: TypeAlias = ControlledShutdown | ReplicaLeaderElection | ApiPartitionReassignment
"""Events with an *answer*, which fires exactly once: with the result, or with NotController after a resignation."""

LatestOnly: TypeAlias = (
    BrokerChange
    | TopicDeletion
    | IsrChangeNotification
    | LogDirEventNotification
    | ZkPreferredElection
    | ZkReassignment
    | events.PreferredLeaderElectionDue
)
"""Events that describe what is there now: one replaces a waiting one of its type."""

Acknowledged: TypeAlias = events.LeaderAndIsrAcked | events.StopReplicaAcked

ControllerEvent: TypeAlias = (
    Startup
    | TopicChange
    | LatestOnly
    | Request
    | UncleanElectionCheck
    | Acknowledged
    | events.ReassignmentsDue
    | events.TopicZnodesDeleted
)
