"""The self-test of the audit: seeded faults in generated logs; each must be found, none invented.

A seed generates a source log, damages a copy of it at random places and records each fault. The code that audits
clusters then compares the two logs; only the fetches differ. Its findings must equal the recorded faults: with a
precision or recall below 1.0 the audit reports ERROR.

A clean run compares the source log with itself. Unless it is CONSISTENT and without findings, the self-test has failed.

Faults in single records (`SEEDED`) are in the first partitions. Three follow. The first of these lacks its end and has
a batch with a wrong CRC. It also has some records of the second, which is otherwise clean. The third has higher offsets
from some record on. The other classes (`NOT_SEEDED`) need retention or transactions: they are tested in tests/ only.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kclient.types import TopicPartition
from kclient.wire.batches import parse
from kclient.wire.compression import Codec
from kclient.wire.record_writer import Headers, Record, encode_batch
from spark_jobs.arrow_batches import HASH_COLUMNS, digest_batches, hash_batches, spark_schema
from spark_jobs.comparison import Options
from spark_jobs.cut import LogRange, OffsetRange
from spark_jobs.digest import DIGEST_COLUMNS, WindowShape, merged
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.reader import Fetched, RangesLeft, Unread
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.snapshot import ClusterSnapshot, HashBatches
from spark_jobs.spark_engine import SparkEngine
from spark_jobs.verdict import Verdict

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_TOPIC = "selftest"
_BATCH = 50
"""Records in a batch of a generated log."""

SEEDED = (
    FindingClass.MISSING,
    FindingClass.EXTRA,
    FindingClass.DUPLICATE,
    FindingClass.CORRUPT,
    FindingClass.REORDERED,
)
"""The classes of faults in single records."""

SEEDED_RANGES = (
    FindingClass.TRUNCATED,
    FindingClass.UNDECODABLE,
    FindingClass.MISROUTED,
    FindingClass.SHIFTED,
)
"""The classes of faults in the last three partitions."""

NOT_SEEDED = tuple(each for each in FindingClass if each not in (*SEEDED, *SEEDED_RANGES))

_MISROUTED = 3
"""Records that are in another partition."""

_ROOM = 8
"""Records of which at most one is a fault."""


class Row(NamedTuple):
    """A record of a generated log."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class GeneratedLogs:
    """Reads generated logs as a cluster's batches are read: encoded, and with the same code in Spark's tasks."""

    def __init__(
        self,
        spark: SparkSession,
        logs: Mapping[str, Sequence[Row]],
        corrupt: Set[tuple[str, int, int]] = frozenset(),
    ) -> None:
        self._spark = spark
        self._logs = logs
        self._corrupt = corrupt
        """The cluster, partition and number of batches with a wrong CRC."""

    def digests(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], shape: WindowShape
    ) -> DataFrame:
        """Return the digests of the records in *ranges*."""
        wanted = list(ranges)

        def digest(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return digest_batches(_fetched(rows, wanted), wanted, shape)

        batches = self._batches(cluster.name, ranges)
        return merged(batches.mapInArrow(digest, spark_schema(DIGEST_COLUMNS)))

    def hashes(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the hashes of each record in *ranges*."""
        wanted = list(ranges)

        def hashed(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return hash_batches(_fetched(rows, wanted), wanted)

        return self._batches(cluster.name, ranges).mapInArrow(hashed, spark_schema(HASH_COLUMNS))

    def in_order(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> HashBatches:
        """Return what a Spark task calls to read the hashes of *ranges* of one partition, in the order of its log."""
        wanted, rows = list(ranges), self._rows(cluster.name, ranges)

        def read() -> Iterator[pa.RecordBatch]:
            return hash_batches(_accepted(rows, wanted), wanted)

        return read

    def log_ends(
        self, cluster: ClusterSnapshot, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where the logs end: nothing is written to them."""
        return {tp: cluster.ranges[tp].end for tp in partitions if tp in cluster.ranges}

    def _batches(self, name: str, ranges: Sequence[OffsetRange]) -> DataFrame:
        return self._spark.createDataFrame(self._rows(name, ranges), "number int, batch binary")

    def _rows(self, name: str, ranges: Sequence[OffsetRange]) -> list[tuple[int, bytearray]]:
        """Return the batches of *ranges*, with the numbers of the ranges."""
        by_partition: dict[int, list[Row]] = defaultdict(list)
        for row in self._logs[name]:
            by_partition[row.partition].append(row)
        rows = []
        for number, wanted in enumerate(ranges):
            log = by_partition[wanted.partition]
            for low in range(0, len(log), _BATCH):
                batch = bytearray(_encoded(log[low : low + _BATCH]))
                if (name, wanted.partition, low // _BATCH) in self._corrupt:
                    batch[-1] ^= 1
                rows.append((number, batch))
        return rows


def _encoded(rows: Sequence[Row]) -> bytes:
    """Return *rows* as one batch; its codec depends on its offset, so that each codec occurs."""
    first = rows[0].offset
    records = [
        Record(row.offset, row.timestamp, row.key, row.value, row.headers or ()) for row in rows
    ]
    return encode_batch(
        records, base_offset=first, keep_offsets=True, codec=first // _BATCH % len(Codec)
    )


def _fetched(
    rows: Iterator[pa.RecordBatch], ranges: Sequence[OffsetRange]
) -> Iterator[Fetched | Unread]:
    batches = (
        row
        for each in rows
        for row in zip(*(column.to_pylist() for column in each.columns), strict=True)
    )
    return _accepted(batches, ranges)


def _accepted(
    batches: Iterable[tuple[int, bytes | bytearray]], ranges: Sequence[OffsetRange]
) -> Iterator[Fetched | Unread]:
    left: dict[int, RangesLeft] = {}
    for number, batch in batches:
        topic, partition, *_ = wanted = ranges[number]
        of_range = left.setdefault(number, RangesLeft([wanted]))
        data = memoryview(batch)
        for found in of_range.accept(TopicPartition(topic, partition), parse(data), data):
            yield found._replace(number=number)


class Fault(NamedTuple):
    """One seeded fault, described as the finding that must report it."""

    finding_class: FindingClass
    partition: int
    source_offset: int | None
    target_offset: int | None
    field: str | None = None


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """How many faults were seeded, found exactly, overlooked and invented, and what was found in the clean run."""

    seeded: int
    found: int
    overlooked: tuple[Fault, ...]
    invented: tuple[Fault, ...]
    of_clean_run: tuple[Fault, ...] = ()
    """Findings in two equal logs."""
    proven_equal: bool = True
    """Whether the clean run was CONSISTENT."""

    @property
    def passed(self) -> bool:
        """Every fault found and none invented, and nothing in the clean run."""
        exact = not self.overlooked and not self.invented
        return exact and not self.of_clean_run and self.proven_equal

    def __str__(self) -> str:
        clean = f"equal logs: {len(self.of_clean_run)} findings"
        if not self.proven_equal:
            clean += ", not proven equal"
        return f"{self.found}/{self.seeded} found, {len(self.invented)} invented; {clean}"


def most_faults(*, records: int = 4000, partitions: int = 4) -> int:
    """Return how many faults `run_self_test` can seed into so many records."""
    return records // _ROOM * partitions


def run_self_test(
    spark: SparkSession,
    *,
    seed: int = 1,
    records: int = 4000,
    partitions: int = 4,
    faults: int = 40,
) -> SelfTestResult:
    """Audit generated logs with *faults* seeded faults, and equal logs; compare findings with faults.

    *records* is per partition, *faults* over the first *partitions*, at most `most_faults`. Without faults there is
    only the clean run. The same *seed* gives the same logs and faults.
    """
    rng = random.Random(seed)
    source, target, seeded = make_case(rng, records=records, partitions=partitions, faults=faults)
    clean = _audited(spark, source, source, partitions)
    proven_equal = clean.outcome.verdict is Verdict.CONSISTENT
    invented = _by_name(_faults(clean))
    if not faults:
        return SelfTestResult(0, 0, (), (), invented, proven_equal)
    more = damage_ranges(rng, records=records, first=partitions)
    found = _faults(
        _audited(
            spark,
            [*source, *more.source],
            [*target, *more.target],
            partitions + 3,
            more.corrupt,
        )
    )
    expected = {*seeded, *more.faults}
    return SelfTestResult(
        len(expected),
        len(expected & found),
        _by_name(expected - found),
        _by_name(found - expected),
        invented,
        proven_equal,
    )


def _audited(
    spark: SparkSession,
    source: Sequence[Row],
    target: Sequence[Row],
    partitions: int,
    corrupt: Set[tuple[str, int, int]] = frozenset(),
) -> Reconciliation:
    """Audit two generated logs in one Spark run."""
    options = Options(window=200, complete=True)
    buckets = TimeBuckets.over((0, max(row.offset for row in source) * 1000))
    read = GeneratedLogs(spark, {"source": source, "target": target}, corrupt)
    return reconcile(
        SparkEngine(read, options.window, buckets),
        _snapshot("source", source, partitions),
        _snapshot("target", target, partitions),
        options,
        buckets=buckets,
    )


def _faults(run: Reconciliation) -> set[Fault]:
    """Return the findings of *run* as faults."""
    return {
        Fault(f.finding_class, f.partition, f.source_offset, f.target_offset, _without_cause(f))
        for f in run.findings
    }


def _by_name(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=str))


def make_case(
    rng: random.Random, *, records: int, partitions: int, faults: int
) -> tuple[list[Row], list[Row], list[Fault]]:
    """Return (source rows, target rows, faults); target offsets are consecutive, as a leader would assign them."""
    source: list[Row] = []
    target: list[Row] = []
    seeded: list[Fault] = []
    for partition in range(partitions):
        log = [_record(rng, partition, offset) for offset in range(records)]
        share = faults // partitions + (partition < faults % partitions)
        copy, done = damage(rng, log, share)
        source += log
        target += copy
        seeded += done
    return source, target, seeded


def damage(rng: random.Random, log: Sequence[Row], faults: int) -> tuple[list[Row], list[Fault]]:
    """Return a damaged copy of *log*, renumbered from its first offset, and its faults.

    Faults are at least five records apart, so that each belongs to one class only.
    """
    places = sorted(rng.sample(range(len(log) // _ROOM), faults))
    kinds = [rng.choice(SEEDED) for _ in places]
    edits = {place * _ROOM: kind for place, kind in zip(places, kinds, strict=True)}
    copy: list[Row] = []
    faults_done: list[Fault] = []
    index = 0
    first = log[0].offset if log else 0
    while index < len(log):
        kind, row = edits.get(index), log[index]
        place = first + len(copy)
        if kind is FindingClass.MISSING:
            faults_done.append(Fault(kind, row.partition, row.offset, None))
        elif kind is FindingClass.EXTRA:
            copy += [_record(rng, row.partition, 10**9 + row.offset), row]
            faults_done.append(Fault(kind, row.partition, None, place))
        elif kind is FindingClass.DUPLICATE:
            copy += [*log[index : index + 3], row]
            faults_done.append(Fault(kind, row.partition, None, place + 3))
            index += 2
        elif kind is FindingClass.CORRUPT:
            changed, part = _corrupt(rng, row)
            copy.append(changed)
            faults_done.append(Fault(kind, row.partition, row.offset, place, part))
        elif kind is FindingClass.REORDERED and index + 3 < len(log):
            copy += [*log[index + 1 : index + 4], row]
            faults_done.append(Fault(kind, row.partition, row.offset, place + 3))
            index += 3
        else:
            copy.append(row)
        index += 1
    return [row._replace(offset=first + n) for n, row in enumerate(copy)], faults_done


def _without_cause(finding: Finding) -> str | None:
    if finding.finding_class is not FindingClass.UNDECODABLE or finding.field is None:
        return finding.field
    return finding.field.partition(":")[0]


class DamagedRanges(NamedTuple):
    """Three partitions with faults of `SEEDED_RANGES`."""

    source: list[Row]
    target: list[Row]
    faults: list[Fault]
    corrupt: Set[tuple[str, int, int]]
    """The cluster, partition and number of batches with a wrong CRC."""


def damage_ranges(rng: random.Random, *, records: int, first: int) -> DamagedRanges:
    """Return three partitions from *first* on, of *records* each, at least ten batches."""
    here, there, behind = (
        [_record(rng, partition, offset) for offset in range(records)]
        for partition in (first, first + 1, first + 2)
    )
    end = records - rng.randrange(1, 2 * _BATCH)
    batch = rng.randrange(1, records // _BATCH // 2)
    corrupt = range(batch * _BATCH, (batch + 1) * _BATCH)
    faults = [
        Fault(FindingClass.TRUNCATED, first, end, None),
        Fault(FindingClass.UNDECODABLE, first, None, corrupt[0], "target"),
    ]
    copy = here[:end]
    moved = sorted(rng.sample(range(0, records, 8), _MISROUTED))
    # Behind the batch with the wrong CRC. Each of them moves the following ones by one.
    places = sorted(rng.sample(range(corrupt[-1] + 9, end - 9, 8), _MISROUTED))
    for number, (offset, place) in enumerate(zip(moved, places, strict=True)):
        copy.insert(place + number, there[offset]._replace(partition=first))
        faults.append(Fault(FindingClass.MISROUTED, first + 1, offset, place + number))
    copy = [row._replace(offset=n) for n, row in enumerate(copy)]
    clean = [row for row in there if row.offset not in moved]
    begin, by = rng.randrange(1, records), rng.randrange(1, 2 * _BATCH)
    shifted = [row._replace(offset=row.offset + by * (row.offset >= begin)) for row in behind]
    faults.append(Fault(FindingClass.SHIFTED, first + 2, begin, begin + by))
    return DamagedRanges(
        [*here, *there, *behind], [*copy, *clean, *shifted], faults, {("target", first, batch)}
    )


def _record(rng: random.Random, partition: int, offset: int) -> Row:
    return Row(
        partition,
        offset,
        offset * 1000 + rng.randrange(1000),
        rng.choice([None, b"", b"key-%d" % rng.randrange(50)]),
        # Unique, so that every fault belongs to one class only; with some tombstones and empty values.
        rng.choice([b"value-%d-%d" % (partition, offset)] * 8 + [None, b""]),
        rng.choice([(), (("header", b"%d" % rng.randrange(5)), ("again", None))]),
    )


def _corrupt(rng: random.Random, row: Row) -> tuple[Row, str]:
    part = rng.choice(["key", "value", "headers", "timestamp"])
    if part == "timestamp":
        return row._replace(timestamp=row.timestamp + 10**12), part

    def changed(before: bytes | None) -> bytes | None:
        # Null against empty is the difference that a hash without a null flag overlooks.
        return rng.choice([b"changed", b"" if before is None else None])

    if part == "key":
        return row._replace(key=changed(row.key)), part
    if part == "value":
        return row._replace(value=changed(row.value)), part
    if not row.headers:
        return row._replace(headers=(("header", None),)), part
    others = (row.headers[::-1], row.headers[:1], (("header", b""), *row.headers[1:]))
    return row._replace(headers=rng.choice(others)), part


def _snapshot(name: str, rows: Sequence[Row], partitions: int) -> ClusterSnapshot:
    ends = [0] * partitions
    for row in rows:
        ends[row.partition] = max(ends[row.partition], row.offset + 1)
    ranges = {TopicPartition(_TOPIC, number): LogRange(0, end) for number, end in enumerate(ends)}
    return ClusterSnapshot(name, "", name, ranges)
