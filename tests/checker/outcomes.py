"""The outcome of a send by its answer: the record is there, it is not, or it is unknown.

With an error in this table every result would be noise: NOT_LEADER_OR_FOLLOWER in particular also
comes to a request that was appended and then lost its leader while it waited (KAFKA-13574).
"""

from __future__ import annotations

from enum import Enum

from kclient.wire.error_codes import ErrorCode


class Outcome(Enum):
    """How an operation ended, by the words of the history."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


NOT_APPENDED = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.INVALID_RECORD,
        ErrorCode.PRODUCER_FENCED,
    }
)
"""Errors of a Produce answer after which the record is certainly not in the log, and never will be."""


def of_send(
    error_code: int | None, offset: int = -1, *, acks: str = "all", retried: bool = False
) -> Outcome:
    """Judge a send that left this process: its answer's *error_code* (None: no answer) and *offset*.

    *retried*: the client may have sent it more than once, and we know only the last answer.
    """
    if acks == "0" or error_code is None:
        return Outcome.INFO
    if error_code == 0:
        return Outcome.OK if offset >= 0 else Outcome.INFO
    if error_code in NOT_APPENDED and not retried:
        return Outcome.FAIL
    return Outcome.INFO
