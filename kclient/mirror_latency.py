"""How long records took to their copy at a target: histograms that kmirror writes and kaudit reads. Pure.

The latency of a batch is the time from its newest record timestamp to the moment when kmirror had the target's
acknowledgement, by kmirror's clock. It counts for every record of the batch; its older records took longer.
A record's timestamp is from its producer (CreateTime) or from the source's leader (LogAppendTime). If that clock is
ahead of kmirror's, a latency may be negative. It is counted as such, and not taken for 0.

A record of the topic ``<source alias>.latency.internal`` is a `Measured`: one topic in one interval. The key has the
source, the target's topic, the process that measured and the begin of the interval. So a record that was appended twice
counts once, and intervals of several workers add up. docs/design/mirror-latency.md has the topic and its limits.

    >>> histogram = Histogram()
    >>> histogram.add(250, records=99, partition=0)
    >>> histogram.add(4000, records=1, partition=3)
    >>> histogram.quantile(0.5), histogram.max_ms, histogram.max_partition
    (255, 4000, 3)

In: latencies; keys and values of records   Out: histograms, and records to write   Owner: the caller
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kclient.mirror_json import NOT_READABLE, decoded, encoded, number, text

SCHEMA_VERSION = 1
LONGEST_NAME = 249
"""Characters of a topic's name in Kafka; no id is longer."""
SUFFIX = ".latency.internal"
_TYPE = "latency"

EXACT = 16
"""Latencies below it, in ms, have a bucket of their own."""

SHARES = 8
"""Buckets between a power of two and the next one: a bucket is at most an eighth wider than its lower bound."""

_EXACT_BITS = EXACT.bit_length() - 1
_SHARE_BITS = SHARES.bit_length() - 1
LAST_BUCKET = EXACT + SHARES * (63 - _EXACT_BITS) - 1
"""The bucket of the largest number of 63 bits."""


def latency_topic(source_alias: str) -> str:
    """Return the name of the topic at the target of a mirror of *source_alias*."""
    return f"{source_alias}{SUFFIX}"


def is_latency(topic: str) -> bool:
    """Return whether *topic* has the latencies of a mirror, by its name: it is neither mirrored nor audited."""
    return topic.endswith(SUFFIX)


def source_alias_of(topic: str) -> str:
    """Return the source alias of a topic that `is_latency`."""
    return topic.removesuffix(SUFFIX)


def bucket_of(latency_ms: int) -> int:
    """Return the bucket of a latency that is not negative."""
    if latency_ms < EXACT:
        return latency_ms
    octave = latency_ms.bit_length() - 1
    share = (latency_ms >> (octave - _SHARE_BITS)) - SHARES
    return EXACT + SHARES * (octave - _EXACT_BITS) + share


def least_in(bucket: int) -> int:
    """Return the least latency of *bucket*, in ms."""
    return largest_in(bucket - 1) + 1 if bucket else 0


def largest_in(bucket: int) -> int:
    """Return the largest latency of *bucket*, in ms."""
    if bucket < EXACT:
        return bucket
    octave, share = divmod(bucket - EXACT, SHARES)
    shift = octave + _EXACT_BITS - _SHARE_BITS
    return ((SHARES + share + 1) << shift) - 1


@dataclass(slots=True)
class Histogram:
    """Latencies of records, in ms."""

    records: int = 0
    """Records with a latency, those of `ahead` included."""
    ahead: int = 0
    """Records with a negative latency: their timestamp was ahead of the clock of kmirror."""
    without_timestamp: int = 0
    """Records without a timestamp, and so without a latency; not in `records`."""
    min_ms: int | None = None
    """The least latency, below 0 if `ahead`; None without records."""
    max_ms: int | None = None
    max_partition: int = -1
    """A partition that has the largest latency."""
    buckets: dict[int, int] = field(default_factory=dict)
    """Records per bucket, without those of `ahead`."""

    def add(self, latency_ms: int, *, records: int, partition: int) -> None:
        """Add *records* with a latency."""
        self.records += records
        if latency_ms < 0:
            self.ahead += records
        else:
            bucket = bucket_of(latency_ms)
            self.buckets[bucket] = self.buckets.get(bucket, 0) + records
        if self.min_ms is None or latency_ms < self.min_ms:
            self.min_ms = latency_ms
        if self.max_ms is None or latency_ms > self.max_ms:
            self.max_ms, self.max_partition = latency_ms, partition

    def merge(self, other: Histogram) -> None:
        """Add all of *other*."""
        self.records += other.records
        self.ahead += other.ahead
        self.without_timestamp += other.without_timestamp
        for bucket, records in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + records
        if other.min_ms is not None and (self.min_ms is None or other.min_ms < self.min_ms):
            self.min_ms = other.min_ms
        if other.max_ms is not None and (self.max_ms is None or other.max_ms > self.max_ms):
            self.max_ms, self.max_partition = other.max_ms, other.max_partition

    def quantile(self, share: float) -> int | None:
        """Return a latency that at least *share* of the records do not exceed, in ms; None without records.

        It is the upper bound of a bucket, or the largest latency: at most an eighth above the exact value. A negative
        one is -1: no more is known than that it is below 0.
        """
        if not self.records or self.max_ms is None:
            return None
        left = share * self.records - self.ahead
        if left <= 0 and self.ahead:
            return -1
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return min(largest_in(bucket), self.max_ms)
        return self.max_ms


