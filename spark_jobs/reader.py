"""Reads ranges of offsets in a Spark task: whole batches, CRCs checked, no record skipped.

A task reads all its ranges with one consumer, which fetches many partitions in one request. The next task of the same
Python worker uses it again. So 2,000 partitions with one record cost a few requests, not 2,000 connections.

Memory: the consumer buffers at most `FETCH_BYTES` and one response in flight per broker, whatever the records.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from kclient.errors import NoCommittedOffset
from kclient.types import TopicPartition
from kclient.wire.batches import BatchInfo, check_crc
from kclient.wire.errors import CorruptMessage, InvalidRecord, KafkaError
from spark_jobs.cut import OffsetRange
from spark_jobs.engine import FailureKind

if TYPE_CHECKING:
    from kclient import Consumer
    from kclient.consumer.partitions import FetchedBatch

FETCH_BYTES = 16 << 20
PARTITION_FETCH_BYTES = 4 << 20

READ_COMMITTED = ("isolation.level", "read_committed")
"""The setting of a `Connection`."""

LOOK_S = 5.0
"""Seconds in which the batch behind a range must arrive, if nothing arrives of the range itself."""

STALL_S = 60.0
"""Seconds without a batch after which a range counts as unreadable, so that no job hangs."""


class RangeUnreadable(Exception):
    """Offsets could not be read; the text names topic, partition, offset and cause."""


class Fetched(NamedTuple):
    """A batch that overlaps a range; its offsets [low, high) belong to the range."""

    number: int
    """The index of the range in the caller's list. A batch that overlaps two ranges comes twice."""
    low: int
    high: int
    info: BatchInfo
    data: memoryview
    is_aborted: bool = False
    """Whether the Fetch response names its transaction as aborted: consumers with read_committed skip the batch."""


class Connection(NamedTuple):
    """A cluster, and the client's settings beside those of this module.

    With `READ_COMMITTED` the ranges end at the last stable offset. Batches of aborted transactions are then left out,
    or marked if *keeps_aborted*.
    """

    bootstrap: str
    settings: tuple[tuple[str, str], ...] = ()
    stall_s: float = STALL_S
    keeps_aborted: bool = False

    @property
    def read_committed(self) -> bool:
        """Whether consumers with this level of isolation would read it."""
        return READ_COMMITTED in self.settings


_consumers: dict[Connection, Consumer] = {}
"""The consumer of this process for each cluster, while no task uses it."""


class Unread(NamedTuple):
    """Offsets [low, high) of one range that could not be read; the rest of the range follows."""

    number: int
    low: int
    high: int
    kind: FailureKind
    cause: str


def fetch_ranges(
    cluster: str | Connection, ranges: Sequence[OffsetRange]
) -> Iterator[Fetched | Unread]:
    """Yield the batches that overlap *ranges*, of each partition in order, and what could not be read.

    An error of one partition does not end the others. If no batch arrives for `STALL_S` (or the connection's
    `stall_s`), all that is left is unread. *cluster*: a connection, or only the bootstrap servers.
    """
    connection = cluster if isinstance(cluster, Connection) else Connection(cluster)
    left = RangesLeft(ranges)
    while left.partitions:
        try:
            yield from _read(connection, left)
        except _Stalled as problem:
            with suppress(KafkaError):  # The cause is that nothing came.
                if connection.read_committed and _pass_holes(connection, left):
                    continue
            yield from left.give_up(list(left.partitions), FailureKind.UNREADABLE, str(problem))
        except KafkaError as problem:
            failed = left.named_in(str(problem))
            if len(failed) == 1 and isinstance(problem, NoCommittedOffset):
                yield from _out_of_range(connection, left, failed[0], problem)
                continue
            undecodable = isinstance(problem, CorruptMessage | InvalidRecord)
            kind = FailureKind.UNDECODABLE if undecodable else FailureKind.UNREADABLE
            # An error without a partition is one of the cluster.
            yield from left.give_up(failed or list(left.partitions), kind, str(problem))


