"""Decides which offsets a query reads, in which tasks, and when records are lost. Pure.

The rules are those of Spark's Kafka connector:

- one task per partition; `minPartitions` and `maxRecordsPerPartition` divide partitions further;
- `maxOffsetsPerTrigger` is divided among the partitions in proportion to what each has to read, at least one offset
  each;
- a partition that appears during a query is read from offset 0. If its log starts later, records are lost;
- records are also lost if a partition is gone, its log starts above the next offset, or ends below it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kclient.types import TopicPartition
from spark_jobs.cut import OffsetRange
from spark_jobs.source.options import Offsets

OffsetsByTopic = dict[str, dict[str, int]]
"""Offsets as Spark keeps them: {topic: {partition: offset}}, the connector's JSON."""


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetsByTopic:
    """Return *offsets* in the form of the checkpoint. Equal offsets have equal text, because Spark compares texts."""
    found: OffsetsByTopic = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets that the checkpoint has."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }


@dataclass(frozen=True, slots=True)
class Plan:
    """What a query or a micro-batch reads."""

    ranges: list[OffsetRange]
    losses: list[str]
    """A text for each loss of records that is known before reading."""


def plan_batch(starting: Offsets, ending: Offsets, log_starts: Offsets, log_ends: Offsets) -> Plan:
    """Return the ranges of a batch query between resolved offsets; raise ValueError if one ends before it starts."""
    ranges, losses = [], []
    for tp in sorted(starting):
        low, high = starting[tp], ending[tp]
        if low > high:
            raise ValueError(f"the starting offset {low} of {tp} is above its ending offset {high}")
        if low < log_starts[tp] and low < high:
            losses.append(f"the log of {tp} starts at {log_starts[tp]}, above offset {low}")
        if high > log_ends[tp] and low < high:
            losses.append(f"the log of {tp} ends at {log_ends[tp]}, below offset {high}")
        low, high = max(low, log_starts[tp]), min(high, log_ends[tp])
        ranges.append(OffsetRange(tp.topic, tp.partition, low, max(low, high)))
    return Plan(ranges, losses)


def plan_micro_batch(start: Offsets, end: Offsets, log_starts: Offsets, log_ends: Offsets) -> Plan:
    """Return the ranges between two offsets of a stream. The log's edges lack partitions that do not exist."""
    losses = [
        f"{tp} is gone; records above offset {start[tp]} may be lost"
        for tp in sorted(start.keys() - end.keys())
    ]
    ranges = []
    for tp in sorted(end):
        high = end[tp]
        if tp not in log_starts:
            if tp not in start or start[tp] < high:
                losses.append(f"{tp} is gone; records below offset {high} may be lost")
            continue
        low, first = start.get(tp, 0), log_starts[tp]
        if high < low:
            losses.append(f"the end of {tp} went back from {low} to {high}: its log was truncated")
            continue
        if low < first and (low < high or tp not in start):
            losses.append(f"the log of {tp} starts at {first}, above the next offset {low}")
        if high > log_ends[tp] and low < high:
            losses.append(f"the log of {tp} ends at {log_ends[tp]}, below offset {high}")
        low, high = max(low, first), min(high, log_ends[tp])
        ranges.append(OffsetRange(tp.topic, tp.partition, low, max(low, high)))
    return Plan(ranges, losses)


def divide(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Return one range per task, without empty ones."""
    left = [each for each in ranges if each.high > each.low]
    if max_records is not None:
        left = [piece for each in left for piece in _pieces(each, -(-_size(each) // max_records))]
    if min_partitions is None or len(left) >= min_partitions:
        return left
    total = sum(map(_size, left))
    whole = [each for each in left if _share(_size(each), total, min_partitions) == 1]
    cut_total = total - sum(map(_size, whole))
    cut_parts = max(1, min_partitions - len(whole))
    kept = set(whole)
    return [
        piece
        for each in left
        for piece in _pieces(each, 1 if each in kept else _share(_size(each), cut_total, cut_parts))
    ]


def _size(each: OffsetRange) -> int:
    return each.high - each.low


def _share(size: int, total: int, parts: int) -> int:
    """Return the number of *parts* for *size* of *total*, rounded half up, at least 1."""
    return max(1, math.floor(size / total * parts + 0.5))


def _pieces(each: OffsetRange, parts: int) -> list[OffsetRange]:
    parts = min(parts, _size(each))
    low, pieces = each.low, []
    for left in range(parts, 0, -1):
        high = low + (each.high - low) // left
        pieces.append(each._replace(low=low, high=high))
        low = high
    return pieces


def limit_offsets(limit: int, start: Offsets, latest: Offsets, log_starts: Offsets) -> Offsets:
    """Return the end of a micro-batch of about *limit* offsets; *log_starts* has the partitions that *start* lacks."""
    begins = {tp: start.get(tp, log_starts.get(tp, end)) for tp, end in latest.items()}
    sizes = {tp: end - begins[tp] for tp, end in latest.items() if end > begins[tp]}
    total = sum(sizes.values())
    ends = dict(latest)
    for tp, size in sizes.items():
        share = limit * size / total
        ends[tp] = min(
            latest[tp], begins[tp] + (math.ceil(share) if share < 1 else math.floor(share))
        )
    return ends


def available(start: Offsets, latest: Offsets) -> int:
    """Return the number of offsets from *start* to *latest*."""
    return sum(max(0, end - start.get(tp, 0)) for tp, end in latest.items())


def below(ends: Offsets, begun: Offsets) -> list[TopicPartition]:
    """Return the partitions with an end below what a query has read already."""
    return [tp for tp, offset in begun.items() if tp in ends and ends[tp] < offset]


def check_named(
    name: str, named: Collection[TopicPartition], chosen: Collection[TopicPartition]
) -> None:
    """Raise ValueError unless an option names exactly the partitions of the query."""
    if set(named) != set(chosen):
        raise ValueError(
            f"{name} must name all partitions of the query, -1 for latest, -2 for earliest. "
            f"Named: {_listed(named)}. Partitions: {_listed(chosen)}."
        )


def _listed(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"
