"""Turns fetched batches into the Arrow batches of a Spark task: digests, hashes, or whole records.

Memory: records are decoded in chunks of `CHUNK_BYTES` and `CHUNK_RECORDS`, and an Arrow batch has at most `ARROW_BYTES`
and `ARROW_ROWS`. One batch or record above a limit is a chunk of its own; kclient decompresses at most 64 MiB.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from kclient.wire.batches import HEADER_SIZE, BatchInfo
from kclient.wire.compression import decompress
from kclient.wire.errors import KafkaError
from kclient.wire.record_reader import decode_columns
from kclient.wire.record_writer import Headers
from spark_jobs.cut import OffsetRange
from spark_jobs.digest import DIGEST_COLUMNS, WindowShape, WindowSums
from spark_jobs.findings import KEYLESS, TOMBSTONE
from spark_jobs.hashes import DEFAULT_HASH_KEY, content_hashes, part_hashes
from spark_jobs.reader import Fetched, RangeUnreadable
from spark_jobs.record_arrays import Piece, RecordArrays, decode_arrays

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 4 << 20
CHUNK_RECORDS = 50_000
ARROW_BYTES = 8 << 20
ARROW_ROWS = 20_000

Columns: TypeAlias = tuple[tuple[str, str], ...]
Row: TypeAlias = tuple[str, int, int, int, int, bytes | None, bytes | None, bytes | None]

_LENGTH = struct.Struct(">i")

RECORD_COLUMNS: Columns = (
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "long"),
    ("timestamp", "long"),
    ("timestamp_type", "int"),
    ("key", "binary"),
    ("value", "binary"),
    ("headers", "binary"),
)
"""*timestamp* in ms since the epoch; *timestamp_type* 0 CreateTime, 1 LogAppendTime; *headers*: see `headers_bytes`
(null where a record has none)."""

HASH_COLUMNS: Columns = (
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "long"),
    ("timestamp", "long"),
    ("timestamp_type", "int"),
    ("flags", "int"),
    ("size", "long"),
    ("key", "long"),
    ("value", "long"),
    ("headers", "long"),
    ("content", "long"),
)
"""*flags*: bits of `RecordDigest.flags`; *size*: bytes of key and value; the last four: `spark_jobs.hashes`."""


def spark_schema(columns: Columns) -> str:
    """Return *columns* as a schema for Spark."""
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def arrow_schema(columns: Columns) -> pa.Schema:
    """Return *columns* as a schema for Arrow."""
    import pyarrow as pa

    types = {"string": pa.string(), "int": pa.int32(), "long": pa.int64(), "binary": pa.binary()}
    return pa.schema([(name, types[kind]) for name, kind in columns])


def digest_batches(
    fetched: Iterable[Fetched],
    ranges: Sequence[OffsetRange],
    shape: WindowShape,
    key: str = DEFAULT_HASH_KEY,
) -> Iterator[pa.RecordBatch]:
    """Yield the digests of all records as `DIGEST_COLUMNS`, in one batch at the end."""
    import pyarrow as pa

    sums = WindowSums(ranges, shape, key)
    for records in chunks(fetched, ranges):
        sums.add(records)
    rows = sums.rows()
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(column, kind)
                for column, kind in zip(columns, arrow_schema(DIGEST_COLUMNS).types, strict=True)
            ],
            schema=arrow_schema(DIGEST_COLUMNS),
        )


def hash_batches(
    fetched: Iterable[Fetched], ranges: Sequence[OffsetRange], key: str = DEFAULT_HASH_KEY
) -> Iterator[pa.RecordBatch]:
    """Yield the hashes of each record as `HASH_COLUMNS`."""
    import numpy as np
    import pyarrow as pa

    schema = arrow_schema(HASH_COLUMNS)
    topics = pa.array([each.topic for each in ranges], pa.string())
    partitions = np.array([each.partition for each in ranges], np.int32)
    for records in chunks(fetched, ranges):
        hashes = (*part_hashes(records, key), content_hashes(records, key))
        flags = (records.key_size < 0) * KEYLESS | (records.value_size < 0) * TOMBSTONE
        yield pa.RecordBatch.from_arrays(
            [
                topics.take(pa.array(records.groups)),
                pa.array(partitions[records.groups]),
                pa.array(records.offsets),
                pa.array(records.timestamps),
                pa.array(records.timestamp_types.astype(np.int32)),
                pa.array(flags.astype(np.int32)),
                pa.array(records.sizes),
                *(pa.array(each.view(np.int64)) for each in hashes),
            ],
            schema=schema,
        )


def chunks(fetched: Iterable[Fetched], ranges: Sequence[OffsetRange]) -> Iterator[RecordArrays]:
    """Yield the records of *fetched* that are inside their range; groups are numbers of *ranges*."""
    pieces: list[Piece] = []
    size = count = 0
    for each in fetched:
        info = each.info
        with _naming(ranges[each.number], info):
            records = decompress(info.codec, each.data[info.position + HEADER_SIZE : info.end])
        if pieces and (size + len(records) > CHUNK_BYTES or count >= CHUNK_RECORDS):
            yield _decoded(pieces, ranges)
            pieces, size, count = [], 0, 0
        pieces.append(Piece(each.number, info, records))
        size += len(records)
        count += info.record_count
    if pieces:
        yield _decoded(pieces, ranges)


def _decoded(pieces: Sequence[Piece], ranges: Sequence[OffsetRange]) -> RecordArrays:
    import numpy as np

    try:
        records = decode_arrays(pieces)
    except KafkaError as problem:
        for piece in pieces:  # The error of a chunk does not name the batch.
            with _naming(ranges[piece.group], piece.info):
                decode_arrays([piece])
        raise AssertionError("a chunk is invalid, its batches are not") from problem
    lows = np.array([each.low for each in ranges], np.int64)[records.groups]
    highs = np.array([each.high for each in ranges], np.int64)[records.groups]
    inside = (records.offsets >= lows) & (records.offsets < highs)
    return records if inside.all() else records.where(inside)


@contextmanager
def _naming(wanted: OffsetRange, info: BatchInfo) -> Iterator[None]:
    """Turn an error of Kafka's format into RangeUnreadable with partition and offset."""
    try:
        yield
    except KafkaError as problem:
        raise RangeUnreadable(
            f"{wanted.topic}-{wanted.partition}, batch at offset {info.base_offset}: {problem}"
        ) from problem


