"""Produce (api key 0), versions 3-11, hand-written: records stay views of the frame.

v3 transactional id, message format 2 (KIP-98) · v5 log start offset · v7 zstd (KIP-110) · v8 record errors and error
message (KIP-467) · v9 flexible (KIP-482) · v10 current leader and node endpoints (KIP-951) · v11 TRANSACTION_ABORTABLE
(KIP-890)

Extension of kbroker, from v9 on, in tagged fields that other brokers and clients skip (KIP-482). It is the conditional
append, by which a mirror copies batches with their offsets exactly once. Tag 10000 of a partition in the request is the
condition. It has the expected log end offset (int64) and the CRC (uint32) of the batch that ends there, 0 for an empty
log. An empty log that ends below that offset is restarted at it. The records may be several whole batches, which keep
their base offsets. As with Raft's check of the previous entry, two logs that agree at one offset agree below it. An
append after a lost one fails. Tag 10000 of a partition in the response is the leader's log end offset (int64), if the
condition failed and nothing was appended. A broker with this extension has the feature CONDITIONAL_APPEND in its
ApiVersions response. To other brokers the tag must not be sent: they would ignore it. Tag 10001 of a partition in the
request fences a mirror that was paused. It has the topic id at the target (16 bytes, 0 if unknown). Then follows the
topic id at the source of the records (text, as the topic setting states it). Older brokers skip it.

Frames have no length prefix. Decoding raises MalformedMessage only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from kclient.wire.batches import Buffer
from kclient.wire.errors import MalformedMessage, TooManyElements
from kclient.wire.fields import (
    I32,
    MAX_ENTRIES,
    NO_TAGS,
    count,
    decodes,
    nullable_error_text,
    read_count,
    read_nullable_string,
    read_records,
    read_response_header,
    read_string,
    read_tags,
    request_header,
    skip_tags,
    string,
    tags,
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

API_KEY: Final = 0
VERSIONS: Final = range(3, 12)
FIRST_FLEXIBLE: Final = 9

CONDITIONAL_APPEND: Final = "kbroker.conditional.append"
"""Name of the supported feature (ApiVersions v3+) of brokers with conditional appends."""

CONDITIONAL_APPEND_VERSION: Final = 1
MIRROR_SOURCE_CONFIG: Final = "kbroker.mirror.source.cluster.id"
"""Topic setting of a mirror: the source's cluster id. Only such topics accept conditional appends."""
MIRROR_SOURCE_TOPIC_CONFIG: Final = "kbroker.mirror.source.topic.id"
"""Topic setting of a mirror: the topic id at the source of the records that it holds."""

LOG_END_TAG: Final = 10_000
"""Far above Kafka's own tags, which count from 0."""

TOPICS_TAG: Final = 10_001

_FOLLOWS = struct.Struct(">qI")
_NO_ID = bytes(16)
_LOG_END = struct.Struct(">q")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_PARTITION_V3 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_ERRORS = {False: struct.pack(">ih", 0, -1), True: b"\x01\x00"}  # no record errors, null message


class CopiedTopics(NamedTuple):
    """The topics that a conditional append is about; it is rejected if the target's topic is another one."""

    source_id: str = ""
    """The topic id at the source of the records, as text; "" if the source has none."""
    target_id: UUID | None = None
    """The topic id at the target; None if it is unknown."""


NO_TOPICS: Final = CopiedTopics()


@dataclass(slots=True)
class ProducePartition:
    """The records for one partition: a view of one record batch, not checked yet.

    With *expected_log_end* (not -1) it is a conditional append, and may be several batches; *previous_crc* is the CRC
    of the batch before them.
    """

    index: int
    records: Buffer | None
    expected_log_end: int = -1
    previous_crc: int = 0
    copied_topics: CopiedTopics = NO_TOPICS


@dataclass(slots=True)
class ProduceTopic:
    """The partitions of one topic."""

    name: str
    partitions: list[ProducePartition]


@dataclass(slots=True)
class ProduceRequest:
    """Appends batches. acks: 0 no response, 1 after the leader's append, -1 after that of all in-sync replicas."""

    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]
    transactional_id: str | None = None


@dataclass(slots=True)
class RecordError:
    """Why one record (its index in the batch) made the broker reject the batch (KIP-467)."""

    batch_index: int
    message: str | None = None


@dataclass(slots=True)
class ProducePartitionResponse:
    """The result for one partition. log_append_time_ms is -1 unless the topic uses LogAppendTime.

    *log_end_offset* is the leader's if the condition of a conditional append failed, else -1.
    """

    index: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch | None = None
    log_end_offset: int = -1


@dataclass(slots=True)
class ProduceTopicResponse:
    """The results for the partitions of one topic."""

    name: str
    partitions: list[ProducePartitionResponse]


