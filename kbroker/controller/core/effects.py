"""Orders the controller machine gives, to be performed in the order given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import Broker, LeaderAndIsr, ReplicaAssignment


@dataclass(frozen=True, slots=True)
class StateWrite:
    """One partition's state znode as it should become."""

    partition: TopicPartition
    state: LeaderAndIsr
    expected_version: int | None
    """The znode's version it is conditional on; None creates the znode (and its parents)."""


@dataclass(frozen=True, slots=True)
class WriteStates:
    """Write the states, each conditional on its version and all on /controller_epoch.

    Answered by one StatesWritten; until then the machine keeps other events waiting. A write fenced
    by /controller_epoch is answered by Resigned.
    """

    writes: tuple[StateWrite, ...]


@dataclass(frozen=True, slots=True)
class WriteAssignments:
    """Write the replicas of these partitions, of *topics* by name, into the topics' znodes.

    Under the fence of /controller_epoch, and keeping partitions that were added meanwhile. Answered by one
    AssignmentsWritten; until then the machine keeps other events waiting.
    """

    topics: Mapping[str, UUID]
    assignments: Mapping[TopicPartition, ReplicaAssignment]


@dataclass(frozen=True, slots=True)
class PartitionUpdate:
    """What brokers are told of one partition."""

    topic: str
    topic_id: UUID
    partition: int
    state: LeaderAndIsr
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """Start talking to *broker* (a new incarnation: forget what the old one was to be told)."""

    broker: Broker


@dataclass(frozen=True, slots=True)
class CloseChannel:
    """The broker died: forget what it was to be told."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class SendLeaderAndIsr:
    """Tell *broker_id* to lead or follow *partitions*; *live_leaders* say where the leaders are."""

    broker_id: int
    partitions: tuple[PartitionUpdate, ...]
    live_leaders: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class SendUpdateMetadata:
    """Tell *broker_ids* what changed, and who lives now."""

    broker_ids: tuple[int, ...]
    partitions: tuple[PartitionUpdate, ...]
    live_brokers: tuple[Broker, ...]
    full: bool = False
    """*partitions* are all there are: whatever else a broker remembers does not exist."""
    before_leaders: bool = False
    """Deliver this before any LeaderAndIsr that follows, not merged with later ones (KAFKA-4443)."""


@dataclass(frozen=True, slots=True)
class ReplicaStop:
    """One partition of a StopReplica."""

    partition: TopicPartition
    leader_epoch: int
    """EPOCH_DURING_DELETE when its topic is being deleted (KIP-570)."""
    delete: bool


@dataclass(frozen=True, slots=True)
class SendStopReplica:
    """Tell *broker_id* to stop, and maybe delete, replicas. Deletions: StopReplicaAcked."""

    broker_id: int
    stops: tuple[ReplicaStop, ...]


@dataclass(frozen=True, slots=True)
class DeleteTopicZnodes:
    """Remove /brokers/topics/T, /config/topics/T and /admin/delete_topics/T: TopicZnodesDeleted."""

    topic: str


@dataclass(frozen=True, slots=True)
class DeleteTopicDeletions:
    """Remove /admin/delete_topics/T of topics that do not exist, or may not be deleted."""

    topics: tuple[str, ...]


class ShutdownOutcome(Enum):
    """How a ControlledShutdown ended."""

    MOVED = "moved"
    STALE_BROKER_EPOCH = "stale broker epoch"
    BROKER_NOT_AVAILABLE = "broker not available"


@dataclass(frozen=True, slots=True)
class AnswerControlledShutdown:
    """Answer the request: *remaining* are partitions with RF > 1 that the broker still leads."""

    outcome: ShutdownOutcome
    remaining: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckUncleanElection:
    """Look whether *topics* may be led by a replica out of the ISR: UncleanElectionEnabled for those."""

    topics: tuple[str, ...]


class ElectionOutcome(Enum):
    """How the election that an operator asked for ended, for one partition."""

    ELECTED = "elected"
    NOT_NEEDED = "not needed"
    """The preferred replica leads; or, for an unclean election, somebody does."""
    NOT_AVAILABLE = "not available"
    """Whoever could be elected is down or, if only a preferred leader will do, not in the ISR."""
    UNKNOWN = "unknown"
    BEING_DELETED = "being deleted"


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """What became of one partition; *leader* is who was elected."""

    outcome: ElectionOutcome
    leader: int = -1
    lost_isr: tuple[int, ...] = ()
    """The ISR that an unclean election went past: its members may have had records that are lost now."""


@dataclass(frozen=True, slots=True)
class AnswerElection:
    """Answer ElectionRequested."""

    results: Mapping[TopicPartition, ElectionResult]


class ReassignmentOutcome(Enum):
    """What became of a wish for other replicas, for one partition."""

    ACCEPTED = "accepted"
    """It is in ZooKeeper: it will be done, by whoever is the controller then."""
    INVALID = "invalid"
    NOTHING_TO_CANCEL = "nothing to cancel"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ReassignmentResult:
    """What became of one partition; *why* says what is wrong with the wish."""

    outcome: ReassignmentOutcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class AnswerReassignment:
    """Answer ReassignmentRequested."""

    results: Mapping[TopicPartition, ReassignmentResult]


@dataclass(frozen=True, slots=True)
class WarnOfDataLoss:
    """Tell the operator that replicas which should have everything may lack acknowledged records (S8)."""

    partition: TopicPartition
    leader: int
    """Who leads all the same; -1: nobody, until somebody decides."""
    untrusted: tuple[tuple[int, str], ...]
    """Broker, and why it is not trusted."""
    reason: str = ""
    """Why *leader* leads."""


@dataclass(frozen=True, slots=True)
class Resign:
    """A newer controller exists: give up the office. The machine is already silent."""

    reason: str


Effect = (
    WriteStates
    | WriteAssignments
    | OpenChannel
    | CloseChannel
    | SendLeaderAndIsr
    | SendUpdateMetadata
    | SendStopReplica
    | DeleteTopicZnodes
    | DeleteTopicDeletions
    | AnswerControlledShutdown
    | CheckUncleanElection
    | AnswerElection
    | AnswerReassignment
    | WarnOfDataLoss
    | Resign
)
