"""Two clusters' logs in memory, and an `Engine` over them: the audit without Spark and without brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

from kclient.types import TopicPartition
from spark_jobs.align import Alignment, align
from spark_jobs.comparison import Options
from spark_jobs.cut import LogRange, OffsetRange
from spark_jobs.engine import (
    Copies,
    Differences,
    Explained,
    Failure,
    FailureKind,
    Holes,
    KeysFound,
    KeySpan,
    Modes,
    Place,
    SpanRanges,
    WindowRows,
)
from spark_jobs.findings import ABORTED, CONTROL, KEYLESS, TOMBSTONE, RecordDigest
from spark_jobs.ranges import Ranges, subtract
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.snapshot import ClusterSnapshot


class Rec(NamedTuple):
    """A record without its offset."""

    key: bytes | None
    value: bytes | None
    timestamp: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_type: int = 0
    control: bool = False
    aborted: bool = False
    """Whether the broker calls its transaction aborted; no part of the record."""


class Fault(NamedTuple):
    """A part of a log that cannot be read."""

    low: int
    high: int
    kind: FailureKind
    cause: str = "a fault"


@dataclass
class Log:
    """The log of one partition: records by offset, and the offsets that the broker reports."""

    records: dict[int, Rec] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    faults: list[Fault] = field(default_factory=list)
    stable: int | None = None
    """The last stable offset; None: no transaction is open."""
    fails_in_drill: bool = False
    """The faults appear only when windows that differ are read again."""

    def copy(self) -> Log:
        """Return an independent copy."""
        return replace(self, records=dict(self.records), faults=list(self.faults))

    def append(self, record: Rec) -> int:
        """Append *record*; return its offset."""
        self.records[self.end] = record
        self.end += 1
        return self.end - 1

    def delete_below(self, offset: int) -> None:
        """Delete the records below *offset*, as retention does."""
        self.start = offset
        self.records = {at: record for at, record in self.records.items() if at >= offset}

    def superseded(self, below: int) -> list[int]:
        """Return the offsets below *below* that a log cleaner may remove: a later record has the key."""
        last = {record.key: at for at, record in sorted(self.records.items())}
        return [
            at
            for at, record in sorted(self.records.items())
            if at < below
            and record.key is not None
            and last[record.key] > at
            and not record.control
        ]


Logs = dict[TopicPartition, Log]


def log_of(*records: Rec, start: int = 0) -> Log:
    """Return a log with *records* from offset *start* on."""
    held = {start + index: record for index, record in enumerate(records)}
    return Log(held, start, start + len(records))


def snapshot(name: str, logs: Logs, compacted: frozenset[str] = frozenset()) -> ClusterSnapshot:
    """Return what the audit reads of a cluster before its records."""
    return ClusterSnapshot(
        name,
        "",
        name,
        {tp: LogRange(log.start, log.end, log.stable) for tp, log in logs.items()},
        {
            tp.topic: {"cleanup.policy": "compact" if tp.topic in compacted else "delete"}
            for tp in logs
        },
    )


def hashed(value: object) -> int:
    """Return a hash of which sums do not cancel: those of Python's tuples do when offsets change places."""
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=8).digest(), "big")


def digest(offset: int, record: Rec) -> RecordDigest:
    """Return *record* as the audit compares it."""
    flags = (record.key is None) * KEYLESS | (record.value is None) * TOMBSTONE
    return RecordDigest(
        offset,
        hashed(record[:-1]),
        hashed((1, record.key)),
        hashed((2, record.value)),
        hashed((3, record.headers)),
        record.timestamp,
        len(record.key or b"") + len(record.value or b""),
        record.timestamp_type,
        flags | record.control * CONTROL | record.aborted * ABORTED,
    )


def placed(record: RecordDigest) -> int:
    """Return the hash of *record* at its offset."""
    return hashed((record.content, record.offset, record.flags & ABORTED))