@dataclass(slots=True)
class ProduceResponse:
    """The results, in any order."""

    topics: list[ProduceTopicResponse]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = field(default=())


@decodes("Produce request")
def decode_request(
    body: memoryview, version: int, max_entries: int = MAX_ENTRIES
) -> ProduceRequest:
    """Decode a request body, without its header; records are views of *body*.

    Raise `TooManyElements` for more than *max_entries* topics and partitions. Bytes after the request are ignored, as
    in Kafka, because librdkafka leaves some after its requests.
    """
    flexible = version >= FIRST_FLEXIBLE
    transactional_id, pos = read_nullable_string(body, 0, flexible)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(body, pos)
    topic_count, pos = read_count(body, pos + 6, flexible, 3)
    topics = []
    left = max_entries - topic_count
    if left < 0:
        raise TooManyElements(f"more than {max_entries} topics", max_entries)
    for _ in range(topic_count):
        name, pos = read_string(body, pos, flexible)
        partition_count, pos = read_count(body, pos, flexible, 5)
        left -= partition_count
        if left < 0:
            raise TooManyElements(f"more than {max_entries} topics and partitions", max_entries)
        partitions = []
        for _ in range(partition_count):
            (index,) = I32.unpack_from(body, pos)
            records, pos = read_records(body, pos + 4, flexible)
            partition = ProducePartition(index, records)
            if flexible:
                if body[pos]:
                    pos = _read_condition(body, pos, partition)
                else:
                    pos += 1
            partitions.append(partition)
        if flexible:
            pos = skip_tags(body, pos)
        topics.append(ProduceTopic(name, partitions))
    if flexible:
        skip_tags(body, pos)
    return ProduceRequest(acks, timeout_ms, topics, transactional_id)


def encode_response(response: ProduceResponse, version: int, correlation_id: int) -> bytes:
    """Return the response frame, with its header."""
    flexible = version >= FIRST_FLEXIBLE
    parts = [I32.pack(correlation_id)]
    if flexible:
        parts.append(NO_TAGS)
    parts.append(count(len(response.topics), flexible))
    for topic in response.topics:
        parts.append(string(topic.name, flexible))
        parts.append(count(len(topic.partitions), flexible))
        for partition in topic.partitions:
            _encode_outcome(parts, partition, version)
        if flexible:
            parts.append(NO_TAGS)
    parts.append(I32.pack(response.throttle_time_ms))
    if flexible:
        if version >= 10 and response.node_endpoints:
            parts.append(tags([(0, encode_endpoints(response.node_endpoints))]))
        else:
            parts.append(NO_TAGS)
    return b"".join(parts)


def _encode_outcome(parts: list[bytes], partition: ProducePartitionResponse, version: int) -> None:
    if version >= 5:
        parts.append(
            _PARTITION_V5.pack(
                partition.index,
                partition.error_code,
                partition.base_offset,
                partition.log_append_time_ms,
                partition.log_start_offset,
            )
        )
    else:
        parts.append(
            _PARTITION_V3.pack(
                partition.index,
                partition.error_code,
                partition.base_offset,
                partition.log_append_time_ms,
            )
        )
    if version < 8:
        return
    flexible = version >= FIRST_FLEXIBLE
    if partition.record_errors or partition.error_message is not None:
        parts.append(count(len(partition.record_errors), flexible))
        for error in partition.record_errors:
            parts += (I32.pack(error.batch_index), nullable_error_text(error.message, flexible))
            if flexible:
                parts.append(NO_TAGS)
        parts.append(nullable_error_text(partition.error_message, flexible))
    else:
        parts.append(_ERRORS[flexible])
    if flexible:
        parts.append(_encode_outcome_tags(partition, version))


def _encode_outcome_tags(partition: ProducePartitionResponse, version: int) -> bytes:
    fields = []
    if version >= 10 and partition.current_leader is not None:
        fields.append((0, encode_leader(partition.current_leader)))
    if partition.log_end_offset >= 0:
        fields.append((LOG_END_TAG, _LOG_END.pack(partition.log_end_offset)))
    return tags(fields)


def _read_condition(body: memoryview, pos: int, partition: ProducePartition) -> int:
    """Read the tagged fields of a partition; return the position after them."""
    fields, pos = read_tags(body, pos)
    for tag, data in fields:
        if tag == LOG_END_TAG:
            log_end, partition.previous_crc = _FOLLOWS.unpack_from(data, 0)
            if log_end < 0:
                raise MalformedMessage(f"log end offset {log_end} is negative")
            partition.expected_log_end = log_end
        elif tag == TOPICS_TAG:
            partition.copied_topics = _decode_topics(bytes(data))
    return pos


