"""Implements `spark_jobs.engine.Engine` with Spark.

Of windows that differ, one Spark task gets the hashes of both clusters' records of one partition, and no payload.
`spark_jobs.align` then names every difference. If there are many offsets to compare, the task reads both logs itself,
in bounded memory (`spark_jobs.in_step`): docs/design/audit-reading.md.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from kclient.types import TopicPartition
from spark_jobs.align import Alignment, DamagedTail, align, without_tail
from spark_jobs.arrow_batches import as_arrow, spark_schema, unread_part
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
    by_partition,
    offsets_of,
)
from spark_jobs.findings import (
    DEFAULT_MAX_FINDINGS,
    TOMBSTONE,
    UNDECIDED,
    Finding,
    FindingClass,
    RecordDigest,
)
from spark_jobs.folding import LOOKED_UP, FindingBudget, Folding, folded, in_order
from spark_jobs.in_step import DIGEST_FIELDS, MANY, Found, found_in_step
from spark_jobs.ranges import Ranges, intersect, merged, subtract
from spark_jobs.reconcile import BUCKETS, TimeBuckets
from spark_jobs.snapshot import ClusterSnapshot, RecordReader
from spark_jobs.target_names import sql_name_in_audit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row

    from spark_jobs.kafka_reader import KafkaReader

_ROWS_OF_BATCH = 10_000

_FOUND_COLUMNS = (("topic", "string"), ("partition", "int"), ("key", "long"), ("found", "string"))
"""What an alignment found in a partition, as JSON: its counts, a finding, or what was not read.

