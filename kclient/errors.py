"""Every error of the clients: one class per error code of Kafka, and those of the client itself.

An error code in a response becomes the class named after the code: UNKNOWN_TOPIC_OR_PARTITION is
`UnknownTopicOrPartition` (`kclient.wire.errors`). The classes defined here cover what no broker answered: the address,
the cause, and what to do next. All are `KafkaError`, so one ``except`` catches both kinds::

    try:
        producer.send("orders", b"value").result()
    except KafkaError as problem:
        print(problem.name, problem.retriable, problem.hint)
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kclient.types import ColumnsMetadata, TopicPartition
from kclient.wire.errors import (
    BrokerIdNotRegistered,
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    CorruptMessage,
    DelegationTokenAuthDisabled,
    DelegationTokenAuthorizationFailed,
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    DelegationTokenRequestNotAllowed,
    DuplicateBrokerRegistration,
    DuplicateResource,
    DuplicateSequenceNumber,
    DuplicateVoter,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    ErrorCode,
    FeatureUpdateFailed,
    FencedInstanceId,
    FencedLeaderEpoch,
    FencedMemberEpoch,
    FencedStateEpoch,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    GroupMaxSizeReached,
    GroupSubscribedToTopic,
    IllegalGeneration,
    IllegalSaslState,
    InconsistentClusterId,
    InconsistentGroupProtocol,
    InconsistentTopicId,
    InconsistentVoterSet,
    IneligibleReplica,
    InvalidCommitOffsetSize,
    InvalidConfig,
    InvalidFetchSessionEpoch,
    InvalidFetchSize,
    InvalidGroupId,
    InvalidPartitions,
    InvalidPrincipalType,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidRecordState,
    InvalidRegistration,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidRequiredAcks,
    InvalidSessionTimeout,
    InvalidShareSessionEpoch,
    InvalidTimestamp,
    InvalidTopicException,
    InvalidTransactionTimeout,
    InvalidTxnState,
    InvalidUpdateVersion,
    InvalidVoterKey,
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailable,
    ListenerNotFound,
    LogDirNotFound,
    MemberIdRequired,
    MessageTooLarge,
    MismatchedEndpointType,
    NetworkException,
    NewLeaderElected,
    NonEmptyGroup,
    NoReassignmentInProgress,
    NotController,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetMetadataTooLarge,
    OffsetMovedToTieredStorage,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OperationNotAttempted,
    OutOfOrderSequenceNumber,
    PolicyViolation,
    PositionOutOfRange,
    PreferredLeaderNotAvailable,
    PrincipalDeserializationFailure,
    ProducerFenced,
    ProtocolError,
    ReassignmentInProgress,
    RebalanceInProgress,
    RecordListTooLarge,
    ReplicaNotAvailable,
    RequestTimedOut,
    ResourceNotFound,
    SaslAuthenticationFailed,
    SecurityDisabled,
    ShareSessionNotFound,
    SnapshotNotFound,
    StaleBrokerEpoch,
    StaleControllerEpoch,
    StaleMemberEpoch,
    TelemetryTooLarge,
    ThrottlingQuotaExceeded,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    TopicDeletionDisabled,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    TransactionalIdNotFound,
    TransactionCoordinatorFenced,
    UnacceptableCredential,
    UnknownControllerId,
    UnknownLeaderEpoch,
    UnknownMemberId,
    UnknownProducerId,
    UnknownServerError,
    UnknownSubscriptionId,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnreleasedInstanceId,
    UnstableOffsetCommit,
    UnsupportedAssignor,
    UnsupportedCompressionType,
    UnsupportedEndpointType,
    UnsupportedForMessageFormat,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
    VoterNotFound,
)

__all__ = [
    "Address",
    "AttemptFailed",
    "BootstrapError",
    "BrokerIdNotRegistered",
    "BrokerNotAvailable",
    "BufferExhausted",
    "Cause",
    "ClientClosed",
    "ClientError",
    "ClusterAuthorizationFailed",
    "ConcurrentTransactions",
    "ConfigError",
    "ConnectError",
    "ConnectionClosed",
    "ConsumerLeftGroup",
    "CoordinatorLoadInProgress",
    "CoordinatorNotAvailable",
    "CorruptMessage",
    "DelegationTokenAuthDisabled",
    "DelegationTokenAuthorizationFailed",
    "DelegationTokenExpired",
    "DelegationTokenNotFound",
    "DelegationTokenOwnerMismatch",
    "DelegationTokenRequestNotAllowed",
    "DuplicateBrokerRegistration",
    "DuplicateResource",
    "DuplicateSequenceNumber",
    "DuplicateVoter",
    "ElectionNotNeeded",
    "EligibleLeadersNotAvailable",
    "ErrorCode",
    "FeatureUpdateFailed",
    "FencedInstanceId",
    "FencedLeaderEpoch",
    "FencedMemberEpoch",
    "FencedStateEpoch",
    "FetchSessionIdNotFound",
    "FetchSessionTopicIdError",
    "GroupAuthorizationFailed",
    "GroupIdNotFound",
    "GroupMaxSizeReached",
    "GroupSubscribedToTopic",
    "IllegalGeneration",
    "IllegalSaslState",
    "IllegalStateError",
    "InconsistentClusterId",
    "InconsistentGroupProtocol",
    "InconsistentTopicId",
    "InconsistentVoterSet",
    "IneligibleReplica",
    "InvalidCommitOffsetSize",
    "InvalidConfig",
    "InvalidFetchSessionEpoch",
    "InvalidFetchSize",
    "InvalidGroupId",
    "InvalidPartitions",
    "InvalidPrincipalType",
    "InvalidProducerEpoch",
    "InvalidProducerIdMapping",
    "InvalidRecord",
    "InvalidRecordState",
    "InvalidRegistration",
    "InvalidReplicaAssignment",
    "InvalidReplicationFactor",
    "InvalidRequest",
    "InvalidRequiredAcks",
    "InvalidSessionTimeout",
    "InvalidShareSessionEpoch",
    "InvalidTimestamp",
    "InvalidTopicException",
    "InvalidTransactionTimeout",
    "InvalidTxnState",
    "InvalidUpdateVersion",
    "InvalidVoterKey",
    "KafkaError",
    "KafkaStorageError",
    "KafkaTimeoutError",
    "LeaderNotAvailable",
    "LeaderUnavailable",
    "ListenerNotFound",
    "LogDirNotFound",
    "LogTruncated",
    "MemberIdRequired",
    "MessageTooLarge",
    "MismatchedEndpointType",
    "NetworkException",
    "NewLeaderElected",
    "NoCommittedOffset",
    "NoReassignmentInProgress",
    "NonEmptyGroup",
    "NotController",
    "NotCoordinator",
    "NotEnoughReplicas",
    "NotEnoughReplicasAfterAppend",
    "NotLeaderOrFollower",
    "OffsetMetadataTooLarge",
    "OffsetMovedToTieredStorage",
    "OffsetNotAvailable",
    "OffsetOutOfRange",
    "OperationNotAttempted",
    "OutOfOrderSequenceNumber",
    "PolicyViolation",
    "PositionOutOfRange",
    "PreferredLeaderNotAvailable",
    "PrincipalDeserializationFailure",
    "ProducerFenced",
    "ProtocolError",
    "ReassignmentInProgress",
    "RebalanceInProgress",
    "RecordDeserializationError",
    "RecordListTooLarge",
    "ReplicaNotAvailable",
    "RequestTimedOut",
    "ResourceNotFound",
    "RowsNotAcknowledged",
    "SaslAuthenticationFailed",
    "SecurityDisabled",
    "SerializationError",
    "ShareSessionNotFound",
    "SnapshotNotFound",
    "StaleBrokerEpoch",
    "StaleControllerEpoch",
    "StaleMemberEpoch",
    "TelemetryTooLarge",
    "ThrottlingQuotaExceeded",
    "TopicAlreadyExists",
    "TopicAuthorizationFailed",
    "TopicDeletionDisabled",
    "TransactionAbortable",
    "TransactionAborted",
    "TransactionCoordinatorFenced",
    "TransactionStateError",
    "TransactionalIdAuthorizationFailed",
    "TransactionalIdNotFound",
    "UnacceptableCredential",
    "UnknownControllerId",
    "UnknownLeaderEpoch",
    "UnknownMemberId",
    "UnknownProducerId",
    "UnknownServerError",
    "UnknownSubscriptionId",
    "UnknownTopicId",
    "UnknownTopicOrPartition",
    "UnreleasedInstanceId",
    "UnstableOffsetCommit",
    "UnsupportedAssignor",
    "UnsupportedCompressionType",
    "UnsupportedEndpointType",
    "UnsupportedForMessageFormat",
    "UnsupportedSaslMechanism",
    "UnsupportedVersion",
    "VoterNotFound",
]


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """The host name or IP literal, and the port, of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Cause(enum.Enum):
    """Why an address could not be used; the values appear in messages."""

    DNS = "name does not resolve"
    REFUSED = "connection refused"
    TIMEOUT = "timed out"
    UNREACHABLE = "unreachable"
    NOT_KAFKA = "not a Kafka port"
    CLOSED = "closed the connection"
    ERROR = "answered with an error"
    TLS = "TLS failed"
    SASL = "authentication failed"


