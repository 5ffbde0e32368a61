"""The blocking consumer: `poll`, iteration and commits, which wait in the caller's thread.

A rebalance listener runs in the polling thread, inside `poll` or `close`, so it may call the consumer's methods,
`commit` among them. So do the callbacks of `commit_async`. Heartbeats continue in the reactor's thread.

An iteration yields the records of one poll after another. A call that depends on positions, as `commit` or `seek` does,
first returns the unyielded ones to their partitions: positions are those of the iteration.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar

from twisted.internet.defer import Deferred

from kclient.arguments import Config, Names, at_most, consumer_arguments, poll_timeout, waiting_time
from kclient.blocking.thread import (
    LEAVE_AT_EXIT,
    CallerThread,
    ReactorThread,
    check_process,
    close_at_exit,
    reactor_thread,
)
from kclient.consumer import arrow
from kclient.consumer.client import CommitCallback, RebalanceCallback, RebalanceListener
from kclient.consumer.client import Consumer as Core
from kclient.consumer.partitions import Batch, FetchedBatch
from kclient.consumer.subscription import listener_of
from kclient.errors import KafkaError, KafkaTimeoutError
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

Found = dict[TopicPartition, list[Record[ConsumedKey, ConsumedValue]]]
"""The records of a poll, by partition."""


class Consumer(Generic[ConsumedKey, ConsumedValue]):
    """Consumes records from one cluster. Settings: `kclient.config.ConsumerConfig`.

        with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}, ["orders"]) as consumer:
            for record in consumer:
                print(record.topic_partition, record.offset, record.value)

    *key_deserializer* and *value_deserializer* convert bytes to objects. They are the source of the types of keys and
    values: with ``bytes.decode`` and ``json.loads`` it is a ``Consumer[str, Any]``. Without one they are bytes.

    One thread at a time may poll; the other methods may be called in any thread.
    """

    def __init__(
        self,
        *config_and_topics: Config | Names,
        config: Config | None = None,
        key_deserializer: Callable[[bytes], ConsumedKey] | None = None,
        value_deserializer: Callable[[bytes], ConsumedValue] | None = None,
        **keywords: Any,
    ) -> None:
        config, topics = consumer_arguments(config_and_topics, config)
        self._thread = reactor_thread()
        self._errands: CallerThread | None = None
        self._core: Core[ConsumedKey, ConsumedValue] = Core(
            config=config,
            reactor=self._thread.reactor,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            callback_runner=partial(_run_callback, weakref.ref(self)),
            **keywords,
        )
        self._left_over: deque[Record[ConsumedKey, ConsumedValue]] = deque()
        self._in_hand: Record[ConsumedKey, ConsumedValue] | None = None
        """The record that an iteration yielded last."""
        self._committed: deque[Callable[[], Any]] = deque()
        """Callbacks of commits that have ended, for the polling thread."""
        self._closed = False
        close_at_exit(self)
        self._dropped = weakref.finalize(self, _close_dropped, self._thread, self._core)
        self._dropped.atexit = False
        if topics:
            self.subscribe(topics)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, *exc: object) -> None:
        failed = kind is not None
        if failed and self._in_hand is not None:
            # The processing of that record is uncertain; those before it are done.
            self._left_over.appendleft(self._in_hand)
            failed = False
        self._close(10.0, autocommit=True, failed=failed)

    def __iter__(self) -> Iterator[Record[ConsumedKey, ConsumedValue]]:
        """Yield records forever. A record that was not yielded is not committed."""
        while not self._closed:
            while self._left_over:
                self._in_hand = self._left_over.popleft()
                yield self._in_hand
                self._in_hand = None
            for records in self.poll(timeout=1).values():
                self._left_over.extend(records)

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
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Consume *topics*, or all topics that match *pattern* (a regular expression), in the group.

        *listener* is called inside poll, in this thread, when partitions are assigned, revoked or lost. *on_assign*,
        *on_revoke* and *on_lost* may replace it: functions of (consumer, partitions).
        """
        chosen = listener_of(self, listener, on_assign, on_revoke, on_lost)
        self._call(lambda: self._core.subscribe(topics, pattern=pattern, listener=chosen))

    def assign(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Consume exactly *partitions*, without group assignment; those in *offsets* from that offset on."""
        self._call(lambda: self._core.assign(partitions, offsets))

    def unsubscribe(self) -> None:
        """Revoke all partitions and leave the group."""
        self._polling(self._core.unsubscribe)

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
    ) -> dict[TopicPartition, list[Record[ConsumedKey, ConsumedValue]]]:
        """Return records by partition; wait at most *timeout* seconds if none is buffered, by default not at all.

        *timeout_ms* is the name and the unit of kafka-python. A positional timeout raises TypeError. *max_records* is
        by default max.poll.records.
        """
        seconds = poll_timeout(given, timeout, timeout_ms)
        return self._records(lambda: self._core.poll(timeout=seconds, max_records=max_records))

    def getmany(
        self,
        *partitions: TopicPartition,
        timeout: float | None = None,
        timeout_ms: float | None = None,
        max_records: int | None = None,
    ) -> dict[TopicPartition, list[Record[ConsumedKey, ConsumedValue]]]:
        """Return records as `poll` does, of *partitions* only if there are any, as aiokafka does."""
        seconds = poll_timeout((), timeout, timeout_ms)
        return self._records(
            lambda: self._core.getmany(*partitions, timeout=seconds, max_records=max_records)
        )

    def getone(
        self, *partitions: TopicPartition, timeout: float | None = None
    ) -> Record[ConsumedKey, ConsumedValue]:
        """Return the next record, of *partitions* only if there are any.

        Wait for it; raise `KafkaTimeoutError` after *timeout* seconds.
        """
        give_up_at = time.monotonic() + (inf if timeout is None else timeout)
        while True:
            left = max(0.0, give_up_at - time.monotonic())
            found = self.getmany(*partitions, timeout=min(1.0, left), max_records=1)
            for records in found.values():
                return records[0]
            if not left:
                raise KafkaTimeoutError(f"no record arrived within {timeout:g} s")

    def consume(
        self, num_messages: int = 1, timeout: float | None = 1.0
    ) -> list[Record[ConsumedKey, ConsumedValue]]:
        """Return up to *num_messages* records; wait at most *timeout* seconds for the first.

        None, or -1 as in confluent-kafka, waits without limit.
        """
        found = self.poll(timeout=waiting_time(timeout), max_records=num_messages)
        return [record for records in found.values() for record in records]

    def poll_batches(
        self, *given: Never, timeout: float | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, list[Batch]]:
        """Return whole batches, encoded, as received from the broker. The timeout is as of `poll`."""
        seconds = poll_timeout(given, timeout, timeout_ms)
        return self._take(
            lambda: self._core.poll_batches(timeout=seconds), self._core.polling.rewind
        )

    def poll_fetched_batches(
        self, *given: Never, timeout: float | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, list[FetchedBatch]]:
        """Return whole batches as `poll_batches` does, and batches of aborted transactions: marked, as control batches.

        The timeout is as of `poll`.
        """
        seconds = poll_timeout(given, timeout, timeout_ms)
        return self._take(
            lambda: self._core.poll_fetched_batches(timeout=seconds), self._core.polling.rewind
        )

    def poll_arrow(
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
        polling = self._core.polling
        polling.check_bytes("poll_arrow")
        seconds = poll_timeout(given, timeout, timeout_ms)
        most = at_most(max_records, arrow.MOST_RECORDS)
        found = self._take(lambda: polling.places(seconds, most), polling.rewind)
        return arrow.table(found)

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

    def seek(self, tp: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Set the position of *tp*: the next poll returns the record at *offset*."""
        self._call(lambda: self._core.seek(tp, offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Set the position of *partitions* (default: all assigned ones) to the log start offset."""
        self._run(lambda: self._core.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Set the position of *partitions* (default: all assigned ones) to the log end."""
        self._run(lambda: self._core.seek_to_end(*partitions))

    def seek_to_committed(
        self, *partitions: TopicPartition, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Set the position of *partitions* (default: all assigned ones) to the committed offset, and return it.

        A partition without a committed offset keeps its position; its result is None.
        """
        return self._run(lambda: self._core.seek_to_committed(*partitions, timeout=timeout))

    def seek_to_timestamp(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Set positions to the first record at or after *timestamp_ms* (ms since the epoch)."""
        self._run(lambda: self._core.seek_to_timestamp(timestamp_ms, *partitions))

    def position(self, tp: TopicPartition, timeout: float | None = None) -> int:
        """Return the offset of the next record that poll will return."""
        return self._run(lambda: self._core.position(tp, timeout))

    def highwater(self, tp: TopicPartition) -> int | None:
        """Return the high watermark in the last fetch response, None before the first."""
        return self._call(lambda: self._core.highwater(tp))

    def last_stable_offset(self, tp: TopicPartition) -> int | None:
        """Return the last stable offset of *tp* in the last fetch response, None before the first (KIP-98)."""
        return self._call(lambda: self._core.last_stable_offset(tp))

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
        self, timestamps_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time in ms, None if all are older."""
        return self._run(lambda: self._core.offsets_for_times(timestamps_ms, timeout))

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
        self._run(lambda: self._core.commit(offsets, timeout))

    def commit_async(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Send a commit without retries, and return at once.

        *callback* is called with (error or None, offsets) by a later poll, or by close, in its thread. Without one a
        failure is logged.
        """

        def ended(
            problem: KafkaError | None, committed: Mapping[TopicPartition, OffsetAndMetadata]
        ) -> None:
            if callback is not None:
                self._committed.append(partial(callback, problem, committed))
            elif problem is not None:
                self._core.log.warn("commit_async: {problem}", problem=problem)

        self._call(lambda: self._core.commit_async(offsets, ended).addErrback(lambda _: None))

    def store_offsets(self, given: AnyRecord | Offsets) -> None:
        """Store the offset after a record, or offsets by partition: the next commits commit them, and nothing else.

        It needs enable.auto.offset.store=false. Both automatic commits and `commit` without offsets commit what is
        stored.
        """
        self._core.store_offsets(given)

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
            self._dropped.detach()
            self._polling(lambda: self._core.close(timeout, autocommit=autocommit, failed=failed))

    def metrics(self) -> dict[str, float]:
        """Return counters since the start, and the current assignment, lag and memory use."""
        return self._call(self._core.metrics)

    def close_at_exit(self) -> None:
        """Leave the group at the end of the process, if the coordinator answers quickly."""
        self.close(LEAVE_AT_EXIT)

    def forked(self) -> None:
        """Do nothing in the child of a fork: every call checks the process."""

    # --- inside

    def _run(self, call: Callable[[], Deferred[T]]) -> T:
        """Wait for *call*, which may depend on the positions: those of the iteration."""
        check_process(self._thread)
        return self._thread.run(lambda: self._given_back(call))

    def _call(self, call: Callable[[], T]) -> T:
        """Run a function that does not wait in the reactor's thread."""
        check_process(self._thread)
        return self._thread.call(lambda: self._given_back(call))

    def _given_back(self, call: Callable[[], T]) -> T:
        """Return the unyielded records of an iteration to their partitions, then *call*. In the reactor's thread."""
        if self._left_over:
            records, self._left_over = self._left_over, deque()
            self._core.polling.put_back(records)
        return call()

    def _records(
        self, call: Callable[[], Deferred[Found[ConsumedKey, ConsumedValue]]]
    ) -> Found[ConsumedKey, ConsumedValue]:
        return self._take(
            call, lambda found: self._core.polling.put_back(chain.from_iterable(found.values()))
        )

    def _take(self, call: Callable[[], Deferred[T]], undo: Callable[[T], None]) -> T:
        """Poll; the record that an iteration yielded last counts as processed.

        If Ctrl-C interrupts this thread when records have been taken, *undo* returns them for the next poll.
        """
        self._in_hand = None
        return self._polling(call, undo)

    def _polling(
        self, call: Callable[[], Deferred[T]], undo: Callable[[T], None] = lambda _: None
    ) -> T:
        """Run *call*; rebalance listeners run in this thread meanwhile, and callbacks of commits at the end."""
        check_process(self._thread)
        results: list[T] = []
        before = self._errands
        """A poll with a callback that makes this call."""

        def start(errands: CallerThread) -> Deferred[T]:
            self._errands = errands
            return self._given_back(call).addCallback(succeeded).addBoth(done)

        def succeeded(result: T) -> T:
            results.append(result)
            return result

        def done(result: Any) -> Any:
            self._errands = before
            return result

        def undo_all() -> None:
            for result in results:
                undo(result)

        try:
            found = self._thread.run_with_caller(start)
            self._run_commit_callbacks()
        except BaseException:
            self._thread.soon(undo_all)
            raise
        return found

    def _run_commit_callbacks(self) -> None:
        while self._committed:
            self._committed.popleft()()

    @property
    def polling_thread(self) -> CallerThread | None:
        """The thread that waits in poll or close, for callbacks."""
        return self._errands


async def _run_callback(
    consumer: weakref.ref[Consumer[Any, Any]], callback: Callable[[], Any]
) -> Any:
    """Run a listener's method in the polling thread of *consumer*, if one waits."""
    face = consumer()
    thread = None if face is None else face.polling_thread
    if thread is None:
        return callback()
    return await thread.run_in_caller(callback)


def _close_dropped(thread: ReactorThread, core: Core[Any, Any]) -> None:
    """Close a consumer that the program has lost: as a member it would keep partitions until max.poll.interval.ms."""
    if thread.pid == os.getpid():
        if group := core.config.group_id:
            core.log.warn("a consumer of group {group!r} was dropped without close()", group=group)
        thread.soon(lambda: core.close(LEAVE_AT_EXIT, failed=True).addErrback(lambda _: None))