def record_batches(
    fetched: Iterable[Fetched], ranges: Sequence[OffsetRange]
) -> Iterator[pa.RecordBatch]:
    """Yield the records inside their ranges, whole, as `RECORD_COLUMNS`."""
    rows: list[Row] = []
    size = 0
    for each in fetched:
        wanted = ranges[each.number]
        with _naming(wanted, each.info):
            columns = decode_columns(each.data, each.info)
        kind = int(each.info.log_append_time)
        for offset, timestamp, key, value, headers in zip(*columns, strict=True):
            if not wanted.low <= offset < wanted.high:
                continue
            encoded = headers_bytes(headers)
            length = len(key or b"") + len(value or b"") + len(encoded or b"")
            if rows and (size + length > ARROW_BYTES or len(rows) >= ARROW_ROWS):
                yield _as_arrow(rows)
                rows, size = [], 0
            rows.append(
                (wanted.topic, wanted.partition, offset, timestamp, kind, key, value, encoded)
            )
            size += length
    if rows:
        yield _as_arrow(rows)


def _as_arrow(rows: Sequence[Row]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = arrow_schema(RECORD_COLUMNS)
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)],
        schema=schema,
    )


def headers_bytes(headers: Headers) -> bytes | None:
    """Return *headers* as comparable bytes, None where there are none.

    Order and repeated keys count. Each name and value follows its length (int32, big-endian), -1 for a null value.
    """
    if not headers:
        return None
    parts = []
    for name, value in headers:
        raw = name.encode()
        parts += [_LENGTH.pack(len(raw)), raw]
        parts += [_LENGTH.pack(-1)] if value is None else [_LENGTH.pack(len(value)), value]
    return b"".join(parts)