class MemoryEngine:
    """Implements `spark_jobs.engine.Engine` over `Logs`."""

    def __init__(self, source: Logs, target: Logs, window: int) -> None:
        self._logs = {"source": source, "target": target}
        self._window = window

    def _failures(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], *, drill: bool
    ) -> list[Failure]:
        return [
            Failure(
                cluster.name,
                each.topic,
                each.partition,
                max(each.low, fault.low),
                min(each.high, fault.high),
                fault.kind,
                fault.cause,
            )
            for each in ranges
            for log in [self._logs[cluster.name][TopicPartition(each.topic, each.partition)]]
            if drill or not log.fails_in_drill
            for fault in log.faults
            if max(each.low, fault.low) < min(each.high, fault.high)
        ]

    def _read(
        self,
        cluster: ClusterSnapshot,
        ranges: Sequence[OffsetRange],
        *,
        drill: bool = False,
        without: Sequence[Failure] = (),
    ) -> Iterator[tuple[TopicPartition, RecordDigest]]:
        failed = [*without, *self._failures(cluster, ranges, drill=drill)]
        for each in ranges:
            tp = TopicPartition(each.topic, each.partition)
            log = self._logs[cluster.name][tp]
            assert log.start <= each.low <= each.high <= log.end, (cluster.name, each, log)
            for offset in sorted(log.records):
                lost = any(
                    (f.topic, f.partition) == tp and f.low <= offset < f.high for f in failed
                )
                if each.low <= offset < each.high and not lost:
                    record = log.records[offset]
                    if offset >= cluster.decided.get(tp, 0):
                        record = record._replace(aborted=False)  # read with read_uncommitted
                    yield tp, digest(offset, record)

    def window_rows(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> WindowRows:
        rows: dict[tuple[TopicPartition, int], dict[str, int]] = {}
        for tp, record in self._read(cluster, ranges):
            key = tp, record.offset // self._window
            row = rows.setdefault(
                key,
                {
                    "topic": tp.topic,  # type: ignore[dict-item]
                    "partition": tp.partition,
                    "window": key[1],
                    "bucket": 0,
                    "records": 0,
                    "bytes": 0,
                    "content_low": 0,
                    "content_high": 0,
                    "placed_low": 0,
                    "placed_high": 0,
                    "max_timestamp": record.timestamp,
                },
            )
            row["max_timestamp"] = max(row["max_timestamp"], record.timestamp)
            row["records"] += 1
            row["bytes"] += record.size
            row["content_low"] += record.content
            row["placed_low"] += placed(record)
        return WindowRows(list(rows.values()), self._failures(cluster, ranges, drill=False))

    def differences(
        self,
        source: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        target: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        modes: Modes,
    ) -> Differences:
        failures = [
            *self._failures(*source, drill=True),
            *self._failures(*target, drill=True),
        ]
        sides: list[dict[TopicPartition, list[RecordDigest]]] = []
        for cluster, ranges in (source, target):
            side: dict[TopicPartition, list[RecordDigest]] = {}
            own = [f for f in failures if f.cluster == cluster.name or not modes.renumbered]
            for tp, record in self._read(cluster, ranges, drill=True, without=own):
                if not (modes.renumbered and record.flags & CONTROL):
                    side.setdefault(tp, []).append(record)
            sides.append(side)
        alignments: dict[TopicPartition, Alignment] = {
            tp: align(
                tp.topic,
                tp.partition,
                sides[0].get(tp, []),
                sides[1].get(tp, []),
                compacted=tp.topic in modes.compacted,
                renumbered=modes.renumbered,
                breaks=modes.breaks.get(tp, ()),
                unread=_unread(modes, source[0], tp, failures),
            )
            for tp in sides[0].keys() | sides[1].keys()
        }
        return Differences(alignments, failures)

    def explain_undecided(
        self, source: ClusterSnapshot, target: ClusterSnapshot, ranges: SpanRanges, modes: Modes
    ) -> Explained:
        raise AssertionError("no finding is undecided here")

    def holes(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> Holes:
        held = [
            (tp, (record.offset, record.offset + 1)) for tp, record in self._read(cluster, ranges)
        ]
        return Holes(
            [
                OffsetRange(each.topic, each.partition, *hole)
                for each in ranges
                for hole in subtract(
                    [(each.low, each.high)],
                    [at for tp, at in held if tp == (each.topic, each.partition)],
                )
            ],
            self._failures(cluster, ranges, drill=False),
        )

    def copies(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], contents: frozenset[int]
    ) -> dict[Place, Copies]:
        found: dict[Place, list[int]] = {}
        for tp, record in self._read(cluster, ranges):
            if record.content in contents:
                found.setdefault((*tp, record.content), []).append(record.offset)
        return {place: Copies(len(at), min(at), max(at)) for place, at in found.items()}

    def spans_of_keys(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], keys: frozenset[int]
    ) -> KeysFound:
        found: dict[Place, list[tuple[int, bool]]] = {}
        contents: dict[Place, set[int]] = {}
        for tp, record in self._read(cluster, ranges):
            if record.key in keys:
                at = record.offset, bool(record.flags & TOMBSTONE)
                found.setdefault((*tp, record.key), []).append(at)
                contents.setdefault((*tp, record.key), set()).add(record.content)
        failures = self._failures(cluster, ranges, drill=False)
        return KeysFound(
            {
                place: KeySpan(min(at)[0], *max(at), len(contents[place]) < len(at))
                for place, at in found.items()
            },
            frozenset(f.topic_partition for f in failures if f.kind is FailureKind.UNREADABLE),
        )

    def log_ends(
        self, cluster: ClusterSnapshot, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        logs = self._logs[cluster.name]
        return {tp: logs[tp].end for tp in partitions if tp in logs}


def _unread(
    modes: Modes, source: ClusterSnapshot, tp: TopicPartition, failures: Sequence[Failure]
) -> tuple[Ranges, Ranges]:
    here, there = modes.unread.get(tp, ([], []))
    own = [f for f in failures if f.topic_partition == tp]
    return (
        [*here, *((f.low, f.high) for f in own if f.cluster == source.name)],
        [*there, *((f.low, f.high) for f in own if f.cluster != source.name)],
    )


def audit(
    source: Logs,
    target: Logs,
    options: Options | None = None,
    *,
    source_compacted: frozenset[str] = frozenset(),
    target_compacted: frozenset[str] = frozenset(),
    buckets: TimeBuckets | None = None,
) -> Reconciliation:
    """Reconcile *target* with *source*."""
    options = options or Options(window=10)
    return reconcile(
        MemoryEngine(source, target, options.window),
        snapshot("source", source, source_compacted),
        snapshot("target", target, target_compacted),
        options,
        buckets=buckets or TimeBuckets.over((0, 1000)),
    )


def named(run: Reconciliation) -> list[tuple[str, int, int | None, int | None, int]]:
    """Return (class, partition, source offset, target offset, records) of each finding."""
    return [
        (f.finding_class.value, f.partition, f.source_offset, f.target_offset, f.records)
        for f in run.findings
    ]


def classes(run: Reconciliation) -> Mapping[str, int]:
    """Return the non-zero classes of offsets, summed over all partitions."""
    counts = run.counts
    found = {
        "verified": counts.verified,
        "empty": counts.empty,
        "explained": counts.explained,
        "aged out": counts.aged_out,
        "not read": counts.not_read,
        "lagging": counts.lagging,
        **{each.value: count for each, count in counts.different.items()},
    }
    return {name: count for name, count in found.items() if count}
