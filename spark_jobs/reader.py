"""Reads one range of offsets as Arrow in a Spark task: whole batches, CRCs checked, no record skipped."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from spark_jobs.cut import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

    from kclient.wire.records import Columns

ROWS_PER_BATCH = 20_000
"""Records per Arrow batch: enough to amortise the transfer to the JVM, few enough to stream."""

STALL_S = 60.0
"""Seconds without a batch after which a range counts as unreadable, so that no job hangs."""

_LENGTH = struct.Struct(">i")


class RangeUnreadable(Exception):
    """A range of offsets could not be read to its end; the text names topic, partition, offset and cause."""


def headers_bytes(headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
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


def read_range(bootstrap: str, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Yield the records of *wanted* in order as Arrow batches of `spark_jobs.data_source.SCHEMA`.

    Raise RangeUnreadable if the range is no longer in the log, a batch fails its CRC, or no batch arrives for
    `STALL_S`.
    """
    import pyarrow as pa

    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.int64()),
            ("timestamp_type", pa.int32()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.binary()),
        ]
    )
    gathered = _Rows()
    for columns, timestamp_type in _columns(bootstrap, wanted):
        gathered.add(columns, timestamp_type, wanted)
        if len(gathered) >= ROWS_PER_BATCH:
            yield gathered.arrow(schema, wanted)
            gathered = _Rows()
    if len(gathered):
        yield gathered.arrow(schema, wanted)


class _Rows:
    """Columns of records gathered for one Arrow batch."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.types: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[bytes | None] = []

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, columns: Columns, timestamp_type: int, wanted: OffsetRange) -> None:
        """Append the records of one batch that lie inside *wanted*."""
        offsets = columns.offsets
        first = next((n for n, offset in enumerate(offsets) if offset >= wanted.low), len(offsets))
        last = len(offsets)
        while last > first and offsets[last - 1] >= wanted.high:
            last -= 1
        self.offsets += offsets[first:last]
        self.timestamps += columns.timestamps[first:last]
        self.types += [timestamp_type] * (last - first)
        self.keys += columns.keys[first:last]
        self.values += columns.values[first:last]
        self.headers += map(headers_bytes, columns.headers[first:last])

    def arrow(self, schema: pa.Schema, wanted: OffsetRange) -> pa.RecordBatch:
        """Return the gathered rows as one Arrow batch."""
        import pyarrow as pa

        count = len(self)
        return pa.RecordBatch.from_arrays(
            [
                pa.array([wanted.topic] * count, pa.string()),
                pa.array([wanted.partition] * count, pa.int32()),
                pa.array(self.offsets, pa.int64()),
                pa.array(self.timestamps, pa.int64()),
                pa.array(self.types, pa.int32()),
                pa.array(self.keys, pa.binary()),
                pa.array(self.values, pa.binary()),
                pa.array(self.headers, pa.binary()),
            ],
            schema=schema,
        )


def _columns(bootstrap: str, wanted: OffsetRange) -> Iterator[tuple[Columns, int]]:
    """Yield the decoded batches that overlap *wanted*, with their timestamp type, without control batches."""
    from kclient import Consumer, TopicPartition
    from kclient.wire.errors import KafkaError
    from kclient.wire.records import decode_columns

    tp = TopicPartition(wanted.topic, wanted.partition)
    consumer = Consumer(
        config={
            "bootstrap.servers": bootstrap,
            "client.id": "kaudit",
            "auto.offset.reset": "none",
            "max.partition.fetch.bytes": 4 << 20,
            "fetch.max.wait.ms": 100,
            "isolation.level": "read_uncommitted",
        }
    )
    position = wanted.low
    try:
        consumer.assign([tp])
        consumer.seek(tp, wanted.low)
        last_batch_at = time.monotonic()
        while position < wanted.high:
            batches = consumer.poll_batches(timeout_ms=1000).get(tp, [])
            if batches:
                last_batch_at = time.monotonic()
            elif time.monotonic() - last_batch_at > STALL_S:
                raise RangeUnreadable(
                    f"{tp} returned no batch for {STALL_S:.0f} s at offset {position} (reading up to {wanted.high})"
                )
            for info, data in batches:
                if info.base_offset >= wanted.high:
                    return
                if not info.is_control:
                    yield decode_columns(data, info), int(info.log_append_time)
                position = info.next_offset
    except KafkaError as problem:
        raise RangeUnreadable(f"{tp} at offset {position}: {problem}") from problem
    finally:
        consumer.close(timeout=2)
