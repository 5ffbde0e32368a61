"""Rows of columns as closed batches: what `send_columns` appends instead of records.

Keys and values are taken from their columns a chunk at a time, and freed when their batch is encoded. `ColumnBatches`
chooses partitions as for records and closes a batch at batch.size. Rows without a key go to one sticky partition until
its batch is full. mypyc compiles the module (`COMPILED` of the package's build).

Owner: the caller of `send_columns`, under the producer's guard.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from kclient.native import mypyc_attr
from kclient.producer.append import RecordAppender
from kclient.producer.batch import ProducerBatch, record_size
from kclient.producer.topics import TopicPartitions
from kclient.types import Headers
from kclient.wire.batches import HEADER_SIZE
from kclient.wire.records import EncodedRecords, RecordEncoder

if TYPE_CHECKING:
    from mypy_extensions import i64

CHUNK: Final = 512
"""Rows that are taken from the columns at a time."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Column:
    """Bytes or null for each of *count* rows; *longest* is the largest number of bytes."""

    def __init__(self, count: int, longest: int) -> None:
        self.count = count
        self.longest = longest

    def rows(self, first: int, count: int) -> list[bytes | None]:
        """Return *count* rows from *first* on."""
        raise NotImplementedError


class ListColumn(Column):
    """A column of objects; *fields* is not copied."""

    def __init__(self, fields: list[bytes | None]) -> None:
        longest: i64 = 0
        for field in fields:
            if field is not None and len(field) > longest:
                longest = len(field)
        super().__init__(len(fields), longest)
        self._fields = fields

    def rows(self, first: int, count: int) -> list[bytes | None]:
        """Return *count* rows from *first* on."""
        return self._fields[first : first + count]


class ArrowColumn(Column):
    """An array of bytes in the memory of Arrow, from its element *offset* on.

    *places* are where elements begin in *data*, numbers of 32 or 64 bits. *valid* is one bit for each element, or None
    if none is null.
    """

    def __init__(
        self, count: int, longest: int, *, offset: int, places: Any, data: Any, valid: Any
    ) -> None:
        super().__init__(count, longest)
        self._offset = offset
        self._places = places
        self._data = data
        self._valid = valid

    def rows(self, first: int, count: int) -> list[bytes | None]:
        """Return *count* rows from *first* on."""
        begin = self._offset + first
        places: list[int] = self._places[begin : begin + count + 1].tolist()
        shift: i64 = places[0]
        data = bytes(self._data[shift : places[count]])
        found: list[bytes | None] = []
        start: i64 = 0
        end: i64 = 0
        i: i64 = 0
        if self._valid is None:
            for i in range(1, count + 1):
                end = places[i] - shift
                found.append(data[start:end])
                start = end
            return found
        low: i64 = begin
        low = low & 7
        first_byte = begin >> 3
        bits = bytes(self._valid[first_byte : first_byte + (count + 14 >> 3)])
        for i in range(count):
            end = places[i + 1] - shift
            at: i64 = low + i
            if bits[at >> 3] >> (at & 7) & 1:
                found.append(data[start:end])
            else:
                found.append(None)
            start = end
        return found


class ChunkedColumn(Column):
    """Columns one after the other."""

    def __init__(self, pieces: list[Column]) -> None:
        count = longest = 0
        for piece in pieces:
            count += piece.count
            longest = max(longest, piece.longest)
        super().__init__(count, longest)
        self._pieces = pieces

    def rows(self, first: int, count: int) -> list[bytes | None]:
        """Return *count* rows from *first* on."""
        found: list[bytes | None] = []
        for piece in self._pieces:
            if first < piece.count and count > 0:
                some = min(count, piece.count - first)
                found += piece.rows(first, some)
                count -= some
                first = 0
            else:
                first -= min(first, piece.count)
        return found


class _OpenBatch:
    """Rows of one partition."""

    def __init__(self, partition: Any) -> None:
        self.partition = partition
        self.encoder = RecordEncoder()
        self.size = HEADER_SIZE
        self.rows: list[int] = []


class _ClosedBatch:
    def __init__(self, partition: Any, encoded: EncodedRecords, rows: Sequence[int]) -> None:
        self.partition = partition
        self.encoded = encoded
        self.rows = rows


