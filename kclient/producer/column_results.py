"""The result of `send_columns`: one for all rows, when each of their batches is acknowledged or has failed.

Owner: the reactor's thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from kclient.errors import RowsNotAcknowledged
from kclient.producer.batch import ProducerBatch, Sink
from kclient.types import ColumnsMetadata, OffsetRange
from kclient.wire.errors import KafkaError


class ColumnsResult:
    """Collects the results of the batches of *count* rows, and passes one result to *sink*."""

    def __init__(self, topic: str, count: int, sink: Sink) -> None:
        self._topic = topic
        self._count = count
        self._sink = sink
        self._batches: list[tuple[ProducerBatch, Sequence[int]]] = []
        self._unfinished = 1  # the rows that are in no batch yet
        self._problem: KafkaError | None = None

    def placed(self, batch: ProducerBatch, rows: Sequence[int]) -> None:
        """Record that *rows* are in *batch*."""
        self._batches.append((batch, rows))
        self._unfinished += 1
        _BatchEnd(self, batch).watch()

    def all_placed(self, problem: KafkaError | None = None) -> None:
        """Record that no more batch follows, because of *problem* if there is one."""
        self._problem = problem
        self.batch_ended()

    def batch_ended(self) -> None:
        """Count a batch that is done; after the last one, pass the result."""
        self._unfinished -= 1
        if self._unfinished:
            return
        ranges: dict[int, list[OffsetRange]] = {}
        acknowledged = bytearray(self._count)
        count = 0
        problem = None
        for batch, rows in self._batches:
            row = 0
            for leaf in _leaves(batch):
                some = rows[row : row + leaf.record_count]
                row += leaf.record_count
                if leaf.error is not None:
                    problem = problem or leaf.error
                    continue
                count += len(some)
                if isinstance(some, range):
                    acknowledged[some.start : some.stop] = b"\x01" * len(some)
                else:
                    for each in some:
                        acknowledged[each] = 1
                _extend(ranges.setdefault(leaf.tp.partition, []), leaf)
        found = tuple(each for partition in sorted(ranges) for each in ranges[partition])
        metadata = ColumnsMetadata(self._topic, count, found)
        problem = problem or self._problem
        if problem is None:
            self._sink.callback(metadata)
            return
        lost = array("q", (row for row, flag in enumerate(acknowledged) if not flag))
        self._sink.errback(RowsNotAcknowledged(lost, metadata, problem))


class _BatchEnd:
    """Waits until a batch is done with all parts that it was split into."""

    def __init__(self, result: ColumnsResult, batch: ProducerBatch) -> None:
        self._result = result
        self._batch = batch

    def watch(self) -> None:
        """Wait for the first part that is not done; without one, report."""
        for leaf in _leaves(self._batch):
            if not leaf.done:
                leaf.notify(leaf.record_count - 1, 0, self)
                return
        self._result.batch_ended()

    def callback(self, _result: Any) -> None:
        """Wait for the next part."""
        self.watch()

    errback = callback


def _leaves(batch: ProducerBatch) -> Iterator[ProducerBatch]:
    """Yield the batches that *batch* was split into, in order; itself if it was not split."""
    if batch.parts is None:
        yield batch
    else:
        for part in batch.parts:
            yield from _leaves(part)


def _extend(ranges: list[OffsetRange], batch: ProducerBatch) -> None:
    """Add the offsets of *batch*; consecutive ones are one range."""
    base = -1 if batch.base_offset is None else batch.base_offset
    if ranges:
        last = ranges[-1]
        expected = -1 if last.base_offset < 0 else last.base_offset + last.row_count
        if base == expected:
            ranges[-1] = last._replace(row_count=last.row_count + batch.record_count)
            return
    ranges.append(OffsetRange(batch.tp.partition, base, batch.record_count))