def _out_of_range(
    connection: Connection, left: RangesLeft, tp: TopicPartition, problem: KafkaError
) -> Iterator[Unread]:
    """Skip what was deleted; give the partition up if its log ends before the position, or its start is not known."""
    try:
        with _consumer(connection) as consumer:
            start = consumer.beginning_offsets([tp])[tp]
    except KafkaError as other:
        yield from left.give_up([tp], FailureKind.UNREADABLE, str(other))
        return
    if start > left.next_offset(tp):
        yield from left.skip(tp, start, FailureKind.DELETED, f"{tp}: the log starts at {start}")
    else:
        yield from left.give_up([tp], FailureKind.UNREADABLE, str(problem))


def _pass_holes(connection: Connection, left: RangesLeft) -> bool:
    """Pass ranges of which the rest has no batch; return whether there are any.

    Below the last stable offset compaction may have removed all batches up to it. Fetches with read_committed then
    return nothing; without it they return the batch behind.
    """
    passed = False
    others = tuple(each for each in connection.settings if each != READ_COMMITTED)
    with _consumer(Connection(connection.bootstrap, others)) as consumer:
        positions = {tp: left.next_offset(tp) for tp in left.partitions}
        consumer.assign(positions, positions)
        deadline = time.monotonic() + LOOK_S
        while positions and time.monotonic() < deadline:
            for tp, batches in consumer.poll_batches(timeout_ms=500).items():
                following = next((i for i, _ in batches if i.next_offset > positions[tp]), None)
                if following is None:
                    continue
                end = left.end(tp)
                if following.base_offset >= end:
                    left.pass_to(tp, end)
                    left.ended(tp)
                    passed = True
                del positions[tp]
                consumer.assign(positions)
                break
    return passed


def _read(connection: Connection, left: RangesLeft) -> Iterator[Fetched | Unread]:
    if not left.partitions:
        return
    with _consumer(connection) as consumer:
        first_offsets = {tp: left.next_offset(tp) for tp in left.partitions}
        consumer.assign(first_offsets, first_offsets)
        while left.partitions:
            ended = False
            for tp, batches in _next_batches(consumer, left, connection.stall_s).items():
                if tp not in left.partitions:
                    continue
                for info, data, hidden in batches:
                    is_aborted = hidden and not info.is_control
                    if is_aborted and not connection.keeps_aborted:
                        left.pass_to(tp, info.next_offset)
                    else:
                        yield from left.accept(tp, info, data, is_aborted=is_aborted)
                if left.ended(tp):
                    ended = True
                elif left.next_offset(tp) > batches[-1].info.next_offset:
                    consumer.seek(tp, left.next_offset(tp))
            if ended:
                consumer.assign(left.partitions)


class _Stalled(Exception):
    """No batch arrived for the connection's `stall_s`."""


