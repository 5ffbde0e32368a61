"""The messages between brokers of a ZooKeeper cluster: leadership, metadata, shutdown.

The controller sends LeaderAndIsr, StopReplica and UpdateMetadata; a broker that shuts down sends ControlledShutdown to
the controller. kio no longer has these messages, because Kafka 4 removed them with ZooKeeper. They are hand-written
here with the numbers and fields of Kafka 3.9. They are LeaderAndIsr 5 to 7, StopReplica 3 and 4, UpdateMetadata 7 and
8, ControlledShutdown 3, all flexible. `kclient.wire.messages` encodes them like all other messages.

`broker_epoch` is the czxid of the receiver's registration as the sender knows it (KIP-380): a broker rejects a request
for an earlier registration. `is_kraft_controller` is always False.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final
from uuid import UUID

NO_LEADER: Final = -1
"""The leader of a partition without a live leader."""

LEADER_DURING_DELETE: Final = -2
"""The leader in UpdateMetadata for a partition of a topic that is being deleted."""

NO_EPOCH: Final = -1
"""The leader epoch in a StopReplica that skips the check."""

EPOCH_DURING_DELETE: Final = -2
"""The leader epoch in a StopReplica of a topic being deleted: higher than any other (KIP-570)."""

RECOVERED: Final = 0
RECOVERING: Final = 1
"""Values of leader_recovery_state (KIP-704)."""

# --- LeaderAndIsr (api key 4)


@dataclass(slots=True)
class LeaderAndIsrPartitionState:
    """The state of a partition: its leader, ISR and replicas.

    `partition_epoch` is the version of the partition's state znode. `leader` -1 means none. Tagged fields of kbroker
    (KIP-482) carry the further content of the state znode (KIP-903, KIP-966). They are the broker epochs of the ISR
    members, in the ISR's order, and the eligible leader replicas with their epochs.
    """

    WIRE: ClassVar[tuple[str, ...]] = (
        "partition_index int32 5+",
        "controller_epoch int32 5+",
        "leader int32 5+",
        "leader_epoch int32 5+",
        "isr []int32 5+",
        "partition_epoch int32 5+",
        "replicas []int32 5+",
        "adding_replicas []int32 5+",
        "removing_replicas []int32 5+",
        "is_new bool 5+",
        "leader_recovery_state int8 6+",
        "isr_epochs []int64 5+ tag=10000",
        "elr []int32 5+ tag=10001",
        "elr_epochs []int64 5+ tag=10002",
    )
    partition_index: int = 0
    controller_epoch: int = 0
    leader: int = 0
    leader_epoch: int = 0
    isr: list[int] = field(default_factory=list)
    partition_epoch: int = 0
    replicas: list[int] = field(default_factory=list)
    adding_replicas: list[int] = field(default_factory=list)
    removing_replicas: list[int] = field(default_factory=list)
    is_new: bool = False
    leader_recovery_state: int = 0
    isr_epochs: list[int] = field(default_factory=list)
    elr: list[int] = field(default_factory=list)
    elr_epochs: list[int] = field(default_factory=list)


@dataclass(slots=True)
class LeaderAndIsrTopicState:
    """The partitions of one topic."""

    WIRE: ClassVar[tuple[str, ...]] = (
        "topic_name string 5+",
        "topic_id uuid 5+",
        "partition_states []LeaderAndIsrPartitionState 5+",
    )
    topic_name: str = ""
    topic_id: UUID | None = None
    partition_states: list[LeaderAndIsrPartitionState] = field(default_factory=list)


@dataclass(slots=True)
class LeaderAndIsrLiveLeader:
    """The address of a leader in the request, for other brokers."""

    WIRE: ClassVar[tuple[str, ...]] = (
        "broker_id int32 5+",
        "host_name string 5+",
        "port int32 5+",
    )
    broker_id: int = 0
    host_name: str = ""
    port: int = 0


@dataclass(slots=True)
class LeaderAndIsrRequest:
    """The body of LeaderAndIsrRequest: become leader or follower of these partitions.

    `type` is 1 for a part of the broker's partitions, 2 for all of them (KIP-516). `request_number`: see
    `UpdateMetadataRequest`.
    """

    WIRE: ClassVar[tuple[str, ...]] = (
        "controller_id int32 5+",
        "is_kraft_controller bool 7+",
        "controller_epoch int32 5+",
        "broker_epoch int64 5+",
        "type int8 5+",
        "topic_states []LeaderAndIsrTopicState 5+",
        "live_leaders []LeaderAndIsrLiveLeader 5+",
        "request_number int64 5+ tag=10000",
    )
    controller_id: int = 0
    is_kraft_controller: bool = False
    controller_epoch: int = 0
    broker_epoch: int = -1
    type: int = 0
    topic_states: list[LeaderAndIsrTopicState] = field(default_factory=list)
    live_leaders: list[LeaderAndIsrLiveLeader] = field(default_factory=list)
    request_number: int = -1


@dataclass(slots=True)
class LeaderAndIsrPartitionError:
    """The result for one partition.

    Tagged fields of kbroker, for a partition without a leader. They are the log end offset, and the first and the last
    broker epoch under which the log kept all its records. They are -1 for other partitions, and if the log vouches for
    none.
    """

    WIRE: ClassVar[tuple[str, ...]] = (
        "partition_index int32 5+",
        "error_code int16 5+",
        "last_epoch int32 5+ tag=10000",
        "log_end_offset int64 5+ tag=10001",
        "intact_since int64 5+ tag=10002",
        "intact_until int64 5+ tag=10003",
    )
    partition_index: int = 0
    error_code: int = 0
    last_epoch: int = -1
    log_end_offset: int = -1
    intact_since: int = -1
    intact_until: int = -1


@dataclass(slots=True)
class LeaderAndIsrTopicError:
    """The results for the partitions of one topic."""

    WIRE: ClassVar[tuple[str, ...]] = (
        "topic_id uuid 5+",
        "partition_errors []LeaderAndIsrPartitionError 5+",
    )
    topic_id: UUID | None = None
    partition_errors: list[LeaderAndIsrPartitionError] = field(default_factory=list)


@dataclass(slots=True)
class LeaderAndIsrResponse:
    """The body of LeaderAndIsrResponse."""

    WIRE: ClassVar[tuple[str, ...]] = (
        "error_code int16 5+",
        "topics []LeaderAndIsrTopicError 5+",
    )
    error_code: int = 0
    topics: list[LeaderAndIsrTopicError] = field(default_factory=list)


# --- StopReplica (api key 5)


@dataclass(slots=True)
class StopReplicaPartitionState:
    """A partition to stop fetching, and perhaps to delete.

    `leader_epoch` -1 skips the check of the epoch, -2 is a topic being deleted (KIP-570).
    """

    WIRE: ClassVar[tuple[str, ...]] = (
        "partition_index int32 3+",
        "leader_epoch int32 3+",
        "delete_partition bool 3+",
    )
    partition_index: int = 0
    leader_epoch: int = -1
    delete_partition: bool = False


@dataclass(slots=True)
class StopReplicaTopicState:
    """The partitions of one topic."""

    WIRE: ClassVar[tuple[str, ...]] = (
        "topic_name string 3+",
        "partition_states []StopReplicaPartitionState 3+",
    )
    topic_name: str = ""
    partition_states: list[StopReplicaPartitionState] = field(default_factory=list)


@dataclass(slots=True)
class StopReplicaRequest:
    """The body of StopReplicaRequest: stop being a replica of these partitions.

    `request_number`: see `UpdateMetadataRequest`.
    """

    WIRE: ClassVar[tuple[str, ...]] = (
        "controller_id int32 3+",
        "is_kraft_controller bool 4+",
        "controller_epoch int32 3+",
        "broker_epoch int64 3+",
        "topic_states []StopReplicaTopicState 3+",
        "request_number int64 3+ tag=10000",
    )
    controller_id: int = 0
    is_kraft_controller: bool = False
    controller_epoch: int = 0
    broker_epoch: int = -1
    topic_states: list[StopReplicaTopicState] = field(default_factory=list)
    request_number: int = -1


@dataclass(slots=True)
class StopReplicaPartitionError:
    """The result for one partition."""

    WIRE: ClassVar[tuple[str, ...]] = (
        "topic_name string 3+",
        "partition_index int32 3+",
        "error_code int16 3+",
    )
    topic_name: str = ""
    partition_index: int = 0
    error_code: int = 0


@dataclass(slots=True)
class StopReplicaResponse:
    """The body of StopReplicaResponse."""

    WIRE: ClassVar[tuple[str, ...]] = (
        "error_code int16 3+",
        "partition_errors []StopReplicaPartitionError 3+",
    )
    error_code: int = 0
    partition_errors: list[StopReplicaPartitionError] = field(default_factory=list)


# --- UpdateMetadata (api key 6)


@dataclass(slots=True)
class UpdateMetadataPartitionState:
    """The metadata of a partition that brokers return to clients.

    `leader` -1 means none, -2 that the topic is being deleted.
    """

    WIRE: ClassVar[tuple[str, ...]] = (
        "partition_index int32 7+",
        "controller_epoch int32 7+",
        "leader int32 7+",
        "leader_epoch int32 7+",
        "isr []int32 7+",
        "zk_version int32 7+",
        "replicas []int32 7+",
        "offline_replicas []int32 7+",
    )
    partition_index: int = 0
    controller_epoch: int = 0
    leader: int = 0
    leader_epoch: int = 0
    isr: list[int] = field(default_factory=list)
    zk_version: int = 0
    replicas: list[int] = field(default_factory=list)
    offline_replicas: list[int] = field(default_factory=list)


@dataclass(slots=True)
class UpdateMetadataTopicState:
    """The changed partitions of one topic."""

    WIRE: ClassVar[tuple[str, ...]] = (
        "topic_name string 7+",
        "topic_id uuid 7+",
        "partition_states []UpdateMetadataPartitionState 7+",
    )
    topic_name: str = ""
    topic_id: UUID | None = None
    partition_states: list[UpdateMetadataPartitionState] = field(default_factory=list)


@dataclass(slots=True)
class UpdateMetadataEndpoint:
    """One listener of a broker.

    `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL.
    """

    WIRE: ClassVar[tuple[str, ...]] = (
        "port int32 7+",
        "host string 7+",
        "listener string 7+",
        "security_protocol int16 7+",
    )
    port: int = 0
    host: str = ""
    listener: str = ""
    security_protocol: int = 0


@dataclass(slots=True)
class UpdateMetadataBroker:
    """A live broker.

    Tagged fields of kbroker: its broker epoch, and whether it is in a controlled shutdown.
    """

    WIRE: ClassVar[tuple[str, ...]] = (
        "id int32 7+",
        "endpoints []UpdateMetadataEndpoint 7+",
        "rack string 7+ null=7+",
        "epoch int64 7+ tag=10000",
        "is_shutting_down bool 7+ tag=10001",
    )
    id: int = 0
    endpoints: list[UpdateMetadataEndpoint] = field(default_factory=list)
    rack: str | None = None
    epoch: int = -1
    is_shutting_down: bool = False


@dataclass(slots=True)
class UpdateMetadataRequest:
    """The body of UpdateMetadataRequest: the live brokers, and the changed partitions or all of them (`type`).

    All partitions may come in several requests, numbered by tagged fields of kbroker (KIP-482): they take effect
    together with the last one.
    """

    WIRE: ClassVar[tuple[str, ...]] = (
        "controller_id int32 7+",
        "is_kraft_controller bool 8+",
        "type int8 8+ tag=0",
        "controller_epoch int32 7+",
        "broker_epoch int64 7+",
        "topic_states []UpdateMetadataTopicState 7+",
        "live_brokers []UpdateMetadataBroker 7+",
        "part int32 8+ tag=10000",
        "has_more bool 8+ tag=10001",
        "request_number int64 8+ tag=10002",
    )
    controller_id: int = 0
    is_kraft_controller: bool = False
    type: int = 0
    controller_epoch: int = 0
    broker_epoch: int = -1
    topic_states: list[UpdateMetadataTopicState] = field(default_factory=list)
    live_brokers: list[UpdateMetadataBroker] = field(default_factory=list)
    part: int = -1
    """-1: it is all there is."""
    has_more: bool = False
    request_number: int = -1
    """Rises with every request of a controller; a request that is sent again keeps its number. -1: not numbered."""


@dataclass(slots=True)
class UpdateMetadataResponse:
    """The body of UpdateMetadataResponse."""

    WIRE: ClassVar[tuple[str, ...]] = ("error_code int16 7+",)
    error_code: int = 0


# --- ControlledShutdown (api key 7)


@dataclass(slots=True)
class ControlledShutdownRequest:
    """The body of ControlledShutdownRequest: move leadership away from this broker."""

    WIRE: ClassVar[tuple[str, ...]] = (
        "broker_id int32 3+",
        "broker_epoch int64 3+",
    )
    broker_id: int = 0
    broker_epoch: int = -1


@dataclass(slots=True)
class RemainingPartition:
    """A partition that the broker still leads."""

    WIRE: ClassVar[tuple[str, ...]] = (
        "topic_name string 3+",
        "partition_index int32 3+",
    )
    topic_name: str = ""
    partition_index: int = 0


@dataclass(slots=True)
class ControlledShutdownResponse:
    """The body of ControlledShutdownResponse: the shutdown may proceed when nothing remains."""

    WIRE: ClassVar[tuple[str, ...]] = (
        "error_code int16 3+",
        "remaining_partitions []RemainingPartition 3+",
    )
    error_code: int = 0
    remaining_partitions: list[RemainingPartition] = field(default_factory=list)
