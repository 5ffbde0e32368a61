"""One round of compaction over the files of one log: reads segments, fills the offset map, yields what stays.

The cleaner reads only: segments and their transaction indexes. The new segment is written and put in place by
`segment_replacement`. Each batch is checked against its CRC before a record of it is removed. A batch that is written
again would otherwise get a right CRC for damaged records.

Both passes, for the map and for the groups, go through the transactions of the log (`cleaned_transactions`). Aborted
records do not enter the map, and are not yielded.

Invariants:
1. A segment that cannot be read to its end raises CorruptMessage; nothing of its group is replaced then.
2. The memory of a round is the offset map, a read buffer, a write buffer, a decompressed batch, and some aborted
   transactions. Those are open at one offset or stay in a group.

Slow: runs in a pool or in a process of its own. Docs: docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kbroker.log import scan
from kbroker.log.core.cleaned_transactions import AbortedTransaction, CleanedTransactions
from kbroker.log.core.offset_map import OffsetMap
from kbroker.log.core.record_filter import CleaningRound, LastBatch, RecordFilter
from kbroker.log.disk import READ, Buffer, Disk
from kbroker.log.log_segment import LOG_SUFFIX
from kbroker.log.slices import SegmentFile
from kbroker.log.transaction_index import SUFFIX as TRANSACTIONS_SUFFIX
from kbroker.log.transaction_index import LaterIndexes, entries_of
from kclient.wire.batches import HEADER_SIZE, BatchInfo
from kclient.wire.compression import decompress
from kclient.wire.errors import CorruptMessage, KafkaError


class SourceSegment(NamedTuple):
    """A sealed segment of the log."""

    path: str
    base_offset: int
    size: int


class RoundLimits(NamedTuple):
    """What a round may clean, and with which settings of the topic."""

    first_dirty_offset: int
    end_offset: int
    """The first uncleanable offset."""
    now_ms: int
    delete_retention_ms: int
    last_batches: Mapping[int, LastBatch]
    later_indexes: LaterIndexes = LaterIndexes()
    """Those of the segments from `end_offset` on: a transaction that begins below may have its marker there."""


class CleanerSizes(NamedTuple):
    """The memory of a round."""

    map_bytes: int
    """log.cleaner.dedupe.buffer.size, divided among the cleaners."""
    load_factor: float
    """log.cleaner.io.buffer.load.factor: how full the map may get."""
    buffer_bytes: int
    """log.cleaner.io.buffer.size, divided among the cleaners and into a read and a write buffer."""


class Cleaner:
    """One round over *segments*, those of a log up to `RoundLimits.end_offset`.

    *throttle* is called with the bytes of each read and write, and may sleep or raise.
    """

    def __init__(
        self,
        disk: Disk,
        segments: Sequence[SourceSegment],
        limits: RoundLimits,
        sizes: CleanerSizes,
        *,
        throttle: Callable[[int], None],
    ) -> None:
        self._disk = disk
        self._segments = segments
        self._limits = limits
        self._map = OffsetMap(sizes.map_bytes)
        self._max_keys = min(max(int(self._map.slots * sizes.load_factor), 1), self._map.slots - 1)
        self._buffer_bytes = sizes.buffer_bytes
        self._throttle = throttle
        self.map_end = limits.first_dirty_offset
        """The offset behind the last one in the map: the first dirty offset after the round."""
        self._transactions = CleanedTransactions(self._aborted(segments))
        """Of the pass over the groups, which goes on from one to the next."""
        self.bytes_read = self.bytes_written = 0

    def build_offset_map(self) -> int:
        """Read the dirty records; return the first offset that the round does not clean."""
        first_dirty, end = self._limits.first_dirty_offset, self._limits.end_offset
        ends = [each.base_offset for each in self._segments[1:]] + [end]
        dirty = [
            (segment, segment_end)
            for segment, segment_end in zip(self._segments, ends, strict=True)
            if segment_end > first_dirty
        ]
        transactions = CleanedTransactions(
            each
            for each in self._aborted([segment for segment, _ in dirty])
            if each.last_offset >= first_dirty
        )
        for segment, segment_end in dirty:
            for buf, info in self._batches(segment):
                if info.next_offset <= first_dirty:
                    continue
                try:
                    full_at = self._add(buf, info, transactions)
                except KafkaError as error:
                    raise _named(segment, error) from error
                if full_at is not None:
                    self.map_end = full_at
                    return self.map_end
            self.map_end = segment_end
        return self.map_end

    def _add(self, buf: bytes, info: BatchInfo, transactions: CleanedTransactions) -> int | None:
        """Add the keys of a batch; return the offset of the first record for which the map had no room."""
        if info.is_control:
            transactions.may_discard_marker(buf, info)
            return None
        if transactions.is_aborted(info) or not info.record_count:
            return None
        stored = memoryview(buf)[info.position + HEADER_SIZE : info.end]
        return self._map.put_records(
            bytes(decompress(info.codec, stored)),
            info.record_count,
            info.base_offset,
            from_offset=self._limits.first_dirty_offset,
            max_keys=self._max_keys,
        )

    def cleaned(
        self, group: Sequence[SourceSegment], *, piece_bytes: int | None = None
    ) -> Iterator[Buffer]:
        """Yield what stays of *group*, a part of the segments side by side: buffers of whole batches, in order.

        The groups of a round come one after the other, from the first segment on. A buffer has *piece_bytes* or more,
        by default those of the write buffer.
        """
        limits = self._limits
        piece_bytes = piece_bytes or self._buffer_bytes
        survivors = RecordFilter(
            self._map,
            CleaningRound(
                self.map_end,
                limits.end_offset,
                limits.now_ms,
                limits.delete_retention_ms,
                limits.last_batches,
            ),
            self._transactions,
        )
        self._transactions.kept = []
        pending: list[Buffer] = []
        size = 0
        for segment in group:
            for buf, info in self._batches(segment):
                try:
                    kept = survivors.filter(buf, info)
                except KafkaError as error:
                    raise _named(segment, error) from error
                if kept is None:
                    continue
                pending.append(kept)
                size += len(kept)
                if size >= piece_bytes:
                    yield self._joined(pending)
                    pending, size = [], 0
        if pending:
            yield self._joined(pending)

    def kept_aborted(self) -> Sequence[AbortedTransaction]:
        """Return what stays of the transaction indexes of the last group, of which all was yielded."""
        return self._transactions.kept

    def _aborted(self, segments: Sequence[SourceSegment]) -> Iterator[AbortedTransaction]:
        for segment in segments:
            stem = segment.path.removesuffix(LOG_SUFFIX)
            yield from entries_of(self._disk, stem + TRANSACTIONS_SUFFIX)
        yield from self._limits.later_indexes.entries(self._disk)

    def _joined(self, pending: list[Buffer]) -> bytes:
        joined = b"".join(pending)
        self.bytes_written += len(joined)
        self._throttle(len(joined))
        return joined

    def _batches(self, segment: SourceSegment) -> Iterator[tuple[bytes, BatchInfo]]:
        try:
            file = SegmentFile(self._disk, segment.path, READ)
        except (
            FileNotFoundError
        ) as error:  # no fault of the disk: deleted, or it was removed by hand
            raise CorruptMessage(f"{segment.path} is not there") from error
        position = 0
        try:
            for buf, info in scan.checked_batches(
                file, 0, segment.size, chunk_bytes=self._buffer_bytes
            ):
                if info.position == 0:  # the first batch of a read
                    self._throttle(len(buf))
                    self.bytes_read += len(buf)
                yield buf, info
                position += info.size
        except KafkaError as error:
            raise _named(segment, error) from error
        if position != segment.size:
            raise CorruptMessage(f"{segment.path}: byte {position}: no whole batch")


def _named(segment: SourceSegment, error: KafkaError) -> KafkaError:
    """Return *error* with the name of the file."""
    text = error.message
    return type(error)(text if segment.path in text else f"{segment.path}: {text}", hint=error.hint)