class ClientError(KafkaError):
    """An error of the client itself; it has no error code in its text.

    Its *name* is that of the class in capital letters: KAFKA_TIMEOUT_ERROR.
    """

    @property
    def name(self) -> str:
        """The name of the class, as a code is written."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).upper()

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(ClientError):
    """A setting is unknown or has an invalid value.

    >>> from kclient.config import ConsumerConfig
    >>> ConsumerConfig.load({"group.ids": "g"})
    Traceback (most recent call last):
    kclient.errors.ConfigError: group.ids: unknown setting, did you mean group.id?
    """


class ConnectError(ClientError, needs_metadata=True):
    """The connection to one address failed; *cause* is the reason, *detail* adds what is known."""

    def __init__(self, address: Address, cause: Cause, detail: str = "") -> None:
        text = f"{address}: {cause.value}"
        super().__init__(f"{text} ({detail})" if detail else text)
        self.address = address
        self.cause = cause
        self.detail = detail


class ConnectionClosed(ClientError, needs_metadata=True):
    """The connection ended before the response; the broker may or may not have handled the request."""


class KafkaTimeoutError(ClientError, TimeoutError, retriable=True):
    """An operation exceeded its timeout; the text names the operation and the time. It is a `TimeoutError`, too.

    >>> isinstance(KafkaTimeoutError("flush took more than 5 s"), TimeoutError)
    True
    """


class ClientClosed(ClientError):
    """The client was closed before or during this call."""


class BufferExhausted(KafkaTimeoutError):
    """``buffer.memory`` stayed full for ``max.block.ms``: the brokers accept less than is sent."""


class LeaderUnavailable(ClientError, needs_metadata=True):
    """A partition has no leader."""


class SerializationError(ClientError):
    """A key or value could not be serialized or deserialized."""


class RowsNotAcknowledged(ClientError):
    """Some rows of `send_columns` were not acknowledged.

    *rows* are their numbers in order, *acknowledged* is where the others are stored, *cause* is the first error. As
    with a record that timed out, a row of *rows* may be in the log all the same.

    >>> from kclient.types import OffsetRange
    >>> stored = ColumnsMetadata("orders", 1, (OffsetRange(0, 40, 1),))
    >>> problem = RowsNotAcknowledged([1, 2], stored, BufferExhausted("buffer.memory stayed full"))
    >>> print(problem.message)
    2 of 3 rows for topic 'orders' were not acknowledged: buffer.memory stayed full
    """

    def __init__(
        self, rows: Sequence[int], acknowledged: ColumnsMetadata, cause: KafkaError
    ) -> None:
        self.rows = rows
        self.acknowledged = acknowledged
        self.cause = cause
        total = len(rows) + acknowledged.row_count
        super().__init__(
            f"{len(rows)} of {total} rows for topic {acknowledged.topic!r} were not acknowledged: "
            f"{cause.message}",
            hint=cause.hint,
        )
        self.__cause__ = cause

    @property
    def retriable(self) -> bool:  # type: ignore[override]  # others have it from their class
        """Whether the rows may be stored when they are sent again: that of *cause*."""
        return self.cause.retriable


class RecordDeserializationError(SerializationError):
    """The key or value of a consumed record could not be deserialized (KIP-334).

    Every poll raises it until the consumer seeks; `seek(topic_partition, offset + 1)` skips the record.
    """

    hint = "seek to the next offset to skip the record"

    def __init__(
        self, topic_partition: TopicPartition, offset: int, what: str, cause: BaseException
    ) -> None:
        super().__init__(
            f"the {what} of the record at {topic_partition}, offset {offset} "
            f"cannot be deserialized: {cause}"
        )
        self.topic_partition = topic_partition
        self.offset = offset


class LogTruncated(ClientError):
    """Consumed records were lost: the log was truncated below the position (KIP-320).

    *divergent_offset* is where the new log diverges from the consumed one, None if unknown.
    """

    hint = "seek to a new position"

    def __init__(
        self, topic_partition: TopicPartition, position: int, divergent_offset: int | None
    ) -> None:
        where = "an unknown offset" if divergent_offset is None else f"offset {divergent_offset}"
        super().__init__(
            f"the log of {topic_partition} was truncated to {where}, below the position {position}"
        )
        self.topic_partition = topic_partition
        self.position = position
        self.divergent_offset = divergent_offset


class IllegalStateError(ClientError):
    """A call does not fit the state of the client: a partition that is not assigned, or no group.id."""


class ConsumerLeftGroup(ClientError):
    """The consumer left its group; the text has the reason."""


class TransactionStateError(ClientError):
    """A call does not fit the state of the producer's transaction; the hint is the next step."""


