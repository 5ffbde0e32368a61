"""The blocking consumer: `poll`, iteration and commits, which wait in the caller's thread.

A rebalance listener runs in the polling thread, inside `poll` or `close`, so it may call the consumer's methods,
`commit` among them. Heartbeats continue in the reactor's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Never, Self, TypeVar

from twisted.internet.defer import Deferred

from kclient.arguments import Config, Names, consumer_arguments, poll_timeout
from kclient.blocking.thread import (
    LEAVE_AT_EXIT,
    CallerThread,
    check_process,
    close_at_exit,
    reactor_thread,
)
from kclient.consumer.client import Consumer as Core
from kclient.consumer.client import RebalanceListener
from kclient.consumer.partitions import Batch
from kclient.consumer.records import Deserializer
from kclient.errors import KafkaError
from kclient.types import (
    AnyRecord,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)

T = TypeVar("T")


class Consumer:
    """Consumes records from one cluster. Settings: `kclient.config.ConsumerConfig`.

    with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}, ["orders"]) as consumer:
        for record in consumer:
            print(record.topic_partition, record.offset, record.value)
    """

    def __init__(
        self,
        *config_and_topics: Config | Names,
        config: Config | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        **keywords: Any,
    ) -> None:
        config, topics = consumer_arguments(config_and_topics, config)
        self._thread = reactor_thread()
        self._errands: CallerThread | None = None
        self._core = Core(
            config=config,
            reactor=self._thread.reactor,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            callback_runner=self._run_callback,
            **keywords,
        )
        self._left_over: deque[AnyRecord] = deque()
        self._in_hand: AnyRecord | None = None
        """The record that an iteration yielded last."""
        self._closed = False
        close_at_exit(self)
        if topics:
            self.subscribe(topics)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None and self._in_hand is not None:
            # The processing of the last record is uncertain.
            self._left_over.appendleft(self._in_hand)
        self._close(10.0, autocommit=True, failed=kind is not None)

    def __iter__(self) -> Iterator[AnyRecord]:
        """Yield records forever. A record that was not yielded is not committed."""
        left_over = self._left_over
        while not self._closed:
            while left_over:
                self._in_hand = left_over.popleft()
                yield self._in_hand
                self._in_hand = None
            for records in self.poll(timeout=1).values():
                left_over.extend(records)

    def start(self) -> Self:
        """Connect and fetch metadata; raise `BootstrapError` with each address and its cause if that fails."""
        self._run(self._core.start)
        return self

    # --- assignment

    def subscribe(
        self,
        topics: Names = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Consume *topics*, or all topics that match *pattern* (a regular expression), in the group."""
        self._call(lambda: self._core.subscribe(topics, pattern=pattern, listener=listener))

    def assign(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Consume exactly *partitions*, without group assignment; those in *offsets* from that offset on."""
        self._call(lambda: self._core.assign(partitions, offsets))

    def unsubscribe(self) -> None:
        """Revoke all partitions and leave the group."""
        self._run(self._core.unsubscribe)

    def subscription(self) -> set[str]:
        """Return the subscribed topics."""
        return self._call(self._core.subscription)

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return self._call(self._core.assignment)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the consumer's identity in its group (KIP-447); raise KafkaError without a group.id."""
        return self._call(self._core.group_metadata)

    # --- records

    def poll(
        self,
        *given: Never,
        timeout: float | None = None,
        timeout_ms: float | None = None,
        max_records: int | None = None,
    ) -> dict[TopicPartition, list[AnyRecord]]:
        """Return records by partition; wait at most *timeout* seconds if none is buffered, by default not at all.

        *timeout_ms* is the name and the unit of kafka-python. A positional timeout raises TypeError.
        """
        seconds = poll_timeout(given, timeout, timeout_ms)
        if self._left_over:
            return self._take_left_over()
        return self._polling(lambda: self._core.poll(timeout=seconds, max_records=max_records))

    getmany = poll

    def consume(self, num_messages: int = 1, timeout: float = 1.0) -> list[AnyRecord]:
        """Return up to *num_messages* records; wait at most *timeout* seconds for the first."""
        found = self.poll(timeout=timeout, max_records=num_messages)
        return [record for records in found.values() for record in records]

    def poll_batches(
        self, *given: Never, timeout: float | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, list[Batch]]:
        """Return whole batches, encoded, as received from the broker. The timeout is as of `poll`."""
        seconds = poll_timeout(given, timeout, timeout_ms)
        return self._polling(lambda: self._core.poll_batches(timeout=seconds))

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of *partitions* until `resume`."""
        self._call(lambda: self._core.pause(*partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of *partitions* again."""
        self._call(lambda: self._core.resume(*partitions))

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return self._call(self._core.paused)

    # --- positions

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Set the position of *tp*: the next poll returns the record at *offset*."""
        kept = [r for r in self._left_over if r.topic_partition != tp]
        self._left_over.clear()
        self._left_over.extend(kept)
        self._call(lambda: self._core.seek(tp, offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Set the position of *partitions* (default: all assigned ones) to the log start offset."""
        self._left_over.clear()
        self._run(lambda: self._core.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Set the position of *partitions* (default: all assigned ones) to the log end."""
        self._left_over.clear()
        self._run(lambda: self._core.seek_to_end(*partitions))

    def seek_to_timestamp(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Set positions to the first record at or after *timestamp_ms* (ms since the epoch)."""
        self._left_over.clear()
        self._run(lambda: self._core.seek_to_timestamp(timestamp_ms, *partitions))

    def position(self, tp: TopicPartition, timeout: float | None = None) -> int:
        """Return the offset of the next record that poll will return."""
        return self._run(lambda: self._core.position(tp, timeout))

    def highwater(self, tp: TopicPartition) -> int | None:
        """Return the high watermark in the last fetch response, None before the first."""
        return self._call(lambda: self._core.highwater(tp))

    def lag(self, tp: TopicPartition) -> int | None:
        """Return the number of records from the position to the high watermark, None if unknown."""
        return self._call(lambda: self._core.lag(tp))

    def beginning_offsets(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each of *partitions*."""
        return self._run(lambda: self._core.beginning_offsets(partitions, timeout))

    def end_offsets(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each of *partitions*."""
        return self._run(lambda: self._core.end_offsets(partitions, timeout))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time in ms, None if all are older."""
        return self._run(lambda: self._core.offsets_for_times(timestamps, timeout))

    def partitions_for_topic(self, topic: str, timeout: float | None = None) -> list[int]:
        """Return the partitions of *topic*."""
        return self._run(lambda: self._core.partitions_for_topic(topic, timeout))

    # --- commits

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit *offsets*, or the positions of all partitions, and wait for the response."""
        if offsets is None and self._left_over:
            offsets = self._positions_yielded()
        self._run(lambda: self._core.commit(offsets, timeout))

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Send a commit and return at once; a failure is logged."""
        if offsets is None and self._left_over:
            offsets = self._positions_yielded()

        def begin() -> None:
            self._core.commit_async(offsets).addErrback(
                lambda failure: self._core.log.warn("commit: {problem}", problem=failure.value)
            )

        self._call(begin)

    def committed(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset for each of *partitions*, None without a commit."""
        return self._run(lambda: self._core.committed(partitions, timeout))

    def close(self, timeout: float = 10.0, *, autocommit: bool = True) -> None:
        """Commit (if auto-commit is on), leave the group and close, within *timeout* seconds."""
        self._close(timeout, autocommit=autocommit, failed=False)

    def _close(self, timeout: float, *, autocommit: bool, failed: bool) -> None:
        if not self._closed:
            self._closed = True
            if self._left_over:
                autocommit = self._commit_yielded(autocommit)
            self._polling(lambda: self._core.close(timeout, autocommit=autocommit, failed=failed))

    def close_at_exit(self) -> None:
        """Leave the group at the end of the process, if the coordinator answers quickly."""
        self.close(LEAVE_AT_EXIT)

    # --- inside

    def _take_left_over(self) -> dict[TopicPartition, list[AnyRecord]]:
        """Return the unyielded records of an interrupted iteration."""
        found: dict[TopicPartition, list[AnyRecord]] = {}
        for record in self._left_over:
            found.setdefault(record.topic_partition, []).append(record)
        self._left_over.clear()
        return found

    def _positions_yielded(self) -> dict[TopicPartition, OffsetAndMetadata | int]:
        """Return the positions of the iteration, which may be below those of the last poll."""
        positions: dict[TopicPartition, OffsetAndMetadata | int] = dict(
            self._call(self._core._positions)
        )
        for record in reversed(self._left_over):
            positions[record.topic_partition] = OffsetAndMetadata(record.offset)
        return positions

    def _commit_yielded(self, autocommit: bool) -> bool:
        """Commit the yielded records in place of the client's last commit; return what remains to do."""
        config = self._core.config
        if autocommit and config.group_id and config.enable_auto_commit:
            with suppress(KafkaError):
                self.commit(timeout=5.0)
        return False

    def _run(self, call: Callable[[], Deferred[T]]) -> T:
        check_process(self._thread)
        return self._thread.run(call)

    def _call(self, call: Callable[[], T]) -> T:
        """Run a function that does not wait in the reactor's thread."""
        check_process(self._thread)
        return self._thread.call(call)

    def _polling(self, call: Callable[[], Deferred[T]]) -> T:
        """Run *call*; rebalance listeners run in this thread meanwhile."""
        check_process(self._thread)

        def start(errands: CallerThread) -> Deferred[T]:
            self._errands = errands
            return call().addBoth(done)

        def done(result: Any) -> Any:
            self._errands = None
            return result

        return self._thread.run_with_caller(start)

    async def _run_callback(self, callback: Callable[[], Any]) -> Any:
        """Run a listener's method in the polling thread."""
        if self._errands is None:
            return callback()
        return await self._errands.run_in_caller(callback)
