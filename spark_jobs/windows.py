"""Comparison of window digests: which windows are equal, and how the others differ.

Pure: rows of sums in, a state per window out. A window that differs is not a finding yet: `spark_jobs.align` then
compares its records one by one.

Invariant: two windows with equal digests hold the same records at the same offsets, up to a collision of 64-bit sums.
(That is an accident, not an attack: without `--hash-key` the hashes have no secret key.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kclient.types import TopicPartition

_MASK = (1 << 64) - 1


class WindowKey(NamedTuple):
    """Window *window* of one partition: offsets [window * size, (window + 1) * size)."""

    topic: str
    partition: int
    window: int


@dataclass(frozen=True, slots=True)
class Digest:
    """Additive sums over a set of records; hashes modulo 2**64."""

    records: int = 0
    bytes: int = 0
    content: int = 0
    placed: int = 0
    latest: int | None = field(default=None, compare=False)
    """The largest timestamp in ms; None without records. The hashes cover timestamps, so it is not compared."""

    def __add__(self, other: Digest) -> Digest:
        known = [each for each in (self.latest, other.latest) if each is not None]
        return Digest(
            self.records + other.records,
            self.bytes + other.bytes,
            (self.content + other.content) & _MASK,
            (self.placed + other.placed) & _MASK,
            max(known, default=None),
        )

    @classmethod
    def from_row(cls, row: Mapping[str, int]) -> Digest:
        """Build from a row of `spark_jobs.digest.merged`, which has hash sums as two halves."""
        return cls(
            row["records"],
            row["bytes"],
            (row["content_low"] + (row["content_high"] << 32)) & _MASK,
            (row["placed_low"] + (row["placed_high"] << 32)) & _MASK,
            row["max_timestamp"],
        )


class WindowState(Enum):
    """The result of comparing one window."""

    EQUAL = "equal"
    MOVED = "moved"
    """The same contents at other offsets."""
    CONTENT = "content"
    """The same number of records, other contents."""
    COUNT = "count"
    """Another number of records."""


@dataclass(frozen=True, slots=True)
class WindowResult:
    """One compared window."""

    key: WindowKey
    state: WindowState
    source: Digest
    target: Digest


def compare_windows(
    source: Mapping[WindowKey, Digest], target: Mapping[WindowKey, Digest]
) -> list[WindowResult]:
    """Return one result per window, sorted by key; a window that one side lacks counts as empty there."""
    nothing = Digest()
    results = []
    for key in sorted(source.keys() | target.keys()):
        here, there = source.get(key, nothing), target.get(key, nothing)
        results.append(WindowResult(key, _state(here, there), here, there))
    return results


def _state(source: Digest, target: Digest) -> WindowState:
    if source == target:
        return WindowState.EQUAL
    if source.records != target.records:
        return WindowState.COUNT
    return WindowState.MOVED if source.content == target.content else WindowState.CONTENT


def root(digests: Iterable[Digest]) -> Digest:
    """Return the sum of *digests*: the digest of all their records."""
    total = Digest()
    for digest in digests:
        total += digest
    return total


def by_window(rows: Iterable[Mapping[str, int]]) -> dict[WindowKey, Digest]:
    """Merge the rows of `spark_jobs.digest.merged` (one per window and time bucket) into windows."""
    merged: dict[WindowKey, Digest] = defaultdict(Digest)
    for row in rows:
        key = WindowKey(str(row["topic"]), row["partition"], row["window"])
        merged[key] += Digest.from_row(row)
    return dict(merged)


def by_bucket(rows: Iterable[Mapping[str, int]], buckets: int) -> dict[str, list[int]]:
    """Return for each topic how many records each time bucket holds."""
    counts: dict[str, list[int]] = {}
    for row in rows:
        series = counts.setdefault(str(row["topic"]), [0] * buckets)
        series[row["bucket"]] += row["records"]
    return counts


def offset_ranges(
    results: Iterable[WindowResult], size: int
) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Return per partition the offset ranges [low, high) of windows that differ, adjacent ones joined."""
    ranges: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
    for result in results:
        if result.state is WindowState.EQUAL:
            continue
        low, high = result.key.window * size, (result.key.window + 1) * size
        of_partition = ranges[TopicPartition(result.key.topic, result.key.partition)]
        if of_partition and of_partition[-1][1] == low:
            of_partition[-1] = (of_partition[-1][0], high)
        else:
            of_partition.append((low, high))
    return dict(ranges)
