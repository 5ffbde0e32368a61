"""The producer: takes records, returns Deferreds that fire when brokers have acknowledged them.

`Producer` is the Twisted API. The code below ``put`` (partitioner, append) is synchronous and runs under a guard, so
the blocking API can call it in its own threads. A Deferred and a thread switch per record would cost more than all the
rest.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Generic, Self

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from kclient.config import ProducerConfig
from kclient.errors import (
    BufferExhausted,
    ClientClosed,
    KafkaTimeoutError,
    SerializationError,
    TransactionAborted,
    TransactionStateError,
)
from kclient.lazy import LazyModule
from kclient.net.cluster import Cluster
from kclient.net.waiting import as_deferred, backoff, deferring, within
from kclient.producer.accumulator import Accumulator
from kclient.producer.append import RecordAppender
from kclient.producer.column_arguments import column_batches
from kclient.producer.column_results import ColumnsResult
from kclient.producer.columns import ColumnBatches
from kclient.producer.partitioner import Partitioner, StickyPartitioner
from kclient.producer.record_serializer import HeadersGiven, RecordSerializer, Serialized
from kclient.producer.sender import Sender, closed_error
from kclient.producer.sequencer import Sequencer
from kclient.producer.transaction import Transaction
from kclient.producer.waiters import (
    AllCompleted,
    FlushTimeout,
    Waiting,
    WaitingColumns,
    WaitingRecord,
)
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
from kclient.wire import batches
from kclient.wire.batches import Buffer
from kclient.wire.errors import KafkaError

if TYPE_CHECKING:
    from kclient.net import group_offsets
    from kclient.producer import transaction_manager, transaction_sender
    from kclient.producer.column_arguments import Rows, Times
    from kclient.producer.transaction_sender import TransactionSender
else:  # for a producer with transactions only
    group_offsets = LazyModule("kclient.net.group_offsets")
    transaction_manager = LazyModule("kclient.producer.transaction_manager")
    transaction_sender = LazyModule("kclient.producer.transaction_sender")


class Producer(Generic[K, V]):
    """Sends records; `ProducerConfig` has its settings.

        async with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
            metadata = await producer.send("orders", b"value", key="key")
            print(metadata.partition, metadata.offset)

    *key_serializer* and *value_serializer* convert the arguments of `send` to bytes. Without a serializer an argument
    must be bytes, str (UTF-8) or None. *partitioner* replaces the default partitioner.

    With the setting transactional.id all records are sent in transactions::

        async with Producer({"bootstrap.servers": "localhost:9092", "transactional.id": "billing"}) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send("orders", b"value")
                await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
    """

    log = Logger()

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        key_serializer: Callable[[K], Serialized] | None = None,
        value_serializer: Callable[[V], Serialized] | None = None,
        partitioner: Partitioner | None = None,
        reactor: Any = None,
        guard: AbstractContextManager[Any] | None = None,
        on_room: Callable[[], None] = lambda: None,
        **keywords: Any,
    ) -> None:
        if reactor is None:
            from twisted.internet import reactor
        self.config = ProducerConfig.load(config, **keywords)
        self.cluster = Cluster(reactor, self.config, allow_auto_topic_creation=True)
        self._reactor = reactor
        self._guard = nullcontext() if guard is None else guard
        self.serializer = RecordSerializer(key_serializer, value_serializer)
        idempotent = self.config.enable_idempotence and self.config.acks == "all"
        self.accumulator = Accumulator(
            batch_size=min(self.config.batch_size, self.config.max_request_size),
            columns_batch_size=min(self.config.columns_batch_size, self.config.max_request_size),
            linger=self.config.linger_ms / 1000,
            buffer_memory=self.config.buffer_memory,
            delivery_timeout=self.config.delivery_timeout_ms / 1000,
            in_flight_limit=(
                min(5, self.config.max_in_flight_requests_per_connection) if idempotent else 1
            ),
            clock=reactor.seconds,
        )
        transactional = bool(self.config.transactional_id)
        sequencer = Sequencer(raises_epoch=not transactional) if idempotent else None
        self._transactions: TransactionSender | None = None
        if transactional and sequencer is not None:
            self._transactions = self._transaction_sender(sequencer)
        self.sender = Sender(
            reactor,
            self.cluster,
            self.config,
            self.accumulator,
            sequencer,
            self._guard,
            self._transactions,
            self._progress,
        )
        self.appender = RecordAppender(
            self.cluster,
            self.accumulator,
            largest=self.config.max_request_size,
            partitioner=partitioner,
            ignores_keys=self.config.partitioner_ignore_keys,
            sticky=StickyPartitioner(self.config.batch_size, random.choice),
            check_send=None
            if self._transactions is None
            else self._transactions.manager.check_send,
        )
        self.put = self.appender.put
        """Append a record, in any thread: see `RecordAppender.put`."""
        self._parked: deque[Waiting] = deque()
        self._waiting_columns: set[Waiting] = set()
        """Those of `_parked` that may be more than one record."""
        self._next_turn: Any = None
        self._rooms: list[Deferred[None]] = []
        self._closing: CloseResult | None = None
        self._on_room = on_room
        """Called when memory was freed or the metadata changed, for callers that wait outside."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- the Twisted API

    @deferring
    async def start(self) -> Self:
        """Connect and fetch metadata; raise `BootstrapError` with each address and its cause if that fails."""
        self._check_open()
        await self.cluster.start()
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
    ) -> Deferred[RecordMetadata]:
        """Send a record; fire with its RecordMetadata when it is acknowledged (with acks=0: when it is sent).

        Records of one partition are appended in the order of their sends. If buffer.memory is full or the topic
        unknown, the record waits for up to max.block.ms; `ready` fires when there is memory.
        """
        done: Deferred[RecordMetadata] = Deferred()
        self.send_to(done, topic, value, key, headers, partition, timestamp_ms)
        return done

    send_and_wait = send

    def send_to(
        self,
        sink: Any,
        topic: str,
        value: V | None,
        key: K | None,
        headers: HeadersGiven,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        """Send a record as `send` does; pass its result to sink.callback, or its error to sink.errback."""
        try:
            row = self.serializer.row(topic, value, key, headers, timestamp_ms)
            if self._parked:
                self._check_transaction()
                batch = None
            else:
                batch = self.put(topic, partition, row)
            if batch is None:
                self._wait_for_room(WaitingRecord(topic, partition, row, sink))
        except KafkaError as problem:
            self.record_failed(problem)
            sink.errback(problem)
            return
        if batch is not None:
            batch.notify(batch.record_count - 1, row[1], sink)
            if batch.record_count == 1 or batch.closed:
                self.sender.wake()

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
        """Send a record and call on_delivery(error, metadata) with the result, as confluent_kafka does."""
        done = self.send(
            topic,
            value,
            key,
            headers=headers,
            partition=None if partition < 0 else partition,
            timestamp_ms=timestamp or None,
        )
        if on_delivery is None:
            done.addErrback(lambda _: None)
        else:
            notify = on_delivery
            done.addCallbacks(lambda m: notify(None, m), lambda f: notify(f.value, None))

    def send_columns(
        self,
        topic: str,
        values: Rows,
        keys: Rows | None = None,
        *,
        headers: HeadersGiven = None,
        partition: int | None = None,
        timestamps_ms: Times = None,
    ) -> Deferred[ColumnsMetadata]:
        """Send a record for each row; fire with its ColumnsMetadata when all are acknowledged.

        *values* and *keys* are arrays of Arrow, of binary or string, or sequences of bytes, str or None. *values* is
        also a table of Arrow with the columns value, key and timestamp (the last two are optional). *headers* are those
        of all rows; *timestamps_ms* is one for all, or one for each. Partitions are chosen as by `send`; rows without a
        key fill a batch of one partition, then of another.

        It fails with `RowsNotAcknowledged` if rows were not acknowledged. If buffer.memory is full or the topic
        unknown, the rows that do not fit wait. They fail after max.block.ms without room; later sends wait behind them.
        """
        done: Deferred[ColumnsMetadata] = Deferred()
        self.send_columns_to(done, topic, values, keys, headers, partition, timestamps_ms)
        return done

    def send_columns_to(
        self,
        sink: Any,
        topic: str,
        values: Rows,
        keys: Rows | None,
        headers: HeadersGiven,
        partition: int | None,
        timestamps_ms: Times,
    ) -> None:
        """Send rows as `send_columns` does; pass the result to sink.callback, or the error to sink.errback."""
        try:
            rows = self.columns(topic, values, keys, headers, partition, timestamps_ms)
        except KafkaError as problem:
            self.record_failed(problem)
            sink.errback(problem)
            return
        result = ColumnsResult(topic, rows.count, sink)
        waiting = WaitingColumns(topic, rows, result, self.config.max_block_ms / 1000)
        try:
            if self._parked or not waiting.place(self.appender):
                self._waiting_columns.add(waiting)
                self._wait_for_room(waiting)
        except Exception as problem:
            self._placing_failed(waiting, problem)
        self.sender.wake()

    def columns(
        self,
        topic: str,
        values: Rows,
        keys: Rows | None,
        headers: HeadersGiven,
        partition: int | None,
        timestamps_ms: Times,
    ) -> ColumnBatches:
        """Return the rows of the arguments of `send_columns`, in any thread; raise the error of invalid ones."""
        if self.serializer.has_serializer:
            raise SerializationError(
                "send_columns() sends bytes, but this producer has a serializer",
                hint="serialize the columns, and use a producer without serializers",
            )
        self._check_open()
        self._check_transaction()
        return column_batches(self.appender, topic, values, keys, headers, partition, timestamps_ms)

    @deferring
    async def send_batch_bytes(self, topic: str, partition: int, batch: Buffer) -> int:
        """Send one encoded record batch unchanged; return its base offset.

        The bytes must not change until then. Only their header is parsed.
        """
        if self._transactions is not None:
            raise TransactionStateError(
                "encoded batches cannot be part of a transaction",
                hint="use send(), or a producer without transactional.id",
            )
        info = batches.parse(batch)
        await self.ready(len(batch))
        tp = TopicPartition(topic, partition)
        if self.cluster.metadata.partition(tp) is None:
            await self.partitions_for(topic)
        done: Deferred[RecordMetadata] = Deferred()
        with self._guard:
            self._check_open()
            queued = self.accumulator.append_bytes(tp, batch, info.record_count)
        queued.notify(0, info.max_timestamp, done)
        self.sender.wake()
        return (await done).offset

    @deferring
    async def partitions_for(self, topic: str) -> list[int]:
        """Return the partitions of *topic*; wait at most max.block.ms for its metadata."""
        return await self.cluster.partitions(topic, timeout=self.config.max_block_ms / 1000)

    def ready(self, size: int = 1) -> Deferred[None]:
        """Fire when *size* more bytes fit in buffer.memory; fail with `BufferExhausted` after max.block.ms."""
        if self.accumulator.has_room(size):
            return succeed(None)

        async def wait() -> None:
            while not self.accumulator.has_room(size):
                self.accumulator.flushing = True
                self.sender.wake()
                room: Deferred[None] = Deferred()
                self._rooms.append(room)
                await room

        seconds = self.config.max_block_ms / 1000
        return within(self._reactor, wait(), seconds, lambda: self.exhausted(seconds))

    @deferring
    async def flush(self, timeout: float | None = None) -> int:
        """Send all records now and wait for them; return the number of records without an acknowledgement.

        Waits at most *timeout* seconds, delivery.timeout.ms if None, and not for records that are sent meanwhile.
        Failed records do not count; their Deferreds have failed.
        """
        seconds = self.config.delivery_timeout_ms / 1000 if timeout is None else timeout
        end = self._reactor.seconds() + seconds
        for waiting in list(self._parked):
            left = max(0.0, end - self._reactor.seconds())
            try:
                await within(self._reactor, waiting.settled(), left, FlushTimeout)
            except FlushTimeout:
                break
        with self._guard:
            unfinished = list(self.accumulator.unfinished())
            for batch in unfinished:
                batch.closed = True
        self.sender.wake()
        if unfinished:
            all_done = AllCompleted(unfinished)
            left = max(0.0, end - self._reactor.seconds())
            with suppress(FlushTimeout):
                await within(self._reactor, all_done.fired, left, FlushTimeout)
        return self.undelivered

    # --- transactions

    @deferring
    async def init_transactions(self) -> None:
        """Get a producer id and epoch, once, before the first transaction.

        It fences earlier producers with this transactional.id, and ends their open transaction. Waits at most
        max.block.ms; after KafkaTimeoutError it may be called again.
        """
        await self._transactional("init_transactions").init()

    @deferring
    async def begin_transaction(self) -> None:
        """Begin a transaction: all records until its end belong to it.

        Fires at once, except after a transaction that failed: then the coordinator raises the producer epoch first.
        """
        await self._transactional("begin_transaction").begin()

    @deferring
    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """Commit *offsets*, those of the next records to consume, for a group, if the transaction is committed.

        *group_metadata* is `Consumer.group_metadata` of the consumer that read the records: the group refuses the
        offsets of a member that was replaced (KIP-447). That consumer needs enable.auto.commit=false.
        """
        transactions = self._transactional("send_offsets_to_transaction")
        if not isinstance(group_metadata, ConsumerGroupMetadata):
            raise TypeError("group_metadata is what consumer.group_metadata() returns")
        chosen = group_offsets.offsets_to_commit(offsets)
        await transactions.send_offsets(group_metadata, chosen)

    @deferring
    async def commit_transaction(self) -> None:
        """Send all records, then commit: they become visible to consumers with isolation.level=read_committed.

        Raise `TransactionAborted` if a record or a request failed: then only `abort_transaction` is possible. After
        KafkaTimeoutError (max.block.ms) the outcome is open; a second call waits for it.
        """
        transactions = self._transactional("commit_transaction")
        committing = as_deferred(transactions.commit())
        flushing = self.flush(self.config.max_block_ms / 1000)
        flushing.addErrback(lambda _: None)
        try:
            await committing
        finally:
            flushing.cancel()

    @deferring
    async def abort_transaction(self) -> None:
        """Abort: no consumer with isolation.level=read_committed sees a record. Unsent records fail.

        It waits for records that are in flight. After KafkaTimeoutError (max.block.ms) it may be called again.
        """
        await self._transactional("abort_transaction").abort()

    def transaction(self) -> Transaction:
        """Return a transaction as a block of ``async with``: committed at its end, aborted by an exception."""
        self._transactional("transaction")
        return Transaction(self)

    # --- closing

    @deferring
    async def close(self, timeout: float = 10.0, *, flush: bool = True) -> CloseResult:
        """Deliver the remaining records within *timeout* seconds, fail the others, close all connections.

        An open transaction is aborted, one that is being committed or aborted is waited for.
        """
        if self._closing is not None:
            return self._closing
        self._closing = CloseResult(self.sender.delivered, 0)
        aborted = 0
        if flush and timeout > 0:
            end = self._reactor.seconds() + timeout
            aborted = await self._end_transaction(timeout)
            await self.flush(max(0.0, end - self._reactor.seconds()))
        self.appender.closed = True
        if self._transactions is not None:
            self._transactions.close()
        reason = closed_error()
        parked, self._parked = list(self._parked), deque()
        unplaced = sum(waiting.count for waiting in parked)
        for waiting in parked:
            self._fail_waiting(waiting, reason)
        lost = self.sender.close(reason) + unplaced + aborted
        self._closing = CloseResult(self.sender.delivered, lost)
        self._progress()
        await self.cluster.close()
        return self._closing

    @property
    def closed(self) -> bool:
        """Whether the producer takes no more records."""
        return self.appender.closed

    @property
    def undelivered(self) -> int:
        """The number of records without an acknowledgement or an error."""
        rows = sum(waiting.count - 1 for waiting in self._waiting_columns)
        return self.accumulator.records + len(self._parked) + rows

    def metrics(self) -> dict[str, float]:
        """Return counters since the start, and the current memory use."""
        sender, accumulator = self.sender, self.accumulator
        return {
            "records_delivered": sender.delivered,
            "records_failed": sender.failures,
            "records_waiting": self.undelivered,
            "produce_requests": sender.requests,
            "batches": sender.batches,
            "batch_retries": sender.retries,
            "buffer_bytes_used": accumulator.used,
            **self.cluster.brokers.metrics(),
        }

    # --- callable from any thread

    def exhausted(self, seconds: float) -> KafkaError:
        """Return the error of waiting *seconds* for memory, with the last problem of sending."""
        problem = self.sender.last_problem or self.cluster.last_problem
        return BufferExhausted(
            f"buffer.memory ({self.config.buffer_memory} bytes) stayed full for {seconds:g} s "
            "(max.block.ms)" + (f"; last problem: {problem}" if problem else "")
        )

    def record_failed(self, problem: KafkaError) -> None:
        """Handle a record that is in no batch: its transaction cannot be committed. Only in the reactor's thread.

        Call it before the record's result is reported: a callback may commit.
        As in Kafka a record that cannot be serialized, or is sent at the wrong time, is not part of the transaction.
        """
        wrong_use = SerializationError | TransactionStateError | TransactionAborted | ClientClosed
        transactions = self._transactions
        if transactions is None or isinstance(problem, wrong_use):
            return
        if transactions.batch_failed(problem, has_sequence=False):
            transactions.after_change()

    # --- inside

    def _transaction_sender(self, sequencer: Sequencer) -> TransactionSender:
        config = self.config
        first, most = config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        manager = transaction_manager.TransactionManager(
            config.transactional_id, lambda count: backoff(count, first, most)
        )
        return transaction_sender.TransactionSender(
            self._reactor,
            self.cluster,
            config,
            manager,
            self._guard,
            has_batches=lambda: self.undelivered > 0,
            initialized=lambda producer: sequencer.given(*producer),
            changed=self._transaction_changed,
        )

    def _transactional(self, call: str) -> TransactionSender:
        self._check_open()
        if self._transactions is None:
            raise TransactionStateError(
                f"{call}() needs the setting transactional.id",
                hint="set it to a name that only this producer has at a time",
            )
        return self._transactions

    def _check_transaction(self) -> None:
        if self._transactions is not None:
            self._transactions.manager.check_send()

    def _transaction_changed(self) -> None:
        """Fail what is not sent if the transaction is aborted, else send what may be sent now."""
        assert self._transactions is not None
        refusal = self._transactions.manager.refusal
        if refusal is not None:
            parked, self._parked = list(self._parked), deque()
            for waiting in parked:
                self._fail_waiting(waiting, refusal)
            self.sender.abort_waiting(refusal)
        self.sender.wake()

    async def _end_transaction(self, timeout: float) -> int:
        """End the open transaction before the producer is closed; return the number of its failed records."""
        if self._transactions is None:
            return 0
        left, delivered = self.undelivered, self.sender.delivered
        state, states = self._transactions.manager.state, transaction_manager.State
        end: Deferred[None]
        if state is states.COMMITTING:
            end = self.commit_transaction()
        elif state in (states.IN_TRANSACTION, states.ABORTABLE_ERROR, states.ABORTING):
            end = self.abort_transaction()
        else:
            return 0
        try:
            await within(self._reactor, end, timeout, KafkaTimeoutError)
        except KafkaError as problem:
            self.log.warn(
                "a transaction was open when the producer was closed: {problem}", problem=problem
            )
        return max(0, left - self.undelivered - (self.sender.delivered - delivered))

    def _check_open(self) -> None:
        if self.closed:
            raise ClientClosed("the producer is closed")

    def _wait_for_room(self, parked: Waiting) -> None:
        """Queue records that wait for metadata or memory, behind other waiting ones."""
        self._check_open()
        topic = parked.topic
        self._parked.append(parked)
        seconds = self.config.max_block_ms / 1000
        parked.timer = self._reactor.callLater(seconds, self._too_long, parked, seconds)
        if self.cluster.metadata.partitions(topic) is None:
            waiting = as_deferred(self.cluster.partitions(topic, timeout=seconds))
            waiting.addCallbacks(
                lambda _: self._retry_waiting(), lambda f: self._topic_failed(topic, f)
            )
        self.sender.wake()

    def _topic_failed(self, topic: str, failure: Any) -> None:
        failed = [parked for parked in self._parked if parked.topic == topic]
        self._parked = deque(parked for parked in self._parked if parked.topic != topic)
        if failed:
            self.record_failed(failure.value)
        for parked in failed:
            self._fail_waiting(parked, failure.value)
        self._retry_waiting()

    def _too_long(self, parked: Waiting, seconds: float) -> None:
        if parked in self._parked:
            self._parked.remove(parked)
            problem = self.exhausted(seconds)
            self.record_failed(problem)
            self._fail_waiting(parked, problem)

    def _retry_waiting(self) -> None:
        while self._parked and not self.closed:
            parked = self._parked[0]
            try:
                if not parked.place(self.appender):
                    break
            except Exception as problem:
                self._parked.popleft()
                self._placing_failed(parked, problem)
                continue
            self._parked.popleft()
            self._waiting_columns.discard(parked)
            parked.settle()
        if self._parked and self._parked[0].is_paused and self._next_turn is None:
            self._next_turn = self._reactor.callLater(0, self._continue)
        self.sender.wake()

    def _continue(self) -> None:
        self._next_turn = None
        self._retry_waiting()

    def _placing_failed(self, waiting: Waiting, problem: Exception) -> None:
        """Fail records that cannot be appended: by an error of Kafka, or of a custom partitioner."""
        if not isinstance(problem, KafkaError):
            self.log.failure("appending records failed")
            cause, problem = problem, KafkaError(f"{waiting.topic}: not appended: {problem!r}")
            problem.__cause__ = cause
        self.record_failed(problem)
        self._fail_waiting(waiting, problem)

    def _fail_waiting(self, waiting: Waiting, problem: KafkaError) -> None:
        self._waiting_columns.discard(waiting)
        waiting.fail(problem)

    def _progress(self) -> None:
        """Append waiting records after memory was freed or metadata changed."""
        if not self._parked:
            self.accumulator.flushing = False
        rooms, self._rooms = self._rooms, []
        for room in rooms:
            room.callback(None)
        if self._parked:
            self._retry_waiting()
        self._on_room()
