"""One record as a log holds it, with the header of its batch; or why the log does not hold it.

In: batches of a fetch.  Out: `Stored`, `Undecodable` or `Absent`.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from kclient.wire.batches import BatchInfo, check_crc
from kclient.wire.errors import CorruptMessage, KafkaError
from kclient.wire.record_reader import decode_columns
from kclient.wire.record_writer import Headers


@dataclass(frozen=True, slots=True)
class Stored:
    """A record. *crc_problem* is None if the CRC of its batch is right."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    batch: BatchInfo
    crc_problem: str | None = None


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A batch that spans the offset; its records cannot be decoded."""

    batch: BatchInfo
    data: bytes
    """The whole batch, from its base offset on."""
    problem: str
    crc_problem: str | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """No record at the offset; *reason* is a sentence for the operator."""

    reason: str


Found: TypeAlias = Stored | Undecodable | Absent


def record_at(offset: int, batches: Iterable[tuple[BatchInfo, memoryview]]) -> Found | None:
    """Return what *batches* have at *offset*; None if all of them end before it. They ascend."""
    for info, data in batches:
        if info.next_offset <= offset:
            continue
        if info.base_offset > offset:
            return Absent(
                f"no record: the log continues with the batch at offset {info.base_offset} "
                "(compaction, or offsets that were never written)"
            )
        return _in_batch(offset, info, data)
    return None


def _in_batch(offset: int, info: BatchInfo, data: memoryview) -> Found:
    crc_problem = None
    try:
        check_crc(data, info)
    except CorruptMessage as problem:
        crc_problem = str(problem)
    try:
        columns = decode_columns(data, info)
    except KafkaError as problem:
        whole = bytes(data[info.position : info.end])
        return Undecodable(info, whole, str(problem), crc_problem)
    for at, timestamp, key, value, headers in zip(*columns, strict=True):
        if at == offset:
            return Stored(at, timestamp, key, value, headers, info, crc_problem)
    return Absent(
        f"no record: the batch of offsets {info.base_offset} to {info.last_offset} has none at {offset} "
        "(compaction)"
    )
