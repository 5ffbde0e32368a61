"""The effects that the controller's state machine returns. The shell performs them in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import Broker, ReplicaAssignment


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

    Answered by one StatesWritten; until then the machine rejects other events. A write that is
    fenced by /controller_epoch ends the epoch.
    """

    writes: tuple[StateWrite, ...]


@dataclass(frozen=True, slots=True)
class WriteAssignments:
    """Write the replicas of these partitions, of *topics* by name, into the topics' znodes.

    Under the fence of /controller_epoch, and keeping partitions that were added meanwhile. Answered by one
    AssignmentsWritten; until then the machine rejects other events.
    """

    topics: Mapping[str, UUID]
    assignments: Mapping[TopicPartition, ReplicaAssignment]


@dataclass(frozen=True, slots=True)
class PartitionUpdate:
    """One partition as LeaderAndIsr and UpdateMetadata carry it."""

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
    """Open a channel to *broker*; requests pending to an earlier registration are dropped."""

    broker: Broker


@dataclass(frozen=True, slots=True)
class CloseChannel:
    """The broker's registration is gone: drop the requests pending to it."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class SendLeaderAndIsr:
    """Send *broker_id* the *partitions* that it leads or follows; *live_leaders* have the leaders' addresses."""

    broker_id: int
    partitions: tuple[PartitionUpdate, ...]
    live_leaders: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class SendUpdateMetadata:
    """Send *broker_ids* the *partitions* that changed, and all live brokers."""

    broker_ids: tuple[int, ...]
    partitions: tuple[PartitionUpdate, ...]
    live_brokers: tuple[Broker, ...]
    full: bool = False
    """*partitions* are all that exist: they replace the broker's metadata."""
    before_leaders: bool = False
    """Send this before any LeaderAndIsr that follows, not merged with later ones (KAFKA-4443)."""


@dataclass(frozen=True, slots=True)
class ReplicaStop:
    """One partition of a StopReplica."""

    partition: TopicPartition
    leader_epoch: int
    """EPOCH_DURING_DELETE when its topic is being deleted (KIP-570)."""
    delete: bool


@dataclass(frozen=True, slots=True)
class SendStopReplica:
    """Send *broker_id* replicas to stop, and perhaps to delete. Deletions are answered by StopReplicaAcked."""

    broker_id: int
    stops: tuple[ReplicaStop, ...]


@dataclass(frozen=True, slots=True)
class DeleteTopicZnodes:
    """Remove /brokers/topics/T, /config/topics/T and /admin/delete_topics/T: TopicZnodesDeleted."""

    topic: str
    topic_id: UUID


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
class ContinueControlledShutdown:
    """Go on with `ControlledShutdownRequested` of *left* when the brokers have applied the step before."""

    broker_id: int
    broker_epoch: int
    left: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class CheckUncleanElection:
    """Read whether *topics* allow an unclean election: UncleanElectionEnabled for those that do."""

    topics: tuple[str, ...]


class ElectionOutcome(Enum):
    """How a requested election ended, for one partition."""

    ELECTED = "elected"
    NOT_NEEDED = "not needed"
    """The preferred replica leads; or, for an unclean election, any replica does."""
    NOT_AVAILABLE = "not available"
    """No replica can be elected: all are down or, for a preferred election, the preferred one is not in the ISR."""
    UNKNOWN = "unknown"
    BEING_DELETED = "being deleted"


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """The outcome for one partition; *leader* is the replica that was elected."""

    outcome: ElectionOutcome
    leader: int = -1
    lost_isr: tuple[int, ...] = ()
    """The ISR that an unclean election went past: its members may have had records that are lost now."""


@dataclass(frozen=True, slots=True)
class AnswerElection:
    """Answer ElectionRequested."""

    results: Mapping[TopicPartition, ElectionResult]


class ReassignmentOutcome(Enum):
    """How a requested reassignment ended, for one partition."""

    ACCEPTED = "accepted"
    """It is in ZooKeeper: this controller or the next one completes it."""
    INVALID = "invalid"
    NOTHING_TO_CANCEL = "nothing to cancel"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ReassignmentResult:
    """The outcome for one partition; *why* is the reason of a rejection."""

    outcome: ReassignmentOutcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class AnswerReassignment:
    """Answer ReassignmentRequested."""

    results: Mapping[TopicPartition, ReassignmentResult]


@dataclass(frozen=True, slots=True)
class WarnOfDataLoss:
    """Log that replicas which should have every acknowledged record may lack some (S8)."""

    partition: TopicPartition
    leader: int
    """The replica that leads all the same; -1: none, until an operator decides."""
    untrusted: tuple[tuple[int, str], ...]
    """Brokers, and why each may lack records."""
    reason: str = ""
    """Why *leader* leads."""


@dataclass(frozen=True, slots=True)
class Resign:
    """A newer controller exists: resign. The machine returns no effect any more."""

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
    | ContinueControlledShutdown
    | CheckUncleanElection
    | AnswerElection
    | AnswerReassignment
    | WarnOfDataLoss
    | Resign
)
