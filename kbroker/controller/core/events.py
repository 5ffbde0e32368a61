"""Facts for the controller's state machine. Levels rather than edges: an event carries what was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import Broker, LogEnd, Topic


@dataclass(frozen=True, slots=True)
class BecameController:
    """This broker won the election: all that ZooKeeper holds, read after the win."""

    controller_epoch: int
    brokers: Mapping[int, Broker]
    topics: Mapping[str, Topic]
    leader_and_isr: Mapping[TopicPartition, LeaderAndIsr]
    """A partition without a state znode is absent: it is New."""
    deletions: frozenset[str] = frozenset()
    """Children of /admin/delete_topics."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """All of /brokers/ids as it is now; the machine finds out which brokers failed, started or restarted."""

    brokers: Mapping[int, Broker]


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Topics that are new or have more partitions, as read; and names without a znode."""

    topics: tuple[Topic, ...] = ()
    vanished: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicDeletionRequested:
    """Names under /admin/delete_topics (those already being deleted may be among them)."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class TopicZnodesDeleted:
    """DeleteTopicZnodes was performed. A topic of the same name with another id may exist."""

    topic: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class StatesWritten:
    """The outcome of one WriteStates: every partition of it is in one of the two."""

    versions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Written; the new version of each znode."""
    conflicts: Mapping[TopicPartition, LeaderAndIsr | None] = field(default_factory=dict)
    """Refused: what the znode holds instead; None when it, or its topic, does not exist."""


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """Leaders announced ISR changes of their own (/isr_change_notification): states as re-read."""

    states: Mapping[TopicPartition, LeaderAndIsr]


@dataclass(frozen=True, slots=True)
class LogDirsFailed:
    """Live brokers announced a log directory that failed (/log_dir_event_notification)."""

    brokers: frozenset[int]


@dataclass(frozen=True, slots=True)
class LeaderAndIsrAcked:
    """A broker answered a LeaderAndIsr, and reported more than success."""

    broker_id: int
    broker_epoch: int
    storage_errors: frozenset[TopicPartition] = frozenset()
    """Partitions on a log directory that failed there."""
    incomplete: frozenset[TopicPartition] = frozenset()
    """Partitions that it should lead and does not: its log is gone, or ends before what it had (S8)."""
    log_ends: Mapping[TopicPartition, LogEnd] = field(default_factory=dict)
    """The log ends of its replicas of partitions without a leader."""
    online: frozenset[TopicPartition] = frozenset()
    """Partitions that it leads or follows now, with a replica that was offline when the request was made."""


@dataclass(frozen=True, slots=True)
class StopReplicaAcked:
    """A broker answered a StopReplica with deletions: which succeeded and which failed."""

    broker_id: int
    broker_epoch: int
    deleted: frozenset[TopicPartition]
    failed: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequested:
    """A broker asks to shut down: move its leadership, then AnswerControlledShutdown."""

    broker_id: int
    broker_epoch: int
    """-1 when the request is too old to carry one."""
    left: tuple[TopicPartition, ...] | None = None
    """The led partitions that earlier steps have left to the later ones; None in the first step."""


@dataclass(frozen=True, slots=True)
class UncleanElectionEnabled:
    """*topic* has unclean.leader.election.enable, as read just now: leave no partition without a leader."""

    topic: str


@dataclass(frozen=True, slots=True)
class PreferredLeaderElectionDue:
    """A preferred leader election is due for brokers that lack more than *percentage* of their partitions."""

    percentage: int


@dataclass(frozen=True, slots=True)
class ReassignmentsDue:
    """The reassignments that `ControllerStateMachine.held_back` counts are to be completed."""


class ElectionType(Enum):
    """The type of an election, by Kafka's numbers (KIP-460)."""

    PREFERRED = 0
    """The first of the replicas."""
    UNCLEAN = 1
    """Any live replica, where there is no leader: records may be lost, whatever the topic's settings are."""


@dataclass(frozen=True, slots=True)
class ElectionRequested:
    """An operator requests elections; answered by AnswerElection."""

    election: ElectionType
    partitions: frozenset[TopicPartition] | None = None
    """None: all there are."""


@dataclass(frozen=True, slots=True)
class ReassignmentRequested:
    """An operator requests other replicas; answered by AnswerReassignment."""

    targets: Mapping[TopicPartition, tuple[int, ...] | None]
    """The target replicas, preferred leader first; None cancels the reassignment."""


@dataclass(frozen=True, slots=True)
class AssignmentsWritten:
    """The outcome of one WriteAssignments: all of it was written, except for topics that are gone."""

    gone: frozenset[str] = frozenset()


Event = (
    BecameController
    | BrokersChanged
    | TopicsChanged
    | TopicDeletionRequested
    | TopicZnodesDeleted
    | StatesWritten
    | IsrChanged
    | LogDirsFailed
    | LeaderAndIsrAcked
    | StopReplicaAcked
    | ControlledShutdownRequested
    | UncleanElectionEnabled
    | PreferredLeaderElectionDue
    | ReassignmentsDue
    | ElectionRequested
    | ReassignmentRequested
    | AssignmentsWritten
)
