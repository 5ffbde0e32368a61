"""Turns fetched batches into the Arrow batches of a Spark task: digests or hashes, never payload.

Memory: records are decoded in chunks of `CHUNK_BYTES` and `CHUNK_RECORDS`, and an Arrow batch has the hashes of one. A
batch above a limit is a chunk of its own; kclient decompresses at most 64 MiB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kclient.wire.batches import HEADER_SIZE, Buffer
from kclient.wire.compression import decompress
from kclient.wire.errors import KafkaError
from spark_jobs.cut import OffsetRange
from spark_jobs.digest import DIGEST_COLUMNS, UNREAD_COLUMN, WindowShape, WindowSums
from spark_jobs.engine import FailureKind
from spark_jobs.findings import ABORTED, CONTROL, KEYLESS, TOMBSTONE
from spark_jobs.hashes import DEFAULT_HASH_KEY, content_hashes, part_hashes
from spark_jobs.reader import Fetched, Unread
from spark_jobs.record_arrays import Piece, RecordArrays, decode_arrays, valid_parts

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 4 << 20
CHUNK_RECORDS = 50_000
BATCH_RECORDS = 200_000
"""Records of one batch above which it is decoded in parts: 64 MiB hold nine million empty records."""

Columns: TypeAlias = tuple[tuple[str, str], ...]

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
    UNREAD_COLUMN,
)
"""*flags*: bits of `RecordDigest.flags`; *size*: bytes of key and value; *key* to *content*: `spark_jobs.hashes`.
*timestamp* in ms since the epoch; *timestamp_type* 0 CreateTime, 1 LogAppendTime."""


def spark_schema(columns: Columns) -> str:
    """Return *columns* as a schema for Spark."""
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def arrow_schema(columns: Columns) -> pa.Schema:
    """Return *columns* as a schema for Arrow."""
    import pyarrow as pa

    types = {"string": pa.string(), "int": pa.int32(), "long": pa.int64(), "binary": pa.binary()}
    return pa.schema([(name, types[kind]) for name, kind in columns])


def digest_batches(
    fetched: Iterable[Fetched | Unread],
    ranges: Sequence[OffsetRange],
    shape: WindowShape,
    key: str = DEFAULT_HASH_KEY,
) -> Iterator[pa.RecordBatch]:
    """Yield the digests of all records as `DIGEST_COLUMNS`, at the end, and a row for each part that was not read."""
    sums = WindowSums(ranges, shape, key)
    unread = []
    for records in chunks(fetched, ranges):
        if isinstance(records, Unread):
            unread.append(records)
        else:
            sums.add(records)
    rows = [(*row, None) for row in sums.rows()]
    if rows:
        yield as_arrow(rows, DIGEST_COLUMNS)
    yield from _unread_batches(unread, ranges, DIGEST_COLUMNS)


def hash_batches(
    fetched: Iterable[Fetched | Unread], ranges: Sequence[OffsetRange], key: str = DEFAULT_HASH_KEY
) -> Iterator[pa.RecordBatch]:
    """Yield the hashes of each record as `HASH_COLUMNS`, and a row for each part that was not read."""
    import numpy as np
    import pyarrow as pa

    schema = arrow_schema(HASH_COLUMNS)
    topics = pa.array([each.topic for each in ranges], pa.string())
    partitions = np.array([each.partition for each in ranges], np.int32)
    for records in chunks(fetched, ranges):
        if isinstance(records, Unread):
            yield from _unread_batches([records], ranges, HASH_COLUMNS)
            continue
        hashes = (*part_hashes(records, key), content_hashes(records, key))
        flags = (records.key_size < 0) * KEYLESS | (records.value_size < 0) * TOMBSTONE
        flags |= (records.timestamp_types >> 1) * CONTROL | records.aborted * ABORTED
        yield pa.RecordBatch.from_arrays(
            [
                topics.take(pa.array(records.groups)),
                pa.array(partitions[records.groups]),
                pa.array(records.offsets),
                pa.array(records.timestamps),
                pa.array((records.timestamp_types & 1).astype(np.int32)),
                pa.array(flags.astype(np.int32)),
                pa.array(records.sizes),
                *(pa.array(each.view(np.int64)) for each in hashes),
                pa.nulls(records.offsets.size, pa.string()),
            ],
            schema=schema,
        )


def chunks(
    fetched: Iterable[Fetched | Unread], ranges: Sequence[OffsetRange]
) -> Iterator[RecordArrays | Unread]:
    """Yield the records of *fetched* that are inside their range; groups are numbers of *ranges*.

    Batches that cannot be decoded, and what was not read, are yielded as such, in the order of *fetched*.
    """
    whole: list[tuple[Fetched, Buffer]] = []
    size = count = 0
    for each in fetched:
        found = each if isinstance(each, Unread) else _decompressed(each, ranges)
        if isinstance(found, Unread):
            yield from _decoded(whole, ranges)
            whole, size, count = [], 0, 0
            yield found
            continue
        each, records = found
        is_large = each.info.record_count > BATCH_RECORDS
        if is_large or size + len(records) > CHUNK_BYTES or count >= CHUNK_RECORDS:
            yield from _decoded(whole, ranges)
            whole, size, count = [], 0, 0
        if is_large:
            yield from _in_parts(each, records, ranges)
            continue
        whole.append((each, records))
        size += len(records)
        count += each.info.record_count
    yield from _decoded(whole, ranges)


def _decompressed(each: Fetched, ranges: Sequence[OffsetRange]) -> tuple[Fetched, Buffer] | Unread:
    info = each.info
    try:
        return each, decompress(info.codec, each.data[info.position + HEADER_SIZE : info.end])
    except KafkaError as problem:
        return _undecodable(each, ranges, problem)


def _in_parts(
    each: Fetched, records: Buffer, ranges: Sequence[OffsetRange]
) -> Iterator[RecordArrays | Unread]:
    """Yield a batch of very many records in parts, or as undecodable."""
    try:
        found = valid_parts(Piece(0, each.info, records), BATCH_RECORDS)
    except KafkaError as problem:
        yield _undecodable(each, ranges, problem)
        return
    for part in found:
        yield from _decoded([(each._replace(info=part.info), part.records)], ranges)


def _decoded(
    whole: Sequence[tuple[Fetched, Buffer]], ranges: Sequence[OffsetRange]
) -> Iterator[RecordArrays | Unread]:
    import numpy as np

    if not whole:
        return
    pieces = [
        Piece(n, each.info, records, each.is_aborted) for n, (each, records) in enumerate(whole)
    ]
    try:
        found = decode_arrays(pieces)
    except KafkaError as problem:
        if len(whole) == 1:
            yield _undecodable(whole[0][0], ranges, problem)
        else:
            for one in whole:
                yield from _decoded([one], ranges)
        return
    bounds = np.array([each[:3] for each, _ in whole], np.int64)
    numbers, lows, highs = bounds[found.groups].T
    found = found._replace(groups=numbers)
    inside = (found.offsets >= lows) & (found.offsets < highs)
    yield found if inside.all() else found.where(inside)


def _undecodable(each: Fetched, ranges: Sequence[OffsetRange], problem: Exception) -> Unread:
    topic, partition, _, _ = ranges[each.number]
    cause = f"{topic}-{partition}, batch at offset {each.info.base_offset}: {problem}"
    return Unread(each.number, each.low, each.high, FailureKind.UNDECODABLE, cause)


def _unread_batches(
    unread: Sequence[Unread], ranges: Sequence[OffsetRange], columns: Columns
) -> Iterator[pa.RecordBatch]:
    """Yield rows with topic, partition and `UNREAD_COLUMN` only."""
    rows = [
        (
            ranges[each.number].topic,
            ranges[each.number].partition,
            *[None] * (len(columns) - 3),
            json.dumps([each.low, each.high, each.kind.value, each.cause]),
        )
        for each in unread
    ]
    if rows:
        yield as_arrow(rows, columns)


def unread_part(text: str) -> tuple[int, int, FailureKind, str]:
    """Return (low, high, kind, cause) of a row of which `UNREAD_COLUMN` is *text*."""
    low, high, kind, cause = json.loads(text)
    return low, high, FailureKind(kind), cause


def as_arrow(rows: Sequence[tuple[object, ...]], columns: Columns) -> pa.RecordBatch:
    """Return *rows*, at least one, as an Arrow batch of *columns*."""
    import pyarrow as pa

    schema = arrow_schema(columns)
    arrays = [
        pa.array(column, kind)
        for column, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
