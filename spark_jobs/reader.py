"""Reads ranges of offsets in a Spark task: whole batches, CRCs checked, no record skipped.

A task reads all its ranges with one consumer, which fetches many partitions in one request, and which the next task of
the same Python worker uses again: 2,000 partitions with one record cost a few requests, not 2,000 connections.

Memory: the consumer buffers at most `FETCH_BYTES` and one response in flight per broker, whatever the records.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from kclient.wire.batches import BatchInfo
from spark_jobs.cut import OffsetRange

if TYPE_CHECKING:
    from kclient import Consumer, TopicPartition
    from kclient.consumer.partitions import Batch

FETCH_BYTES = 16 << 20
PARTITION_FETCH_BYTES = 4 << 20

STALL_S = 60.0
"""Seconds without a batch after which a range counts as unreadable, so that no job hangs."""


class RangeUnreadable(Exception):
    """A range of offsets could not be read to its end; the text names topic, partition, offset and cause."""


class Fetched(NamedTuple):
    """A batch of records, not a control batch, that overlaps a range."""

    number: int
    """The index of the range in the caller's list. A batch that overlaps two ranges comes twice."""
    info: BatchInfo
    data: memoryview


_consumers: dict[str, Consumer] = {}
"""The consumer of this process for each cluster, while no task uses it."""


def fetch_ranges(bootstrap: str, ranges: Sequence[OffsetRange]) -> Iterator[Fetched]:
    """Yield the batches that overlap *ranges*, of each partition in order.

    Raise RangeUnreadable if a range is no longer in the log, a batch fails its CRC, or no batch arrives for `STALL_S`.
    """
    left = _Left(ranges)
    if not left.partitions:
        return
    with _consumer(bootstrap) as consumer:
        first_offsets = {tp: left.next_offset(tp) for tp in left.partitions}
        consumer.assign(first_offsets, first_offsets)
        while left.partitions:
            ended = False
            for tp, batches in _next_batches(consumer, left).items():
                if tp not in left.partitions:
                    continue
                for info, data in batches:
                    for number in left.overlapped(tp, info):
                        if not info.is_control:
                            yield Fetched(number, info, data)
                if left.ended(tp):
                    ended = True
                elif left.next_offset(tp) > batches[-1][0].next_offset:
                    consumer.seek(tp, left.next_offset(tp))
            if ended:
                consumer.assign(left.partitions)


class _Left:
    """The ranges that a task has not read to their end."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        from kclient import TopicPartition

        self._ranges = ranges
        self.partitions: dict[TopicPartition, deque[int]] = {}
        """The numbers of the ranges of each partition, in order of their offsets."""
        for number in sorted(range(len(ranges)), key=ranges.__getitem__):
            topic, partition, low, high = ranges[number]
            if high > low:
                self.partitions.setdefault(TopicPartition(topic, partition), deque()).append(number)

    def next_offset(self, tp: TopicPartition) -> int:
        """Return where the next range begins."""
        return self._ranges[self.partitions[tp][0]].low

    def end(self, tp: TopicPartition) -> int:
        """Return where the last range ends."""
        return self._ranges[self.partitions[tp][-1]].high

    def overlapped(self, tp: TopicPartition, info: BatchInfo) -> list[int]:
        """Return the ranges that the batch overlaps; drop those that end with it or before it."""
        overlapped = []
        numbers, ranges = self.partitions[tp], self._ranges
        while numbers and ranges[numbers[0]].low < info.next_offset:
            number = numbers[0]
            if ranges[number].high > info.base_offset:
                overlapped.append(number)
            if ranges[number].high > info.next_offset:
                break
            numbers.popleft()
        return overlapped

    def ended(self, tp: TopicPartition) -> bool:
        """Return whether *tp* is read; drop it if so."""
        if self.partitions[tp]:
            return False
        del self.partitions[tp]
        return True


def _next_batches(consumer: Consumer, left: _Left) -> Mapping[TopicPartition, Sequence[Batch]]:
    from kclient.wire.errors import KafkaError

    began = time.monotonic()
    try:
        while time.monotonic() - began < STALL_S:
            found = consumer.poll_batches(timeout_ms=1000)
            if found:
                return found
    except KafkaError as problem:
        raise RangeUnreadable(_explained(problem, left)) from problem
    tp = next(iter(left.partitions))
    raise RangeUnreadable(
        f"{tp}{_others(left)} returned no batch for {STALL_S:.0f} s"
        f" at offset {consumer.position(tp, 1.0)} (reading up to {left.end(tp)})"
    )


def _explained(problem: Exception, left: _Left) -> str:
    """Return the text of *problem*; it has no partition if the whole cluster does not answer."""
    text = str(problem)
    if any(str(tp) in text for tp in left.partitions):
        return text
    return f"{next(iter(left.partitions))}{_others(left)}: {text}"


def _others(left: _Left) -> str:
    others = len(left.partitions) - 1
    return f" and {others} other partitions" if others else ""


@contextmanager
def _consumer(bootstrap: str) -> Iterator[Consumer]:
    """Give the process's consumer for a cluster; after an error it is closed, not kept."""
    from kclient import Consumer

    consumer = _consumers.pop(bootstrap, None) or Consumer(
        config={
            "bootstrap.servers": bootstrap,
            "client.id": "kaudit",
            "auto.offset.reset": "none",
            "max.partition.fetch.bytes": PARTITION_FETCH_BYTES,
            "fetch.max.bytes": FETCH_BYTES,
            "fetch.max.wait.ms": 100,
            "isolation.level": "read_uncommitted",
        }
    )
    try:
        yield consumer
    except BaseException:
        consumer.close(timeout=2)
        raise
    _consumers[bootstrap] = consumer