class RangesLeft:
    """The ranges that a task has not read to their end."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self._ranges = ranges
        self.partitions: dict[TopicPartition, deque[int]] = {}
        """The numbers of the ranges of each partition, in order of their offsets."""
        self._positions: dict[TopicPartition, int] = {}
        for number in sorted(range(len(ranges)), key=ranges.__getitem__):
            topic, partition, low, high = ranges[number]
            if high > low:
                self.partitions.setdefault(TopicPartition(topic, partition), deque()).append(number)

    def next_offset(self, tp: TopicPartition) -> int:
        """Return the next offset to read."""
        return max(self._ranges[self.partitions[tp][0]].low, self._positions.get(tp, 0))

    def accept(
        self, tp: TopicPartition, info: BatchInfo, data: memoryview, *, is_aborted: bool = False
    ) -> Iterator[Fetched | Unread]:
        """Yield the batch once for each range that it overlaps, if its CRC is right."""
        wrong: CorruptMessage | None = None
        try:
            check_crc(data, info)
        except CorruptMessage as problem:
            wrong = problem
        for number, low, high in self._passed(tp, info.base_offset, info.next_offset):
            if wrong is not None:
                cause = f"{tp}, batch at offset {info.base_offset}: {wrong}"
                yield Unread(number, low, high, FailureKind.UNDECODABLE, cause)
            else:
                yield Fetched(number, low, high, info, data, is_aborted)

    def end(self, tp: TopicPartition) -> int:
        """Return the end of the last range of *tp*."""
        return self._ranges[self.partitions[tp][-1]].high

    def pass_to(self, tp: TopicPartition, offset: int) -> None:
        """Pass the offsets of *tp* below *offset*, without yielding anything."""
        self._passed(tp, 0, offset)

    def skip(self, tp: TopicPartition, to: int, kind: FailureKind, cause: str) -> Iterator[Unread]:
        """Yield what is left of *tp* below *to* as unread."""
        for number, low, high in self._passed(tp, self.next_offset(tp), to):
            yield Unread(number, low, high, kind, cause)
        self.ended(tp)

    def give_up(
        self, failed: Sequence[TopicPartition], kind: FailureKind, cause: str
    ) -> Iterator[Unread]:
        """Yield all that is left of the *failed* partitions as unread."""
        for tp in failed:
            named = cause if tp in self.named_in(cause) else f"{tp}: {cause}"
            yield from self.skip(tp, self.end(tp), kind, named)

    def ended(self, tp: TopicPartition) -> bool:
        """Return whether *tp* is read; drop it if so."""
        if self.partitions[tp]:
            return False
        del self.partitions[tp]
        return True

    def named_in(self, text: str) -> list[TopicPartition]:
        """Return the partitions that an error names."""
        words = set(re.split(r"[\s,:;()\[\]'\"]+", text))
        return [tp for tp in self.partitions if str(tp) in words]

    def _passed(self, tp: TopicPartition, start: int, end: int) -> list[tuple[int, int, int]]:
        """Move *tp* to *end*; return the part of each range between *start*, or its position, and *end*."""
        passed = []
        numbers = self.partitions[tp]
        start = max(start, self._positions.get(tp, 0))
        self._positions[tp] = max(end, start)
        while numbers and self._ranges[numbers[0]].low < end:
            _, _, low, high = self._ranges[numbers[0]]
            if high > start:
                passed.append((numbers[0], max(low, start), min(high, end)))
            if high > end:
                break
            numbers.popleft()
        return passed


def _next_batches(
    consumer: Consumer, left: RangesLeft, stall_s: float
) -> Mapping[TopicPartition, Sequence[FetchedBatch]]:
    began = time.monotonic()
    while time.monotonic() - began < stall_s:
        found = consumer.poll_fetched_batches(timeout_ms=1000)
        if found:
            return found
    tp = next(iter(left.partitions))
    raise _Stalled(f"no batch for {stall_s:g} s at offset {left.next_offset(tp)} of {tp}")


@contextmanager
def _consumer(connection: Connection) -> Iterator[Consumer]:
    """Give the process's consumer for a cluster; after an error it is closed, not kept."""
    from kclient import Consumer

    consumer = _consumers.pop(connection, None) or Consumer(
        config={
            "bootstrap.servers": connection.bootstrap,
            "client.id": "kaudit",
            "auto.offset.reset": "none",
            "max.partition.fetch.bytes": PARTITION_FETCH_BYTES,
            "fetch.max.bytes": FETCH_BYTES,
            "fetch.max.wait.ms": 100,
            "isolation.level": "read_uncommitted",
            "allow.auto.create.topics": False,
            **dict(connection.settings),
            "check.crcs": False,  # checked here: a wrong one does not end the partition
        }
    )
    try:
        yield consumer
    except BaseException:
        consumer.close(timeout=2)
        raise
    _consumers[connection] = consumer
