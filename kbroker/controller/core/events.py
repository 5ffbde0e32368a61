"""Facts the controller machine is told. Levels rather than edges: an event carries what was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import Broker, LeaderAndIsr, LogEnd, Topic


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
    delete_topic_enable: bool = True


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """All of /brokers/ids as it is now; who joined, died or bounced is the machine's to find out."""

    brokers: Mapping[int, Broker]


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Topics that appeared, or whose assignment grew, as read; and names that vanished."""

    topics: tuple[Topic, ...] = ()
    vanished: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicDeletionRequested:
    """Names under /admin/delete_topics (those already being deleted may be among them)."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class TopicZnodesDeleted:
    """DeleteTopicZnodes was performed."""

    topic: str


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
    """Brokers that live announced a log directory that failed (/log_dir_event_notification)."""

    brokers: frozenset[int]


@dataclass(frozen=True, slots=True)
class LeaderAndIsrAcked:
    """A broker answered a LeaderAndIsr, and not only with good news."""

    broker_id: int
    broker_epoch: int
    storage_errors: frozenset[TopicPartition] = frozenset()
    """Partitions whose log directory failed there."""
    incomplete: frozenset[TopicPartition] = frozenset()
    """Partitions it was to lead and does not: its log is gone, or ends before what it had (S8)."""
    log_ends: Mapping[TopicPartition, LogEnd] = field(default_factory=dict)
    """Where its logs of partitions end that nobody leads."""
    online: frozenset[TopicPartition] = frozenset()
    """Partitions whose replica there was offline when the request was made, and that it leads or follows now."""


@dataclass(frozen=True, slots=True)
class StopReplicaAcked:
    """A broker answered a StopReplica with deletions: which succeeded and which failed."""

    broker_id: int
    broker_epoch: int
    deleted: frozenset[TopicPartition]
    failed: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequested:
    """A broker wants to leave: move its leadership, then AnswerControlledShutdown."""

    broker_id: int
    broker_epoch: int
    """-1 when the request is too old to carry one."""


@dataclass(frozen=True, slots=True)
class UncleanElectionEnabled:
    """*topic* has unclean.leader.election.enable, as read just now: leave no partition without a leader."""

    topic: str


@dataclass(frozen=True, slots=True)
class PreferredLeaderElectionDue:
    """It is time to look at who leads: brokers that lack more than *percentage* get their own back."""

    percentage: int


@dataclass(frozen=True, slots=True)
class ReassignmentsDue:
    """It is time to complete what `Controller.held_back` reassignments wait for."""


class ElectionType(Enum):
    """What an operator wants elected, by Kafka's numbers (KIP-460)."""

    PREFERRED = 0
    """The first of the replicas."""
    UNCLEAN = 1
    """Anybody, where nobody leads: records may be lost, whatever the topic's settings say."""


@dataclass(frozen=True, slots=True)
class ElectionRequested:
    """An operator wants leaders elected; answered by AnswerElection."""

    election: ElectionType
    partitions: frozenset[TopicPartition] | None = None
    """None: all there are."""


@dataclass(frozen=True, slots=True)
class ReassignmentRequested:
    """An operator wants other replicas; answered by AnswerReassignment."""

    targets: Mapping[TopicPartition, tuple[int, ...] | None]
    """The replicas wanted, preferred leader first; None calls the reassignment off."""


@dataclass(frozen=True, slots=True)
class AssignmentsWritten:
    """The outcome of one WriteAssignments: all of it was written but what belongs to topics that are gone."""

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
