"""The blocking producer: `send` appends in the caller's thread and returns a Future at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self

from kclient.blocking.futures import DeliveryFuture
from kclient.blocking.thread import (
    CLOSE_AT_EXIT,
    ReactorThread,
    check_may_wait,
    check_process,
    close_at_exit,
    reactor_thread,
)
from kclient.errors import KafkaError
from kclient.producer.append import LockedAppender
from kclient.producer.batch import ProducerBatch, Row
from kclient.producer.column_results import ColumnsResult
from kclient.producer.columns import ColumnBatches
from kclient.producer.partitioner import Partitioner
from kclient.producer.producer import Producer as Core
from kclient.producer.record_serializer import HeadersGiven, Serialized
from kclient.producer.transaction import BlockingTransaction
from kclient.types import (
    CloseResult,
    ColumnsMetadata,
    ConsumerGroupMetadata,
    K,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
    V,
)
from kclient.wire.batches import Buffer

if TYPE_CHECKING:
    from kclient.producer.column_arguments import Rows, Times


class Producer(Generic[K, V]):
    """Sends records from any number of threads. Settings: `kclient.config.ProducerConfig`.

        with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
            metadata = producer.send("orders", b"value", key="key").result()
            print(metadata.partition, metadata.offset)

    With the setting transactional.id all records are sent in transactions::

        with Producer({"bootstrap.servers": "localhost:9092", "transactional.id": "billing"}) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("orders", b"value")
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        key_serializer: Callable[[K], Serialized] | None = None,
        value_serializer: Callable[[V], Serialized] | None = None,
        partitioner: Partitioner | None = None,
        **keywords: Any,
    ) -> None:
        self._lock = threading.RLock()
        self._memory = threading.Condition(self._lock)
        self._thread = reactor_thread()
        self._core: Core[K, V] = Core(
            config,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            partitioner=partitioner,
            reactor=self._thread.reactor,
            guard=self._lock,
            on_room=self._room,
            **keywords,
        )
        self._max_block = self._core.config.max_block_ms / 1000
        self._appender: LockedAppender | _ForkedAppender = LockedAppender(
            self._core.appender,
            self._core.serializer,
            self._lock,
            wait=self._put_after_waiting,
            wake=partial(self._thread.reactor.callFromThread, self._core.sender.wake),
            future=DeliveryFuture,
            register=self._register,
        )
        close_at_exit(self)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> Self:
        """Connect and fetch metadata; raise `BootstrapError` with each address and its cause if that fails."""
        check_process(self._thread)
        self._thread.run(self._core.start)
        return self

    def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        headers: HeadersGiven = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Future[RecordMetadata]:
        """Send a record; the Future's result is its RecordMetadata.

        Blocks only for memory or metadata; raises `BufferExhausted` after max.block.ms. Waiting for a Future sends its
        batch at once, without linger.ms.
        """
        try:
            future: Future[RecordMetadata] = self._appender.send(
                topic, value, key, headers, partition, timestamp_ms, True
            )
        except KafkaError as problem:
            self._thread.soon(self._core.record_failed, problem)
            raise
        return future

    def send_and_wait(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        headers: HeadersGiven = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record and wait until it is acknowledged."""
        return self.send(
            topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        ).result()

    def produce(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        partition: int = -1,
        on_delivery: Callable[[KafkaError | None, RecordMetadata | None], None] | None = None,
        timestamp: int = 0,
        headers: HeadersGiven = None,
    ) -> None:
        """Send a record; on_delivery(error, metadata) is called on the reactor's thread."""
        try:
            future: Future[RecordMetadata] | None = self._appender.send(
                topic,
                value,
                key,
                headers,
                None if partition < 0 else partition,
                timestamp or None,
                on_delivery is not None,
            )
        except KafkaError as problem:
            self._thread.soon(self._core.record_failed, problem)
            raise
        if on_delivery is not None and future is not None:
            notify = on_delivery

            def ended(done: Future[RecordMetadata]) -> None:
                problem = done.exception()
                if isinstance(problem, KafkaError):
                    notify(problem, None)
                else:
                    notify(None, done.result())

            future.add_done_callback(ended)

    def send_columns(
        self,
        topic: str,
        values: Rows,
        keys: Rows | None = None,
        *,
        headers: HeadersGiven = None,
        partition: int | None = None,
        timestamps_ms: Times = None,
    ) -> Future[ColumnsMetadata]:
        """Send a record for each row; the Future's result is its ColumnsMetadata when all are acknowledged.

        *values* and *keys* are arrays of Arrow, of binary or string, or sequences of bytes, str or None. *values* is
        also a table of Arrow with the columns value, key and timestamp (the last two are optional). *headers* are those
        of all rows; *timestamps_ms* is one for all, or one for each. Partitions are chosen as by `send`; rows without a
        key fill a batch of one partition, then of another.

        The Future's error is `RowsNotAcknowledged` if rows were not acknowledged. Blocks for memory or metadata; after
        max.block.ms without room the rows that are left fail.
        """
        check_process(self._thread)
        future: Future[ColumnsMetadata] = Future()
        future.set_running_or_notify_cancel()
        core = self._core
        try:
            rows = core.columns(topic, values, keys, headers, partition, timestamps_ms)
        except KafkaError as problem:
            self._thread.soon(core.record_failed, problem)
            raise
        result = ColumnsResult(topic, rows.count, _FutureSink(future))
        placed = _PlacedBatches(result, core.sender.wake)
        while rows.left:
            try:
                batch = self._put_rows(rows)
            except KafkaError as problem:
                self._thread.soon(core.record_failed, problem)
                self._thread.soon(result.all_placed, problem)
                return future
            except BaseException as problem:
                self._thread.soon(result.all_placed, KafkaError(f"interrupted: {problem!r}"))
                raise
            if placed.add(batch, rows.placed_rows):
                self._thread.soon(placed.report)
        self._thread.soon(result.all_placed)
        return future

    def send_batch_bytes(self, topic: str, partition: int, batch: Buffer) -> int:
        """Send one encoded record batch unchanged; return its base offset."""
        check_process(self._thread)
        return self._thread.run(lambda: self._core.send_batch_bytes(topic, partition, batch))

    def partitions_for(self, topic: str) -> list[int]:
        """Return the partitions of *topic*."""
        check_process(self._thread)
        return self._thread.run(lambda: self._core.partitions_for(topic))

    def flush(self, timeout: float | None = None) -> int:
        """Send all records now and wait; return the number of records without an acknowledgement."""
        check_process(self._thread)
        return self._thread.run(lambda: self._core.flush(timeout))

    # --- transactions

    def init_transactions(self) -> None:
        """Get a producer id and epoch, once, before the first transaction.

        It fences earlier producers with this transactional.id, and ends their open transaction. Waits at most
        max.block.ms; after KafkaTimeoutError it may be called again.
        """
        check_process(self._thread)
        self._thread.run(self._core.init_transactions)

    def begin_transaction(self) -> None:
        """Begin a transaction: all records until its end belong to it.

        Returns at once, except after a transaction that failed: then the coordinator raises the producer epoch first.
        """
        check_process(self._thread)
        self._thread.run(self._core.begin_transaction)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """Commit *offsets*, those of the next records to consume, for a group, if the transaction is committed.

        *group_metadata* is `Consumer.group_metadata` of the consumer that read the records: the group refuses the
        offsets of a member that was replaced (KIP-447). That consumer needs enable.auto.commit=false.
        """
        check_process(self._thread)
        self._thread.run(lambda: self._core.send_offsets_to_transaction(offsets, group_metadata))

    def commit_transaction(self) -> None:
        """Send all records, then commit: they become visible to consumers with isolation.level=read_committed.

        Raise `TransactionAborted` if a record or a request failed: then only `abort_transaction` is possible. After
        KafkaTimeoutError (max.block.ms) the outcome is open; a second call waits for it.
        """
        check_process(self._thread)
        self._thread.run(self._core.commit_transaction)

    def abort_transaction(self) -> None:
        """Abort: no consumer with isolation.level=read_committed sees a record. Unsent records fail.

        It waits for records that are in flight. After KafkaTimeoutError (max.block.ms) it may be called again.
        """
        check_process(self._thread)
        self._thread.run(self._core.abort_transaction)

    def transaction(self) -> BlockingTransaction:
        """Return a transaction as a block of ``with``: committed at its end, aborted by an exception."""
        self._core.transaction()
        return BlockingTransaction(self)

    # --- closing

    def close(self, timeout: float = 10.0, *, flush: bool = True) -> CloseResult:
        """Deliver the remaining records within *timeout* seconds, fail the others, close all connections.

        An open transaction is aborted, one that is being committed or aborted is waited for.
        """
        check_process(self._thread)
        result = self._thread.run(lambda: self._core.close(timeout, flush=flush))
        self._room()
        return result

    def close_at_exit(self) -> None:
        """Deliver the remaining records at the end of the process."""
        if not self._core.closed:
            self.close(CLOSE_AT_EXIT)

    def forked(self) -> None:
        """Refuse records in the child of a fork: nothing sends what is in this copy of the buffer.

        A thread of the parent may have held the lock, which has no owner here.
        """
        self._lock = threading.RLock()
        self._appender = _ForkedAppender(self._thread)

    def metrics(self) -> dict[str, float]:
        """Return counters since the start, and the current memory use."""
        return self._core.metrics()

    @property
    def undelivered(self) -> int:
        """The number of records without an acknowledgement or an error."""
        return self._core.undelivered

    # --- inside

    def _put_after_waiting(
        self, topic: str, partition: int | None, row: Row
    ) -> tuple[ProducerBatch, int]:
        """Append a record that could not be appended at once: unknown topic, or buffer.memory full."""
        check_process(self._thread)
        check_may_wait()
        core = self._core
        give_up_at = time.monotonic() + self._max_block
        while True:
            if core.cluster.metadata.partitions(topic) is None:
                self._thread.run(lambda: core.partitions_for(topic))
            self._thread.soon(core.sender.wake)
            with self._lock:
                batch = core.put(topic, partition, row)
                if batch is not None:
                    return batch, batch.record_count - 1
                left = give_up_at - time.monotonic()
                if left <= 0:
                    raise core.exhausted(self._max_block)
                self._memory.wait(min(left, 0.5))

    def _put_rows(self, rows: ColumnBatches) -> ProducerBatch:
        """Append the next batch of *rows*; wait for metadata and memory."""
        core = self._core
        give_up_at: float | None = None
        while True:
            with self._lock:
                core.appender.check_send()
                batch = rows.put(core.appender)
                if batch is not None:
                    return batch
                check_may_wait()
                now = time.monotonic()
                if give_up_at is None:
                    give_up_at = now + self._max_block
                if now >= give_up_at:
                    raise core.exhausted(self._max_block)
                if core.cluster.metadata.partitions(rows.topic) is not None:
                    self._thread.soon(core.sender.wake)
                    self._memory.wait(min(give_up_at - now, 0.5))
                    continue
            self._thread.run(lambda: core.partitions_for(rows.topic))

    def _room(self) -> None:
        """Wake the threads that wait for memory. Called in the reactor's thread."""
        with self._lock:
            self._memory.notify_all()

    def _register(self, batch: ProducerBatch, index: int, timestamp: int, sink: Any) -> None:
        """Report the result of a record to *sink*, and send its batch without linger.ms."""
        check_process(self._thread)

        def register() -> None:
            leaf, _ = batch.leaf(index)
            leaf.urgent = True
            batch.notify(index, timestamp, sink)
            self._core.sender.wake()

        self._thread.soon(register)


class _ForkedAppender:
    """Refuses the records of a producer that was created before a fork."""

    def __init__(self, thread: ReactorThread) -> None:
        self._thread = thread

    def send(self, *_: Any) -> Any:
        """Raise ClientClosed."""
        check_process(self._thread)


class _FutureSink:
    """Passes the result of columns to their Future."""

    def __init__(self, future: Future[ColumnsMetadata]) -> None:
        self.callback = future.set_result
        self.errback = future.set_exception


class _PlacedBatches:
    """Batches on their way from a caller's thread to the reactor's: many are one call there."""

    def __init__(self, result: ColumnsResult, wake: Callable[[], None]) -> None:
        self._result = result
        self._wake = wake
        self._batches: list[tuple[ProducerBatch, Sequence[int]]] = []
        self._lock = threading.Lock()

    def add(self, batch: ProducerBatch, rows: Sequence[int]) -> bool:
        """Add a batch; return whether the reactor's thread must call `report`."""
        with self._lock:
            self._batches.append((batch, rows))
            return len(self._batches) == 1

    def report(self) -> None:
        """Pass the batches to the result, and have them sent. In the reactor's thread."""
        with self._lock:
            batches, self._batches = self._batches, []
        for batch, rows in batches:
            self._result.placed(batch, rows)
        self._wake()