class TransactionAborted(ClientError):
    """The transaction cannot be committed any more; `__cause__` is the first error, if there was one.

    Also the error of its records that were not acknowledged: consumers with isolation.level=read_committed see none.

        try:
            with producer.transaction():
                producer.send("orders", b"value")
        except TransactionAborted as problem:
            print("send the records of this transaction again:", problem.__cause__)
    """


class NoCommittedOffset(ClientError):
    """``auto.offset.reset=none`` and there is no valid offset to start from."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """One address of a bootstrap list and why it failed."""

    address: Address
    cause: Cause
    detail: str = ""

    def __str__(self) -> str:
        text = f"{self.address}: {self.cause.value}"
        return f"{text} ({self.detail})" if self.detail else text


class BootstrapError(ClientError, retriable=True):
    """No bootstrap server could be used; the text lists each address with its cause.

    >>> problem = BootstrapError([AttemptFailed(Address("localhost", 9092), Cause.REFUSED)])
    >>> print(problem)
    no broker could be reached:
      localhost:9092: connection refused
    >>> [attempt.cause.name for attempt in problem.attempts]
    ['REFUSED']
    """

    def __init__(self, attempts: Sequence[AttemptFailed], hint: str = "") -> None:
        lines = "".join(f"\n  {attempt}" for attempt in attempts)
        super().__init__(
            f"no broker could be reached:{lines}" + (f"\n  hint: {hint}" if hint else "")
        )
        self.attempts = tuple(attempts)
        self.hint = hint or "start the brokers, or correct bootstrap.servers"

    def __str__(self) -> str:
        return self.message
