"""What a mirror copied: digests of the batches that it read and the target acknowledged. Pure.

kmirror writes them, and kaudit finds with them which of two logs has changed since the copy. An *extent* is a range of
offsets of one partition that was copied without interruption. It has the number of its batches and the sum of the
hashes of their headers. A header has the CRC of its records, so nothing is decoded. docs/design/mirror-evidence.md has
the topic, the order of writes, and what a digest shows.

A record of the topic is an extent. The key has its partition and first offset; the value has the rest, as JSON. An
extent that grows is written again under its key. A later extent replaces all earlier ones that it overlaps: their
offsets were copied again.

In: batches; keys and values of records   Out: hashes; extents, and records to write   Owner: the caller
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

from kclient.mirror_json import NOT_READABLE, decoded, encoded, number, text
from kclient.types import TopicPartition
from kclient.wire.batches import HEADER_SIZE, LENGTH_END, Buffer

SCHEMA_VERSION = 1
SUFFIX = ".evidence.internal"
WINDOW = 10_000
"""Offsets of a window. An extent ends before a batch that begins in another window than its first one."""

MASK = (1 << 64) - 1
_TYPE = "copied"
_EPOCH_AT, _MAGIC_AT = 12, 16
_START = Struct(">qi")


def evidence_topic(source_alias: str) -> str:
    """Return the name of the topic at the target of a mirror of *source_alias*."""
    return f"{source_alias}{SUFFIX}"


def is_evidence(topic: str) -> bool:
    """Return whether *topic* has the evidence of a mirror, by its name: it is neither mirrored nor audited."""
    return topic.endswith(SUFFIX)


def header_hash(data: Buffer, position: int) -> int:
    """Return a hash of the header of the batch at *position*, without the leader epoch.

    Each cluster writes the leader epoch itself. All other fields are the same in a mirror that keeps bytes: base
    offset, length, magic, CRC, attributes, offset delta, timestamps, producer, sequence, record count.
    """
    header = bytes(data[position : position + HEADER_SIZE])
    hashed = blake2b(header[:_EPOCH_AT] + header[_MAGIC_AT:], digest_size=8).digest()
    return int.from_bytes(hashed, "little")


class HashedBatch(NamedTuple):
    """A batch, by its position in a buffer, its first offset, and the hash of its header."""

    position: int
    base_offset: int
    hash: int


def hashed_batches(data: Buffer) -> list[HashedBatch]:
    """Return the batches of *data*, whole batches that were parsed before."""
    found = []
    position, size = 0, len(data)
    while position < size:
        base_offset, length = _START.unpack_from(data, position)
        found.append(HashedBatch(position, base_offset, header_hash(data, position)))
        position += length + LENGTH_END
    return found


@dataclass(frozen=True, slots=True)
class CopiedTopic:
    """The two topics of a copy. Evidence of a topic that was deleted is none of its successor."""

    source_cluster_id: str
    source_topic_id: str
    """"" if the source has no topic ids."""
    target_topic_id: str


@dataclass(frozen=True, slots=True)
class Extent:
    """The batches that begin at offsets [first, until) of a partition, as they were copied."""

    first: int
    until: int
    batches: int
    read: int
    """The sum of the header hashes of what the mirror read from the source, modulo 2**64."""
    written: int
    """The same sum, of the bytes that the target acknowledged."""


def encode(tp: TopicPartition, topic: CopiedTopic, extent: Extent) -> tuple[bytes, bytes]:
    """Return key and value of the record of *extent* of the target's partition *tp*."""
    key = {
        "type": _TYPE,
        "source_cluster_id": topic.source_cluster_id,
        "topic": tp.topic,
        "partition": tp.partition,
        "from": extent.first,
    }
    value = {
        "schema_version": SCHEMA_VERSION,
        "until": extent.until,
        "batches": extent.batches,
        "read": f"{extent.read:016x}",
        "written": f"{extent.written:016x}",
        "source_topic_id": topic.source_topic_id,
        "target_topic_id": topic.target_topic_id,
    }
    return encoded(key), encoded(value)


class Copied:
    """The extents of each partition and pair of topics: ascending, none overlaps another."""

    def __init__(self) -> None:
        self.unreadable = 0
        """Records that are no extents."""
        self._of: dict[tuple[TopicPartition, CopiedTopic], list[Extent]] = {}

    def add(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Add records of a topic, keys and values in the order of the log."""
        for key, value in records:
            if value is None:
                continue
            try:
                tp, topic, extent = _decoded(key, value)
            except NOT_READABLE:
                self.unreadable += 1
                continue
            known = self._of.setdefault((tp, topic), [])
            low = bisect_right(known, extent.first, key=lambda each: each.until)
            high = bisect_left(known, extent.until, key=lambda each: each.first)
            known[low:high] = [extent]

    def extents(self, tp: TopicPartition, topic: CopiedTopic) -> list[Extent]:
        """Return the extents of the target's partition *tp*."""
        return self._of.get((tp, topic), [])


def _decoded(key: bytes | None, value: bytes) -> tuple[TopicPartition, CopiedTopic, Extent]:
    """Return what a record states. Raise ValueError, KeyError or TypeError if it is no extent."""
    names, fields = decoded(key, value, (_TYPE,), SCHEMA_VERSION)
    extent = Extent(
        number(names["from"]),
        number(fields["until"]),
        number(fields["batches"]),
        _sum(fields["read"]),
        _sum(fields["written"]),
    )
    if extent.until <= extent.first:
        raise ValueError("an extent without offsets")
    topic = CopiedTopic(
        text(names["source_cluster_id"]),
        text(fields["source_topic_id"]),
        text(fields["target_topic_id"]),
    )
    return TopicPartition(text(names["topic"]), number(names["partition"])), topic, extent


def _sum(found: Any) -> int:
    total = int(text(found), 16)
    if not 0 <= total <= MASK:
        raise ValueError(f"{found!r} is no sum of 64 bits")
    return total
