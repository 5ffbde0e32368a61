"""The consumer of the asyncio API: records by ``async for``, `getone` and `getmany`.

A task may be cancelled, by `asyncio.wait_for` for example, between the end of its wait and its next turn. So a call
first waits until records are ready, and takes them when its task runs again: a cancelled call has taken no record.

Several tasks may wait for records of one consumer; they take turns. The offsets of a record then count as processed
when any of them asks for the next one. Such programs commit by `store_offsets`, or by `commit` with offsets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar

from kclient.aio.event_loop import ClientLoop
from kclient.arguments import (
    Config,
    Names,
    at_most,
    consumer_arguments,
    partitions_in,
    poll_timeout,
    waiting_time,
)
from kclient.consumer import arrow
from kclient.consumer.client import CommitCallback, RebalanceCallback, RebalanceListener
from kclient.consumer.client import Consumer as Core
from kclient.consumer.partitions import Batch, FetchedBatch
from kclient.consumer.polling import SLICE_S, Only
from kclient.consumer.subscription import listener_of
from kclient.errors import ClientClosed, KafkaError
from kclient.net.group_offsets import Offsets
from kclient.types import (
    AnyRecord,
    ConsumedKey,
    ConsumedValue,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Record,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")


class Consumer(Generic[ConsumedKey, ConsumedValue]):
    """Consumes records from one cluster. Settings: `kclient.config.ConsumerConfig`.

        async with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}, ["orders"]) as consumer:
            async for record in consumer:
                print(record.topic_partition, record.offset, record.value)

    *key_deserializer* and *value_deserializer* convert bytes to objects. They are the source of the types of keys and
    values: with ``bytes.decode`` and ``json.loads`` it is a ``Consumer[str, Any]``. Without one they are bytes.
    """

    def __init__(
        self,
        *config_and_topics: Config | Names,
        config: Config | None = None,
        key_deserializer: Callable[[bytes], ConsumedKey] | None = None,
        value_deserializer: Callable[[bytes], ConsumedValue] | None = None,
        reactor: Any = None,
        **keywords: Any,
    ) -> None:
        config, topics = consumer_arguments(config_and_topics, config)
        self._loop = ClientLoop("Consumer", reactor)
        self._core: Core[ConsumedKey, ConsumedValue] = Core(
            config=config,
            reactor=self._loop.reactor,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            callback_runner=self._loop.call_back,
            **keywords,
        )
        self._turn: asyncio.Lock | nullcontext[None] = (
            nullcontext() if self._loop.loop is None else asyncio.Lock()
        )
        if topics:
            self._core.subscribe(topics)

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, kind: object, *exc: object) -> None:
        await self._close(10.0, autocommit=True, failed=kind is not None)

    async def start(self) -> Self:
        """Connect and fetch metadata; raise `BootstrapError` with each address and its cause if that fails.

        The consumer joins its group when it first asks for records.
        """
        await self._loop.wait(self._checked().start())
        return self

    # --- assignment

    def subscribe(
        self,
        topics: Names = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Consume *topics*, or all topics that match *pattern* (a regular expression), in the group.

        *listener* is called when partitions are assigned, revoked or lost, while a task waits for records. *on_assign*,
        *on_revoke* and *on_lost* may replace it: functions of (consumer, partitions). All may be coroutine functions.
        """
        chosen = listener_of(self, listener, on_assign, on_revoke, on_lost)
        self._checked().subscribe(topics, pattern=pattern, listener=chosen)

    def assign(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Consume exactly *partitions*, without group assignment; those in *offsets* from that offset on."""
        self._checked().assign(partitions, offsets)

    async def unsubscribe(self) -> None:
        """Revoke all partitions (with a commit if auto-commit is on) and leave the group."""
        await self._loop.wait(self._checked().unsubscribe())

    def subscription(self) -> set[str]:
        """Return the subscribed topics."""
        return self._core.subscription()

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return self._core.assignment()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the consumer's identity in its group (KIP-447); raise KafkaError without a group.id."""
        return self._core.group_metadata()

    # --- records

    def __aiter__(self) -> Self:
        """Iterate over records until the consumer is closed. A record that was not yielded is not committed."""
        return self

    async def __anext__(self) -> Record[ConsumedKey, ConsumedValue]:
        try:
            return await self.getone()
        except ClientClosed:
            raise StopAsyncIteration from None

    async def getone(self, *partitions: TopicPartition) -> Record[ConsumedKey, ConsumedValue]:
        """Return the next record, of *partitions* only if there are any; wait for it.

        A cancelled call takes no record: ``await asyncio.wait_for(consumer.getone(), 5)`` loses none. The previous
        record counts as processed.
        """
        core = self._checked()
        only = partitions_in(partitions, "getone") if partitions else ()
        polling = core.polling
        while (record := polling.next_record(only)) is None:
            self._loop.check_may_poll()
            async with self._turn:
                if polling.left_over and not only:
                    continue  # Another task has polled meanwhile.
                polling.check(only)
                await self._loop.wait(polling.until_ready(SLICE_S, only))
                polling.take_to_iterate(only)
        return record

    async def getmany(
        self,
        *partitions: TopicPartition,
        timeout: float | None = None,
        timeout_ms: float | None = None,
        max_records: int | None = None,
    ) -> dict[TopicPartition, list[Record[ConsumedKey, ConsumedValue]]]:
        """Return records by partition, of *partitions* only if there are any.

        Wait at most *timeout* seconds if none is buffered, by default not at all. *timeout_ms* is the name and the unit
        of aiokafka. *max_records* is by default max.poll.records. A cancelled call takes no record.
        """
        core = self._checked()
        only = core.assigned_of(partitions, "getmany")
        most = at_most(max_records, core.config.max_poll_records)
        return await self._poll(
            poll_timeout((), timeout, timeout_ms), only, lambda: core.polling.take(most, only)
        )

    async def poll(
        self,
        *given: Never,
        timeout: float | None = None,
        timeout_ms: float | None = None,
        max_records: int | None = None,
    ) -> dict[TopicPartition, list[Record[ConsumedKey, ConsumedValue]]]:
        """Return records by partition; wait at most *timeout* seconds if none is buffered, by default not at all.

        *timeout_ms* is the name and the unit of kafka-python. A positional timeout raises TypeError.
        """
        core = self._checked()
        most = at_most(max_records, core.config.max_poll_records)
        return await self._poll(
            poll_timeout(given, timeout, timeout_ms), (), lambda: core.polling.take(most)
        )

    async def consume(
        self, num_messages: int = 1, timeout: float | None = 1.0
    ) -> list[Record[ConsumedKey, ConsumedValue]]:
        """Return up to *num_messages* records; wait at most *timeout* seconds for the first.

        None, or -1 as in confluent-kafka, waits without limit.
        """
        found = await self.poll(timeout=waiting_time(timeout), max_records=num_messages)
        return [record for records in found.values() for record in records]

    async def poll_batches(
        self, *given: Never, timeout: float | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, list[Batch]]:
        """Return whole batches, encoded, as received from the broker. The timeout is as of `poll`."""
        core = self._checked()
        seconds = poll_timeout(given, timeout, timeout_ms)
        return await self._poll(seconds, (), core.polling.take_batches)

    async def poll_fetched_batches(
        self, *given: Never, timeout: float | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, list[FetchedBatch]]:
        """Return whole batches as `poll_batches` does, and batches of aborted transactions: marked, as control batches.

        The timeout is as of `poll`.
        """
        core = self._checked()
        seconds = poll_timeout(given, timeout, timeout_ms)
        return await self._poll(seconds, (), core.polling.take_fetched_batches)

    async def poll_arrow(
        self,
        *given: Never,
        timeout: float | None = None,
        timeout_ms: float | None = None,
        max_records: int | None = None,
    ) -> pyarrow.Table:
        """Return records as a table of Arrow, without a Python object per key and value; wait as `poll` does.

        Its columns are the fields of `Record` but the sizes: topic, partition, offset, timestamp, timestamp_type, key,
        value, headers, leader_epoch. Keys and values are bytes. The table is empty if no record arrives in time. It has
        up to *max_records* rows, by default 100,000. Errors are as of `poll`. It needs ``pip install kbroker[arrow]``.
        """
        arrow.require_pyarrow()
        polling = self._checked().polling
        polling.check_bytes("poll_arrow")
        most = at_most(max_records, arrow.MOST_RECORDS)
        seconds = poll_timeout(given, timeout, timeout_ms)
        found = await self._poll(seconds, (), lambda: polling.take_places(most))
        return arrow.table(found)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of *partitions* until `resume`."""
        self._checked().pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of *partitions* again."""
        self._checked().resume(*partitions)

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return self._core.paused()

    # --- positions

    def seek(self, tp: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Set the position of *tp*: the next record of it is that at *offset*."""
        self._checked().seek(tp, offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Set the position of *partitions* (default: all assigned ones) to the log start offset."""
        await self._loop.wait(self._checked().seek_to_beginning(*partitions))

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Set the position of *partitions* (default: all assigned ones) to the log end."""
        await self._loop.wait(self._checked().seek_to_end(*partitions))

    async def seek_to_committed(
        self, *partitions: TopicPartition, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Set the position of *partitions* (default: all assigned ones) to the committed offset, and return it.

        A partition without a committed offset keeps its position; its result is None.
        """
        return await self._loop.wait(
            self._checked().seek_to_committed(*partitions, timeout=timeout)
        )

    async def seek_to_timestamp(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Set positions to the first record at or after *timestamp_ms*, or to the log end if there is none."""
        await self._loop.wait(self._checked().seek_to_timestamp(timestamp_ms, *partitions))

    async def position(self, tp: TopicPartition, timeout: float | None = None) -> int:
        """Return the offset of the next record of *tp*; look it up if necessary, within *timeout* seconds."""
        return await self._loop.wait(self._checked().position(tp, timeout))

    def next_offset(self, tp: TopicPartition) -> int | None:
        """Return the offset of the next record of *tp*, None if unknown."""
        return self._core.next_offset(tp)

    def highwater(self, tp: TopicPartition) -> int | None:
        """Return the high watermark of *tp* in the last fetch response, None before the first."""
        return self._core.highwater(tp)

    def last_stable_offset(self, tp: TopicPartition) -> int | None:
        """Return the last stable offset of *tp* in the last fetch response, None before the first (KIP-98)."""
        return self._core.last_stable_offset(tp)

    def lag(self, tp: TopicPartition) -> int | None:
        """Return the number of records of *tp* from the position to the end; None before the first fetch."""
        return self._core.lag(tp)

    async def beginning_offsets(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each of *partitions*."""
        return await self._loop.wait(self._checked().beginning_offsets(partitions, timeout))

    async def end_offsets(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Return the high watermark (read_committed: the last stable offset) of each of *partitions*."""
        return await self._loop.wait(self._checked().end_offsets(partitions, timeout))

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offset at or after each time, None if no record is that recent."""
        return await self._loop.wait(self._checked().offsets_for_times(timestamps_ms, timeout))

    async def partitions_for_topic(self, topic: str, timeout: float | None = None) -> list[int]:
        """Return the partitions of *topic*."""
        return await self._loop.wait(self._checked().partitions_for_topic(topic, timeout))

    # --- commits

    async def commit(self, offsets: Offsets | None = None, timeout: float | None = None) -> None:
        """Commit *offsets*, or the positions of all partitions, and wait for the response."""
        await self._loop.wait(self._checked().commit(offsets, timeout))

    def commit_async(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Send a commit without retries, and return at once.

        *callback* is called with (error or None, offsets). Without one a failure is logged.
        """

        def ended(
            problem: KafkaError | None, committed: Mapping[TopicPartition, OffsetAndMetadata]
        ) -> None:
            if callback is not None:
                callback(problem, committed)
            elif problem is not None:
                self._core.log.warn("commit_async: {problem}", problem=problem)

        def failed(failure: Any) -> None:
            if not failure.check(KafkaError):
                self._core.log.failure("commit_async: the callback failed", failure=failure)

        self._checked().commit_async(offsets, ended).addErrback(failed)

    def store_offsets(self, given: AnyRecord | Offsets) -> None:
        """Store the offset after a record, or offsets by partition: the next commits commit them, and nothing else.

        It needs enable.auto.offset.store=false. Both automatic commits and `commit` without offsets commit what is
        stored.
        """
        self._core.store_offsets(given)

    async def committed(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset for each of *partitions*, None without a commit."""
        return await self._loop.wait(self._checked().committed(partitions, timeout))

    # --- the end

    def metrics(self) -> dict[str, float]:
        """Return counters since the start, and the current assignment, lag and memory use."""
        return self._core.metrics()

    async def close(self, timeout: float = 10.0, *, autocommit: bool = True) -> None:
        """Commit (if auto-commit is on), leave the group and close, within *timeout* seconds."""
        await self._close(timeout, autocommit=autocommit, failed=False)

    stop = close

    # --- inside

    async def _close(self, timeout: float, *, autocommit: bool, failed: bool) -> None:
        core = self._checked()
        await self._loop.wait(core.close(timeout, autocommit=autocommit, failed=failed))
        self._loop.leave()

    def _checked(self) -> Core[ConsumedKey, ConsumedValue]:
        self._loop.check()
        return self._core

    async def _poll(
        self, timeout: float, only: Only, take: Callable[[], dict[TopicPartition, T]]
    ) -> dict[TopicPartition, T]:
        """Wait for records within *timeout* seconds, then *take* them in the same step of the task."""
        self._loop.check_may_poll()
        polling = self._core.polling
        give_up_at = time.monotonic() + timeout
        if isinstance(self._turn, asyncio.Lock):
            try:
                async with asyncio.timeout(timeout):
                    await self._turn.acquire()
            except TimeoutError:
                return {}
        try:
            while True:
                left = max(0.0, give_up_at - time.monotonic())
                await self._loop.wait(polling.until_ready(left, only))
                found = take()
                if found or not left or polling.closed:
                    return found
        finally:
            if isinstance(self._turn, asyncio.Lock):
                self._turn.release()
