"""Waiting callers: records that are not in a batch yet, and flushes that wait for their last batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed

from kclient.errors import KafkaTimeoutError
from kclient.producer.append import RecordAppender
from kclient.producer.batch import ProducerBatch, Row
from kclient.producer.column_results import ColumnsResult
from kclient.producer.columns import ColumnBatches
from kclient.wire.errors import KafkaError


class Waiting:
    """Records that wait for memory or for metadata."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.timer: Any = None
        self._settled: list[Deferred[None]] = []
        self._is_settled = False

    @property
    def count(self) -> int:
        """The number of records that are in no batch."""
        return 1

    @property
    def is_paused(self) -> bool:
        """Whether they wait for nothing but another turn of the reactor."""
        return False

    def place(self, appender: RecordAppender) -> bool:
        """Append the records; return False if some wait on."""
        raise NotImplementedError

    def report(self, problem: KafkaError) -> None:
        """Pass *problem* as the result."""
        raise NotImplementedError

    def settled(self) -> Deferred[None]:
        """Fire when the records are in batches or have failed."""
        if self._is_settled:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        self._settled.append(waiter)
        return waiter

    def fail(self, problem: KafkaError) -> None:
        """Fail the records: they will not be sent."""
        self.settle()
        self.report(problem)

    def settle(self) -> None:
        """End the wait."""
        self._is_settled = True
        if self.timer is not None and self.timer.active():
            self.timer.cancel()
        settled, self._settled = self._settled, []
        for waiter in settled:
            if not waiter.called:
                waiter.callback(None)


class WaitingRecord(Waiting):
    """One record."""

    def __init__(self, topic: str, partition: int | None, row: Row, done: Any) -> None:
        super().__init__(topic)
        self.partition = partition
        self.row = row
        self.done = done

    def place(self, appender: RecordAppender) -> bool:
        """Append the record."""
        batch = appender.put(self.topic, self.partition, self.row, has_waited=True)
        if batch is None:
            return False
        batch.notify(batch.record_count - 1, self.row[1], self.done)
        return True

    def report(self, problem: KafkaError) -> None:
        """Fail the record's Deferred."""
        self.done.errback(problem)


class WaitingColumns(Waiting):
    """The rows of one `send_columns`.

    max.block.ms begins again with each batch. After *bytes_in_a_turn* bytes they wait for another turn of the reactor.
    """

    bytes_in_a_turn = 4 << 20

    def __init__(
        self, topic: str, rows: ColumnBatches, result: ColumnsResult, max_block: float
    ) -> None:
        super().__init__(topic)
        self._max_block = max_block
        self._rows = rows
        self._result = result
        self._paused = False

    @property
    def count(self) -> int:
        """The number of rows that are in no batch."""
        return self._rows.left

    @property
    def is_paused(self) -> bool:
        """Whether this turn had enough of them."""
        return self._paused

    def place(self, appender: RecordAppender) -> bool:
        """Append rows while there is room."""
        rows = self._rows
        self._paused = False
        size = 0
        while rows.left:
            batch = rows.put(appender)
            if batch is None:
                return False
            self._result.placed(batch, rows.placed_rows)
            if self.timer is not None and self.timer.active():
                self.timer.reset(self._max_block)
            size += batch.size
            if size >= self.bytes_in_a_turn and rows.left:
                self._paused = True
                return False
        self._result.all_placed()
        return True

    def report(self, problem: KafkaError) -> None:
        """Fail the rows that are in no batch."""
        self._result.all_placed(problem)


class AllCompleted:
    """Fires when the last of some batches is done; it is a sink of each."""

    def __init__(self, unfinished: Sequence[ProducerBatch]) -> None:
        self._left = 0
        self.fired: Deferred[None] = Deferred()
        for batch in unfinished:
            self._left += 1
            batch.notify(batch.record_count - 1, 0, self)

    def callback(self, result: Any) -> None:
        """Count a batch that is done."""
        self._left -= 1
        if not self._left and not self.fired.called:
            self.fired.callback(None)

    errback = callback


class FlushTimeout(KafkaTimeoutError):
    """The timeout of a flush has passed."""

    def __init__(self) -> None:
        super().__init__("flush timed out")
