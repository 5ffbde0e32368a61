"""Records that wait to be sent: a queue of batches per partition, bounded by buffer.memory.

Theory of operation
===================
`append` adds a record to the open batch of its partition. A partition is *ready* when its first batch is full, older
than linger.ms, or followed by another batch. It is also ready when a caller waits for that batch (urgent), or all is
being flushed. It is not ready while that batch backs off before a retry, because later batches would overtake it.
`take` returns the first batch; it is in flight until `finished` or `put_back`. A batch without an acknowledgement
within delivery.timeout.ms is `expired`.

Invariants: 1. batches of a partition leave in the order of their numbers, retries included. 2. at most
*in_flight_limit* of them are in flight. 3. used <= buffer_memory, except that a single larger record is accepted when
the accumulator is empty. 4. no batch is dropped: every one reaches finished(), by acknowledgement, failure, expiry or
abort.
In: records, responses, the time.   Out: batches to send.   Owner: the sender, under its guard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from kclient.producer.batch import ProducerBatch, Row
from kclient.types import TopicPartition
from kclient.wire.batches import HEADER_SIZE, Buffer
from kclient.wire.records import EncodedRecords


class PartitionQueue:
    """The waiting batches of one partition in order, and the number in flight."""

    __slots__ = ("in_flight", "last", "next_number", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[ProducerBatch] = deque()
        self.last: ProducerBatch | None = None
        """The batch that records are appended to; a batch that leaves `waiting` is closed."""
        self.in_flight: list[ProducerBatch] = []
        self.next_number = 0

    def number(self, count: int = 1) -> int:
        """Reserve the next *count* batch numbers; return the first."""
        first = self.next_number
        self.next_number = first + count
        return first


class Accumulator:
    """All queues of one producer. Sizes in bytes, times in seconds; *clock* gives the creation time of batches."""

    def __init__(
        self,
        *,
        batch_size: int,
        columns_batch_size: int = 0,
        linger: float,
        buffer_memory: int,
        delivery_timeout: float,
        in_flight_limit: int = 1,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self.batch_size = max(batch_size, HEADER_SIZE + 1)
        # Some batches are in flight while the next is encoded.
        self.columns_batch_size = max(self.batch_size, min(columns_batch_size, buffer_memory // 8))
        """Of rows in order: no other record waits for their batch. It shrinks when a broker refuses a batch."""
        self.linger = linger
        self.buffer_memory = buffer_memory
        self.delivery_timeout = delivery_timeout
        self.in_flight_limit = in_flight_limit
        self.used = 0
        self.records = 0
        """Records appended and not finished."""
        self.flushing = False
        """Send everything now: a caller waits for all of it, or for memory."""
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self._recent_tp: TopicPartition | None = None
        self._recent_queue: PartitionQueue | None = None
        """The queue of the last append: most appends need no look-up."""

    # --- filling

    def has_room(self, size: int) -> bool:
        """Return whether *size* more bytes fit."""
        return self.used + size <= self.buffer_memory or not self.used

    def append(self, tp: TopicPartition, row: Row, size: int) -> ProducerBatch:
        """Append a record of *size* bytes (`record_size`) to the open batch of *tp*; return the batch.

        The caller has checked has_room(). It must wake the sender for the first record of a batch and for a batch that
        this record closes.
        """
        recent = self._recent_queue
        if recent is None or tp is not self._recent_tp:
            recent = self.queues.get(tp)
            if recent is None:
                recent = self.queues[tp] = PartitionQueue()
            self._recent_tp, self._recent_queue = tp, recent
        batch = recent.last
        if batch is None or batch.closed or batch.size + size > self.batch_size:
            if batch is not None:
                batch.closed = True
            batch = ProducerBatch(tp, recent.number(), self._clock())
            batch.add(row, size)
            recent.last = batch
            recent.waiting.append(batch)
            self.used += HEADER_SIZE
        else:
            batch.add(row, size)
        self.used += size
        self.records += 1
        if batch.size >= self.batch_size:
            batch.closed = True
        return batch

    def append_bytes(self, tp: TopicPartition, raw: Buffer, record_count: int) -> ProducerBatch:
        """Queue an encoded batch, to be sent unchanged."""
        queue = self.queues.setdefault(tp, PartitionQueue())
        batch = ProducerBatch.of_bytes(tp, queue.number(), self._clock(), raw, record_count)
        return self._append_closed(queue, batch)

    def append_encoded(self, tp: TopicPartition, encoded: EncodedRecords) -> ProducerBatch:
        """Queue a closed batch of encoded records; the caller has checked has_room(), and wakes the sender."""
        queue = self.queues.setdefault(tp, PartitionQueue())
        batch = ProducerBatch.of_encoded(tp, queue.number(), self._clock(), encoded)
        return self._append_closed(queue, batch)

    # --- emptying

    def ready(self, now: float) -> tuple[list[TopicPartition], float | None]:
        """Return the partitions that can send now, and when the next one can (None: never)."""
        found = []
        next_at: float | None = None
        for tp, queue in self.queues.items():
            waiting = queue.waiting
            if not waiting or len(queue.in_flight) >= self.in_flight_limit:
                continue
            first = waiting[0]
            if first.raw is not None and queue.in_flight:
                continue  # without a sequence only one batch in flight keeps the order
            due = self._due(first, len(waiting) > 1)
            if due <= now:
                found.append(tp)
            elif next_at is None or due < next_at:
                next_at = due
        return found, next_at

    def first(self, tp: TopicPartition) -> ProducerBatch:
        """Return the next batch of *tp*."""
        return self.queues[tp].waiting[0]

    def is_waiting(self, tp: TopicPartition) -> bool:
        """Return whether a batch of *tp* waits to be sent."""
        queue = self.queues.get(tp)
        return queue is not None and bool(queue.waiting)

    def in_flight(self, tp: TopicPartition) -> Sequence[ProducerBatch]:
        """Return the batches of *tp* in flight."""
        queue = self.queues.get(tp)
        return () if queue is None else queue.in_flight

    def take(self, tp: TopicPartition) -> ProducerBatch:
        """Remove the first batch of *tp*: it is in flight and accepts no more records."""
        queue = self.queues[tp]
        batch = queue.waiting.popleft()
        batch.closed = True
        batch.attempts += 1
        queue.in_flight.append(batch)
        return batch

    def put_back(self, batch: ProducerBatch, retry_at: float) -> None:
        """Queue a batch in flight again, in its position, not before *retry_at*."""
        queue = self.queues[batch.tp]
        queue.in_flight.remove(batch)
        batch.retry_at = retry_at
        self._insert(queue, batch)

    def replace_by_halves(self, batch: ProducerBatch) -> None:
        """Queue the two halves of a batch in flight, which is too large for its broker, in its position."""
        self.columns_batch_size = max(
            self.batch_size, min(self.columns_batch_size, batch.size // 2)
        )
        queue = self.queues[batch.tp]
        queue.in_flight.remove(batch)
        first, second = batch.split(batch.number)
        # Earlier batches may be waiting again, and later ones may be in flight.
        for other in (*queue.in_flight, *queue.waiting):
            if other.number > batch.number:
                other.number += 1
        queue.next_number += 1
        self._insert(queue, first)
        self._insert(queue, second)
        self.used += first.size + second.size - batch.size

    def finished(self, batch: ProducerBatch) -> None:
        """Free the memory of a batch in flight: it is acknowledged or failed."""
        queue = self.queues.get(batch.tp)
        if queue is None or batch not in queue.in_flight:
            return  # aborted while in flight
        queue.in_flight.remove(batch)
        self._released(queue, batch)

    def expired(self, now: float) -> list[ProducerBatch]:
        """Remove the waiting batches that are older than delivery.timeout.ms."""
        late = []
        for queue in list(self.queues.values()):
            while queue.waiting and queue.waiting[0].created_at + self.delivery_timeout <= now:
                batch = queue.waiting.popleft()
                batch.closed = True
                late.append(batch)
                self._released(queue, batch)
        return late

    def abort_waiting(self) -> list[ProducerBatch]:
        """Remove all batches that are not in flight."""
        dropped = []
        for queue in list(self.queues.values()):
            while queue.waiting:
                batch = queue.waiting.popleft()
                batch.closed = True
                dropped.append(batch)
                self._released(queue, batch)
        return dropped

    def abort(self) -> list[ProducerBatch]:
        """Remove all batches, those in flight too; their responses will have no effect."""
        everything = list(self.unfinished())
        self.queues.clear()
        self._recent_tp = self._recent_queue = None
        self.used = self.records = 0
        return everything

    def unfinished(self) -> Iterator[ProducerBatch]:
        """Yield every batch that is waiting or in flight."""
        for queue in self.queues.values():
            yield from queue.in_flight
            yield from queue.waiting

    def next_expiry(self) -> float | None:
        """Return when the oldest waiting batch expires."""
        oldest = min(
            (q.waiting[0].created_at for q in self.queues.values() if q.waiting), default=None
        )
        return None if oldest is None else oldest + self.delivery_timeout

    # --- inside

    def _append_closed(self, queue: PartitionQueue, batch: ProducerBatch) -> ProducerBatch:
        if queue.waiting:
            queue.waiting[-1].closed = True
        queue.waiting.append(batch)
        self.used += batch.size
        self.records += batch.record_count
        return batch

    def _due(self, batch: ProducerBatch, followed: bool) -> float:
        if batch.closed or followed or batch.urgent or self.flushing:
            return batch.retry_at
        return max(batch.retry_at, batch.created_at + self.linger)

    def _insert(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        waiting = queue.waiting
        for i, other in enumerate(waiting):
            if other.number > batch.number:
                waiting.insert(i, batch)
                return
        waiting.append(batch)

    def _released(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        self.used -= batch.size
        self.records -= batch.record_count
        if not queue.waiting and not queue.in_flight:
            self.queues.pop(batch.tp, None)
            if self._recent_queue is queue:
                self._recent_tp = self._recent_queue = None
