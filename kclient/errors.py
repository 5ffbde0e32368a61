"""Errors of the client itself, beside those that brokers answer with.

A broker's answer becomes a subclass named after its code (``kclient.wire.errors``). What never
reached a broker, or never came back, is named here: which address, which cause, what to do next.
All of them are ``KafkaError``, so one ``except`` catches both kinds.
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
]


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a broker listens, as a client was told: a host name or literal, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Cause(enum.Enum):
    """Why an address could not be used; the words are what people read."""

    DNS = "name does not resolve"
    REFUSED = "connection refused"
    TIMEOUT = "timed out"
    UNREACHABLE = "unreachable"
    NOT_KAFKA = "not a Kafka port"
    CLOSED = "closed the connection"
    TLS = "TLS failed"
    SASL = "authentication failed"


class ClientError(KafkaError):
    """Something that went wrong on this side of the wire; the text stands for itself."""

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(ClientError):
    """A setting is unknown, or its value is not one that setting can have."""


class ConnectError(ClientError, needs_metadata=True):
    """One address could not be connected to; *cause* says why, *detail* adds what is known."""

    def __init__(self, address: Address, cause: Cause, detail: str = "") -> None:
        text = f"{address}: {cause.value}"
        super().__init__(f"{text} ({detail})" if detail else text)
        self.address = address
        self.cause = cause
        self.detail = detail


class ConnectionClosed(ClientError, needs_metadata=True):
    """The connection ended before the answer came; the request may or may not have been done."""


class KafkaTimeoutError(ClientError, TimeoutError, retriable=True):
    """Something took longer than its bound; the text names what and how long."""


class ClientClosed(ClientError):
    """The client was closed, by its owner, before or during this call."""


class BufferExhausted(KafkaTimeoutError):
    """``buffer.memory`` stayed full for ``max.block.ms``: brokers take less than is sent."""


class LeaderUnavailable(ClientError, needs_metadata=True):
    """A partition has no leader right now."""


class SerializationError(ClientError):
    """A key or value could not be turned into bytes, or back."""


class RecordDeserializationError(SerializationError):
    """A consumed record's key or value could not be turned back into an object (KIP-334).

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
    """Records that were read are gone: another log, cut off before them, took its place (KIP-320).

    *divergent_offset* is where the new log departs from the one that was read, None where that is not known.
    """

    hint = "seek to where to go on"

    def __init__(
        self, topic_partition: TopicPartition, position: int, divergent_offset: int | None
    ) -> None:
        where = "an unknown offset" if divergent_offset is None else f"offset {divergent_offset}"
        super().__init__(
            f"the log of {topic_partition} was cut off at {where}, before the position {position}"
        )
        self.topic_partition = topic_partition
        self.position = position
        self.divergent_offset = divergent_offset


class ConsumerLeftGroup(ClientError):
    """This consumer is no longer a member of its group; the text says since when and why."""


class NoCommittedOffset(ClientError):
    """``auto.offset.reset=none`` and there is no (valid) offset to start from."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """One address of a bootstrap list and what happened there."""

    address: Address
    cause: Cause
    detail: str = ""

    def __str__(self) -> str:
        text = f"{self.address}: {self.cause.value}"
        return f"{text} ({self.detail})" if self.detail else text


class BootstrapError(ClientError, retriable=True):
    """No broker of the list could be used; lists each address with its own cause."""

    def __init__(self, attempts: Sequence[AttemptFailed], hint: str = "") -> None:
        lines = "".join(f"\n  {attempt}" for attempt in attempts)
        super().__init__(
            f"no broker could be reached:{lines}" + (f"\n  hint: {hint}" if hint else "")
        )
        self.attempts = tuple(attempts)
