"""Errors as Kafka's Java client words them: the message of the broker, else the usual one of the error code."""

from __future__ import annotations

from kclient.wire.errors import ErrorCode, KafkaError

_PACKAGE = "org.apache.kafka.common.errors."
_FAILED = "java.util.concurrent.ExecutionException"

_CLASSES = {
    ErrorCode.CORRUPT_MESSAGE: "CorruptRecordException",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "CoordinatorNotAvailableException",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "GroupSubscribedToTopicException",
    ErrorCode.INVALID_CONFIG: "InvalidConfigurationException",
    ErrorCode.MESSAGE_TOO_LARGE: "RecordTooLargeException",
    ErrorCode.NON_EMPTY_GROUP: "GroupNotEmptyException",
    ErrorCode.REQUEST_TIMED_OUT: "TimeoutException",
    ErrorCode.TOPIC_ALREADY_EXISTS: "TopicExistsException",
    ErrorCode.UNKNOWN_SERVER_ERROR: "UnknownServerException",
    ErrorCode.NOT_ENOUGH_REPLICAS: "NotEnoughReplicasException",
}
"""Classes that are not named after their code."""

_MESSAGES = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "The server experienced an unexpected error when processing the request.",
    ErrorCode.OFFSET_OUT_OF_RANGE: "The requested offset is not within the range of offsets maintained by the server.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.LEADER_NOT_AVAILABLE: "There is no leader for this topic-partition as we are in the middle of a "
    "leadership election.",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "For requests intended only for the leader, this error indicates that the broker "
    "is not the current leader. For requests intended for any replica, this error indicates that the broker is not a "
    "replica of the topic partition.",
    ErrorCode.REQUEST_TIMED_OUT: "The request timed out.",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "The request attempted to perform an operation on an invalid topic.",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Topic with this name already exists.",
    ErrorCode.INVALID_PARTITIONS: "Number of partitions is below 1.",
    ErrorCode.INVALID_REPLICATION_FACTOR: "Replication factor is below 1 or larger than the number of available "
    "brokers.",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "Replica assignment is invalid.",
    ErrorCode.INVALID_CONFIG: "Configuration is invalid.",
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
    ErrorCode.GROUP_ID_NOT_FOUND: "The group id does not exist.",
    ErrorCode.INVALID_GROUP_ID: "The group id is invalid.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Deleting offsets of a topic is forbidden while the consumer group is "
    "actively subscribed to it.",
    ErrorCode.LOG_DIR_NOT_FOUND: "The user-specified log directory is not found in the broker config.",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "No partition reassignment is in progress.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred leader was not available.",
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "Eligible topic partition leaders are not available.",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "The transactionalId could not be found",
}
"""The messages that Kafka's tools print, of errors that they meet."""


def message_of(problem: BaseException) -> str:
    """Return the message that Kafka's tool prints for *problem*."""
    if isinstance(problem, KafkaError):
        if problem.broker_message:
            return problem.broker_message
        return (_MESSAGES.get(problem.code) if problem.is_response else None) or problem.message
    return str(problem)


def class_of(problem: KafkaError) -> str:
    """Return the name of the Java class of *problem*, with its package."""
    code = problem.code
    name = "".join(part.capitalize() for part in code.name.removesuffix("_EXCEPTION").split("_"))
    return _PACKAGE + _CLASSES.get(code, f"{name}Exception")


def described(problem: BaseException) -> str:
    """Return the class and the message, as toString() of a Java exception."""
    if isinstance(problem, KafkaError):
        return f"{class_of(problem)}: {message_of(problem)}"
    return str(problem)


def as_failed_future(problem: BaseException) -> str:
    """Return toString() of the exception of a future that failed with *problem*."""
    return f"{_FAILED}: {described(problem)}"
