"""The logs of `tests.kit.audit_logs` as record batches, and an `Engine` that reads them with the code of Spark's tasks.

A `Layout` decides which offsets share a batch, the codec, and what compaction leaves of a batch. It depends on offsets
only, so that a log keeps its batches when records are deleted. In offsets of a Fault a batch is really damaged: a wrong
CRC, bytes that cannot be decompressed, or records that end too early.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kclient.types import TopicPartition
from kclient.wire import batches
from kclient.wire.compression import Codec, compress
from kclient.wire.record_writer import encode_record
from spark_jobs.align import Alignment, without_tail
from spark_jobs.arrow_batches import digest_batches, hash_batches, unread_part
from spark_jobs.compaction import KeySpans, decided
from spark_jobs.cut import OffsetRange
from spark_jobs.digest import WindowShape
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
from spark_jobs.findings import TOMBSTONE, UNDECIDED, Finding
from spark_jobs.folding import FindingBudget, folded
from spark_jobs.header_batches import HEADER_COLUMNS, header_rows
from spark_jobs.in_step import DEFAULT_SIZES, Sizes
from spark_jobs.kafka_reader import committed_part
from spark_jobs.ranges import Ranges, subtract
from spark_jobs.reader import Fetched, RangesLeft, Unread
from spark_jobs.snapshot import ClusterSnapshot, HashBatches
from spark_jobs.spark_engine import aligned, failure_of
from spark_jobs.tasks import split
from tests.kit.audit_logs import Fault, Log, Logs, Rec
from tests.kit.audit_sequences import aligned_in_step

if TYPE_CHECKING:
    import pyarrow as pa

_FAR = 1 << 62


class Layout(NamedTuple):
    """How the records of a log are stored."""

    codec: int = Codec.NONE
    records: int = 8
    """Offsets of a batch, on average."""
    seed: int = 0
    leaves_empty: bool = False
    """Compaction leaves a batch without records, instead of no batch."""
    delete_horizon: bool = False
    """The cleaner has stored a delete horizon in every batch (KIP-534)."""

    def begins(self, offset: int) -> bool:
        """Return whether a batch begins at *offset*."""
        return (offset * 0x9E3779B97F4A7C15 + self.seed) % (1 << 64) >> 20 < (
            1 << 44
        ) // self.records


class Encoded(NamedTuple):
    """One batch of a log: offsets [base, end)."""

    base: int
    end: int
    data: bytes
    aborted: bool = False


def encoded(log: Log, layout: Layout) -> list[Encoded]:
    """Return the batches of *log*, ascending; one with faults covers exactly the offsets of its fault."""
    edges = {at for fault in log.faults for at in (fault.low, fault.high)}
    spans: list[list[int]] = []  # first offset, end, and the offsets of records
    before: Rec | None = None
    before_offset = log.start
    for offset in sorted(log.records.keys() | edges | {log.end}):
        record = log.records.get(offset)
        if spans:
            spans[-1][1] = offset
        if offset >= log.end:
            break
        begins = not spans or any(map(layout.begins, range(before_offset + 1, offset + 1)))
        begins = begins or not _together(before, record)
        inside = any(fault.low < offset < fault.high for fault in log.faults)
        if offset in edges or (begins and not inside):
            spans.append([offset, offset + 1])
        if record is not None:
            spans[-1].append(offset)
        before_offset = offset
        before = record or before
    if not spans and log.end > log.start:
        spans.append([log.start, log.end])  # The cleaner leaves the last batch of a log, if empty.
    found = []
    for number, (low, high, *held) in enumerate(spans):
        damage = next((f for f in log.faults if f.low <= low < f.high), None)
        # The offsets before a fault and at the log's end are in a batch: only so are they known to be empty.
        whole = damage is not None or number + 1 == len(spans) or spans[number + 1][0] in edges
        if held == [low] and not whole:
            high = low + 1  # what is behind belongs to batches that compaction has removed
        if held or layout.leaves_empty or whole:
            records = {at: log.records[at] for at in held}
            data = _damaged(_batch(low, high, records, layout), damage, low)
            # A damaged batch may have records of several transactions: no response names all of them.
            is_aborted = bool(records) and all(record.aborted for record in records.values())
            found.append(Encoded(low, high, data, is_aborted))
    return found


def _together(one: Rec | None, other: Rec | None) -> bool:
    """Return whether two records may share a batch."""
    if one is None or other is None:
        return True
    if one.control or other.control or one.timestamp_type != other.timestamp_type:
        return False
    if one.aborted != other.aborted:
        return False
    if one.timestamp_type:
        return one.timestamp == other.timestamp
    return abs(one.timestamp - other.timestamp) < _FAR


def _batch(low: int, high: int, records: Mapping[int, Rec], layout: Layout) -> bytes:
    if not records:
        return batches.build(
            b"",
            record_count=0,
            last_offset_delta=high - 1 - low,
            base_timestamp=-1,
            max_timestamp=-1,
            base_offset=low,
        )
    first = next(iter(records.values()))
    appended = first.timestamp_type * batches.LOG_APPEND_TIME
    base_timestamp = first.timestamp
    horizon = 0
    if layout.delete_horizon and not appended and abs(base_timestamp) < _FAR:
        horizon, base_timestamp = batches.DELETE_HORIZON, base_timestamp + 86_400_000
    payload = b"".join(
        encode_record(
            offset - low,
            # A broker that stamps its own time leaves the producer's in the records (KIP-32).
            offset % 100 if appended else record.timestamp - base_timestamp,
            record.key,
            record.value,
            record.headers,
        )
        for offset, record in records.items()
    )
    codec = Codec.NONE if first.control else layout.codec
    return batches.build(
        compress(codec, payload),
        record_count=len(records),
        last_offset_delta=high - 1 - low,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records.values()),
        attributes=codec | appended | horizon | first.control * batches.CONTROL,
        base_offset=low,
    )


def _damaged(data: bytes, damage: Fault | None, low: int) -> bytes:
    """Return *data* with a fault of one of three kinds, if it is to be undecodable."""
    if damage is None or damage.kind is not FailureKind.UNDECODABLE:
        return data
    if low % 3 == 0:
        return (
            data[:-1] + bytes([data[-1] ^ 1])
            if len(data) > batches.HEADER_SIZE
            else b"".join((data[:17], bytes([data[17] ^ 1]), data[18:]))
        )
    info = batches.parse(data)
    codec = Codec.GZIP if low % 3 == 1 else Codec.NONE
    return batches.build(
        b"\x06" + bytes(6),  # not gzip; as a record, one byte short of its own length
        record_count=1,
        last_offset_delta=info.last_offset_delta,
        base_timestamp=0,
        max_timestamp=0,
        attributes=codec,
        base_offset=low,
    )


Meanwhile = Callable[[int], None]
"""Changes the logs before read number n of the run, as clients and brokers do; n counts from 0."""


class BatchEngine:
    """Implements `spark_jobs.engine.Engine` over encoded logs, without Spark."""

    def __init__(
        self,
        source: Logs,
        target: Logs,
        shape: WindowShape,
        layouts: tuple[Layout, Layout] = (Layout(), Layout()),
        *,
        slice_offsets: int = 1 << 30,
        keep: int = 1 << 30,
        keep_compacted: int = 1 << 30,
        sizes: Sizes | None = None,
        meanwhile: Meanwhile | None = None,
    ) -> None:
        self._logs = {"source": source, "target": target}
        self._layouts = dict(zip(("source", "target"), layouts, strict=True))
        self._shape = shape
        self._slice = slice_offsets
        self._budget = FindingBudget(shape, keep, keep_compacted)
        self._sizes = sizes
        self._meanwhile = meanwhile
        self._reads = 0
        self._undecided: dict[TopicPartition, list[Finding]] = {}
        self._wholes: dict[TopicPartition, Alignment] = {}
        self._batches: dict[tuple[str, TopicPartition], list[Encoded]] = {}

    def tasks(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]
    ) -> Iterator[tuple[list[OffsetRange], Iterator[Fetched | Unread]]]:
        """Yield the ranges of each task and what it fetches."""
        stable, others = committed_part(cluster, ranges, marks_aborted=True)
        for part, committed in ((stable, True), (others, False)):
            pieces = split(part, self._slice)
            random.Random(len(pieces)).shuffle(pieces)
            for task in (pieces[::2], pieces[1::2]):
                if task:
                    yield task, self._fetched(cluster, task, committed=committed)

    def _fetched(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], *, committed: bool
    ) -> Iterator[Fetched | Unread]:
        left, name = RangesLeft(ranges), cluster.name
        for tp in list(left.partitions):
            log = self._logs[name].get(tp)
            if log is None:
                yield from left.give_up([tp], FailureKind.UNREADABLE, f"{tp}: no such topic")
                continue
            if (name, tp) not in self._batches:
                self._batches[name, tp] = encoded(log, self._layouts[name])
            held = self._batches[name, tp]
            yield from self._of_partition(
                left, tp, log, held, committed=committed, keeps_aborted=not cluster.read_committed
            )

    def _of_partition(
        self,
        left: RangesLeft,
        tp: TopicPartition,
        log: Log,
        held: Sequence[Encoded],
        *,
        committed: bool,
        keeps_aborted: bool,
    ) -> Iterator[Fetched | Unread]:
        if left.next_offset(tp) < log.start:
            yield from left.skip(tp, log.start, FailureKind.DELETED, "the log start moved")
        for base, end, data, is_aborted in held:
            if tp not in left.partitions or left.ended(tp):
                return
            if end <= max(left.next_offset(tp), log.start):
                continue
            refused = next(
                (f for f in log.faults if f.low <= base < f.high and f.kind is not _BROKEN), None
            )
            if refused is not None:
                yield from left.skip(tp, refused.high, refused.kind, refused.cause)
                continue
            marked = committed and is_aborted
            if marked and not keeps_aborted:
                left.pass_to(tp, end)
                continue
            view = memoryview(data)
            yield from left.accept(tp, batches.parse(view), view, is_aborted=marked)
        if tp in left.partitions and not left.ended(tp):
            yield from left.give_up([tp], FailureKind.UNREADABLE, f"{tp}: the log ends")

    def _read(self) -> None:
        if self._meanwhile is not None:
            self._meanwhile(self._reads)
            self._batches.clear()
        self._reads += 1

    def window_rows(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> WindowRows:
        self._read()
        rows = [
            row
            for task, fetched in self.tasks(cluster, ranges)
            for batch in digest_batches(fetched, task, self._shape)
            for row in batch.to_pylist()
        ]
        return WindowRows(
            [row for row in rows if row["unread"] is None], _failures(cluster.name, rows)
        )

    def header_rows(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], window: int
    ) -> WindowRows:
        names = [name for name, _ in HEADER_COLUMNS]
        rows: list[dict[str, Any]] = [
            dict(zip(names, row, strict=True))
            for task, fetched in self.tasks(cluster, ranges)
            for row in header_rows(fetched, task, ranges, window)
        ]
        return WindowRows(
            [row for row in rows if row["unread"] is None], _failures(cluster.name, rows)
        )

    def _hashes(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]
    ) -> dict[TopicPartition, pa.Table]:
        import pyarrow as pa

        found: dict[TopicPartition, list[pa.RecordBatch]] = defaultdict(list)
        for task, fetched in self.tasks(cluster, ranges):
            for batch in hash_batches(fetched, task):
                names = zip(*(batch.column(n).to_pylist() for n in range(2)), strict=True)
                at = [TopicPartition(*each) for each in names]
                for tp in dict.fromkeys(at):
                    found[tp].append(batch.filter(pa.array([each == tp for each in at])))
        return {tp: pa.Table.from_batches(each) for tp, each in found.items()}

    def differences(
        self,
        source: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        target: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        modes: Modes,
    ) -> Differences:
        self._read()
        sides = [self._hashes(*each) for each in (source, target)]
        empty = next((t.slice(0, 0) for side in sides for t in side.values()), None)
        alignments = {}
        failures = []
        for tp in sorted(sides[0].keys() | sides[1].keys()):
            of_partition = {
                cluster.name: side.get(tp, empty)
                for (cluster, _), side in zip((source, target), sides, strict=True)
            }
            settings: dict[str, Any] = {
                "folding": self._budget.folding(tp, modes),
                "breaks": modes.breaks.get(tp, ()),
            }
            if self._sizes is None and not modes.renumbered:
                alignments[tp], unread = aligned(tp, of_partition, modes, **settings)
            else:
                alignments[tp], unread = aligned_in_step(
                    tp,
                    {name: in_order(table) for name, table in of_partition.items()},
                    modes,
                    **settings,
                    offsets=1 << 40,
                    sizes=self._sizes or DEFAULT_SIZES,
                )
            failures += [failure_of(name, *tp, text) for name, text in unread]
        self._wholes = alignments.copy()
        self._undecided = {
            tp: undecided
            for tp, each in alignments.items()
            if (undecided := [f for f in each.findings if f.flags & UNDECIDED])
        }
        for tp in self._undecided:
            single = [f for f in alignments[tp].findings if not f.flags & UNDECIDED]
            alignments[tp] = replace(alignments[tp], findings=single)
        return Differences(alignments, failures, frozenset(self._undecided))

    def explain_undecided(
        self, source: ClusterSnapshot, target: ClusterSnapshot, ranges: SpanRanges, modes: Modes
    ) -> Explained:
        offsets: Counter[TopicPartition] = Counter()
        left: dict[TopicPartition, list[Finding]] = defaultdict(list)
        keys = frozenset(f.key_hash or 0 for each in self._undecided.values() for f in each)
        spans = KeySpans.of(
            *(
                self.spans_of_keys(cluster, each, keys)
                for cluster, each in zip((source, target, source, target), ranges, strict=True)
            )
        )
        for tp, undecided in self._undecided.items():
            for bucket in range(2):
                of_keys = [
                    without_tail(f, self._wholes[tp])
                    for f in undecided
                    if (f.key_hash or 0) % 2 == bucket
                ]
                owned, others = decided(
                    of_keys,
                    spans,
                    renumbered=modes.renumbered,
                    passed_up_to=self._wholes[tp].passed_up_to,
                )
                offsets[tp] += owned
                folding = self._budget.folding(tp, modes).found(2)
                left[tp] += folded(others, folding, self._wholes[tp])
        return Explained(offsets, left)

    def _rows(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]
    ) -> list[dict[str, object]]:
        self._read()
        return [
            row for table in self._hashes(cluster, ranges).values() for row in table.to_pylist()
        ]

    def holes(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> Holes:
        rows = self._rows(cluster, ranges)
        failures = _failures(cluster.name, rows)
        read: dict[TopicPartition, Ranges] = defaultdict(list)
        for row in rows:
            if row["unread"] is None:
                at = int(str(row["offset"]))
                read[_partition(row)].append((at, at + 1))
        for failure in failures:
            read[failure.topic_partition].append((failure.low, failure.high))
        return Holes(
            [
                each._replace(low=low, high=high)
                for each in ranges
                for low, high in subtract([(each.low, each.high)], read[each.topic_partition])
            ],
            failures,
        )

    def copies(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], contents: frozenset[int]
    ) -> dict[Place, Copies]:
        found = _offsets(self._rows(cluster, ranges), "content", contents)
        return {place: Copies(len(at), min(at), max(at)) for place, at in found.items()}

    def spans_of_keys(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], keys: frozenset[int]
    ) -> KeysFound:
        rows = self._rows(cluster, ranges)
        failures = _failures(cluster.name, rows)
        tombstones = {
            (_partition(row), row["offset"])
            for row in rows
            if int(str(row["flags"] or 0)) & TOMBSTONE
        }
        contents: dict[Place, set[object]] = defaultdict(set)
        for row in rows:
            contents[*_partition(row), int(str(row["key"] or 0))].add(row["content"])
        return KeysFound(
            {
                place: KeySpan(
                    min(at),
                    max(at),
                    (place[:2], max(at)) in tombstones,
                    len(contents[place]) < len(at),
                )
                for place, at in _offsets(rows, "key", keys).items()
            },
            frozenset(f.topic_partition for f in failures if f.kind is FailureKind.UNREADABLE),
        )

    def log_ends(
        self, cluster: ClusterSnapshot, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        logs = self._logs[cluster.name]
        return {tp: logs[tp].end for tp in partitions if tp in logs}


def in_order(table: pa.Table) -> HashBatches:
    """Return what reads *table*, rows of `HASH_COLUMNS`, in pieces of some rows, in the order of the log."""
    rows = [
        (unread_part(row["unread"])[0] if row["unread"] else row["offset"])
        for row in table.to_pylist()
    ]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    ordered = table.take(order).combine_chunks() if rows else table

    def read() -> Iterator[pa.RecordBatch]:
        rng, low = random.Random(len(rows)), 0
        while low < len(rows):
            size = rng.choice([1, 3, 10, 40])
            yield from ordered.slice(low, size).to_batches()
            low += size

    return read


_BROKEN = FailureKind.UNDECODABLE


def _partition(row: Mapping[str, object]) -> TopicPartition:
    return TopicPartition(str(row["topic"]), int(str(row["partition"])))


def _failures(name: str, rows: Iterable[Mapping[str, object]]) -> list[Failure]:
    return [
        failure_of(name, *_partition(row), str(row["unread"]))
        for row in rows
        if row["unread"] is not None
    ]


def _offsets(
    rows: Iterable[Mapping[str, object]], column: str, wanted: frozenset[int]
) -> dict[Place, list[int]]:
    found: dict[Place, list[int]] = defaultdict(list)
    for row in rows:
        hashed = row[column]
        if isinstance(hashed, int) and hashed in wanted:
            found[*_partition(row), hashed].append(int(str(row["offset"])))
    return found
