"""Implements `spark_jobs.engine.Engine` with Spark.

Of windows that differ, one Spark task gets the hashes of both clusters' records of one partition, and no payload.
`spark_jobs.align` then names every difference. A task needs about 400 bytes of memory per record, so a partition that
differs everywhere is the worst case.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from kclient.types import TopicPartition
from spark_jobs.align import Alignment, align
from spark_jobs.cut import OffsetRange
from spark_jobs.digest import WindowShape
from spark_jobs.engine import Copies, Differences, Holes, Modes, Place, WindowRows
from spark_jobs.findings import Finding, FindingClass, RecordDigest
from spark_jobs.reconcile import BUCKETS, TimeBuckets
from spark_jobs.snapshot import ClusterSnapshot, RecordReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_DIGEST_FIELDS = tuple(each.name for each in fields(RecordDigest))


class SparkEngine:
    """Reads with *read*, hashes and aligns in Spark; *window* is in offsets."""

    def __init__(self, read: RecordReader, window: int, buckets: TimeBuckets) -> None:
        self._read = read
        self._window = window
        self._buckets = buckets

    def _hashes(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the hashes of the records in *ranges*."""
        return _renamed(cluster, self._read.hashes(cluster, _at_cluster(cluster, ranges)))

    def window_rows(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> WindowRows:
        """Return the digests of *ranges* per window and time bucket."""
        shape = WindowShape(self._window, self._buckets.first_ms, self._buckets.width_ms, BUCKETS)
        frame = _renamed(cluster, self._read.digests(cluster, _at_cluster(cluster, ranges), shape))
        return WindowRows([row.asDict() for row in frame.collect()])

    def differences(
        self,
        source: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        target: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        modes: Modes,
    ) -> Differences:
        """Align the records of both sides, one task per partition."""

        def compare(key: tuple[pa.Scalar, ...], left: pa.Table, right: pa.Table) -> pa.Table:
            import pyarrow as pa

            topic, partition = key[0].as_py(), key[1].as_py()
            alignment = align(
                topic,
                partition,
                _digests(left),
                _digests(right),
                compacted=topic in modes.compacted,
                renumbered=modes.renumbered,
            )
            rows = list(_rows(topic, partition, alignment))
            return pa.table(
                {
                    "topic": pa.array([row[0] for row in rows], pa.string()),
                    "partition": pa.array([row[1] for row in rows], pa.int32()),
                    "found": pa.array([row[2] for row in rows], pa.string()),
                }
            )

        left = self._hashes(*source).groupBy("topic", "partition")
        right = self._hashes(*target).groupBy("topic", "partition")
        rows = (
            left.cogroup(right)
            .applyInArrow(compare, "topic string, partition int, found string")
            .collect()
        )
        counts: dict[TopicPartition, tuple[int, int]] = {}
        findings: dict[TopicPartition, list[Finding]] = {}
        for row in rows:
            tp, found = TopicPartition(row["topic"], row["partition"]), json.loads(row["found"])
            if "verified" in found:
                counts[tp] = found["verified"], found["shifted"]
            else:
                found["finding_class"] = FindingClass(found["finding_class"])
                findings.setdefault(tp, []).append(Finding(**found))
        return Differences(
            {
                tp: Alignment(
                    sorted(findings.get(tp, []), key=lambda f: (f.position, f.finding_class.value)),
                    *both,
                )
                for tp, both in counts.items()
            }
        )

    def holes(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> Holes:
        """Return the offsets of *ranges* without a record."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f_

        order = Window.partitionBy("topic", "partition").orderBy("offset")
        before, after = f_.lag("offset").over(order), f_.lead("offset").over(order)
        rows = (
            self._hashes(cluster, ranges)
            .select("topic", "partition", "offset")
            .select("*", before.alias("before"), after.alias("after"))
            .where("before is null or after is null or after > offset + 1")
            .collect()
        )
        held: dict[TopicPartition, list[tuple[int, int | None, int | None]]] = {}
        for row in rows:
            held.setdefault(TopicPartition(row["topic"], row["partition"]), []).append(
                (row["offset"], row["before"], row["after"])
            )
        return Holes([hole for each in ranges for hole in _holes(each, held)])

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

    def last_of_keys(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], keys: frozenset[int]
    ) -> dict[Place, int]:
        """Return the last offset of each of *keys*: reads all of *ranges*."""
        from pyspark.sql import functions as f_

        rows = (
            self._with_hash(cluster, ranges, "key", keys)
            .groupBy("topic", "partition", "key")
            .agg(f_.max("offset").alias("last"))
            .collect()
        )
        return {(row["topic"], row["partition"], row["key"]): row["last"] for row in rows}

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


def _at_cluster(cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    return [each._replace(topic=cluster.prefix + each.topic) for each in ranges]


def _renamed(cluster: ClusterSnapshot, rows: DataFrame) -> DataFrame:
    """Return *rows* with topics without the cluster's prefix."""
    if not cluster.prefix:
        return rows
    from pyspark.sql import functions as f_

    return rows.withColumn("topic", f_.expr(f"substring(topic, {len(cluster.prefix) + 1})"))


def _holes(
    each: OffsetRange, held: dict[TopicPartition, list[tuple[int, int | None, int | None]]]
) -> Iterator[OffsetRange]:
    rows = held.get(TopicPartition(each.topic, each.partition), [])
    if not rows:
        yield each
    for offset, before, after in rows:
        if before is None and offset > each.low:
            yield each._replace(high=offset)
        end = each.high if after is None else after
        if end > offset + 1:
            yield each._replace(low=offset + 1, high=end)


def _digests(table: pa.Table) -> list[RecordDigest]:
    columns = [table.column(name).to_pylist() for name in _DIGEST_FIELDS]
    return sorted(map(RecordDigest, *columns), key=lambda record: record.offset)


def _rows(topic: str, partition: int, alignment: Alignment) -> Iterator[tuple[str, int, str]]:
    yield (
        topic,
        partition,
        json.dumps({"verified": alignment.verified, "shifted": alignment.shifted}),
    )
    for finding in alignment.findings:
        found: dict[str, Any] = asdict(finding)
        found["finding_class"] = finding.finding_class.value
        yield topic, partition, json.dumps(found)
