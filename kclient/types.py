"""The values that producers, consumers and admin clients hand out and take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    # With a default (PEP 696), so that a plain `Producer()` needs no annotation.
    from typing_extensions import TypeVar as TypeVarWithDefault

    K = TypeVarWithDefault("K", default=Any)
    V = TypeVarWithDefault("V", default=Any)
else:
    K = TypeVar("K")
    V = TypeVar("V")

Headers = Sequence[tuple[str, bytes | None]]
"""Record headers, in order; a key may come more than once."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple, Generic[K, V]):
    """One record as consumed. A named tuple, for it is made a million times a second.

    *timestamp* in milliseconds since the epoch; *timestamp_type* 0 CreateTime, 1 LogAppendTime.
    Sizes are of the serialized bytes, -1 for null.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: K | None
    value: V | None
    headers: Headers = ()
    leader_epoch: int | None = None
    serialized_key_size: int = -1
    serialized_value_size: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """Where the record came from."""
        return TopicPartition(self.topic, self.partition)


class RecordMetadata(NamedTuple):
    """Where a produced record went. *offset* is -1 with acks=0, for nobody answered.

    *timestamp* in milliseconds: the record's own, or the leader's under LogAppendTime.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        """Where the record is."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed position: the next offset to read, with whatever the committer noted."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class OffsetAndTimestamp(NamedTuple):
    """The first offset at or after a time, and that record's timestamp in milliseconds."""

    offset: int
    timestamp: int
    leader_epoch: int | None = None


class ConsumerGroupMetadata(NamedTuple):
    """As whom a consumer is in its group now (KIP-447): generation -1 and no member id while it is not a member."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class CloseResult(NamedTuple):
    """How a producer ended: records delivered since it started, and those given up at the end."""

    delivered: int
    undelivered: int


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 leaves the number to the broker's defaults.

    *replica_assignment* maps a partition to its broker ids, preferred leader first; it replaces
    both numbers.
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str | None] | None = None
    replica_assignment: dict[int, Sequence[int]] | None = None


AnyRecord = Record[Any, Any]
