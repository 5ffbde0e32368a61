"""Adds up the latencies that mirrors measured, per source and topic, and decides the exit code. Pure.

kmirror writes a histogram per topic and interval (`kclient.mirror_latency`). A row is a topic of a source; its
histogram is the sum of those of all processes. An interval belongs to the time bucket in which it begins.

A row has one of three judgements against the limit of p99. Records without a timestamp, or with one ahead of kmirror's
clock, have no true latency: how far that clock is ahead is not known. They may be above or within each limit. So may
the records of the bucket that contains the limit. A row is judged only if these records cannot change that.

Invariants (tests cite the numbers):
 1. ABOVE: more than 1 % of the records with a latency are above the limit;
 2. WITHIN: at least 99 % of all records of the row, with or without a latency, are within the limit;
 3. a limit never gives exit code 0 beside a topic without a figure, a row that is not judged, or unreadable records.

In: `LatencyRead`   Out: `Measurement`   Owner: the caller
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kclient.mirror_latency import (
    Histogram,
    Interval,
    largest_in,
    latency_topic,
    least_in,
    measured_in,
)
from spark_jobs.verdict import ExitCode, ordered

LIMITED = 0.99
"""The quantile that --max-p99 limits."""


class Judgement(Enum):
    """What a row is, compared with the limit of p99."""

    ABOVE = "above"
    WITHIN = "within"
    UNKNOWN = "not judged"


class RowKey(NamedTuple):
    """A topic at the target, and the source that it is copied from."""

    source_alias: str
    source_cluster_id: str
    topic: str


@dataclass(slots=True)
class Row:
    """The latencies of one topic of one source."""

    key: RowKey
    from_ms: int
    """Begin of the first interval."""
    until_ms: int
    """End of the last interval."""
    total: Histogram = field(default_factory=Histogram)
    buckets: dict[int, Histogram] = field(default_factory=dict)
    """Histograms by the start of the time bucket, in ms since the epoch; none unless they are wanted."""
    added: dict[str, set[int]] = field(default_factory=dict)
    """By process of kmirror, the begins of the intervals that were added."""

    @property
    def intervals(self) -> int:
        """How many intervals were added."""
        return sum(map(len, self.added.values()))

    def add(self, interval: Interval, latencies: Histogram, bucket_ms: int | None) -> None:
        """Add what was measured in *interval*, once."""
        begins = self.added.setdefault(interval.process, set())
        if interval.from_ms in begins:
            return
        begins.add(interval.from_ms)
        self.from_ms = min(self.from_ms, interval.from_ms)
        self.until_ms = max(self.until_ms, interval.until_ms)
        self.total.merge(latencies)
        if bucket_ms is not None:
            start = interval.from_ms // bucket_ms * bucket_ms
            self.buckets.setdefault(start, Histogram()).merge(latencies)

    @property
    def p99(self) -> int | None:
        """The upper bound of the limited quantile in ms, -1 if it is below 0; None without latencies."""
        return self.total.quantile(LIMITED)

    def judged(self, max_p99_ms: int) -> Judgement:
        """Return whether p99 is within *max_p99_ms*."""
        total = self.total
        if total.max_ms is None:
            return Judgement.UNKNOWN
        above = sum(n for bucket, n in total.buckets.items() if least_in(bucket) > max_p99_ms)
        if 100 * above > total.records:
            return Judgement.ABOVE
        within = sum(
            n
            for bucket, n in total.buckets.items()
            if min(largest_in(bucket), total.max_ms) <= max_p99_ms
        )
        enough = 100 * within >= 99 * (total.records + total.without_timestamp)
        return Judgement.WITHIN if enough else Judgement.UNKNOWN


@dataclass(frozen=True, slots=True)
class Scope:
    """What is to be measured, and the limit: --target, --topics, --bucket, --last and --max-p99."""

    target: str
    topics: re.Pattern[str]
    bucket_ms: int | None
    """None: no time buckets are wanted."""
    since_ms: int | None = None
    """Intervals that end at or before it are left out."""
    max_p99_ms: int | None = None

    def wants(self, interval: Interval) -> bool:
        """Return whether *interval* is in this scope."""
        if self.since_ms is not None and interval.until_ms <= self.since_ms:
            return False
        return self.topics.fullmatch(interval.topic) is not None


@dataclass(slots=True)
class LatencyRead:
    """What the latency topics of a target have in *scope*, added up while they are read.

    Of an interval only its begin is kept: the histograms of a week of many topics do not fit into memory.
    """

    scope: Scope
    rows: dict[RowKey, Row] = field(default_factory=dict)
    unreadable: dict[str, int] = field(default_factory=dict)
    """Records per source alias that are none of kmirror's, or of another version."""
    aliases: set[str] = field(default_factory=set)
    """Of the topics that were read."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a topic could not be read."""

    def add(self, alias: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Add records of the latency topic of *alias*, keys and values in the order of the log."""
        self.aliases.add(alias)
        for measured in measured_in(records):
            if measured is None:
                self.unreadable[alias] = self.unreadable.get(alias, 0) + 1
            elif self.scope.wants(measured.interval):
                at = measured.interval
                key = RowKey(alias, at.source_cluster_id, at.topic)
                row = self.rows.setdefault(key, Row(key, at.from_ms, at.until_ms))
                row.add(at, measured.latencies, self.scope.bucket_ms)

    def failed(self, alias: str, cause: str) -> None:
        """Handle that the topic of *alias* could not be read to its end: its figures would be those of a part."""
        self.failures[latency_topic(alias)] = cause
        self.aliases.discard(alias)
        self.unreadable.pop(alias, None)
        self.rows = {key: row for key, row in self.rows.items() if key.source_alias != alias}


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of `kaudit latency`."""

    scope: Scope
    rows: Sequence[Row]
    """The largest p99 first."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why a latency topic could not be read."""
    unreadable: Mapping[str, int] = field(default_factory=dict)
    """Records per source alias that are none of kmirror's, or of another version."""
    without_figure: Sequence[str] = ()
    """Topics of the target that match, and have no row."""
    topics_read: int = 0
    """Latency topics of the target that were read."""
    several_clusters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The source aliases with more than one cluster id, and these."""

    @property
    def period(self) -> tuple[int, int] | None:
        """Begin of the first and end of the last interval; None without a row."""
        if not self.rows:
            return None
        return min(row.from_ms for row in self.rows), max(row.until_ms for row in self.rows)

    def judgement(self, row: Row) -> Judgement | None:
        """Return what *row* is, None without a limit."""
        limit = self.scope.max_p99_ms
        return None if limit is None else row.judged(limit)

    def judged(self, judgement: Judgement) -> list[Row]:
        """Return the rows of *judgement*."""
        return [row for row in self.rows if self.judgement(row) is judgement]

    @property
    def exit_codes(self) -> list[ExitCode]:
        """Every exit code that applies, the decisive one first."""
        limited = self.scope.max_p99_ms is not None
        conditions = {
            ExitCode.CONSISTENT: True,
            ExitCode.UNREADABLE: bool(self.failures),
            ExitCode.DIVERGED: bool(self.judged(Judgement.ABOVE)),
            ExitCode.NO_VERDICT_YET: not any(row.total.records for row in self.rows)
            or bool(self.judged(Judgement.UNKNOWN))
            or (limited and bool(self.unreadable or self.without_figure)),
        }
        return ordered(code for code, applies in conditions.items() if applies)


def measure(read: LatencyRead, topics: Collection[str] = ()) -> Measurement:
    """Return the rows of *read*. *topics* are those of the target that match."""
    clusters: dict[str, set[str]] = defaultdict(set)
    for key in read.rows:
        clusters[key.source_alias].add(key.source_cluster_id)
    return Measurement(
        read.scope,
        sorted(read.rows.values(), key=_worst_first),
        dict(sorted(read.failures.items())),
        read.unreadable,
        sorted(set(topics) - {key.topic for key in read.rows}),
        len(read.aliases),
        {alias: sorted(ids) for alias, ids in sorted(clusters.items()) if len(ids) > 1},
    )


def _worst_first(row: Row) -> tuple[bool, int, int, RowKey]:
    p99, largest = row.p99, row.total.max_ms
    return p99 is None, -(p99 or 0), -(largest or 0), row.key