class ColumnBatches:
    """The batches of one `send_columns`.

    *timestamps* is a list or memoryview of milliseconds, or None: then all rows have *timestamp*. All have *headers*.
    *partition* None chooses a partition for each key.
    """

    def __init__(
        self,
        topic: Any,
        partition: Any,
        values: Column,
        keys: Column | None,
        timestamps: Any,
        timestamp: int,
        headers: Headers,
    ) -> None:
        self.topic = topic
        self.count = values.count
        self.left = values.count
        """Rows that are in no batch of the accumulator."""
        self.placed_rows: Sequence[int] = range(0)
        """The rows of the batch that the last `put` returned."""
        self._partition = partition
        self._values = values
        self._keys = keys
        self._timestamps = timestamps
        self._timestamp = timestamp
        self._headers = headers
        self._overhead = record_size(None, None, headers)
        self._next = 0
        self._chunk_end = 0
        self._chunk_at = 0
        self._chunk_values: list[bytes | None] = []
        self._chunk_keys: list[bytes | None] = []
        self._chunk_timestamps: list[int] = []
        self._open: dict[Any, _OpenBatch] = {}
        self._sticky: int | None = None
        self._closed: list[_ClosedBatch] = []

    def put(self, appender: RecordAppender) -> ProducerBatch | None:
        """Append the next batch; return None if the topic is unknown or buffer.memory is full.

        Call it under the guard, while rows are `left`, and wake the sender.
        """
        known = appender.known(self.topic)
        if known is None:
            return None
        if not self._closed:
            if self._partition is not None or not appender.chooses_for_rows(self._keys is not None):
                self._encode_in_order(appender, known)
            else:
                self._encode_by_row(appender, known)
        first = self._closed[0]
        batch = appender.put_encoded(self.topic, known, first.partition, first.encoded)
        if batch is not None:
            del self._closed[0]
            self.placed_rows = first.rows
            self.left -= batch.record_count
        return batch

    def too_large_row(self, largest: int) -> tuple[int, int] | None:
        """Return the first row with a record larger than *largest* bytes, and the record's size."""
        keys = self._keys
        if self._values.longest + (0 if keys is None else keys.longest) + self._overhead <= largest:
            return None
        for first in range(0, self.count, CHUNK):
            some = min(CHUNK, self.count - first)
            sizes = [self._overhead + (len(v) if v else 0) for v in self._values.rows(first, some)]
            if keys is not None:
                for i, key in enumerate(keys.rows(first, some)):
                    sizes[i] += len(key) if key else 0
            for i, size in enumerate(sizes):
                if size > largest:
                    return first + i, size
        return None

    def _load(self) -> None:
        """Take the next chunk of all columns."""
        first = self._next
        some = min(CHUNK, self.count - first)
        self._chunk_at = first
        self._chunk_end = first + some
        self._chunk_values = self._values.rows(first, some)
        if self._keys is not None:
            self._chunk_keys = self._keys.rows(first, some)
        if self._timestamps is not None:
            chunk = self._timestamps[first : first + some]
            self._chunk_timestamps = chunk if isinstance(chunk, list) else chunk.tolist()

    def _encode_in_order(self, appender: RecordAppender, known: TopicPartitions) -> None:
        """Close a batch of consecutive rows."""
        partition = self._partition
        if partition is None:
            partition = appender.sticky_partition(self.topic, known)
        encoder = appender.rows_encoder
        encoder.clear()
        limit: i64 = appender.columns_batch_size
        total: i64 = HEADER_SIZE
        overhead: i64 = self._overhead
        headers = self._headers
        timestamp = self._timestamp
        has_keys = self._keys is not None
        has_timestamps = self._timestamps is not None
        first = self._next
        row: i64 = first
        count: i64 = self.count
        key: bytes | None = None
        while row < count:
            if row >= self._chunk_end:
                self._next = row
                self._load()
            i: i64 = row - self._chunk_at
            value = self._chunk_values[i]
            size: i64 = overhead
            if value is not None:
                size += len(value)
            if has_keys:
                key = self._chunk_keys[i]
                if key is not None:
                    size += len(key)
            if total + size > limit and row > first:
                break
            if has_timestamps:
                timestamp = self._chunk_timestamps[i]
            encoder.append(timestamp, key, value, headers)
            total += size
            row += 1
        self._next = row
        self._closed.append(_ClosedBatch(partition, encoder.encoded(), range(first, self._next)))
        if self._partition is None:
            appender.sticky_full(self.topic)

    def _encode_by_row(  # noqa: C901  # one loop
        self, appender: RecordAppender, known: TopicPartitions
    ) -> None:
        """Encode rows until a batch is full, or all rows."""
        limit: i64 = appender.batch_size
        overhead: i64 = self._overhead
        headers = self._headers
        timestamp = self._timestamp
        has_keys = self._keys is not None
        has_timestamps = self._timestamps is not None
        key: bytes | None = None
        while self._next < self.count:
            if self._next >= self._chunk_end:
                self._load()
            i = self._next - self._chunk_at
            value = self._chunk_values[i]
            size: i64 = overhead
            if value is not None:
                size += len(value)
            if has_keys:
                key = self._chunk_keys[i]
                if key is not None:
                    size += len(key)
            if has_timestamps:
                timestamp = self._chunk_timestamps[i]
            partition = appender.partition_for(self.topic, known, key)
            is_sticky = partition is None
            if is_sticky:
                partition = self._sticky_partition(appender, known)
            part = self._open.get(partition)
            if part is not None and part.size + size > limit:
                self._close(part, appender)
                part = None
                if is_sticky:
                    partition = self._sticky_partition(appender, known)
                    part = self._open.get(partition)
                    if part is not None and part.size + size > limit:
                        self._close(part, appender)
                        part = None
            if part is None:
                part = self._open[partition] = _OpenBatch(partition)
            part.encoder.append(timestamp, key, value, headers)
            part.size += size
            part.rows.append(self._next)
            self._next += 1
            if part.size >= limit:
                self._close(part, appender)
            if self._closed:
                return
        for part in list(self._open.values()):
            self._close(part, appender)

    def _sticky_partition(self, appender: RecordAppender, known: TopicPartitions) -> int:
        if self._sticky is None:
            self._sticky = appender.sticky_partition(self.topic, known)
        return self._sticky

    def _close(self, part: _OpenBatch, appender: RecordAppender) -> None:
        del self._open[part.partition]
        if part.partition == self._sticky:
            self._sticky = None
            appender.sticky_full(self.topic)
        rows = array("q", part.rows)
        self._closed.append(_ClosedBatch(part.partition, part.encoder.encoded(), rows))
