"""The producer of the asyncio API: `send` returns a Future at once, everything else is a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, cast

from twisted.internet.defer import Deferred

from kclient.aio.event_loop import ClientLoop
from kclient.errors import KafkaError
from kclient.producer.partitioner import Partitioner
from kclient.producer.producer import Producer as Core
from kclient.producer.record_serializer import HeadersGiven, Serialized
from kclient.producer.transaction import Transaction
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

Delivered = Callable[[KafkaError | None, RecordMetadata | None], Any]
"""Called with the error of a record, None if there is none, and its metadata."""


class Producer(Generic[K, V]):
    """Sends records. Settings: `kclient.config.ProducerConfig`.

        async with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
            metadata = await producer.send("orders", b"value", key="key")
            futures = [producer.send("orders", str(n)) for n in range(1000)]
            await asyncio.gather(*futures)

    *key_serializer* and *value_serializer* convert the arguments of `send` to bytes. Without a serializer an argument
    must be bytes, str (UTF-8) or None. With the setting transactional.id all records are sent in transactions::

        async with Producer({"bootstrap.servers": "localhost:9092", "transactional.id": "billing"}) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                producer.send("orders", b"value")
                await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        key_serializer: Callable[[K], Serialized] | None = None,
        value_serializer: Callable[[V], Serialized] | None = None,
        partitioner: Partitioner | None = None,
        reactor: Any = None,
        **keywords: Any,
    ) -> None:
        self._loop = ClientLoop("Producer", reactor)
        self._core: Core[K, V] = Core(
            config,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            partitioner=partitioner,
            reactor=self._loop.reactor,
            **keywords,
        )

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> Self:
        """Connect and fetch metadata; raise `BootstrapError` with each address and its cause if that fails."""
        await self._loop.wait(self._checked().start())
        return self

    # --- records

    def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        headers: HeadersGiven = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Send a record; the Future's result is its RecordMetadata when it is acknowledged.

        This is no coroutine: the record is sent in the order of the calls, awaited or not. Cancelling the Future does
        not recall the record. If buffer.memory is full or the topic unknown, the record waits for up to max.block.ms;
        `ready` waits until there is memory.
        """
        core = self._checked()
        if self._loop.loop is None:
            sent = core.send(
                topic,
                value,
                key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
            return cast("asyncio.Future[RecordMetadata]", sent)
        future: asyncio.Future[RecordMetadata] = self._loop.loop.create_future()
        sink = _FutureSink(future, in_transaction=bool(core.config.transactional_id))
        core.send_to(sink, topic, value, key, headers, partition, timestamp_ms)
        return future

    async def send_and_wait(
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
        return await self.send(
            topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )

    def produce(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        partition: int = -1,
        on_delivery: Delivered | None = None,
        timestamp: int = 0,
        headers: HeadersGiven = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Send a record as confluent_kafka does: on_delivery(error, metadata) is called with the result.

        The Future is that of `send`; with *on_delivery* it need not be awaited.
        """
        sent = self.send(
            topic,
            value,
            key,
            headers=headers,
            partition=None if partition < 0 else partition,
            timestamp_ms=timestamp or None,
        )
        if on_delivery is None:
            return sent
        notify = on_delivery
        if self._loop.loop is None:
            cast("Deferred[RecordMetadata]", sent).addCallbacks(
                lambda m: notify(None, m), lambda f: notify(f.value, None)
            )
            return sent

        def ended(future: asyncio.Future[RecordMetadata]) -> None:
            if future.cancelled():
                return
            problem = future.exception()
            if isinstance(problem, KafkaError):
                notify(problem, None)
            else:
                notify(None, future.result())

        sent.add_done_callback(ended)
        return sent

    def send_columns(
        self,
        topic: str,
        values: Rows,
        keys: Rows | None = None,
        *,
        headers: HeadersGiven = None,
        partition: int | None = None,
        timestamps_ms: Times = None,
    ) -> asyncio.Future[ColumnsMetadata]:
        """Send a record for each row; the Future's result is its ColumnsMetadata when all are acknowledged.

        *values* and *keys* are arrays of Arrow, of binary or string, or sequences of bytes, str or None. *values* is
        also a table of Arrow with the columns value, key and timestamp (the last two are optional). *headers* are those
        of all rows; *timestamps_ms* is one for all, or one for each. Partitions are chosen as by `send`; rows without a
        key fill a batch of one partition, then of another.

        The Future's error is `RowsNotAcknowledged` if rows were not acknowledged. If buffer.memory is full or the topic
        unknown, the rows that do not fit wait. They fail after max.block.ms without room; later sends wait behind them.
        """
        core = self._checked()
        if self._loop.loop is None:
            sent = core.send_columns(
                topic,
                values,
                keys,
                headers=headers,
                partition=partition,
                timestamps_ms=timestamps_ms,
            )
            return cast("asyncio.Future[ColumnsMetadata]", sent)
        future: asyncio.Future[ColumnsMetadata] = self._loop.loop.create_future()
        sink = _FutureSink(future, in_transaction=bool(core.config.transactional_id))
        core.send_columns_to(sink, topic, values, keys, headers, partition, timestamps_ms)
        return future

    async def send_batch_bytes(self, topic: str, partition: int, batch: Buffer) -> int:
        """Send one encoded record batch unchanged; return its base offset."""
        return await self._loop.wait(self._checked().send_batch_bytes(topic, partition, batch))

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the partitions of *topic*; wait at most max.block.ms for its metadata."""
        return await self._loop.wait(self._checked().partitions_for(topic))

    async def ready(self, size: int = 1) -> None:
        """Wait until *size* more bytes fit in buffer.memory; raise `BufferExhausted` after max.block.ms."""
        await self._loop.wait(self._checked().ready(size))

    async def flush(self, timeout: float | None = None) -> int:
        """Send all records now and wait for them; return the number of records without an acknowledgement.

        Waits at most *timeout* seconds, delivery.timeout.ms if None.
        """
        return await self._loop.wait(self._checked().flush(timeout))

    # --- transactions

    async def init_transactions(self) -> None:
        """Get a producer id and epoch, once, before the first transaction.

        It fences earlier producers with this transactional.id, and ends their open transaction. Waits at most
        max.block.ms; after KafkaTimeoutError it may be called again.
        """
        await self._loop.wait(self._checked().init_transactions())

    async def begin_transaction(self) -> None:
        """Begin a transaction: all records until its end belong to it."""
        await self._loop.wait(self._checked().begin_transaction())

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """Commit *offsets*, those of the next records to consume, for a group, if the transaction is committed.

        *group_metadata* is `Consumer.group_metadata` of the consumer that read the records: the group refuses the
        offsets of a member that was replaced (KIP-447). That consumer needs enable.auto.commit=false.
        """
        core = self._checked()
        await self._loop.wait(core.send_offsets_to_transaction(offsets, group_metadata))

    async def commit_transaction(self) -> None:
        """Send all records, then commit: they become visible to consumers with isolation.level=read_committed.

        Raise `TransactionAborted` if a record or a request failed: then only `abort_transaction` is possible. After
        KafkaTimeoutError (max.block.ms) the outcome is open; a second call waits for it.
        """
        await self._loop.wait(self._checked().commit_transaction())

    async def abort_transaction(self) -> None:
        """Abort: no consumer with isolation.level=read_committed sees a record. Unsent records fail.

        It waits for records that are in flight. After KafkaTimeoutError (max.block.ms) it may be called again.
        """
        await self._loop.wait(self._checked().abort_transaction())

    def transaction(self) -> Transaction:
        """Return a transaction as a block of ``async with``: committed at its end, aborted by an exception."""
        self._checked().transaction()
        return Transaction(self)

    # --- the end

    async def close(self, timeout: float = 10.0, *, flush: bool = True) -> CloseResult:
        """Deliver the remaining records within *timeout* seconds, fail the others, close all connections.

        An open transaction is aborted, one that is being committed or aborted is waited for.
        """
        result = await self._loop.wait(self._checked().close(timeout, flush=flush))
        self._loop.leave()
        return result

    stop = close

    def metrics(self) -> dict[str, float]:
        """Return counters since the start, and the current memory use."""
        return self._core.metrics()

    @property
    def undelivered(self) -> int:
        """The number of records without an acknowledgement or an error."""
        return self._core.undelivered

    def _checked(self) -> Core[K, V]:
        self._loop.check()
        return self._core


class _FutureSink:
    """Passes the result of a record, or of columns, to its Future.

    An error in a transaction is also that of commit_transaction: asyncio need not log a Future that was not awaited.
    """

    def __init__(self, future: asyncio.Future[Any], *, in_transaction: bool) -> None:
        self._future = future
        self._in_transaction = in_transaction

    def callback(self, result: Any) -> None:
        """Set the result."""
        if not self._future.done():
            self._future.set_result(result)

    def errback(self, problem: BaseException) -> None:
        """Set the error."""
        if not self._future.done():
            self._future.set_exception(problem)
            if self._in_transaction:
                self._future.exception()