*key*: of a finding that is `UNDECIDED`, the hash of its record's key; it is not collected.
"""

_UNDECIDED_OF_TASK = 20_000
"""Findings of which one task looks up the keys, about."""


class SparkEngine:
    """Reads with *read*, hashes and aligns in Spark; *window* is in offsets.

    Of each class at most *max_findings* per partition are single findings: `spark_jobs.folding`. A partition with more
    than *many* offsets to align is read by one task, in step: `spark_jobs.in_step`. Of findings that compaction may
    explain the driver looks up the keys of *looked_up*, and tasks those of the others.
    """

    def __init__(
        self,
        read: RecordReader,
        window: int,
        buckets: TimeBuckets,
        *,
        max_findings: int = DEFAULT_MAX_FINDINGS,
        many: int = MANY,
        looked_up: int = LOOKED_UP,
    ) -> None:
        self._read = read
        self._shape = WindowShape(window, buckets.first_ms, buckets.width_ms, BUCKETS)
        self._max_findings = max_findings
        self._many = many
        self._looked_up = looked_up
        self._budget = FindingBudget.among(1, self._shape, max_findings, looked_up)
        self._undecided: DataFrame | None = None
        self._wholes: Mapping[TopicPartition, Alignment] = {}
        """The alignments of partitions with findings of `_undecided`, without findings."""
        self._kept: list[DataFrame] = []
        """On disk: what the alignments found."""

    def _hashes(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the hashes of the records in *ranges*."""
        return renamed(cluster, self._read.hashes(cluster, at_cluster(cluster, ranges)))

    def window_rows(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> WindowRows:
        """Return the digests of *ranges* per window and time bucket."""
        read = self._read.digests(cluster, at_cluster(cluster, ranges), self._shape)
        return _collected(cluster, read)

    def differences(
        self,
        source: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        target: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        modes: Modes,
    ) -> Differences:
        """Align the records of both sides, one task per partition."""
        most = most_offsets(source[1], target[1])
        many = {tp: size for tp, size in most.items() if modes.renumbered or size > self._many}
        few = [
            (cluster, [each for each in ranges if each.topic_partition not in many])
            for cluster, ranges in (source, target)
        ]
        self._budget = FindingBudget.among(
            len(most), self._shape, self._max_findings, self._looked_up
        )
        frames = [self._few(few[0], few[1], modes)] if few[0][1] or few[1][1] else []
        if many:
            frames.append(self._in_step(many, source, target, modes))
        if not any(tp.topic in modes.explainable for tp in most):
            return _differences([row for frame in frames for row in frame.collect()])
        return self._without_undecided(frames)

    def _without_undecided(self, frames: Sequence[DataFrame]) -> Differences:
        """Collect what *frames* found but for the findings that are `UNDECIDED`: those wait for `explain_undecided`."""
        from pyspark import StorageLevel

        for frame in self._kept:
            frame.unpersist()
        self._kept = [frame.persist(StorageLevel.DISK_ONLY) for frame in frames]
        found = _union(self._kept)
        differences = _differences(found.where("key is null").collect())
        self._undecided = found.where("key is not null")
        partitions = self._undecided.select("topic", "partition").distinct().collect()
        tps = frozenset(TopicPartition(*row) for row in partitions)
        self._wholes = {
            tp: replace(each, findings=[])
            for tp, each in differences.alignments.items()
            if tp in tps
        }
        return replace(differences, undecided=tps)

    def explain_undecided(
        self,
        source: ClusterSnapshot,
        target: ClusterSnapshot,
        ranges: SpanRanges,
        modes: Modes,
    ) -> Explained:
        """Look up the keys of the findings that the last `differences` left undecided."""
        from pyspark.sql import functions as f_

        undecided, budget, wholes = self._undecided, self._budget, self._wholes
        if undecided is None:
            return Explained({}, {})
        buckets = undecided.count() // _UNDECIDED_OF_TASK + 1
        place = ["topic", "partition", "key"]
        wanted = undecided.select(*place).distinct()
        spans = [
            _spans(self._hashes(cluster, of_log), wanted, place).select(
                f_.lit(number).alias("log"), *place, *KeySpan._fields
            )
            for number, (cluster, of_log) in enumerate(
                zip((source, target, source, target), map(_not_empty, ranges), strict=True)
            )
            if of_log
        ]
        of_keys = [*place[:2], "bucket"]
        own = f_.array(f_.pmod(f_.col("key"), f_.lit(buckets)))
        every = f_.sequence(f_.lit(0).cast("long"), f_.lit(buckets - 1).cast("long"))
        bucket = f_.explode(f_.when(f_.col("key").isNull(), every).otherwise(own)).alias("bucket")
        left, right = (
            frame.select("*", bucket).groupBy(*of_keys) for frame in (undecided, _union(spans))
        )

        def decide(key: tuple[pa.Scalar, ...], left: pa.Table, right: pa.Table) -> pa.Table:
            import pyarrow as pa

            tp = TopicPartition(key[0].as_py(), key[1].as_py())
            logs: tuple[dict[Place, KeySpan], ...] = ({}, {}, {}, {})
            unread = set()
            for row in right.to_pylist():
                if row["key"] is None:
                    unread.add(row["log"])
                else:
                    span = KeySpan(*(row[name] for name in KeySpan._fields))
                    logs[row["log"]][*tp, row["key"]] = span
            spans = KeySpans.of(
                *(
                    KeysFound(log, frozenset([tp] if number in unread else []))
                    for number, log in enumerate(logs)
                )
            )
            whole = wholes.get(tp, Alignment([]))
            findings = [
                without_tail(_finding(json.loads(text)), whole)
                for text in left.column("found").to_pylist()
            ]
            owned, others = decided(
                findings, spans, renumbered=modes.renumbered, passed_up_to=whole.passed_up_to
            )
            folding = budget.folding(tp, modes).found(buckets)
            found: list[Found | int] = [owned, *folded(in_order(others), folding, whole)]
            return pa.Table.from_batches(_as_rows(tp, found))

        rows = left.cogroup(right).applyInArrow(decide, spark_schema(_FOUND_COLUMNS)).collect()
        offsets: Counter[TopicPartition] = Counter()
        others: dict[TopicPartition, list[Finding]] = {}
        for row in rows:
            tp, found = TopicPartition(row["topic"], row["partition"]), json.loads(row["found"])
            if isinstance(found, int):
                offsets[tp] += found
            else:
                others.setdefault(tp, []).append(_finding(found))
        return Explained(offsets, others)

    def _few(
        self,
        source: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        target: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        modes: Modes,
    ) -> DataFrame:
        """Return the rows of partitions of which Spark gives a task all hashes at once."""
        names, budget = (source[0].name, target[0].name), self._budget

        def compare(key: tuple[pa.Scalar, ...], left: pa.Table, right: pa.Table) -> pa.Table:
            import pyarrow as pa

            tp = TopicPartition(key[0].as_py(), key[1].as_py())
            sides = dict(zip(names, (left, right), strict=True))
            alignment, unread = aligned(
                tp, sides, modes, folding=budget.folding(tp, modes), breaks=modes.breaks.get(tp, ())
            )
            found: list[Found] = [replace(alignment, findings=[]), *alignment.findings, *unread]
            return pa.Table.from_batches(_as_rows(tp, found))

        left = self._hashes(*source).groupBy("topic", "partition")
        right = self._hashes(*target).groupBy("topic", "partition")
        return left.cogroup(right).applyInArrow(compare, spark_schema(_FOUND_COLUMNS))

    def _in_step(
        self,
        offsets: Mapping[TopicPartition, int],
        source: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        target: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        modes: Modes,
    ) -> DataFrame:
        """Return the rows of the partitions with *offsets*, of which a task reads both logs itself."""
        from pyspark.sql import SparkSession

        budget = self._budget
        partitions = sorted(offsets)
        ranges = [(cluster, by_partition(of_all)) for cluster, of_all in (source, target)]
        sides = [
            {
                cluster.name: self._read.in_order(cluster, at_cluster(cluster, of_all[tp]))
                for cluster, of_all in ranges
            }
            for tp in partitions
        ]

        def compare(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    tp = partitions[number]
                    found = found_in_step(
                        tp,
                        sides[number],
                        modes,
                        offsets=offsets[tp],
                        folding=budget.folding(tp, modes),
                        breaks=modes.breaks.get(tp, ()),
                    )
                    yield from _as_rows(tp, found)

        count = len(partitions)
        numbers = SparkSession.active().range(0, count, 1, count)
        return numbers.mapInArrow(compare, spark_schema(_FOUND_COLUMNS))

    def holes(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> Holes:
        """Return the offsets of *ranges* without a record."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f_

        order = Window.partitionBy("topic", "partition").orderBy("offset")
        before, after = f_.lag("offset").over(order), f_.lead("offset").over(order)
        hashes = self._hashes(cluster, ranges).select("topic", "partition", "offset", "unread")
        edges = (
            hashes.where("unread is null")
            .select("*", before.alias("before"), after.alias("after"))
            .where("before is null or after is null or after > offset + 1")
        )
        no_offset = f_.lit(None).cast("long")
        unread = hashes.where("unread is not null").select("*", no_offset, no_offset)
        held: dict[TopicPartition, list[HeldRow]] = {}
        failures = []
        for topic, partition, offset, text, *neighbours in edges.union(unread).collect():
            if text is not None:
                failures.append(failure_of(cluster.name, topic, partition, text))
            else:
                held.setdefault(TopicPartition(topic, partition), []).append((offset, *neighbours))
        found = by_partition(failures)
        failed = {each.topic_partition: offsets_of(found[each.topic_partition]) for each in ranges}
        return Holes(
            [
                hole._replace(low=low, high=high)
                for each in ranges
                for hole in holes_of(each, held.get(each.topic_partition, []))
                for low, high in subtract([hole[2:]], failed[hole.topic_partition])
            ],
            failures,
        )

    def copies(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], contents: frozenset[int]
    ) -> dict[Place, Copies]:
        """Return where *ranges* have records with one of *contents*: reads all of them."""
        from pyspark.sql import functions as f_

        rows = (
            self._with_hash(cluster, ranges, "content", contents)
            .groupBy("topic", "partition", "content")
            .agg(
                f_.count("*").alias("records"),
                f_.min("offset").alias("first"),
                f_.max("offset").alias("last"),
            )
            .collect()
        )
        return {
            (row["topic"], row["partition"], row["content"]): Copies(
                row["records"], row["first"], row["last"]
            )
            for row in rows
        }

    def spans_of_keys(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], keys: frozenset[int]
    ) -> KeysFound:
        """Return the first and the last offset of each of *keys*: reads all of *ranges*."""
        hashed = self._hashes(cluster, ranges)
        wanted = hashed.sparkSession.createDataFrame([(each,) for each in keys], "key long")
        rows = _spans(hashed, wanted, ["key"]).collect()
        return KeysFound(
            {
                (row["topic"], row["partition"], row["key"]): KeySpan(
                    *(row[name] for name in KeySpan._fields)
                )
                for row in rows
                if row["key"] is not None
            },
            frozenset(
                TopicPartition(row["topic"], row["partition"]) for row in rows if row["key"] is None
            ),
        )

    def log_ends(
        self, cluster: ClusterSnapshot, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where the logs of *partitions* end now; none of a partition that the cluster does not report."""
        return self._read.log_ends(cluster, partitions)

    def _with_hash(
        self,
        cluster: ClusterSnapshot,
        ranges: Sequence[OffsetRange],
        column: str,
        hashes: frozenset[int],
    ) -> DataFrame:
        hashed = self._hashes(cluster, ranges)
        wanted = hashed.sparkSession.createDataFrame([(each,) for each in hashes], f"{column} long")
        return hashed.join(wanted, column, "left_semi")


def _spans(hashes: DataFrame, wanted: DataFrame, on: list[str]) -> DataFrame:
    """Return the `KeySpan` of each *wanted* key, and a row without a key for unread partitions.

    Offsets that were deleted meanwhile, or that cannot be decoded, make no partition an unread one.
    """
    from pyspark.sql import functions as f_

    unreadable = f_.get_json_object("unread", "$[2]") == FailureKind.UNREADABLE.value
    # Records without a key match nothing, but a left join would send all of them to one task.
    matched = hashes.where(f_.col("key").isNotNull() | unreadable)
    marked = matched.join(wanted.withColumn("is_wanted", f_.lit(True)), on, "left")
    return (
        marked.where(f_.col("is_wanted") | unreadable)
        .groupBy("topic", "partition", "key")
        .agg(
            f_.min("offset").alias("first"),
            f_.max("offset").alias("last"),
            f_.max_by(f_.col("flags").bitwiseAND(TOMBSTONE) > 0, "offset").alias("deletes"),
            (f_.count_distinct("content") < f_.count("content")).alias("repeats"),
        )
    )


def most_offsets(*sides: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
    """Return for each partition how many offsets its ranges have on the side that has more."""
    most: Counter[TopicPartition] = Counter()
    for ranges in sides:
        for tp, of_partition in by_partition(ranges).items():
            most[tp] = max(most[tp], sum(each.high - each.low for each in of_partition))
    return most


def _differences(rows: Sequence[Row]) -> Differences:
    counts: dict[TopicPartition, Alignment] = {}
    findings: dict[TopicPartition, list[Finding]] = {}
    failures = []
    for row in rows:
        tp, found = TopicPartition(row["topic"], row["partition"]), json.loads(row["found"])
        if "verified" in found:
            names = ("moved", "aged_out", "opposite", "beyond", "proven", "unused")
            pairs = {name: found[name] and tuple(found[name]) for name in names}
            damaged = found["damaged"] and DamagedTail(*found["damaged"])
            counts[tp] = Alignment(**{**found, **pairs, "damaged": damaged})
        elif "unread" in found:
            name, text = found["unread"]
            failures.append(failure_of(name, *tp, text))
        else:
            findings.setdefault(tp, []).append(_finding(found))
    return Differences(
        {
            tp: replace(
                alignment,
                findings=in_order(without_tail(each, alignment) for each in findings.get(tp, ())),
            )
            for tp, alignment in counts.items()
        },
        failures,
    )


def aligned(
    tp: TopicPartition,
    sides: Mapping[str, pa.Table],
    modes: Modes,
    *,
    folding: Folding,
    breaks: Sequence[int] = (),
) -> tuple[Alignment, list[tuple[str, str]]]:
    """Return the differences of one partition, and (cluster, text) of what was not read; not of a renumbered target.

    *sides*: rows of `HASH_COLUMNS` by cluster, the source first.
    """
    unread = [(name, text) for name, side in sides.items() for text in _unread(side)]
    failed = merged(unread_part(text)[:2] for _, text in unread)
    alignment = align(
        *tp,
        *(_digests(_readable(side, failed)) for side in sides.values()),
        compacted=tp.topic in modes.compacted,
        breaks=breaks,
    )
    findings = folded(alignment.findings, folding, alignment)
    return replace(alignment, findings=findings), unread


class SparkHeaders(SparkEngine):
    """Implements `spark_jobs.header_audit.HeaderEngine`."""

    def __init__(self, read: KafkaReader, window: int) -> None:
        super().__init__(read, window, TimeBuckets(0, 1))
        self._reader = read

    def header_rows(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], window: int
    ) -> WindowRows:
        """Return the sums of the batch headers in *ranges* per window."""
        read = self._reader.headers(cluster, at_cluster(cluster, ranges), window)
        return _collected(cluster, read)


def _collected(cluster: ClusterSnapshot, read: DataFrame) -> WindowRows:
    rows = [row.asDict() for row in renamed(cluster, read).collect()]
    return WindowRows(
        [row for row in rows if row["unread"] is None],
        [
            failure_of(cluster.name, row["topic"], row["partition"], row["unread"])
            for row in rows
            if row["unread"] is not None
        ],
    )


def at_cluster(cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return *ranges* with the topic names of the cluster."""
    return [each._replace(topic=cluster.topic_of(each.topic)) for each in ranges]


def renamed(cluster: ClusterSnapshot, rows: DataFrame) -> DataFrame:
    """Return *rows* with the audit's names of the topics."""
    if not (cluster.prefix or cluster.renamed):
        return rows
    from pyspark.sql import functions as f_

    named = f_.expr(sql_name_in_audit(cluster.prefix))
    for name, topic in cluster.renamed.items():
        named = f_.when(f_.col("topic") == topic, f_.lit(name)).otherwise(named)
    return rows.withColumn("topic", named)


HeldRow = tuple[int, int | None, int | None]
"""The offset of a record, and those of the records before and after it in the partition, in any range."""


def holes_of(each: OffsetRange, rows: Sequence[HeldRow]) -> Iterator[OffsetRange]:
    """Yield the offsets of *each* without a record.

    *rows*: the records of the partition without a neighbour at the next offset, and the first and the last one.
    """
    holes = [] if rows else [(each.low, each.high)]
    for offset, before, after in rows:
        if before is None:
            holes.append((each.low, offset))
        holes.append((offset + 1, each.high if after is None else after))
    # The record after may be in another range: what is between the two was not read.
    for low, high in intersect(holes, each.low, each.high):
        yield each._replace(low=low, high=high)


def failure_of(cluster: str, topic: str, partition: int, text: str) -> Failure:
    """Return the failure that a row with *text* in its column `unread` stands for."""
    low, high, kind, cause = unread_part(text)
    return Failure(cluster, topic, partition, low, high, kind, cause)


def _unread(table: pa.Table) -> list[str]:
    return [text for text in table.column("unread").to_pylist() if text is not None]


def _readable(table: pa.Table, failed: Ranges) -> pa.Table:
    """Return the columns of `RecordDigest` outside the *failed* offsets."""
    import pyarrow.compute as pc

    unread = table.column("unread")
    if unread.null_count < len(unread):
        table = table.filter(pc.is_null(unread))
    table = table.select(list(DIGEST_FIELDS))
    for low, high in failed:
        offsets = table.column("offset")
        table = table.filter(pc.or_(pc.less(offsets, low), pc.greater_equal(offsets, high)))
    return table


def _digests(table: pa.Table) -> list[RecordDigest]:
    columns = (table.column(name).to_pylist() for name in DIGEST_FIELDS)
    return sorted(map(RecordDigest, *columns), key=lambda record: record.offset)


def _as_rows(tp: TopicPartition, found: Iterable[Found | int]) -> Iterator[pa.RecordBatch]:
    """Yield what was *found* in one partition as rows of `_FOUND_COLUMNS`.

    There may be a million findings: few of them exist at a time.
    """
    left = iter(found)
    while some := list(itertools.islice(left, _ROWS_OF_BATCH)):
        yield as_arrow(
            [(*tp, _undecided_key(each), json.dumps(_document(each))) for each in some],
            _FOUND_COLUMNS,
        )


def _undecided_key(found: Found | int) -> int | None:
    return found.key_hash if isinstance(found, Finding) and found.flags & UNDECIDED else None


def _finding(document: dict[str, Any]) -> Finding:
    named = FindingClass(document["finding_class"])
    apart = document["apart"] and tuple(map(_finding, document["apart"]))
    return Finding(**{**document, "finding_class": named, "apart": apart})


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of *frames*, at least one."""
    return functools.reduce(lambda one, other: one.union(other), frames)


def _not_empty(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    return [each for each in ranges if each.high > each.low]


def _document(found: Found | int) -> dict[str, object] | int:
    if isinstance(found, int):
        return found
    if isinstance(found, Finding):
        apart = found.apart and tuple(map(_document, found.apart))
        document = asdict(replace(found, apart=None))
        return {**document, "finding_class": found.finding_class.value, "apart": apart}
    return asdict(found) if isinstance(found, Alignment) else {"unread": found}
