"""Kafka's errors as exceptions: one class per error code, with its consequences for a client.

A broker raises them to set the error code of a response (`error.code`); a client raises the same classes for error
codes in responses. Four attributes of a class replace the exception hierarchy of Kafka's Java client:

``retriable``       the same request may succeed later or at another broker
``needs_metadata``  the client's metadata are out of date: refresh them before the retry
``fatal``           this producer, consumer or connection cannot continue and must be closed
``hint``            advice for operators ("" if there is no general one)

`ProtocolError` and its subclasses are about bytes that are not Kafka's protocol. `MalformedMessage` is the only
exception that decoding raises, for any bytes.
"""

from collections.abc import Sequence
from typing import ClassVar

from kclient.wire.error_codes import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "code_of", "for_code", "raise_for_code"]

_BY_CODE: dict[int, type["KafkaError"]] = {}


class KafkaError(Exception):
    """Any error of Kafka's protocol or of the client.

    *message* names the error's subject (topic, partition, address) and the problem; without one the text is the general
    meaning of the code. *hint* replaces the class's advice.

    >>> problem = OffsetOutOfRange("orders-0, offset 900")
    >>> problem.name, int(problem.code), problem.retriable
    ('OFFSET_OUT_OF_RANGE', 1, False)
    >>> problem.hint
    'seek to the beginning or the end, or set auto.offset.reset'
    """

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False
    needs_metadata: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    hint: str = ""
    is_response: bool = False
    """Whether a broker responded with the code."""
    broker_message: str | None = None
    """The message that the broker sent with the code, as it is."""

    def __init_subclass__(
        cls,
        *,
        code: ErrorCode | None = None,
        retriable: bool | None = None,
        needs_metadata: bool | None = None,
        fatal: bool | None = None,
    ) -> None:
        """Set the attributes of a subclass; the class given a *code* becomes that code's class.

        What needs new metadata is retriable, as in Kafka's client.
        """
        super().__init_subclass__()
        if needs_metadata is not None:
            cls.needs_metadata = needs_metadata
            cls.retriable = needs_metadata or cls.retriable
        if retriable is not None:
            cls.retriable = retriable
        if fatal is not None:
            cls.fatal = fatal
        if code is not None:
            cls.code = code
            _BY_CODE[int(code)] = cls

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message or (type(self).__doc__ or "").partition("\n")[0]
        if hint is not None:
            self.hint = hint

    @property
    def name(self) -> str:
        """The name of the error code, as Kafka writes it."""
        return self.code.name

    def __str__(self) -> str:
        text = f"{self.code.name}: {self.message}"
        return f"{text} ({self.hint})" if self.hint else text


class ProtocolError(KafkaError):
    """The peer sent bytes that are not Kafka's protocol; the connection is unusable."""

    code = ErrorCode.INVALID_REQUEST
    fatal = True
    hint = "is the address the right one, and is one side using TLS and the other not?"


class MalformedMessage(ProtocolError):
    """A message's bytes contradict its schema."""

    hint = ""


