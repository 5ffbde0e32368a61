"""Converts the arguments of `send_columns` to checked columns: sequences of objects, arrays and tables of Arrow.

pyarrow is imported only for data that another library exports to Arrow: an array of pyarrow exists only where
it is imported. An error in the arguments is found before the first row is sent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Set
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeAlias

from kclient.errors import SerializationError
from kclient.producer.append import RecordAppender
from kclient.producer.columns import ArrowColumn, ChunkedColumn, Column, ColumnBatches, ListColumn
from kclient.producer.record_serializer import HeadersGiven, as_bytes, checked_headers

if TYPE_CHECKING:
    import pyarrow as pa

    Rows: TypeAlias = (
        Column
        | Iterable[bytes | str | None]
        | pa.Array
        | pa.ChunkedArray
        | pa.RecordBatch
        | pa.Table
    )
    """A column; as values also a table with the columns of a record. A Column is not checked row by row."""
    Times: TypeAlias = int | Iterable[int] | pa.Array | pa.ChunkedArray | None
    """Milliseconds since the epoch: of all rows, or of each."""

_NO_COLUMNS: Any = bytes | str | bytearray | memoryview | Mapping | Set
"""What can be iterated, but has no rows in order."""

_SENT = ("key", "value", "timestamp", "headers")
_WHERE_CONSUMED = ("topic", "partition", "offset", "timestamp_type", "leader_epoch")
"""Columns of `poll_arrow` that have no effect: where the rows were consumed, not where they are sent."""


def column_batches(
    appender: RecordAppender,
    topic: Any,
    values: Rows,
    keys: Rows | None,
    headers: HeadersGiven,
    partition: int | None,
    timestamps_ms: Times,
) -> ColumnBatches:
    """Return the rows of the arguments of `send_columns`; raise the error of one that cannot be sent."""
    given = _arrow(values)
    if _is_table(given):
        if keys is not None or timestamps_ms is not None:
            raise TypeError(
                "a table has its keys and timestamps in the columns key and timestamp: "
                "keys and timestamps_ms are for values without a table"
            )
        columns = _table_columns(given, topic)
        value_column = _column(columns["value"], topic, "value")
        given_keys, timestamps_ms = columns.get("key"), columns.get("timestamp")
    else:
        value_column = _column(given, topic, "value")
        given_keys = None if keys is None else _arrow(keys)
    key_column = None if given_keys is None else _column(given_keys, topic, "key")
    count = value_column.count
    if key_column is not None and key_column.count != count:
        raise ValueError(f"{count} values have {key_column.count} keys")
    times = _timestamps(timestamps_ms, count, topic)
    batches = ColumnBatches(
        topic,
        partition,
        value_column,
        key_column,
        None if isinstance(times, int) else times,
        times if isinstance(times, int) else 0,
        checked_headers(headers, topic) if headers else (),
    )
    found = batches.too_large_row(appender.largest)
    if found is not None:
        row, size = found
        appender.too_large(f"{topic}, row {row}", size)
    return batches


def _arrow(given: Any) -> Any:
    """Return *given*, as an object of pyarrow if another library exports it to Arrow."""
    if type(given).__module__.partition(".")[0] == "pyarrow" or not (
        hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")
    ):
        return given
    try:
        import pyarrow
    except ModuleNotFoundError as problem:
        raise ModuleNotFoundError(
            f"send_columns() needs pyarrow for a {type(given).__name__}, which is not installed: "
            "pip install 'kbroker[arrow]'",
            name=problem.name,
        ) from None
    if hasattr(given, "columns"):
        return pyarrow.table(given)
    if hasattr(given, "__arrow_c_stream__"):
        return pyarrow.chunked_array(given)
    return pyarrow.array(given)


def _is_table(given: Any) -> bool:
    pyarrow = sys.modules.get("pyarrow")
    return pyarrow is not None and isinstance(given, pyarrow.Table | pyarrow.RecordBatch)


def _table_columns(given: Any, topic: Any) -> dict[str, Any]:
    names = given.schema.names
    unknown = sorted(set(names) - {*_SENT, *_WHERE_CONSUMED})
    if unknown:
        raise SerializationError(
            f"the table for topic {topic!r} has a column {unknown[0]!r}: "
            "send_columns() sends key, value and timestamp",
            hint="choose columns with select(), and name them with rename_columns()",
        )
    if "value" not in names or len(set(names)) < len(names):
        raise SerializationError(f"the table for topic {topic!r} needs one column 'value': {names}")
    if "headers" in names:
        import pyarrow.compute as pc

        if pc.sum(pc.list_value_length(given.column("headers"))).as_py():
            raise SerializationError(
                f"the table for topic {topic!r} has headers: send_columns() has headers for all rows",
                hint="drop the column headers and pass headers=, or send each record with send()",
            )
    return {name: given.column(name) for name in ("key", "value", "timestamp") if name in names}


_AS_THEY_ARE = frozenset([bytes, type(None)])


def _column(given: Any, topic: Any, what: str) -> Column:
    if isinstance(given, Column):
        return given
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None and isinstance(given, pyarrow.ChunkedArray):
        pieces = [_array_column(pyarrow, each, topic, what) for each in given.chunks]
        return pieces[0] if len(pieces) == 1 else ChunkedColumn(pieces)
    if pyarrow is not None and isinstance(given, pyarrow.Array):
        return _array_column(pyarrow, given, topic, what)
    if _is_table(given):
        raise TypeError("keys are a column: send_columns(topic, table) has them as its column key")
    if isinstance(given, _NO_COLUMNS) or not isinstance(given, Iterable):
        raise TypeError(
            f"{what}s are a column, not {type(given).__name__}: "
            "give a sequence of bytes, str or None, or an array of Arrow"
        )
    fields: list[Any] = list(given)
    # Most columns have nothing to convert, which is seen ten times as fast as row by row.
    rows = () if _AS_THEY_ARE.issuperset(map(type, fields)) else enumerate(fields)
    for row, field in rows:
        if field is not None and type(field) is not bytes:
            if not isinstance(field, str | bytes | bytearray | memoryview):
                raise SerializationError(
                    f"{what} in row {row} for topic {topic!r} is of type {type(field).__name__}: "
                    "give bytes, str or None"
                )
            fields[row] = as_bytes(field, topic, what)
    return ListColumn(fields)


def _array_column(pyarrow: Any, given: Any, topic: Any, what: str) -> Column:
    import pyarrow.compute as pc

    kinds = pyarrow.types
    kind = given.type
    if kinds.is_dictionary(kind):
        given = given.dictionary_decode()
        kind = given.type
    if kinds.is_null(kind):
        return ListColumn([None] * len(given))
    if kinds.is_fixed_size_binary(kind) or str(kind) in ("binary_view", "string_view"):
        given = given.cast(pyarrow.large_binary())
        kind = given.type
    is_large = kinds.is_large_binary(kind) or kinds.is_large_string(kind)
    if not (is_large or kinds.is_binary(kind) or kinds.is_string(kind)):
        raise SerializationError(
            f"{what}s for topic {topic!r} are of type {kind}: give an array of binary or string"
        )
    if not len(given):
        return ListColumn([])
    valid, places, data = given.buffers()
    return ArrowColumn(
        len(given),
        pc.max(pc.binary_length(given)).as_py() or 0,
        offset=given.offset,
        places=memoryview(places).cast("B").cast("q" if is_large else "i"),
        data=memoryview(b"" if data is None else data),
        valid=None if valid is None or not given.null_count else memoryview(valid).cast("B"),
    )


def _timestamps(given: Any, count: int, topic: Any) -> Any:
    """Return milliseconds: an int of all rows, or a list or memoryview with that of each."""
    if given is None:
        return time_ns() // 1_000_000
    given = _arrow(given)
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None and isinstance(given, pyarrow.ChunkedArray):
        given = given.combine_chunks()
    if pyarrow is not None and isinstance(given, pyarrow.Array):
        return _array_timestamps(pyarrow, given, count, topic)
    if isinstance(given, int | _NO_COLUMNS) or not isinstance(given, Iterable):
        _check_time(given, topic)
        return given
    times = given.tolist() if hasattr(given, "tolist") else list(given)  # numpy's ints are no int
    _check_count(len(times), count)
    for row, time in enumerate(times):
        _check_time(time, f"{topic}, row {row}")
    return times


def _array_timestamps(pyarrow: Any, given: Any, count: int, topic: Any) -> Any:
    import pyarrow.compute as pc

    _check_count(len(given), count)
    if given.null_count:
        raise SerializationError(f"timestamps for topic {topic!r} have {given.null_count} nulls")
    if pyarrow.types.is_timestamp(given.type):
        given = given.cast(pyarrow.timestamp("ms", tz=given.type.tz), safe=False)
        given = given.cast(pyarrow.int64())
    elif pyarrow.types.is_integer(given.type):
        given = given.cast(pyarrow.int64())
    else:
        raise SerializationError(
            f"timestamps for topic {topic!r} are of type {given.type}: give timestamps, or int64 "
            "in milliseconds since the epoch"
        )
    if not count:
        return []
    _check_time(pc.min(given).as_py(), topic)
    numbers = memoryview(given.buffers()[1]).cast("B").cast("q")
    return numbers[given.offset : given.offset + count]


def _check_count(times: int, count: int) -> None:
    if times != count:
        raise ValueError(f"{count} values have {times} timestamps")


def _check_time(time: object, where: Any) -> None:
    if not isinstance(time, int) or not 0 <= time < 1 << 63:
        raise SerializationError(
            f"timestamp {time!r} for topic {where} is no time: "
            "it must be an int, in milliseconds since the epoch"
        )
