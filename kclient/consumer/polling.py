"""Polls: wait for records, take them from the partitions in turn, raise errors of background work.

One poll runs at a time. It first counts all records of earlier polls as processed, then calls the rebalance listener.
It raises an error once; only the error of a record that cannot be deserialized stays until a seek skips the record. A
cancelled poll returns nothing: the next one returns its records. A caller that is not resumed in the same turn of the
reactor, as asyncio's tasks are not, uses `until_ready` and then `take`. What it takes it has.

Invariants: 1. a poll returns a record if and only if it moves the position past it. 2. an error of one partition never
drops records of others: they are returned, and the next poll raises the error.
Owner: the reactor's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from kclient.consumer.arrow import take_places
from kclient.consumer.partitions import Batch, FetchedBatch, Partitions, PartitionState
from kclient.consumer.records import Deserializers, take_records
from kclient.consumer.subscription import GroupSubscription
from kclient.consumer.wakeup import Wakeup
from kclient.errors import ClientClosed, IllegalStateError, KafkaError
from kclient.net.cluster import Cluster
from kclient.net.waiting import deferring
from kclient.types import AnyRecord, OffsetAndMetadata, TopicPartition
from kclient.wire.record_places import RecordPlaces

T = TypeVar("T")

Found = dict[TopicPartition, list[RecordPlaces]]
"""Where the records of a poll for columns are."""

Only = Collection[TopicPartition]
"""Partitions to which a poll is limited; all if empty."""

SLICE_S = 1.0
"""Seconds of one poll of a call that waits for a record without limit: each poll may commit automatically."""


class Polling:
    """The polls of one consumer. An iteration takes up to *most* records at a time.

    *progress* is called after records were taken: it looks up positions and fetches.
    """

    def __init__(
        self,
        cluster: Cluster,
        partitions: Partitions,
        deserializers: Deserializers,
        subscription: GroupSubscription,
        *,
        wakeup: Wakeup,
        most: int,
        progress: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._deserializers = deserializers
        self._subscription = subscription
        self._unprocessed = subscription.commits.unprocessed
        self._wakeup = wakeup
        self._most = most
        self._progress = progress
        self._problems: dict[object, KafkaError] = {}
        self._running = False
        self._closed = False
        self.records_returned = 0
        self._taken_from: dict[TopicPartition, tuple[PartitionState, int]] = {}
        """Where the last poll took records, each with its epoch by then."""
        self.left_over: deque[AnyRecord] = deque()
        """Records of the last poll that an iteration has not yielded yet."""
        self._in_hand: AnyRecord | None = None

    def report(self, about: object, problem: KafkaError) -> None:
        """Raise *problem* in the next poll, once; it replaces an older one with the same subject."""
        self._problems[about] = problem
        self._wakeup.wake()

    def forget(self, tp: TopicPartition) -> None:
        """Drop records and errors of the old position of *tp*."""
        self._in_hand = None
        self._problems.pop(tp, None)
        self._unprocessed.pop(tp, None)
        self.keep_left_over(lambda other: other != tp)

    def close(self) -> None:
        """Let a waiting poll return without records."""
        self._closed = True
        self._wakeup.wake()

    # --- polls

    async def records(
        self, timeout: float, most: int, only: Only = ()
    ) -> dict[TopicPartition, list[AnyRecord]]:
        """Return up to *most* records, of *only* these partitions if there are any; wait for the first."""
        return await self._take_or_wait(lambda: self._take_records(most, only), timeout)

    async def batches(self, timeout: float) -> dict[TopicPartition, list[Batch]]:
        """Return whole batches, waiting up to *timeout* seconds for the first."""
        return await self._take_or_wait(self._take_batches, timeout)

    async def fetched_batches(self, timeout: float) -> dict[TopicPartition, list[FetchedBatch]]:
        """Return whole batches, the hidden ones too, waiting up to *timeout* seconds for the first."""
        return await self._take_or_wait(self._take_fetched, timeout)

    @deferring
    async def places(self, timeout: float, most: int) -> Found:
        """Return where up to *most* records are, undecoded, waiting up to *timeout* seconds for the first."""
        return await self._take_or_wait(lambda: self._take_places(most), timeout)

    @deferring
    async def until_ready(self, timeout: float, only: Only = ()) -> None:
        """Poll, without taking any record: wait up to *timeout* seconds until `take` has something to return."""
        await self._take_or_wait(lambda: self._any_ready(only), timeout)

    def take(self, most: int, only: Only = ()) -> dict[TopicPartition, list[AnyRecord]]:
        """Return buffered records, after `until_ready` has fired."""
        if self.closed:
            return {}
        found = self._take_records(most, only)
        self._progress()
        return found

    def take_batches(self) -> dict[TopicPartition, list[Batch]]:
        """Return buffered batches, after `until_ready` has fired."""
        found = self._take_batches()
        self._progress()
        return found

    def take_fetched_batches(self) -> dict[TopicPartition, list[FetchedBatch]]:
        """Return buffered batches, the hidden ones too, after `until_ready` has fired."""
        found = self._take_fetched()
        self._progress()
        return found

    def check(self, only: Only) -> None:
        """Raise an error if one of *only* is not assigned: a wait for its records would have no end."""
        for tp in only:
            if tp not in self._partitions and not self._closed:
                raise IllegalStateError(f"partition {tp} is not assigned to this consumer")

    def take_places(self, most: int) -> Found:
        """Return where buffered records are, after `until_ready` has fired."""
        found = self._take_places(most)
        self._progress()
        return found

    def check_bytes(self, call: str) -> None:
        """Raise an error for a *call* that returns bytes if this consumer has a deserializer."""
        if self._deserializers.key is not None or self._deserializers.value is not None:
            raise IllegalStateError(
                f"{call}() returns keys and values as bytes, and this consumer has a deserializer",
                hint="create the consumer without key_deserializer and value_deserializer",
            )

    async def one(self, only: Only = ()) -> AnyRecord:
        """Return the next record, of *only* these partitions if there are any; wait for it."""
        while (record := self.next_record(only)) is None:
            self.check(only)
            await self.until_ready(SLICE_S, only)
            self.take_to_iterate(only)
        return record

    async def _take_or_wait(self, take: Callable[[], T], timeout: float) -> T:
        if self.closed:
            raise ClientClosed("the consumer is closed")
        if self._running:
            raise IllegalStateError("another poll of this consumer is still waiting; one at a time")
        self._running = True
        try:
            give_up_at = self._cluster.reactor.seconds() + timeout
            self.put_back_left_over()
            self._unprocessed.clear()
            self._taken_from.clear()
            await self._cluster.start()
            self._subscription.poll_begins()
            commits = self._subscription.commits
            while True:
                commits.maybe_commit()
                await self._subscription.run_callbacks()
                self._raise_problem()
                found = take()
                self._progress()
                left = give_up_at - self._cluster.reactor.seconds()
                if found or left <= 0 or self.closed:
                    return found
                await self._wakeup.wait(min(left, commits.next_automatic_in()))
        finally:
            self._running = False
            self._subscription.poll_ended()

    @property
    def closed(self) -> bool:
        """Whether the consumer is closed."""
        return self._closed

    def _raise_problem(self) -> None:
        while self._problems:
            about = next(iter(self._problems))
            problem = self._problems.pop(about)
            if not isinstance(about, TopicPartition) or about in self._partitions:
                raise problem

    def _any_ready(self, only: Only) -> bool:
        return any(not only or state.tp in only for state in self._ready())

    def _ready(self) -> Iterator[PartitionState]:
        return iter(()) if self.closed else self._partitions.ready()

    def _take_records(self, most: int, only: Only) -> dict[TopicPartition, list[AnyRecord]]:
        found: dict[TopicPartition, list[AnyRecord]] = {}
        for state in self._ready():
            if most <= 0:
                break
            if only and state.tp not in only:
                continue
            try:
                records = take_records(state, most, self._deserializers)
            except KafkaError:
                if not found:
                    raise
                break  # Records of other partitions are returned first; the next poll raises this error.
            if records:
                found[state.tp] = records
                self._unprocessed[state.tp] = records[0].offset
                self._taken_from[state.tp] = state, state.epoch
                self.records_returned += len(records)
                most -= len(records)
                self._partitions.served(state.tp)
        return found

    def _take_batches(self) -> dict[TopicPartition, list[Batch]]:
        fetched = self._take_fetched(lambda batch: not batch.hidden or batch.info.is_control)
        return {tp: [batch[:2] for batch in of_tp] for tp, of_tp in fetched.items()}

    def _take_fetched(
        self, wanted: Callable[[FetchedBatch], bool] = lambda _: True
    ) -> dict[TopicPartition, list[FetchedBatch]]:
        found: dict[TopicPartition, list[FetchedBatch]] = {}
        for state in self._ready():
            position = state.position
            assert position is not None, "a partition without a position is not ready"
            if state.decoded or state.problem is not None:
                # A batch that a poll for records returned in part is returned again, whole.
                state.fetch_again()
                continue
            batches = []
            while (batch := state.take()) is not None:
                state.position = batch.info.next_offset
                if wanted(batch):
                    batches.append(batch)
            if batches:
                found[state.tp] = batches
                self._unprocessed[state.tp] = position
        return found

    def _take_places(self, most: int) -> Found:
        found: Found = {}
        for state in self._ready():
            if most <= 0:
                break
            try:
                places = take_places(state, most)
            except KafkaError:
                if not found:
                    raise
                break  # as of _take_records
            if places:
                found[state.tp] = places
                self._unprocessed[state.tp] = places[0].offsets[0]
                taken = sum(map(len, places))
                self.records_returned += taken
                most -= taken
                self._partitions.served(state.tp)
        return found

    # --- iteration

    def take_to_iterate(self, only: Only = ()) -> None:
        """Take the records that `next_record` yields: one, if they are of *only* some partitions."""
        for records in self.take(1 if only else self._most, only).values():
            self.left_over.extend(records)

    def next_record(self, only: Only = ()) -> AnyRecord | None:
        """Return the next record to yield, None if a poll must find some; the one before counts as processed."""
        left_over = self.left_over
        if only and left_over and left_over[0].topic_partition not in only:
            return None
        done, self._in_hand = self._in_hand, None
        if done is not None and done.topic_partition in self._unprocessed:
            self._unprocessed[done.topic_partition] = done.offset + 1
        if left_over:
            self._in_hand = left_over.popleft()
        return self._in_hand

    def put_back(self, records: Iterable[AnyRecord]) -> None:
        """Return records of the last poll, the last of each partition, for the next poll.

        Those of a partition that has another position or another owner by now are dropped.
        """
        by_partition: dict[TopicPartition, list[AnyRecord]] = {}
        for record in records:
            by_partition.setdefault(record.topic_partition, []).append(record)
        for tp, rest in by_partition.items():
            state, epoch = self._taken_from.get(tp, (None, 0))
            if state is not None and self._partitions.current(state, epoch):
                state.put_back(rest)
                self.records_returned -= len(rest)

    def rewind(self, tps: Iterable[TopicPartition]) -> None:
        """Set the positions of *tps* to where the last poll took its first record or batch."""
        for tp in tps:
            state, first = self._partitions.get(tp), self._unprocessed.get(tp)
            if state is not None and first is not None:
                state.seek(first)
        self._progress()

    def put_back_left_over(self) -> None:
        """Return what an iteration has not yielded; the record that it yielded last counts as processed."""
        self._in_hand = None
        self.put_back(self.left_over)
        self.left_over.clear()

    def keep_left_over(self, kept: Callable[[TopicPartition], bool]) -> None:
        """Drop the unyielded records of partitions for which kept() is False."""
        records = [record for record in self.left_over if kept(record.topic_partition)]
        self.left_over.clear()
        self.left_over.extend(records)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions after all returned records; during an iteration, after the yielded ones."""
        commits = self._subscription.commits
        self.count_yielded()
        return commits.positions(processed=bool(self.left_over))

    def count_yielded(self) -> None:
        """Count the records that an iteration has yielded as processed, and no others."""
        if self.left_over:
            self._unprocessed.clear()
            for record in reversed(self.left_over):
                self._unprocessed[record.topic_partition] = record.offset
