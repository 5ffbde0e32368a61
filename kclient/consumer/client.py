"""The consumer: assignment by hand or by group, poll, seek, commit. Its methods return Deferreds.

Theory of operation
===================
The assignment comes from `assign`, or from the group after `subscribe` (subscription.py, membership.py). Positions
come from `seek`, else from the group's committed offsets, else from auto.offset.reset (positions.py). The `Fetcher`
prefetches; `poll` returns buffered records and waits only if there are none. One poll runs at a time. Poll also calls
the rebalance listener and raises errors of background work.

Auto-commit works as in Kafka: a poll commits the records that earlier polls returned, so a crash repeats records and
never loses them. `close` commits all returned records. Leaving ``async with`` by an error commits only up to the last
poll, because the processing of its records is uncertain. Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Never, Self

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kclient.arguments import (
    Config,
    Names,
    at_most,
    consumer_arguments,
    names_in,
    partitions_in,
    poll_timeout,
    position_in,
)
from kclient.config import ConsumerConfig
from kclient.consumer import arrow
from kclient.consumer.fetcher import Fetcher
from kclient.consumer.lookup import OffsetLookup
from kclient.consumer.missing import MissingPartitions
from kclient.consumer.partitions import Batch, FetchedBatch, Partitions, PartitionState
from kclient.consumer.polling import Polling
from kclient.consumer.positions import Positions
from kclient.consumer.records import Deserializers
from kclient.consumer.subscription import (
    CallbackRunner,
    GroupSubscription,
    RebalanceCallback,
    RebalanceListener,
    listener_of,
    run_here,
)
from kclient.consumer.wakeup import Wakeup
from kclient.errors import ClientClosed, IllegalStateError, KafkaTimeoutError
from kclient.net.cluster import Cluster
from kclient.net.group_offsets import Generation, Offsets, offsets_to_commit
from kclient.net.metadata import ClusterMetadata
from kclient.net.offsets import EARLIEST, LATEST
from kclient.net.waiting import deferring, within
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
from kclient.wire.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow

__all__ = ["CallbackRunner", "Consumer", "RebalanceCallback", "RebalanceListener"]

CommitCallback = Callable[[KafkaError | None, Mapping[TopicPartition, OffsetAndMetadata]], Any]
"""Called with the error of a commit, None if there is none, and the offsets."""


class Consumer(Generic[ConsumedKey, ConsumedValue]):
    """Consumes records from one cluster, on the reactor's thread; `kclient.blocking` is for programs with threads.

        consumer = Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}, ["orders"])
        records = await consumer.poll(timeout=1)

    Settings are those of `ConsumerConfig`; ``Consumer("orders", bootstrap_servers="localhost:9092", group_id="g")`` is
    the same consumer. *key_deserializer* and *value_deserializer* convert bytes to objects, and are the source of the
    types of keys and values: ``Consumer[str, dict]``. Without one they are bytes.
    *callback_runner* runs a listener's methods: by default on this thread; the blocking API runs them in the caller's.
    """

    log = Logger()

    def __init__(
        self,
        *config_and_topics: Config | Names,
        config: Config | None = None,
        reactor: Any = None,
        key_deserializer: Callable[[bytes], ConsumedKey] | None = None,
        value_deserializer: Callable[[bytes], ConsumedValue] | None = None,
        callback_runner: CallbackRunner = run_here,
        **keywords: Any,
    ) -> None:
        if reactor is None:
            from twisted.internet import reactor
        config, topics = consumer_arguments(config_and_topics, config)
        self.config = ConsumerConfig.load(config, **keywords)
        self.cluster = Cluster(
            reactor,
            self.config,
            allow_auto_topic_creation=self.config.allow_auto_create_topics,
        )
        self._partitions = Partitions()
        self._lookup = OffsetLookup(self.cluster, self.config)
        ours = (self.cluster, self.config, self._partitions)
        wakeup = Wakeup(reactor)
        self._subscription = GroupSubscription(
            *ours,
            callback_runner=callback_runner,
            wake=wakeup.wake,
            report=lambda about, problem: self.polling.report(about, problem),
        )
        self._commits = self._subscription.commits
        self.polling = Polling(
            self.cluster,
            self._partitions,
            Deserializers(key_deserializer, value_deserializer),
            self._subscription,
            wakeup=wakeup,
            most=self.config.max_poll_records,
            progress=self._progress,
        )
        report = self.polling.report
        self._finder = Positions(*ours, found=self._positions_found, report=report)
        self._fetcher = Fetcher(
            *ours, arrived=wakeup.wake, out_of_range=self._out_of_range, report=report
        )
        self._missing = MissingPartitions()
        self._wake = wakeup.wake
        self._closed = False
        self.cluster.on_change(self._metadata_changed)
        if topics:
            self.subscribe(topics)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: object, *exc: object) -> None:
        await self.close(failed=kind is not None)

    async def __aiter__(self) -> AsyncIterator[Record[ConsumedKey, ConsumedValue]]:
        """Iterate over records forever.

        A record that was not yielded is not committed; the next iteration yields it.
        """
        while not self._closed:
            try:
                record = await self.polling.one()
            except ClientClosed:
                return
            yield record

    # --- assignment

    @deferring
    async def start(self) -> Self:
        """Connect and fetch metadata; raise `BootstrapError` with each address and its cause if that fails."""
        self._check_open()
        await self.cluster.start()
        return self

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
        """Consume *topics*, or all topics that match *pattern* (a regular expression), as a member of the group.

        *listener* is called inside poll when partitions are assigned, revoked or lost. *on_assign*, *on_revoke* and
        *on_lost* may replace it: functions of (consumer, partitions). Raise KafkaError without a group.id.
        """
        listener = listener_of(self, listener, on_assign, on_revoke, on_lost)
        self._check_open()
        self._need_group("subscribe", "use assign to consume without a group")
        if self._subscription.member is None and len(self._partitions):
            raise IllegalStateError(
                "this consumer has assigned partitions; unsubscribe before subscribing"
            )
        wanted = names_in(topics, 'subscribe(["orders"])')
        if wanted and pattern is not None:
            raise TypeError("subscribe: give either topics or a pattern")
        self._subscription.subscribe(wanted, pattern, listener)

    def assign(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Consume exactly *partitions*, without group assignment.

        A partition in *offsets* has that position from the start: no lookup, and one fetch for all of them.
        """
        self._check_open()
        offsets = {tp: position_in(at, "assign") for tp, at in (offsets or {}).items()}
        if self._subscription.member is not None:
            raise IllegalStateError(
                "this consumer has a subscription; unsubscribe before assigning"
            )
        wanted = partitions_in(partitions, "assign")
        self._partitions.assign(wanted)
        for tp, offset in offsets.items():
            self._state(tp).seek(offset)
            self.polling.forget(tp)
        self.polling.keep_left_over(lambda tp: tp in self._partitions)
        self.cluster.want_only({tp.topic for tp in wanted})
        self._finder.changed()
        self._progress()

    @deferring
    async def unsubscribe(self) -> None:
        """Revoke all partitions (with a commit if auto-commit is on) and leave the group."""
        self.polling.put_back_left_over()
        await self._subscription.end("unsubscribed", timeout=self._time(None), commit=True)
        self._finder.changed()

    def subscription(self) -> set[str]:
        """Return the topics of the subscription; for a pattern those that match in the known metadata."""
        return self._subscription.topics()

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return self._partitions.assigned()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the consumer's identity in its group (KIP-447); raise KafkaError without a group.id."""
        self._need_group("group_metadata")
        member = self._subscription.member
        identity = Generation() if member is None else member.identity
        return ConsumerGroupMetadata(
            self.config.group_id,
            identity.generation_id,
            identity.member_id,
            identity.group_instance_id,
        )

    # --- consuming

    @deferring
    async def poll(
        self,
        *given: Never,
        timeout: float | None = None,
        timeout_ms: float | None = None,
        max_records: int | None = None,
    ) -> dict[TopicPartition, list[Record[ConsumedKey, ConsumedValue]]]:
        """Return records by partition; wait up to *timeout* seconds if none is buffered, by default not at all.

        *timeout_ms* is the name and the unit of kafka-python. A positional timeout raises TypeError. *max_records* is
        by default max.poll.records. Raise errors of background work once. A record that cannot be deserialized raises
        RecordDeserializationError in every poll, until `seek` skips it.
        """
        most = at_most(max_records, self.config.max_poll_records)
        return await self.polling.records(poll_timeout(given, timeout, timeout_ms), most)

    @deferring
    async def getmany(
        self,
        *partitions: TopicPartition,
        timeout: float | None = None,
        timeout_ms: float | None = None,
        max_records: int | None = None,
    ) -> dict[TopicPartition, list[Record[ConsumedKey, ConsumedValue]]]:
        """Return records as `poll` does, of *partitions* only if there are any, as aiokafka does."""
        only = self.assigned_of(partitions, "getmany")
        most = at_most(max_records, self.config.max_poll_records)
        return await self.polling.records(poll_timeout((), timeout, timeout_ms), most, only)

    @deferring
    async def getone(self, *partitions: TopicPartition) -> Record[ConsumedKey, ConsumedValue]:
        """Return the next record, of *partitions* only if there are any; wait for it.

        A cancelled call takes no record. The previous record counts as processed.
        """
        return await self.polling.one(partitions_in(partitions, "getone"))

    @deferring
    async def poll_batches(
        self, *given: Never, timeout: float | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, list[Batch]]:
        """Return whole record batches, encoded, as (header, buffer that its position points into).

        The first batch of a partition may begin below the position, because a batch cannot be cut. Control batches are
        included (`is_control`); with read_committed, batches of aborted transactions are not.

        The timeout is as of `poll`.
        """
        return await self.polling.batches(poll_timeout(given, timeout, timeout_ms))

    @deferring
    async def poll_fetched_batches(
        self, *given: Never, timeout: float | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, list[FetchedBatch]]:
        """Return whole record batches as `poll_batches` does, with those that records are never returned of.

        They are marked (`FetchedBatch.hidden`): control batches, and with read_committed batches of aborted
        transactions. The timeout is as of `poll`.
        """
        return await self.polling.fetched_batches(poll_timeout(given, timeout, timeout_ms))

    @deferring
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
        self.polling.check_bytes("poll_arrow")
        most = at_most(max_records, arrow.MOST_RECORDS)
        return arrow.table(
            await self.polling.places(poll_timeout(given, timeout, timeout_ms), most)
        )

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of *partitions* until `resume`."""
        self.polling.put_back_left_over()
        for tp in partitions:
            self._state(tp).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of *partitions* again."""
        for tp in partitions:
            self._state(tp).paused = False
        self._progress()
        self._wake()

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return {state.tp for state in self._partitions if state.paused}

    # --- positions

    def seek(self, tp: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Set the position of *tp*: the next poll returns the record at *offset*.

        An `OffsetAndMetadata` with a leader epoch is validated before it is used (KIP-320), as a committed offset is.
        """
        chosen = position_in(offset, "seek")
        epoch = offset.leader_epoch if isinstance(offset, OffsetAndMetadata) else None
        self._state(tp).seek(chosen, -1 if epoch is None else epoch)
        self.polling.forget(tp)
        self._finder.changed()
        self._progress()

    @deferring
    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Set the position of *partitions* (default: all assigned ones) to the log start offset."""
        await self._seek_to(EARLIEST, partitions)

    @deferring
    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Set the position of *partitions* (default: all assigned ones) to the log end."""
        await self._seek_to(LATEST, partitions)

    @deferring
    async def seek_to_committed(
        self, *partitions: TopicPartition, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Set the position of *partitions* (default: all assigned ones) to the committed offset, and return it.

        A partition without a committed offset keeps its position; its result is None.
        """
        chosen = self.assigned_of(partitions or sorted(self.assignment()), "seek_to_committed")
        found = {}
        for tp, at in (await self.committed(chosen, timeout)).items():
            found[tp] = None if at is None else at.offset
            if at is not None:
                self.seek(tp, at)
        return found

    @deferring
    async def seek_to_timestamp(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Set positions to the first record at or after *timestamp_ms*, or to the log end if there is none."""
        await self._seek_to(timestamp_ms, partitions)

    @deferring
    async def position(self, tp: TopicPartition, timeout: float | None = None) -> int:
        """Return the offset of the next record of *tp*; look it up if necessary, within *timeout* seconds."""
        self._check_open()
        self.polling.put_back_left_over()
        state = self._state(tp)
        if state.position is not None:
            return state.position
        return await within(
            self.cluster.reactor,
            self._finder.of(state),
            self._time(timeout),
            lambda: KafkaTimeoutError(f"the position of {tp} was not found within the timeout"),
        )

    def next_offset(self, tp: TopicPartition) -> int | None:
        """Return the offset of the next record of *tp*, None if unknown."""
        return self._state(tp).position

    def highwater(self, tp: TopicPartition) -> int | None:
        """Return the high watermark of *tp* in the last fetch response, None before the first."""
        return self._state(tp).high_watermark

    def last_stable_offset(self, tp: TopicPartition) -> int | None:
        """Return the last stable offset of *tp* in the last fetch response, None before the first (KIP-98)."""
        return self._state(tp).last_stable_offset

    def lag(self, tp: TopicPartition) -> int | None:
        """Return the number of records of *tp* from the position to the end; None before the first fetch.

        The end is the high watermark, with isolation.level=read_committed the last stable offset.
        """
        return self._state(tp).lag(read_committed=self.config.read_committed)

    @deferring
    async def beginning_offsets(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each of *partitions*."""
        self._check_open()
        return await self._lookup.edge(
            partitions_in(partitions, "beginning_offsets"), EARLIEST, self._time(timeout)
        )

    @deferring
    async def end_offsets(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Return the high watermark (read_committed: the last stable offset) of each of *partitions*."""
        self._check_open()
        return await self._lookup.edge(
            partitions_in(partitions, "end_offsets"), LATEST, self._time(timeout)
        )

    @deferring
    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offset at or after each time, None if no record is that recent."""
        self._check_open()
        if not isinstance(timestamps_ms, Mapping):
            raise TypeError('expected offsets_for_times({TopicPartition("orders", 0): timestamp})')
        answers = await self._lookup.at(timestamps_ms, self._time(timeout))
        return {tp: found if found.offset >= 0 else None for tp, found in answers.items()}

    @deferring
    async def partitions_for_topic(self, topic: str, timeout: float | None = None) -> list[int]:
        """Return the partitions of *topic*."""
        self._check_open()
        return await self.cluster.partitions(topic, timeout=self._time(timeout))

    # --- commits

    @deferring
    async def commit(self, offsets: Offsets | None = None, timeout: float | None = None) -> None:
        """Commit *offsets*, or the positions of all partitions, and wait for the response.

        RebalanceInProgress, IllegalGeneration or UnknownMemberId: the group rebalanced without this consumer, nothing
        was committed, and another member may receive the records.
        """
        self._need_group("commit")
        chosen = self._positions() if offsets is None else offsets_to_commit(offsets)
        await self._commits.commit(chosen, timeout=self._time(timeout))

    def commit_async(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None
    ) -> Deferred[None]:
        """Send a commit without retries; the Deferred fires with the result.

        *callback* is called with (error or None, offsets) first. There is no retry, because a repeated commit could
        overwrite a later one.
        """
        self._need_group("commit_async")
        chosen = self._positions() if offsets is None else offsets_to_commit(offsets)
        committed = self._commits.commit(chosen, timeout=self._time(None), retries=0)
        if callback is None:
            return committed
        notify = callback

        def ended(result: Any) -> Any:
            notify(getattr(result, "value", None), chosen)
            return result

        return committed.addBoth(ended)

    def store_offsets(self, given: AnyRecord | Offsets) -> None:
        """Store the offset after a record, or offsets by partition: the next commits commit them, and nothing else.

        It needs enable.auto.offset.store=false. Both automatic commits and `commit` without offsets commit what is
        stored. May be called in any thread.
        """
        if self.config.enable_auto_offset_store:
            raise IllegalStateError(
                "store_offsets() needs the setting enable.auto.offset.store=false",
                hint="with true, a commit covers all records that poll has returned",
            )
        if isinstance(given, Record):
            after = OffsetAndMetadata(given.offset + 1, "", given.leader_epoch)
            self._state(given.topic_partition).stored = after
            return
        chosen = offsets_to_commit(given)
        states = {tp: self._state(tp) for tp in chosen}
        for tp, state in states.items():
            state.stored = chosen[tp]

    @deferring
    async def committed(
        self,
        partitions: TopicPartition | Iterable[TopicPartition],
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset for each of *partitions*, None without a commit."""
        self._need_group("committed")
        return await self._commits.committed(
            partitions_in(partitions, "committed"), timeout=self._time(timeout)
        )

    @deferring
    async def close(
        self, timeout: float = 10.0, *, autocommit: bool = True, failed: bool = False
    ) -> None:
        """Commit (if auto-commit is on), leave the group and close, within *timeout* seconds.

        *failed*: the caller's processing failed, so only records before the last poll are committed.
        """
        await self._close(timeout, commit=autocommit, processed=failed)

    def metrics(self) -> dict[str, float]:
        """Return counters since the start, and the current assignment, lag and memory use."""
        lags = [self.lag(tp) for tp in self.assignment()]
        return {
            "records_consumed": self.polling.records_returned,
            "records_lag_max": max((lag for lag in lags if lag is not None), default=0),
            "bytes_fetched": self._fetcher.bytes_fetched,
            "bytes_buffered": self._partitions.buffered_bytes,
            "assigned_partitions": len(self._partitions),
            "commits": self._commits.succeeded,
            "rebalances": self._subscription.rebalances,
            **self.cluster.brokers.metrics(),
        }

    def assigned_of(
        self, partitions: Iterable[TopicPartition], call: str
    ) -> tuple[TopicPartition, ...]:
        """Return *partitions*; raise an error if one is not assigned to this consumer."""
        chosen = tuple(partitions_in(partitions, call))
        for tp in chosen:
            self._state(tp)
        return chosen

    def _progress(self) -> None:
        """Look up missing positions and send fetches."""
        if not self._closed:
            self._finder.find()
            self._fetcher.send_fetches()

    def _positions_found(self) -> None:
        self._fetcher.send_fetches()
        self._wake()

    def _metadata_changed(self, metadata: ClusterMetadata) -> None:
        self._subscription.metadata_changed(metadata)
        if self._subscription.member is None:
            self._missing.metadata_changed(metadata, self._partitions.assigned())
        self._fetcher.send_fetches()

    def _out_of_range(self, state: PartitionState, problem: KafkaError) -> None:
        self.log.warn("{problem}; resetting by auto.offset.reset", problem=problem)
        state.forget()
        state.reset_because = str(problem)
        self._finder.find()

    async def _close(self, timeout: float, *, commit: bool, processed: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        self._fetcher.close()
        self._finder.close()
        self.polling.close()
        if not processed:
            self.polling.put_back_left_over()
        self.polling.left_over.clear()
        reactor = self.cluster.reactor
        try:
            await self._subscription.end(
                "the consumer was closed", timeout=timeout, commit=commit, processed=processed
            )
        except KafkaError as problem:
            self.log.info("closing: {problem}", problem=problem)
        finally:
            await within(
                reactor,
                self.cluster.close(),
                max(1.0, timeout),
                lambda: KafkaTimeoutError("connections did not close within the timeout"),
            )

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.polling.positions()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer is closed")

    def _state(self, tp: TopicPartition) -> PartitionState:
        state = self._partitions.get(tp)
        if state is None:
            raise IllegalStateError(
                f"partition {TopicPartition(*tp)} is not assigned to this consumer"
            )
        return state

    def _time(self, timeout: float | None) -> float:
        return self.config.default_api_timeout_ms / 1000 if timeout is None else timeout

    def _need_group(self, what: str, otherwise: str = "") -> None:
        if not self.config.group_id:
            raise IllegalStateError(
                f"{what} needs a group.id" + (f"; {otherwise}" if otherwise else "")
            )

    async def _seek_to(self, timestamp: int, partitions: Iterable[TopicPartition]) -> None:
        chosen = list(partitions) or sorted(self.assignment())
        for tp in chosen:
            self._state(tp)
        offsets = await self._lookup.at_or_end(chosen, timestamp, self._time(None))
        for tp in chosen:
            self.seek(tp, offsets[tp])
