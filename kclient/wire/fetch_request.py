"""Fetch requests: partitions and offsets to read, within a fetch session (KIP-227). See fetch.py."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from kclient.wire.fields import (
    I32,
    MAX_ENTRIES,
    NO_TAGS,
    count,
    decodes,
    read_count,
    read_nullable_string,
    read_string,
    read_tags,
    read_uuid,
    request_header,
    skip_tags,
    spend,
    string,
    tags,
    uuid,
)

API_KEY: Final = 1
VERSIONS: Final = range(4, 18)
FIRST_FLEXIBLE: Final = 12
FIRST_WITH_TOPIC_IDS: Final = 13

FINAL_SESSION_EPOCH: Final = -1
"""Session epoch of a full fetch without a session, and of the last fetch of a session."""

INITIAL_SESSION_EPOCH: Final = 0
"""Session epoch that requests a new session."""

MAX_SESSION_EPOCH: Final = 0x7FFFFFFF

MAX_FETCH_BYTES: Final = 0x7FFFFFFF


_LIMITS = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")
_REPLICA_STATE = struct.Struct(">iqB")
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqi")


def next_session_epoch(epoch: int) -> int:
    """Return the session epoch after *epoch*: one more, or 1 after the largest; 0 starts a session (KIP-227)."""
    return 1 if epoch >= MAX_SESSION_EPOCH else epoch + 1


@dataclass(slots=True)
class FetchPartition:
    """The fetch of one partition. Epochs and offsets are -1 in versions without them."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchTopic:
    """The partitions of one topic: by name up to v12 (topic_id None), by id from v13 (name "")."""

    name: str
    partitions: list[FetchPartition]
    topic_id: UUID | None = None


@dataclass(slots=True)
class ForgottenTopic:
    """Partitions to remove from the fetch session."""

    name: str
    partitions: list[int]
    topic_id: UUID | None = None


@dataclass(slots=True)
class FetchRequest:
    """Reads several partitions. replica_id is -1 for consumers, a broker id for followers."""

    max_wait_ms: int
    min_bytes: int
    topics: list[FetchTopic]
    max_bytes: int = MAX_FETCH_BYTES
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = FINAL_SESSION_EPOCH
    replica_id: int = -1
    replica_epoch: int = -1
    forgotten: Sequence[ForgottenTopic] = field(default=())
    rack_id: str = ""
    cluster_id: str | None = None


@decodes("Fetch request")
def decode_request(body: memoryview, version: int, max_entries: int = MAX_ENTRIES) -> FetchRequest:
    """Decode a request body, without its header. Bytes after it are ignored, as in Kafka.

    Raise `TooManyElements` for more than *max_entries* topics and partitions.
    """
    left = [max_entries, max_entries]
    flexible = version >= FIRST_FLEXIBLE
    pos = 0
    request = FetchRequest(0, 0, [])
    if version < 15:
        (request.replica_id,) = I32.unpack_from(body, pos)
        pos += 4
    (
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
    ) = _LIMITS.unpack_from(body, pos)
    pos += _LIMITS.size
    if version >= 7:
        request.session_id, request.session_epoch = _SESSION.unpack_from(body, pos)
        pos += _SESSION.size
    request.topics, pos = _decode_wanted(body, pos, version, left)
    if version >= 7:
        request.forgotten, pos = _decode_forgotten(body, pos, version, left)
    if version >= 11:
        request.rack_id, pos = read_string(body, pos, flexible)
    if flexible:
        fields, pos = read_tags(body, pos)
        for tag, data in fields:
            if tag == 0:
                request.cluster_id, _ = read_nullable_string(data, 0, True)
            elif tag == 1 and version >= 15:
                request.replica_id, request.replica_epoch, _ = _REPLICA_STATE.unpack_from(data, 0)
    return request


def _decode_wanted(
    body: memoryview, pos: int, version: int, left: list[int]
) -> tuple[list[FetchTopic], int]:
    flexible = version >= FIRST_FLEXIBLE
    smallest = _wanted_struct(version).size
    topic_count, pos = read_count(body, pos, flexible, 3)
    spend(left, topic_count)
    topics = []
    for _ in range(topic_count):
        name, topic_id, pos = read_topic(body, pos, version)
        partition_count, pos = read_count(body, pos, flexible, smallest)
        spend(left, partition_count)
        partitions = []
        for _ in range(partition_count):
            if version >= 12:
                index, leader_epoch, offset, fetched_epoch, start, limit = (
                    _PARTITION_V12.unpack_from(body, pos)
                )
                pos = skip_tags(body, pos + 32)
                partitions.append(
                    FetchPartition(index, offset, limit, leader_epoch, fetched_epoch, start)
                )
                continue
            if version >= 9:
                index, leader_epoch, offset, start, limit = _PARTITION_V9.unpack_from(body, pos)
                partitions.append(FetchPartition(index, offset, limit, leader_epoch, -1, start))
            elif version >= 5:
                index, offset, start, limit = _PARTITION_V5.unpack_from(body, pos)
                partitions.append(FetchPartition(index, offset, limit, -1, -1, start))
            else:
                partitions.append(FetchPartition(*_PARTITION_V4.unpack_from(body, pos)))
            pos += smallest
        if flexible:
            pos = skip_tags(body, pos)
        topics.append(FetchTopic(name, partitions, topic_id))
    return topics, pos