@dataclass(frozen=True, slots=True)
class Interval:
    """Where and when latencies were measured."""

    source_cluster_id: str
    topic: str
    """Its name at the target."""
    process: str
    """A random name of the process of kmirror that measured."""
    from_ms: int
    """The begin of the interval, in ms since the epoch, by kmirror's clock."""
    until_ms: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The latencies of the records that a process copied to a topic in an interval."""

    interval: Interval
    latencies: Histogram


def encode(measured: Measured) -> tuple[bytes, bytes]:
    """Return key and value of the record of *measured*."""
    interval, found = measured.interval, measured.latencies
    key = {
        "type": _TYPE,
        "source_cluster_id": interval.source_cluster_id,
        "topic": interval.topic,
        "process": interval.process,
        "from_ms": interval.from_ms,
    }
    value = {
        "schema_version": SCHEMA_VERSION,
        "until_ms": interval.until_ms,
        "records": found.records,
        "ahead": found.ahead,
        "without_timestamp": found.without_timestamp,
        "min_ms": found.min_ms,
        "max_ms": found.max_ms,
        "max_partition": found.max_partition,
        "buckets": sorted(found.buckets.items()),
    }
    return encoded(key), encoded(value)


def measured_in(
    records: Iterable[tuple[bytes | None, bytes | None]],
) -> Iterator[Measured | None]:
    """Yield what each record of a topic states, by its key and value.

    It is None for a record that is none of kmirror's, or of another version. An interval may come twice.
    """
    for key, value in records:
        try:
            measured = _decoded(key, value or b"")
        except NOT_READABLE:
            measured = None
        yield measured


def _decoded(key: bytes | None, value: bytes) -> Measured:
    """Return what a record states. Raise ValueError, KeyError or TypeError if it states no latencies."""
    names, fields = decoded(key, value, (_TYPE,), SCHEMA_VERSION)
    interval = Interval(
        _printable(names["source_cluster_id"]),
        _printable(names["topic"]),
        _printable(names["process"]),
        number(names["from_ms"]),
        number(fields["until_ms"]),
    )
    buckets = {number(bucket): number(records) for bucket, records in fields["buckets"]}
    found = Histogram(
        number(fields["records"]),
        number(fields["ahead"]),
        number(fields["without_timestamp"]),
        _milliseconds(fields["min_ms"]),
        _milliseconds(fields["max_ms"]),
        number(fields["max_partition"]) if fields["max_ms"] is not None else -1,
        buckets,
    )
    if interval.until_ms < interval.from_ms:
        raise ValueError("an interval that ends before it begins")
    if max(buckets, default=0) > LAST_BUCKET:
        raise ValueError("a bucket above the last one")
    if found.records != found.ahead + sum(buckets.values()):
        raise ValueError("the buckets do not add up to the records")
    if 0 in buckets.values() or not _has_its_bounds(found):
        raise ValueError("the least and the largest latency are not those of the buckets")
    return Measured(interval, found)


def _has_its_bounds(found: Histogram) -> bool:
    """Return whether the least and the largest latency can be those of the records: limits rely on the largest one."""
    least, largest = found.min_ms, found.max_ms
    if least is None or largest is None:
        return least == largest and not found.records
    if least > largest or (least < 0) != bool(found.ahead):
        return False
    if not found.buckets or largest < 0:
        return not found.buckets and largest < 0
    fits = bool(found.ahead) or bucket_of(least) == min(found.buckets)
    return fits and bucket_of(largest) == max(found.buckets)


def _printable(found: Any) -> str:
    if not text(found).isprintable() or len(found) > LONGEST_NAME:
        raise ValueError(f"{found!r} is no name")
    return text(found)


def _milliseconds(found: Any) -> int | None:
    if found is not None and (type(found) is not int or not -(1 << 63) <= found < 1 << 63):
        raise ValueError(f"{found!r} is no time in ms")
    return found
