"""The values that the clients take and return: records, offsets, topics, partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    # With a default (PEP 696), so that a plain `Producer()` needs no annotation.
    from typing_extensions import TypeVar as TypeVarWithDefault

    K = TypeVarWithDefault("K", default=Any)
    V = TypeVarWithDefault("V", default=Any)
    ConsumedKey = TypeVarWithDefault("ConsumedKey", default=bytes)
    ConsumedValue = TypeVarWithDefault("ConsumedValue", default=bytes)
else:
    K = TypeVar("K")
    V = TypeVar("V")
    ConsumedKey = TypeVar("ConsumedKey")
    ConsumedValue = TypeVar("ConsumedValue")

Headers = Sequence[tuple[str, bytes | None]]
"""Record headers in order, as (name, value); a name may occur more than once, a value may be null (KIP-82)."""


class TopicPartition(NamedTuple):
    """A partition of a topic. Equal to the tuple (topic, partition).

    >>> tp = TopicPartition("orders", 0)
    >>> str(tp), tp.topic, tp == ("orders", 0)
    ('orders-0', 'orders', True)
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple, Generic[K, V]):
    """A consumed record, a named tuple.

    *timestamp* is in milliseconds since the epoch; *timestamp_type* is 0 for CreateTime, 1 for LogAppendTime (KIP-32).
    Sizes are in serialized bytes, -1 for null.

    >>> record = Record("orders", 0, 7, 1700000000000, 0, b"ann", b"tea", [("trace", b"1")])
    >>> record.offset, record.key, record.value, dict(record.headers)
    (7, b'ann', b'tea', {'trace': b'1'})
    >>> str(record.topic_partition)
    'orders-0'
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
        """The partition of the record."""
        return TopicPartition(self.topic, self.partition)


class RecordMetadata(NamedTuple):
    """The position of a produced record. *offset* is -1 with acks=0, because the broker sends no response.

    *timestamp* is in milliseconds since the epoch: the record's own, or the leader's with LogAppendTime.

    >>> stored = RecordMetadata("orders", 0, 7, 1700000000000)
    >>> f"{stored.topic_partition}, offset {stored.offset}"
    'orders-0, offset 7'
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the record."""
        return TopicPartition(self.topic, self.partition)


class OffsetRange(NamedTuple):
    """*row_count* consecutive offsets of a partition. *base_offset* is -1 where the broker sends none, as with acks=0.

    >>> OffsetRange(0, 40, 2)
    OffsetRange(partition=0, base_offset=40, row_count=2)
    """

    partition: int
    base_offset: int
    row_count: int


class ColumnsMetadata(NamedTuple):
    """Where the rows of `send_columns` are stored: *row_count* rows, in the order of partitions and offsets.

    A partition has one range, or more if other records lie between its rows.

    >>> stored = ColumnsMetadata("orders", 3, (OffsetRange(0, 40, 2), OffsetRange(1, 7, 1)))
    >>> {each.partition: each.base_offset for each in stored.ranges}
    {0: 40, 1: 7}
    """

    topic: str
    row_count: int
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed position: the offset of the next record to read, and the committer's metadata string.

    >>> OffsetAndMetadata(8, "after lunch").offset
    8
    """

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class OffsetAndTimestamp(NamedTuple):
    """The first offset at or after a time, and that record's timestamp in milliseconds since the epoch.

    >>> offset, timestamp, _ = OffsetAndTimestamp(7, 1700000000000)
    >>> offset
    7
    """

    offset: int
    timestamp: int
    leader_epoch: int | None = None


class ConsumerGroupMetadata(NamedTuple):
    """The identity of a consumer in its group (KIP-447).

    Outside of a generation *generation_id* is -1 and *member_id* is empty.

    >>> ConsumerGroupMetadata("billing").generation_id
    -1
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class ProducerIdAndEpoch(NamedTuple):
    """The id of a producer, and the epoch that fences earlier producers with its transactional id (KIP-98)."""

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerIdAndEpoch(-1, -1)


class CloseResult(NamedTuple):
    """Counts of a closed producer: records delivered since its start, and records given up at close.

    >>> delivered, undelivered = CloseResult(100, 0)
    >>> undelivered
    0
    """

    delivered: int
    undelivered: int


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 takes the broker's default.

    *replica_assignment* maps a partition to its broker ids, preferred leader first. It replaces both numbers.

    >>> NewTopic("orders", 6, 3, {"retention.ms": "86400000"}).num_partitions
    6
    >>> NewTopic("orders", replica_assignment={0: [1, 2], 1: [2, 3]}).num_partitions
    -1
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str | None] | None = None
    replica_assignment: dict[int, Sequence[int]] | None = None


AnyRecord = Record[Any, Any]
