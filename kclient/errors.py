"""Errors of the client itself, beside those in responses of brokers.

A broker's error code becomes a subclass named after the code (`kclient.wire.errors`). The classes here cover requests
that no broker answered: the address, the cause, and what to do next. All are ``KafkaError``, so one ``except`` catches
both kinds.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from kclient.types import TopicPartition
from kclient.wire.errors import (
    ErrorCode,
    KafkaError,
    ProtocolError,
)

__all__ = [
    "Address",
    "AttemptFailed",
    "BootstrapError",
    "BufferExhausted",
    "Cause",
    "ClientClosed",
    "ClientError",
    "ConfigError",
    "ConnectError",
    "ConnectionClosed",
    "ConsumerLeftGroup",
    "ErrorCode",
    "KafkaError",
    "KafkaTimeoutError",
    "LeaderUnavailable",
    "LogTruncated",
    "NoCommittedOffset",
    "ProtocolError",
    "RecordDeserializationError",
    "SerializationError",
    "TransactionAborted",
    "TransactionStateError",
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
    TLS = "TLS failed"
    SASL = "authentication failed"


class ClientError(KafkaError):
    """An error of the client itself; it has no error code in its text."""

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(ClientError):
    """A setting is unknown or has an invalid value."""


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
    """An operation exceeded its timeout; the text names the operation and the time."""


class ClientClosed(ClientError):
    """The client was closed before or during this call."""


class BufferExhausted(KafkaTimeoutError):
    """``buffer.memory`` stayed full for ``max.block.ms``: the brokers accept less than is sent."""


class LeaderUnavailable(ClientError, needs_metadata=True):
    """A partition has no leader."""


class SerializationError(ClientError):
    """A key or value could not be serialized or deserialized."""


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


class ConsumerLeftGroup(ClientError):
    """The consumer left its group; the text has the reason."""


class TransactionStateError(ClientError):
    """A call does not fit the state of the producer's transaction; the hint is the next step."""


class TransactionAborted(ClientError):
    """The transaction cannot be committed any more; `__cause__` is the first error, if there was one.

    Also the error of its records that were not acknowledged: consumers with isolation.level=read_committed see none.
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
    """No bootstrap server could be used; the text lists each address with its cause."""

    def __init__(self, attempts: Sequence[AttemptFailed], hint: str = "") -> None:
        lines = "".join(f"\n  {attempt}" for attempt in attempts)
        super().__init__(
            f"no broker could be reached:{lines}" + (f"\n  hint: {hint}" if hint else "")
        )
        self.attempts = tuple(attempts)
