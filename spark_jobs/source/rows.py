"""Turns fetched batches into Arrow batches with the columns of Spark's Kafka connector.

Keys, values and headers are copied by Arrow, without a Python object per record. Memory: a chunk of decoded records
(`spark_jobs.arrow_batches`) becomes one Arrow batch: 4 MiB or 50,000 records, or one record batch above that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spark_jobs.arrow_batches import chunks
from spark_jobs.cut import OffsetRange
from spark_jobs.engine import FailureKind
from spark_jobs.reader import Fetched, RangeUnreadable, Unread
from spark_jobs.record_arrays import Integers, RecordArrays, header_arrays
from spark_jobs.source.batch_column import FIELDS, BatchHeaders

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_MOST_MS = ((1 << 63) - 1) // 1000
"""The last timestamp that a Spark timestamp, in microseconds, can hold."""

log = logging.getLogger(__name__)


def spark_schema(*, headers: bool, batches: bool = False) -> StructType:
    """Return the columns of Spark's Kafka connector, and `batch` with *batches*; all of them may be null."""
    from pyspark.sql import types

    schema = types.StructType(
        [
            types.StructField("key", types.BinaryType()),
            types.StructField("value", types.BinaryType()),
            types.StructField("topic", types.StringType()),
            types.StructField("partition", types.IntegerType()),
            types.StructField("offset", types.LongType()),
            types.StructField("timestamp", types.TimestampType()),
            types.StructField("timestampType", types.IntegerType()),
        ]
    )
    if headers:
        header = types.StructType(
            [
                types.StructField("key", types.StringType()),
                types.StructField("value", types.BinaryType()),
            ]
        )
        schema = schema.add(types.StructField("headers", types.ArrayType(header)))
    if batches:
        kinds = {
            "long": types.LongType(),
            "int": types.IntegerType(),
            "string": types.StringType(),
            "boolean": types.BooleanType(),
        }
        batch = types.StructType([types.StructField(name, kinds[kind]) for name, kind in FIELDS])
        schema = schema.add(types.StructField("batch", batch))
    return schema


def arrow_schema(*, headers: bool, batches: bool = False) -> pa.Schema:
    """Return the schema of the Arrow batches."""
    import pyarrow as pa

    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
    if headers:
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        fields.append(("headers", pa.list_(pa.field("element", header))))
    if batches:
        kinds = {
            "long": pa.int64(),
            "int": pa.int32(),
            "string": pa.string(),
            "boolean": pa.bool_(),
        }
        fields.append(("batch", pa.struct([(name, kinds[kind]) for name, kind in FIELDS])))
    return pa.schema(fields)


def row_batches(
    fetched: Iterable[Fetched | Unread],
    ranges: Sequence[OffsetRange],
    *,
    headers: bool,
    fail_on_data_loss: bool,
    batches: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the records inside their ranges; control records are not among them.

    Raise RangeUnreadable for offsets that cannot be read. Offsets that retention or DeleteRecords removed are skipped
    instead, with a warning, if *fail_on_data_loss* is false.
    """
    import pyarrow as pa

    schema = arrow_schema(headers=headers, batches=batches)
    stored = BatchHeaders()
    data = _data_batches(fetched)
    topics = pa.array([each.topic for each in ranges], pa.string())
    partitions = np.array([each.partition for each in ranges], np.int32)
    for records in chunks(stored.noted(data) if batches else data, ranges):
        if isinstance(records, Unread):
            if records.kind is not FailureKind.DELETED or fail_on_data_loss:
                raise RangeUnreadable(_lost(records))
            log.warning("records are lost: %s", _lost(records))
            continue
        if not records.offsets.size:
            continue
        if records.timestamps.max() > _MOST_MS or records.timestamps.min() < -_MOST_MS:
            raise RangeUnreadable(
                f"{ranges[int(records.groups[0])].topic}: a timestamp near offset "
                f"{records.offsets[0]} is outside of Spark's timestamps"
            )
        raw = pa.py_buffer(records.raw)
        columns = [
            _binary(raw, records.key_at, records.key_size),
            _binary(raw, records.value_at, records.value_size),
            topics.take(pa.array(records.groups)),
            pa.array(partitions[records.groups]),
            pa.array(records.offsets),
            pa.array(records.timestamps * 1000).cast(schema.field("timestamp").type),
            pa.array((records.timestamp_types & 1).astype(np.int32)),
        ]
        if headers:
            columns.append(_headers(raw, records, schema.field("headers").type))
        if batches:
            columns.append(stored.column(records, schema.field("batch").type))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _data_batches(fetched: Iterable[Fetched | Unread]) -> Iterator[Fetched | Unread]:
    return (each for each in fetched if isinstance(each, Unread) or not each.info.is_control)


def _lost(unread: Unread) -> str:
    return f"offsets {unread.low} to {unread.high - 1} were not read ({unread.cause})"


def _binary(raw: pa.Buffer, at: Integers, size: Integers) -> pa.Array:
    """Return the fields of *raw* at the places *at*, in increasing order; null where the size is negative.

    The fields, and what lies between them, are the elements of one Arrow array without a copy; `take` copies the
    fields.
    """
    import pyarrow as pa

    bounds = np.empty(2 * at.size, np.int32)
    bounds[0::2] = at
    bounds[1::2] = at + np.maximum(size, 0)
    every = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * at.size - 1, [None, pa.py_buffer(bounds), raw]
    )
    return every.take(pa.array(np.arange(0, 2 * at.size, 2), mask=size < 0))


def _headers(raw: pa.Buffer, records: RecordArrays, kind: pa.ListType) -> pa.Array:
    """Return the headers of each record in order; null for a record without headers."""
    import pyarrow as pa

    found = header_arrays(records)
    ends = np.cumsum(records.header_counts)
    if found.key_at.size:
        keys = _text(_binary(raw, found.key_at, found.key_size))
        values = _binary(raw, found.value_at, found.value_size)
    else:
        keys, values = pa.array([], pa.string()), pa.array([], pa.binary())
    structs = pa.StructArray.from_arrays([keys, values], fields=list(kind.value_type))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(
        offsets, structs, type=kind, mask=pa.array(records.header_counts == 0)
    )


def _text(keys: pa.Array) -> pa.Array:
    """Return *keys* as text; as in Java's client, bytes that are not UTF-8 become U+FFFD."""
    import pyarrow as pa

    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