def _encode_topics(topics: CopiedTopics) -> bytes:
    target = _NO_ID if topics.target_id is None else topics.target_id.bytes
    return target + topics.source_id.encode()


def _decode_topics(data: bytes) -> CopiedTopics:
    target, source = data[:16], data[16:]
    if len(target) < len(_NO_ID):
        raise MalformedMessage(f"the topics of a conditional append have {len(data)} bytes")
    try:
        source_id = source.decode()
    except UnicodeDecodeError:
        raise MalformedMessage("the topic id at the source is no text") from None
    return CopiedTopics(source_id, None if target == _NO_ID else UUID(bytes=target))


def encode_request(
    request: ProduceRequest, version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """Return the request frame in pieces, with its header; records are separate pieces."""
    flexible = version >= FIRST_FLEXIBLE
    pieces: list[Buffer] = []
    small = [
        request_header(API_KEY, version, flexible, correlation_id, client_id),
        string(request.transactional_id, flexible),
        _ACKS_AND_TIMEOUT.pack(request.acks, request.timeout_ms),
        count(len(request.topics), flexible),
    ]
    for topic in request.topics:
        small += (string(topic.name, flexible), count(len(topic.partitions), flexible))
        for partition in topic.partitions:
            records = partition.records
            size = -1 if records is None else len(records)
            small.append(I32.pack(partition.index))
            small.append(uvarint(size + 1) if flexible else I32.pack(size))
            if records is not None:
                pieces += (b"".join(small), records)
                small = []
            expected = partition.expected_log_end
            if expected >= 0:
                if not flexible:
                    raise ValueError(f"Produce v{version} cannot carry a conditional append")
                fields = [(LOG_END_TAG, _FOLLOWS.pack(expected, partition.previous_crc))]
                if partition.copied_topics != NO_TOPICS:
                    fields.append((TOPICS_TAG, _encode_topics(partition.copied_topics)))
                small.append(tags(fields))
            elif flexible:
                small.append(NO_TAGS)
        if flexible:
            small.append(NO_TAGS)
    if flexible:
        small.append(NO_TAGS)
    if small:
        pieces.append(b"".join(small))
    return pieces


@decodes("Produce response")
def decode_response(frame: memoryview, version: int) -> tuple[int, ProduceResponse]:
    """Decode a response frame; return (correlation id, response)."""
    flexible = version >= FIRST_FLEXIBLE
    endpoints: tuple[NodeEndpoint, ...] = ()
    correlation_id, pos = read_response_header(frame, flexible)
    topic_count, pos = read_count(frame, pos, flexible, 3)
    topics = []
    for _ in range(topic_count):
        name, pos = read_string(frame, pos, flexible)
        partition_count, pos = read_count(frame, pos, flexible, 22)
        partitions = []
        for _ in range(partition_count):
            partition, pos = _decode_outcome(frame, pos, version)
            partitions.append(partition)
        if flexible:
            pos = skip_tags(frame, pos)
        topics.append(ProduceTopicResponse(name, partitions))
    (throttle_time_ms,) = I32.unpack_from(frame, pos)
    pos += 4
    if flexible:
        fields, pos = read_tags(frame, pos)
        for tag, data in fields:
            if tag == 0:
                endpoints = decode_endpoints(data)
    if pos != len(frame):
        raise MalformedMessage(f"{len(frame) - pos} bytes follow its end")
    return correlation_id, ProduceResponse(topics, throttle_time_ms, endpoints)


def _decode_outcome(
    frame: memoryview, pos: int, version: int
) -> tuple[ProducePartitionResponse, int]:
    if version >= 5:
        partition = ProducePartitionResponse(*_PARTITION_V5.unpack_from(frame, pos))
        pos += _PARTITION_V5.size
    else:
        partition = ProducePartitionResponse(*_PARTITION_V3.unpack_from(frame, pos))
        pos += _PARTITION_V3.size
    if version < 8:
        return partition, pos
    flexible = version >= FIRST_FLEXIBLE
    error_count, pos = read_count(frame, pos, flexible, 5)
    errors = []
    for _ in range(error_count):
        (index,) = I32.unpack_from(frame, pos)
        message, pos = read_nullable_string(frame, pos + 4, flexible)
        if flexible:
            pos = skip_tags(frame, pos)
        errors.append(RecordError(index, message))
    partition.record_errors = tuple(errors)
    partition.error_message, pos = read_nullable_string(frame, pos, flexible)
    if flexible:
        fields, pos = read_tags(frame, pos)
        for tag, data in fields:
            if tag == 0:
                partition.current_leader = decode_leader(data)
            elif tag == LOG_END_TAG:
                (partition.log_end_offset,) = _LOG_END.unpack_from(data, 0)
    return partition, pos
