"""Records as a table of Arrow: what `poll_arrow` returns.

Keys and values are gathered by Arrow from the decompressed batches; no Python object is made of them. A record's
headers, where it has any, are Python objects in between. pyarrow is imported here, and only when a poll needs it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from kclient.consumer.partitions import PartitionState
from kclient.errors import KafkaError
from kclient.types import TopicPartition
from kclient.wire.record_places import RecordPlaces

if TYPE_CHECKING:
    import pyarrow as pa

Places = Mapping[TopicPartition, Sequence[RecordPlaces]]

MOST_RECORDS = 100_000
"""The default limit of a poll."""

_LARGEST_BUFFER = 1 << 30
"""Bytes that are joined for one array; its offsets are 32 bits, and a batch has at most 64 MiB."""


def require_pyarrow() -> Any:
    """Return pyarrow; raise ModuleNotFoundError with the name of the extra."""
    try:
        import pyarrow
    except ModuleNotFoundError as problem:
        raise ModuleNotFoundError(
            "poll_arrow() needs pyarrow, which is not installed: pip install 'kbroker[arrow]'",
            name=problem.name,
        ) from None
    return pyarrow


def take_places(state: PartitionState, most: int) -> list[RecordPlaces]:
    """Return where up to *most* next records of *state* are, and move its position past them.

    Raise the error of the record at the position only if there is no record before it.
    """
    taken: list[RecordPlaces] = []
    if state.decoded:
        state.fetch_again()  # because a poll returned its batch in part
    while most > 0:
        if state.problem is not None:
            if taken:
                break
            raise state.problem.with_traceback(None)
        batch = state.take()
        if batch is None:
            break
        assert state.position is not None, "a partition without a position buffers nothing"
        info = batch.info
        if batch.hidden:
            state.position = info.next_offset
            continue
        if not taken or taken[-1].size > _LARGEST_BUFFER:
            taken.append(RecordPlaces())
        places = taken[-1]
        before = len(places)
        try:
            is_whole = places.add(batch.data, info, state.position, most)
        except KafkaError as broken:
            broken.message = f"{state.tp}, batch at offset {info.base_offset}: {broken.message}"
            state.problem = broken
            state.position = max(state.position, info.base_offset)
            taken = [each for each in taken if len(each)]
            continue
        most -= len(places) - before
        if is_whole:
            state.position = info.next_offset
        else:
            state.position = places.offsets[-1] + 1
            state.untake(batch)
        if len(places) > before:
            state.leader_epoch = info.leader_epoch
    return [each for each in taken if len(each)]


def schema() -> pa.Schema:
    """Return the schema of the tables: the fields of a record, without the sizes."""
    pa = require_pyarrow()
    header = pa.struct([pa.field("name", pa.string(), nullable=False), ("value", pa.binary())])
    return pa.schema(
        [
            pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("timestamp_type", pa.int8(), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(pa.field("item", header, nullable=False)), nullable=False),
            pa.field("leader_epoch", pa.int32()),
        ]
    )


def table(found: Places) -> pa.Table:
    """Return all records as one table: partition after partition, each in the order of offsets."""
    pa = require_pyarrow()
    shape = schema()
    topics = sorted({tp.topic for tp in found})
    names = pa.array(topics, pa.string())
    batches = [
        _record_batch(pa, shape, names, topics.index(tp.topic), tp.partition, places)
        for tp, parts in found.items()
        for places in parts
    ]
    return pa.Table.from_batches(batches, shape)


def _record_batch(
    pa: Any, shape: Any, names: Any, topic: int, partition: int, places: RecordPlaces
) -> Any:
    count = len(places)
    data = pa.py_buffer(places.pieces[0] if len(places.pieces) == 1 else b"".join(places.pieces))
    kinds, epochs = zip(
        *(
            (pa.repeat(pa.scalar(kind, pa.int8()), n), _epochs(pa, epoch, n))
            for n, kind, epoch in places.runs
        ),
        strict=True,
    )
    timestamps = _numbers(pa, pa.int64(), places.timestamps)
    columns = [
        pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(topic, pa.int32()), count), names),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        _numbers(pa, pa.int64(), places.offsets),
        timestamps.view(shape.field("timestamp").type),
        pa.concat_arrays(kinds),
        _gather(pa, data, places.keys, count, places.null_keys),
        _gather(pa, data, places.values, count, places.null_values),
        _headers(pa, shape.field("headers").type, places),
        pa.concat_arrays(epochs),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=shape)


def _epochs(pa: Any, epoch: int, count: int) -> Any:
    return pa.repeat(pa.scalar(epoch if epoch >= 0 else None, pa.int32()), count)


def _numbers(pa: Any, kind: Any, numbers: array[int] | memoryview) -> Any:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


@lru_cache(maxsize=1)
def _evens(count: int) -> array[int]:
    return array("q", range(0, 2 * count, 2))


def _even_numbers(count: int) -> memoryview:
    """Return the first *count* even numbers; the longest array of them is kept."""
    return memoryview(_evens(max(MOST_RECORDS, count)))[:count]


def _gather(pa: Any, data: Any, places: array[int], count: int, nulls: Sequence[int]) -> Any:
    """Return *count* fields, the bytes at *places* of *data*; the rows *nulls* are null and have no place.

    The places are an array of bytes themselves, with what lies between two of them as every other element.
    """
    found = len(places) // 2
    if not found:
        return pa.nulls(count, pa.binary())
    alternating = pa.Array.from_buffers(
        pa.large_binary(), 2 * found - 1, [None, pa.py_buffer(places), data]
    )
    if not nulls:
        numbers = _even_numbers(found)
        return alternating.take(_numbers(pa, pa.int64(), numbers)).cast(pa.binary())
    steps = bytearray(b"\x02") * count
    for row in nulls:
        steps[row] = 0
    bits = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(steps)]).cast(pa.bool_())
    # The first row with a place has index 0; what a null row has there does not count.
    rows = memoryview(array("q", accumulate(steps, initial=-2)))[1:]
    indices = pa.Array.from_buffers(
        pa.int64(), count, [bits.buffers()[1], pa.py_buffer(rows)], null_count=len(nulls)
    )
    return alternating.take(indices).cast(pa.binary())


def _headers(pa: Any, kind: Any, places: RecordPlaces) -> Any:
    ends = array("i", [0])
    total = 0
    for row, headers in zip(places.with_headers, places.headers, strict=True):
        ends.extend([total] * (row + 1 - len(ends)))
        total += len(headers)
        ends.append(total)
    ends.extend([total] * (len(places) + 1 - len(ends)))
    pairs = [pair for headers in places.headers for pair in headers]
    items = pa.StructArray.from_arrays(
        [
            pa.array([name for name, _ in pairs], pa.string()),
            pa.array([value for _, value in pairs], pa.binary()),
        ],
        fields=list(kind.value_type),
    )
    return pa.Array.from_buffers(kind, len(places), [None, pa.py_buffer(ends)], children=[items])
