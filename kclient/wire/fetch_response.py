"""Fetch responses: encoded as file slices between small buffers, decoded as views of the frame. See fetch.py."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias
from uuid import UUID

from kclient.wire.batches import Buffer
from kclient.wire.errors import MalformedMessage
from kclient.wire.fetch_request import FIRST_FLEXIBLE, FIRST_WITH_TOPIC_IDS, read_topic
from kclient.wire.fields import (
    I32,
    NO_TAGS,
    count,
    decodes,
    read_count,
    read_records,
    read_response_header,
    read_tags,
    skip_tags,
    string,
    tags,
    uuid,
    uvarint,
)
from kclient.wire.leaders import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    decode_endpoints,
    decode_leader,
    encode_endpoints,
    encode_leader,
)

_NO_RECORDS = memoryview(b"")
_JOIN_BELOW = 4096  # in-memory records below this size are cheaper to copy than to send separately
_DATA_V4 = struct.Struct(">ihqq")
_DATA_V5 = struct.Struct(">ihqqq")
_TOP_V7 = struct.Struct(">ihi")
_ABORTED = struct.Struct(">qq")
_EPOCH_END = struct.Struct(">iqB")
_DATA_V11_NONE = struct.Struct(">ihqqqiii")  # ... null aborted, preferred replica, records size
_DATA_V12_NONE = struct.Struct(">ihqqqBi")  # ... null aborted, preferred replica


class SizedPart(Protocol):
    """Records that are not in memory, such as a file slice; *size* in bytes."""

    @property
    def size(self) -> int:
        """Bytes of the part."""


Part: TypeAlias = bytes | bytearray | memoryview | SizedPart


def part_size(part: Part) -> int:
    """Return the bytes of *part* on the wire."""
    return len(part) if isinstance(part, bytes | bytearray | memoryview) else part.size


@dataclass(slots=True)
class EpochEndOffset:
    """The largest leader epoch on which follower and leader agree, and its end offset."""

    epoch: int = -1
    end_offset: int = -1


@dataclass(slots=True)
class AbortedTransaction:
    """An aborted transaction of a producer, from its first offset on."""

    producer_id: int
    first_offset: int


@dataclass(slots=True)
class FetchPartitionResponse:
    """The result for one partition.

    *records* are whole batches, except that the last one may be truncated. On the broker they are any number of parts
    of *records_size* bytes in all, after decoding at most one view (see `record_set`). *aborted_transactions* is None
    with READ_UNCOMMITTED.
    """

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[Part] = ()
    records_size: int = 0
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: EpochEndOffset | None = None
    current_leader: LeaderIdAndEpoch | None = None

    @property
    def record_set(self) -> memoryview:
        """The records of a decoded response, a view of its frame; empty without records."""
        return memoryview(self.records[0]) if self.records else _NO_RECORDS  # type: ignore[arg-type]


@dataclass(slots=True)
class FetchTopicResponse:
    """The results for the partitions of one topic, named as in the request."""

    name: str
    partitions: list[FetchPartitionResponse]
    topic_id: UUID | None = None


@dataclass(slots=True)
class FetchResponse:
    """The results; in a session only of partitions with changes (KIP-227)."""

    topics: list[FetchTopicResponse]
    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    node_endpoints: Sequence[NodeEndpoint] = field(default=())


def encode_response(response: FetchResponse, version: int, correlation_id: int) -> list[Part]:
    """Return the response frame with its header: bytes, and the record parts between them."""
    flexible = version >= FIRST_FLEXIBLE
    frame: list[Part] = []
    small: list[Buffer] = [I32.pack(correlation_id)]
    if flexible:
        small.append(NO_TAGS)
    if version >= 7:
        small.append(
            _TOP_V7.pack(response.throttle_time_ms, response.error_code, response.session_id)
        )
    else:
        small.append(I32.pack(response.throttle_time_ms))
    small.append(count(len(response.topics), flexible))
    for topic in response.topics:
        if version >= FIRST_WITH_TOPIC_IDS:
            small.append(uuid(topic.topic_id))
        else:
            small.append(string(topic.name, flexible))
        small.append(count(len(topic.partitions), flexible))
        for partition in topic.partitions:
            small.append(_encode_data(partition, version))
            if partition.records_size:
                small = _place_records(frame, small, partition)
            if flexible:
                small.append(_encode_data_tags(partition))
        if flexible:
            small.append(NO_TAGS)
    if flexible:
        if version >= 16 and response.node_endpoints:
            small.append(tags([(0, encode_endpoints(response.node_endpoints))]))
        else:
            small.append(NO_TAGS)
    if small:
        frame.append(b"".join(small))
    return frame


def _place_records(
    frame: list[Part], small: list[Buffer], partition: FetchPartitionResponse
) -> list[Buffer]:
    """Append the parts of one record set after *small*; return the small pieces that are not in *frame* yet."""
    for part in partition.records:
        if isinstance(part, bytes | bytearray | memoryview) and len(part) < _JOIN_BELOW:
            small.append(part)
            continue
        if small:
            frame.append(b"".join(small))
            small = []
        frame.append(part)
    return small


def _encode_data(partition: FetchPartitionResponse, version: int) -> bytes:
    """Encode all fields of a partition before its records, with the records' length."""
    size = partition.records_size
    if partition.aborted_transactions is None and version >= 11:
        if version >= 12:
            return _DATA_V12_NONE.pack(
                partition.partition,
                partition.error_code,
                partition.high_watermark,
                partition.last_stable_offset,
                partition.log_start_offset,
                0,
                partition.preferred_read_replica,
            ) + uvarint(size + 1)
        return _DATA_V11_NONE.pack(
            partition.partition,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
            -1,
            partition.preferred_read_replica,
            size,
        )
    return _encode_data_slowly(partition, version)