class TooManyElements(MalformedMessage):
    """A message has more elements than its reader allows; *limit* is that number.

    Elements are the values of all arrays, and the tagged fields.
    """

    def __init__(self, message: str = "", limit: int = 0, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.limit = limit


class FrameTooLarge(ProtocolError):
    """A frame announces a length that is negative or above the limit."""


class UnknownServerError(KafkaError, code=ErrorCode.UNKNOWN_SERVER_ERROR):
    """The broker failed in a way it has no better code for."""

    hint = "see the broker's log"


class OffsetOutOfRange(KafkaError, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """The offset lies before the log's start or after its end."""

    hint = "seek to the beginning or the end, or set auto.offset.reset"


class CorruptMessage(KafkaError, code=ErrorCode.CORRUPT_MESSAGE, retriable=True):
    """A batch failed its CRC or its sizes contradict each other."""

    hint = "the client tries again; if it stays, the log on the leader is damaged"


class UnknownTopicOrPartition(
    KafkaError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, needs_metadata=True
):
    """The broker does not host this topic or partition."""

    hint = "check the name; a new topic needs a moment to reach every broker"


class InvalidFetchSize(KafkaError, code=ErrorCode.INVALID_FETCH_SIZE):
    """The requested fetch size is invalid."""


class LeaderNotAvailable(KafkaError, code=ErrorCode.LEADER_NOT_AVAILABLE, needs_metadata=True):
    """The partition has no leader at the moment."""

    hint = "an election is in progress, or all its replicas are down"


class NotLeaderOrFollower(KafkaError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER, needs_metadata=True):
    """The broker no longer leads (or no longer hosts) this partition."""


class RequestTimedOut(KafkaError, code=ErrorCode.REQUEST_TIMED_OUT, retriable=True):
    """The request was not completed within its own time limit."""

    hint = "try again; if it stays, look for slow or unreachable brokers: kclient cluster health"


class BrokerNotAvailable(KafkaError, code=ErrorCode.BROKER_NOT_AVAILABLE):
    """The broker needed for this is not alive."""

    hint = "start the broker, or try again when it is back"


class ReplicaNotAvailable(KafkaError, code=ErrorCode.REPLICA_NOT_AVAILABLE, needs_metadata=True):
    """The requested replica is not on this broker."""


class MessageTooLarge(KafkaError, code=ErrorCode.MESSAGE_TOO_LARGE):
    """A batch is larger than max.message.bytes allows."""

    hint = "send smaller batches or raise max.message.bytes of the topic"


class StaleControllerEpoch(KafkaError, code=ErrorCode.STALE_CONTROLLER_EPOCH):
    """The request comes from a controller that has been replaced."""


class OffsetMetadataTooLarge(KafkaError, code=ErrorCode.OFFSET_METADATA_TOO_LARGE):
    """The text committed beside an offset exceeds offset.metadata.max.bytes."""

    hint = "commit a shorter metadata text"


class NetworkException(KafkaError, code=ErrorCode.NETWORK_EXCEPTION, needs_metadata=True):
    """The connection broke before the answer arrived."""

    hint = "whether the broker has carried out the request is unknown"


class CoordinatorLoadInProgress(
    KafkaError, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, retriable=True
):
    """The coordinator is still reading its state."""


class CoordinatorNotAvailable(KafkaError, code=ErrorCode.COORDINATOR_NOT_AVAILABLE, retriable=True):
    """The group or transaction has no coordinator at the moment."""

    hint = "try again: the brokers may be electing it"


class NotCoordinator(KafkaError, code=ErrorCode.NOT_COORDINATOR, retriable=True):
    """Another broker coordinates this group or transaction."""


class InvalidTopicException(KafkaError, code=ErrorCode.INVALID_TOPIC_EXCEPTION):
    """The topic's name is illegal, or the topic may not be used this way."""

    hint = "names have 1-249 of the characters a-z A-Z 0-9 . _ - and are not . or .."


class RecordListTooLarge(KafkaError, code=ErrorCode.RECORD_LIST_TOO_LARGE):
    """The record set is larger than a log segment."""

    hint = "send fewer records at once or raise segment.bytes of the topic"


class NotEnoughReplicas(KafkaError, code=ErrorCode.NOT_ENOUGH_REPLICAS, retriable=True):
    """Fewer replicas are in sync than min.insync.replicas requires; nothing was written."""

    hint = "start the missing brokers, or lower min.insync.replicas of the topic"


class NotEnoughReplicasAfterAppend(
    KafkaError, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, retriable=True
):
    """The batch was written, but to fewer in-sync replicas than required."""

    hint = "start the missing brokers; sending again is safe with enable.idempotence"


class InvalidRequiredAcks(KafkaError, code=ErrorCode.INVALID_REQUIRED_ACKS):
    """acks was something other than 0, 1 or -1 (all)."""

    hint = "set acks to 0, 1 or all"


class IllegalGeneration(KafkaError, code=ErrorCode.ILLEGAL_GENERATION):
    """The group has moved on to another generation."""

    hint = "join the group again"


class InconsistentGroupProtocol(KafkaError, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
    """The member shares no assignor (or no protocol type) with the group."""

    hint = "all members of a group need one partition.assignment.strategy in common"


class InvalidGroupId(KafkaError, code=ErrorCode.INVALID_GROUP_ID):
    """The group id is empty or illegal."""

    hint = "set group.id to a name"


class UnknownMemberId(KafkaError, code=ErrorCode.UNKNOWN_MEMBER_ID):
    """The coordinator does not know this member (any more)."""

    hint = "join the group again"


class InvalidSessionTimeout(KafkaError, code=ErrorCode.INVALID_SESSION_TIMEOUT):
    """The session timeout lies outside what the broker allows."""

    hint = "see group.min.session.timeout.ms and group.max.session.timeout.ms"


class RebalanceInProgress(KafkaError, code=ErrorCode.REBALANCE_IN_PROGRESS):
    """The group is rebalancing."""

    hint = "join the group again"


class InvalidCommitOffsetSize(KafkaError, code=ErrorCode.INVALID_COMMIT_OFFSET_SIZE):
    """The offsets to commit take more room than one write may."""

    hint = "commit fewer partitions at once, or shorter metadata texts"


class TopicAuthorizationFailed(KafkaError, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
    """The principal may not do this to the topic."""

    hint = "an administrator of the cluster can add an ACL for the topic"


class GroupAuthorizationFailed(KafkaError, code=ErrorCode.GROUP_AUTHORIZATION_FAILED):
    """The principal may not do this to the group."""

    hint = "an administrator of the cluster can add an ACL for the group"


class ClusterAuthorizationFailed(
    KafkaError, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, fatal=True
):
    """The principal may not do this to the cluster."""

    hint = "an administrator of the cluster can add an ACL for the cluster"


class InvalidTimestamp(KafkaError, code=ErrorCode.INVALID_TIMESTAMP):
    """A record's timestamp is too far from the broker's clock."""

    record_errors: Sequence[tuple[int, str]] = ()
    """(index in the batch, reason) of the records that caused it (KIP-467)."""
    hint = "see message.timestamp.before.max.ms and message.timestamp.after.max.ms"


class UnsupportedSaslMechanism(KafkaError, code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, fatal=True):
    """The broker does not offer this SASL mechanism."""

    hint = "choose a mechanism of the broker's sasl.enabled.mechanisms"


class IllegalSaslState(KafkaError, code=ErrorCode.ILLEGAL_SASL_STATE, fatal=True):
    """The request is not allowed at this point of the authentication."""


class UnsupportedVersion(KafkaError, code=ErrorCode.UNSUPPORTED_VERSION, fatal=True):
    """The two sides have no version of this API in common."""

    hint = "the broker may be too old for this call, or too new for this client"


class TopicAlreadyExists(KafkaError, code=ErrorCode.TOPIC_ALREADY_EXISTS):
    """A topic of this name exists already."""


class InvalidPartitions(KafkaError, code=ErrorCode.INVALID_PARTITIONS):
    """The number of partitions is not acceptable."""

    hint = "it must be at least 1, and may only grow"


class InvalidReplicationFactor(KafkaError, code=ErrorCode.INVALID_REPLICATION_FACTOR):
    """The replication factor is below 1 or above the number of brokers alive."""

    hint = "it can be at most the number of live brokers"


class InvalidReplicaAssignment(KafkaError, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT):
    """The replica assignment names unknown or repeated brokers, or is incomplete."""

    hint = "each partition needs different broker ids, all of live brokers"


class InvalidConfig(KafkaError, code=ErrorCode.INVALID_CONFIG):
    """A configuration value is not acceptable."""


class NotController(KafkaError, code=ErrorCode.NOT_CONTROLLER, retriable=True):
    """Another broker is the controller."""


class InvalidRequest(KafkaError, code=ErrorCode.INVALID_REQUEST):
    """The request contradicts itself or the protocol."""


class UnsupportedForMessageFormat(KafkaError, code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT):
    """The message format in use cannot do this."""

    hint = "use a client that writes message format v2 (Kafka 0.11 or newer)"


class PolicyViolation(KafkaError, code=ErrorCode.POLICY_VIOLATION):
    """A policy of the cluster forbids this."""


class OutOfOrderSequenceNumber(KafkaError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """A batch of an idempotent producer arrived with a gap before it."""

    hint = "create the producer again; records before this one may be missing"


class DuplicateSequenceNumber(KafkaError, code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
    """The batch is one the broker has already written, too long ago for it to know the offset."""


class InvalidProducerEpoch(KafkaError, code=ErrorCode.INVALID_PRODUCER_EPOCH, fatal=True):
    """The producer's epoch is older than the one the broker has seen."""

    hint = "another producer has this transactional.id: close this one"


class InvalidTxnState(KafkaError, code=ErrorCode.INVALID_TXN_STATE, fatal=True):
    """The transaction is not in a state that allows this."""


class InvalidProducerIdMapping(KafkaError, code=ErrorCode.INVALID_PRODUCER_ID_MAPPING, fatal=True):
    """The producer id does not belong to this transactional id."""


class InvalidTransactionTimeout(KafkaError, code=ErrorCode.INVALID_TRANSACTION_TIMEOUT, fatal=True):
    """The transaction timeout is above transaction.max.timeout.ms."""

    hint = "lower transaction.timeout.ms, or raise transaction.max.timeout.ms of the brokers"


class ConcurrentTransactions(KafkaError, code=ErrorCode.CONCURRENT_TRANSACTIONS, retriable=True):
    """An earlier step of the same transaction is still being completed."""

    hint = "try again when the earlier transaction has ended"


class TransactionCoordinatorFenced(KafkaError, code=ErrorCode.TRANSACTION_COORDINATOR_FENCED):
    """The markers come from a transaction coordinator that has been replaced."""


class TransactionalIdAuthorizationFailed(
    KafkaError, code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, fatal=True
):
    """The principal may not use this transactional id."""

    hint = "an administrator of the cluster can add an ACL for the transactional id"


class SecurityDisabled(KafkaError, code=ErrorCode.SECURITY_DISABLED):
    """The broker has no authorizer, so there are no ACLs."""

    hint = "set authorizer.class.name on the brokers"


class OperationNotAttempted(KafkaError, code=ErrorCode.OPERATION_NOT_ATTEMPTED):
    """The broker did not come to this part of the request."""


class KafkaStorageError(KafkaError, code=ErrorCode.KAFKA_STORAGE_ERROR, needs_metadata=True):
    """The broker cannot read or write the log's directory."""

    hint = "check the disk and the log of the broker"


class LogDirNotFound(KafkaError, code=ErrorCode.LOG_DIR_NOT_FOUND):
    """The directory is not among the broker's log.dirs."""

    hint = "choose a directory of the broker's log.dirs"


class SaslAuthenticationFailed(KafkaError, code=ErrorCode.SASL_AUTHENTICATION_FAILED, fatal=True):
    """The credentials were not accepted."""

    hint = "check user name, password and mechanism"


class UnknownProducerId(KafkaError, code=ErrorCode.UNKNOWN_PRODUCER_ID):
    """The broker has no memory of this producer id."""

    hint = "create the producer again"


class ReassignmentInProgress(KafkaError, code=ErrorCode.REASSIGNMENT_IN_PROGRESS):
    """The partition's replicas are being moved."""

    hint = "wait until the reassignment has ended, or cancel it: kclient reassign"


class DelegationTokenAuthDisabled(KafkaError, code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED):
    """Delegation tokens are not enabled."""


class DelegationTokenNotFound(KafkaError, code=ErrorCode.DELEGATION_TOKEN_NOT_FOUND):
    """The broker does not know this delegation token."""


class DelegationTokenOwnerMismatch(KafkaError, code=ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH):
    """The principal neither owns nor may renew this token."""


class DelegationTokenRequestNotAllowed(
    KafkaError, code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
):
    """Delegation tokens cannot be requested on this connection."""


class DelegationTokenAuthorizationFailed(
    KafkaError, code=ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
):
    """The principal may not do this to the delegation token."""


class DelegationTokenExpired(KafkaError, code=ErrorCode.DELEGATION_TOKEN_EXPIRED):
    """The delegation token has expired."""


class InvalidPrincipalType(KafkaError, code=ErrorCode.INVALID_PRINCIPAL_TYPE):
    """The type of principal is not supported."""


class NonEmptyGroup(KafkaError, code=ErrorCode.NON_EMPTY_GROUP):
    """The group still has members."""

    hint = "stop its consumers first"


class GroupIdNotFound(KafkaError, code=ErrorCode.GROUP_ID_NOT_FOUND):
    """There is no group of this id."""

    hint = "check the name: kclient group list"


class FetchSessionIdNotFound(KafkaError, code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, retriable=True):
    """The broker has dropped this fetch session."""


class InvalidFetchSessionEpoch(
    KafkaError, code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, retriable=True
):
    """The fetch session's epoch is not the expected one."""


class ListenerNotFound(KafkaError, code=ErrorCode.LISTENER_NOT_FOUND, needs_metadata=True):
    """The leader has no listener of the name the request came in on."""


class TopicDeletionDisabled(KafkaError, code=ErrorCode.TOPIC_DELETION_DISABLED):
    """Topics cannot be deleted on this cluster."""

    hint = "set delete.topic.enable=true on the brokers"


class FencedLeaderEpoch(KafkaError, code=ErrorCode.FENCED_LEADER_EPOCH, needs_metadata=True):
    """The request carries an older leader epoch than the broker's."""


class UnknownLeaderEpoch(KafkaError, code=ErrorCode.UNKNOWN_LEADER_EPOCH, retriable=True):
    """The request carries a newer leader epoch than the broker's."""


class UnsupportedCompressionType(KafkaError, code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
    """The client cannot read the compression of this partition."""

    hint = "choose another compression.type"


class StaleBrokerEpoch(KafkaError, code=ErrorCode.STALE_BROKER_EPOCH):
    """The broker has registered again since the request was sent."""


class OffsetNotAvailable(KafkaError, code=ErrorCode.OFFSET_NOT_AVAILABLE, retriable=True):
    """The new leader does not yet know its high watermark."""


class MemberIdRequired(KafkaError, code=ErrorCode.MEMBER_ID_REQUIRED):
    """The member has to join again with the member id it was just given."""


class PreferredLeaderNotAvailable(
    KafkaError, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, needs_metadata=True
):
    """The preferred leader is not alive or not in sync."""

    hint = "start the broker of the preferred replica"


class GroupMaxSizeReached(KafkaError, code=ErrorCode.GROUP_MAX_SIZE_REACHED):
    """The group has as many members as group.max.size allows."""

    hint = "start fewer consumers, or raise group.max.size of the brokers"


class FencedInstanceId(KafkaError, code=ErrorCode.FENCED_INSTANCE_ID, fatal=True):
    """Another process took over this group.instance.id."""

    hint = "give every consumer of the group a group.instance.id of its own"


class EligibleLeadersNotAvailable(
    KafkaError, code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, needs_metadata=True
):
    """No replica of the partition may become leader."""

    hint = "start a broker with an in-sync replica"


class ElectionNotNeeded(KafkaError, code=ErrorCode.ELECTION_NOT_NEEDED, needs_metadata=True):
    """The partition already has the requested leader."""


class NoReassignmentInProgress(KafkaError, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
    """There is no reassignment of this partition to cancel."""


class GroupSubscribedToTopic(KafkaError, code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
    """The group is subscribed to the topic, so its offsets stay."""

    hint = "stop the group's consumers of this topic first"


class InvalidRecord(KafkaError, code=ErrorCode.INVALID_RECORD):
    """A record breaks a rule of the topic or of the format."""

    record_errors: Sequence[tuple[int, str]] = ()
    """(index in the batch, reason) of the records that caused it (KIP-467)."""


class UnstableOffsetCommit(KafkaError, code=ErrorCode.UNSTABLE_OFFSET_COMMIT, retriable=True):
    """A transaction with offsets of these partitions is still open."""


class ThrottlingQuotaExceeded(KafkaError, code=ErrorCode.THROTTLING_QUOTA_EXCEEDED, retriable=True):
    """A quota is used up for the moment."""

    hint = "try again later, or raise the quota: kclient quota"


class ProducerFenced(KafkaError, code=ErrorCode.PRODUCER_FENCED, fatal=True):
    """A newer producer uses the same transactional id."""

    hint = "run one producer per transactional.id"


class ResourceNotFound(KafkaError, code=ErrorCode.RESOURCE_NOT_FOUND):
    """The request names something that does not exist."""


class DuplicateResource(KafkaError, code=ErrorCode.DUPLICATE_RESOURCE):
    """The request names the same thing twice."""


class UnacceptableCredential(KafkaError, code=ErrorCode.UNACCEPTABLE_CREDENTIAL):
    """The credential does not meet the requirements of the broker."""


class InconsistentVoterSet(KafkaError, code=ErrorCode.INCONSISTENT_VOTER_SET):
    """The node is not among the expected voters (KRaft)."""


class InvalidUpdateVersion(KafkaError, code=ErrorCode.INVALID_UPDATE_VERSION):
    """The version to update to is not acceptable."""


class FeatureUpdateFailed(KafkaError, code=ErrorCode.FEATURE_UPDATE_FAILED):
    """The finalized features could not be changed."""


class PrincipalDeserializationFailure(KafkaError, code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE):
    """A forwarded principal could not be read."""


class SnapshotNotFound(KafkaError, code=ErrorCode.SNAPSHOT_NOT_FOUND):
    """The snapshot does not exist (KRaft)."""


class PositionOutOfRange(KafkaError, code=ErrorCode.POSITION_OUT_OF_RANGE):
    """The position lies outside the snapshot (KRaft)."""


class UnknownTopicId(KafkaError, code=ErrorCode.UNKNOWN_TOPIC_ID, needs_metadata=True):
    """The broker does not host a topic of this id."""


class DuplicateBrokerRegistration(KafkaError, code=ErrorCode.DUPLICATE_BROKER_REGISTRATION):
    """Another live broker has this broker id."""


class BrokerIdNotRegistered(KafkaError, code=ErrorCode.BROKER_ID_NOT_REGISTERED):
    """There is no broker of this id."""


class InconsistentTopicId(KafkaError, code=ErrorCode.INCONSISTENT_TOPIC_ID, needs_metadata=True):
    """The log's topic id is not the one in the request."""


class InconsistentClusterId(KafkaError, code=ErrorCode.INCONSISTENT_CLUSTER_ID):
    """The request was meant for another cluster."""


class TransactionalIdNotFound(KafkaError, code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
    """The coordinator does not know this transactional id."""

    hint = "check the name: kclient txn list"


class FetchSessionTopicIdError(
    KafkaError, code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, retriable=True
):
    """The fetch session mixes topic names and topic ids."""


class IneligibleReplica(KafkaError, code=ErrorCode.INELIGIBLE_REPLICA):
    """A replica of the proposed ISR may not join it."""


class NewLeaderElected(KafkaError, code=ErrorCode.NEW_LEADER_ELECTED):
    """The ISR was changed, and the partition has another leader now."""


class OffsetMovedToTieredStorage(KafkaError, code=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE):
    """The offset is in tiered storage only."""


class FencedMemberEpoch(KafkaError, code=ErrorCode.FENCED_MEMBER_EPOCH):
    """The member's epoch was superseded (KIP-848)."""

    hint = "revoke all partitions and join again"


class UnreleasedInstanceId(KafkaError, code=ErrorCode.UNRELEASED_INSTANCE_ID):
    """Another member still holds this instance id (KIP-848)."""

    hint = "close the other consumer with this group.instance.id"


class UnsupportedAssignor(KafkaError, code=ErrorCode.UNSUPPORTED_ASSIGNOR):
    """The group cannot use this assignor (KIP-848)."""

    hint = "choose another partition.assignment.strategy"


class StaleMemberEpoch(KafkaError, code=ErrorCode.STALE_MEMBER_EPOCH):
    """The member does not know its new epoch yet (KIP-848)."""


class MismatchedEndpointType(KafkaError, code=ErrorCode.MISMATCHED_ENDPOINT_TYPE):
    """The request was sent to the wrong kind of endpoint."""


class UnsupportedEndpointType(KafkaError, code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE):
    """This kind of endpoint is not supported."""


class UnknownControllerId(KafkaError, code=ErrorCode.UNKNOWN_CONTROLLER_ID):
    """There is no controller of this id."""


class UnknownSubscriptionId(KafkaError, code=ErrorCode.UNKNOWN_SUBSCRIPTION_ID):
    """The telemetry subscription is unknown or out of date."""


class TelemetryTooLarge(KafkaError, code=ErrorCode.TELEMETRY_TOO_LARGE):
    """The telemetry pushed is larger than the broker accepts."""


class InvalidRegistration(KafkaError, code=ErrorCode.INVALID_REGISTRATION):
    """The broker's registration was not accepted."""


class TransactionAbortable(KafkaError, code=ErrorCode.TRANSACTION_ABORTABLE):
    """The transaction failed; aborting it lets the producer go on."""

    hint = "abort the transaction and begin another one"


class InvalidRecordState(KafkaError, code=ErrorCode.INVALID_RECORD_STATE):
    """The record cannot be acknowledged in its state (share groups)."""


class ShareSessionNotFound(KafkaError, code=ErrorCode.SHARE_SESSION_NOT_FOUND, retriable=True):
    """The broker has dropped this share session."""


class InvalidShareSessionEpoch(
    KafkaError, code=ErrorCode.INVALID_SHARE_SESSION_EPOCH, retriable=True
):
    """The share session's epoch is not the expected one."""


class FencedStateEpoch(KafkaError, code=ErrorCode.FENCED_STATE_EPOCH):
    """The share group's state epoch was superseded."""


class InvalidVoterKey(KafkaError, code=ErrorCode.INVALID_VOTER_KEY):
    """The voter's key is not the replica's key (KRaft)."""


class DuplicateVoter(KafkaError, code=ErrorCode.DUPLICATE_VOTER):
    """The voter is already in the set (KRaft)."""


class VoterNotFound(KafkaError, code=ErrorCode.VOTER_NOT_FOUND):
    """The voter is not in the set (KRaft)."""


def for_code(code: int) -> type[KafkaError]:
    """Return the exception class of *code*; a code newer than this table is UnknownServerError."""
    return _BY_CODE.get(code, UnknownServerError)


def raise_for_code(code: int, message: str = "") -> None:
    """Raise the exception of *code* with *message*, or do nothing for 0."""
    if code == 0:
        return
    if code not in _BY_CODE:
        message = f"unknown error code {code}" + (f": {message}" if message else "")
    raise for_code(code)(message)


def code_of(error: BaseException) -> ErrorCode:
    """Return the error code of a response for *error*: -1 for anything but a `KafkaError`."""
    return error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
