"""The records in a batch: encoding and decoding, as rows and as columns.

Brokers do not need this on their hot path; clients, compaction, timestamp lookups, tools and the audit do. Writing is
in record_writer.py, reading in record_reader.py. Both support all of KIP-98's record: null keys and values, headers
with order and repeated names (KIP-82), control records.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kclient.wire.batches import CONTROL, TRANSACTIONAL, BatchInfo, Buffer
from kclient.wire.errors import InvalidRecord, KafkaError
from kclient.wire.record_reader import Columns, decode_batch, decode_columns
from kclient.wire.record_writer import (
    EncodedRecords,
    Headers,
    Record,
    RecordEncoder,
    encode_batch,
    encode_record,
    encode_records,
)

__all__ = [
    "ABORT",
    "COMMIT",
    "LARGEST_MARKER",
    "Columns",
    "EncodedRecords",
    "Headers",
    "Record",
    "RecordEncoder",
    "TransactionMarker",
    "control_type",
    "decode_batch",
    "decode_columns",
    "encode_batch",
    "encode_record",
    "encode_records",
    "encode_transaction_marker",
    "transaction_marker",
]

ABORT: Final = 0
"""Type of the control record that aborts a transaction."""

COMMIT: Final = 1
"""Type of the control record that commits a transaction."""

_CONTROL_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_MARKER_NUMBER = struct.Struct(">q")
"""Behind the value of a marker; readers of Kafka's format do not read it."""
LARGEST_MARKER: Final = 1024
"""Bytes of a control batch that is read as a marker: one has 78."""


class TransactionMarker(NamedTuple):
    """The end of a transaction, as a control batch has it."""

    is_aborted: bool
    coordinator_epoch: int
    """The epoch of the coordinator that wrote it; -1 if the record does not have it."""
    number: int = -1
    """Of the transaction, as kbroker's coordinator counts them; -1 if the record does not have it."""


def control_type(key: bytes | None) -> int:
    """Return the type in the key of a control record: ABORT, COMMIT, or a newer one."""
    if key is None or len(key) < _CONTROL_KEY.size:
        raise InvalidRecord("a control record has no version and type in its key")
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecord(f"a control record has version {version}")
    return int(kind)


def encode_transaction_marker(
    kind: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    number: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Return the control batch that ends a producer's transaction (*kind* ABORT or COMMIT), with its *number*."""
    value = _MARKER_VALUE.pack(0, coordinator_epoch)
    if number >= 0:
        value += _MARKER_NUMBER.pack(number)
    marker = Record(0, timestamp, _CONTROL_KEY.pack(0, kind), value)
    return encode_batch(
        [marker],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=CONTROL | TRANSACTIONAL,
    )


def transaction_marker(buf: Buffer, info: BatchInfo) -> TransactionMarker | None:
    """Return the marker in the control batch *info* of *buf*.

    None for another type, for a batch without records (compaction), and for one that cannot be read.
    """
    if not info.record_count or info.codec or info.size > LARGEST_MARKER:
        return None
    try:
        columns = decode_columns(buf, info)
        kind = control_type(columns.keys[0])
    except KafkaError:
        return None
    if kind not in (ABORT, COMMIT):
        return None
    value = columns.values[0]
    coordinator_epoch = number = -1
    if value is not None and len(value) >= _MARKER_VALUE.size:
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
        if len(value) == _MARKER_VALUE.size + _MARKER_NUMBER.size:
            (number,) = _MARKER_NUMBER.unpack_from(value, _MARKER_VALUE.size)
    return TransactionMarker(kind == ABORT, coordinator_epoch, number)