def _encode_data_slowly(partition: FetchPartitionResponse, version: int) -> bytes:
    flexible = version >= FIRST_FLEXIBLE
    known = (
        partition.partition,
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
    )
    v5 = version >= 5
    parts = [_DATA_V5.pack(*known, partition.log_start_offset) if v5 else _DATA_V4.pack(*known)]
    aborted = partition.aborted_transactions
    parts.append(count(-1 if aborted is None else len(aborted), flexible))
    for transaction in aborted or ():
        parts.append(_ABORTED.pack(transaction.producer_id, transaction.first_offset))
        if flexible:
            parts.append(NO_TAGS)
    if version >= 11:
        parts.append(I32.pack(partition.preferred_read_replica))
    parts.append(count(partition.records_size, flexible))
    return b"".join(parts)


def _encode_data_tags(partition: FetchPartitionResponse) -> bytes:
    diverging, leader = partition.diverging_epoch, partition.current_leader
    if diverging is None and leader is None:
        return NO_TAGS
    fields = []
    if diverging is not None:
        fields.append((0, _EPOCH_END.pack(diverging.epoch, diverging.end_offset, 0)))
    if leader is not None:
        fields.append((1, encode_leader(leader)))
    return tags(fields)


@decodes("Fetch response")
def decode_response(frame: memoryview, version: int) -> tuple[int, FetchResponse]:
    """Decode a response frame; return (correlation id, response) with records as views of *frame*."""
    flexible = version >= FIRST_FLEXIBLE
    correlation_id, pos = read_response_header(frame, flexible)
    response = FetchResponse([])
    if version >= 7:
        response.throttle_time_ms, response.error_code, response.session_id = _TOP_V7.unpack_from(
            frame, pos
        )
        pos += _TOP_V7.size
    else:
        (response.throttle_time_ms,) = I32.unpack_from(frame, pos)
        pos += 4
    topic_count, pos = read_count(frame, pos, flexible, 3)
    for _ in range(topic_count):
        name, topic_id, pos = read_topic(frame, pos, version)
        partition_count, pos = read_count(frame, pos, flexible, 27)
        partitions = []
        for _ in range(partition_count):
            partition, pos = _decode_data(frame, pos, version)
            partitions.append(partition)
        if flexible:
            pos = skip_tags(frame, pos)
        response.topics.append(FetchTopicResponse(name, partitions, topic_id))
    if flexible:
        fields, pos = read_tags(frame, pos)
        for tag, data in fields:
            if tag == 0 and version >= 16:
                response.node_endpoints = decode_endpoints(data)
    if pos != len(frame):
        raise MalformedMessage(f"{len(frame) - pos} bytes follow its end")
    return correlation_id, response


def _decode_data(frame: memoryview, pos: int, version: int) -> tuple[FetchPartitionResponse, int]:
    flexible = version >= FIRST_FLEXIBLE
    layout = _DATA_V5 if version >= 5 else _DATA_V4
    partition = FetchPartitionResponse(*layout.unpack_from(frame, pos))
    aborted_count, pos = read_count(frame, pos + layout.size, flexible, 16, nullable=True)
    if aborted_count >= 0:
        aborted = []
        for _ in range(aborted_count):
            aborted.append(AbortedTransaction(*_ABORTED.unpack_from(frame, pos)))
            pos += _ABORTED.size
            if flexible:
                pos = skip_tags(frame, pos)
        partition.aborted_transactions = aborted
    if version >= 11:
        (partition.preferred_read_replica,) = I32.unpack_from(frame, pos)
        pos += 4
    records, pos = read_records(frame, pos, flexible)
    if records:
        partition.records = (records,)
        partition.records_size = len(records)
    if flexible:
        if frame[pos] == 0:
            return partition, pos + 1
        fields, pos = read_tags(frame, pos)
        for tag, data in fields:
            if tag == 0:
                epoch, end_offset, _ = _EPOCH_END.unpack_from(data, 0)
                partition.diverging_epoch = EpochEndOffset(epoch, end_offset)
            elif tag == 1:
                partition.current_leader = decode_leader(data)
    return partition, pos