def _wanted_struct(version: int) -> struct.Struct:
    if version >= 12:
        return _PARTITION_V12
    if version >= 9:
        return _PARTITION_V9
    return _PARTITION_V5 if version >= 5 else _PARTITION_V4


def _decode_forgotten(
    body: memoryview, pos: int, version: int, left: list[int]
) -> tuple[list[ForgottenTopic], int]:
    flexible = version >= FIRST_FLEXIBLE
    topic_count, pos = read_count(body, pos, flexible, 3)
    spend(left, topic_count)
    topics = []
    for _ in range(topic_count):
        name, topic_id, pos = read_topic(body, pos, version)
        partition_count, pos = read_count(body, pos, flexible, 4)
        spend(left, partition_count)
        partitions = struct.unpack_from(f">{partition_count}i", body, pos)
        pos += 4 * partition_count
        if flexible:
            pos = skip_tags(body, pos)
        topics.append(ForgottenTopic(name, list(partitions), topic_id))
    return topics, pos


def encode_request(
    request: FetchRequest, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Return the request frame, with its header."""
    flexible = version >= FIRST_FLEXIBLE
    parts = [request_header(API_KEY, version, flexible, correlation_id, client_id)]
    if version < 15:
        parts.append(I32.pack(request.replica_id))
    parts.append(
        _LIMITS.pack(
            request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level
        )
    )
    if version >= 7:
        parts.append(_SESSION.pack(request.session_id, request.session_epoch))
    parts.append(count(len(request.topics), flexible))
    for topic in request.topics:
        parts.append(_topic_key(topic, version))
        parts.append(count(len(topic.partitions), flexible))
        for partition in topic.partitions:
            parts.append(_encode_wanted(partition, version))
        if flexible:
            parts.append(NO_TAGS)
    if version >= 7:
        parts.append(count(len(request.forgotten), flexible))
        for gone in request.forgotten:
            parts.append(_topic_key(gone, version))
            parts.append(count(len(gone.partitions), flexible))
            parts.append(struct.pack(f">{len(gone.partitions)}i", *gone.partitions))
            if flexible:
                parts.append(NO_TAGS)
    if version >= 11:
        parts.append(string(request.rack_id, flexible))
    if flexible:
        parts.append(_encode_request_tags(request, version))
    return b"".join(parts)


def _topic_key(topic: FetchTopic | ForgottenTopic, version: int) -> bytes:
    if version >= FIRST_WITH_TOPIC_IDS:
        return uuid(topic.topic_id)
    return string(topic.name, version >= FIRST_FLEXIBLE)


def _encode_wanted(wanted: FetchPartition, version: int) -> bytes:
    if version >= 12:
        return (
            _PARTITION_V12.pack(
                wanted.partition,
                wanted.current_leader_epoch,
                wanted.fetch_offset,
                wanted.last_fetched_epoch,
                wanted.log_start_offset,
                wanted.partition_max_bytes,
            )
            + NO_TAGS
        )
    if version >= 9:
        return _PARTITION_V9.pack(
            wanted.partition,
            wanted.current_leader_epoch,
            wanted.fetch_offset,
            wanted.log_start_offset,
            wanted.partition_max_bytes,
        )
    if version >= 5:
        return _PARTITION_V5.pack(
            wanted.partition,
            wanted.fetch_offset,
            wanted.log_start_offset,
            wanted.partition_max_bytes,
        )
    return _PARTITION_V4.pack(wanted.partition, wanted.fetch_offset, wanted.partition_max_bytes)


def _encode_request_tags(request: FetchRequest, version: int) -> bytes:
    fields = []
    if request.cluster_id is not None:
        fields.append((0, string(request.cluster_id, True)))
    if version >= 15 and request.replica_id != -1:
        fields.append((1, _REPLICA_STATE.pack(request.replica_id, request.replica_epoch, 0)))
    return tags(fields)


def read_topic(buf: memoryview, pos: int, version: int) -> tuple[str, UUID | None, int]:
    """Read a topic's name, or its id from v13 on; return (name, topic id, position)."""
    if version >= FIRST_WITH_TOPIC_IDS:
        topic_id, pos = read_uuid(buf, pos)
        return "", topic_id, pos
    name, pos = read_string(buf, pos, version >= FIRST_FLEXIBLE)
    return name, None, pos
