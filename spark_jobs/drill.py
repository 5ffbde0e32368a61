"""Compares the records of windows that differ, one by one.

One Spark task gets the hashes of both clusters' records of one partition's differing windows, and no payload.
`spark_jobs.align` then names every difference. A task needs about 300 bytes of memory per record, so a partition that
differs everywhere is the worst case; the window heatmap shows such a partition without drilling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as f_

from spark_jobs.align import align
from spark_jobs.findings import Finding, FindingClass, RecordDigest

if TYPE_CHECKING:
    import pyarrow as pa

_FINDING_COLUMNS = (
    ("finding_class", "string"),
    ("topic", "string"),
    ("partition", "int"),
    ("source_offset", "long"),
    ("target_offset", "long"),
    ("field", "string"),
    ("first_target_offset", "long"),
    ("distance", "long"),
    ("source_hash", "long"),
    ("target_hash", "long"),
    ("timestamp_ms", "long"),
)


def find_differences(source: DataFrame, target: DataFrame) -> list[Finding]:
    """Return the findings between two sets of hashes (`HASH_COLUMNS`), sorted by topic, partition and position."""
    import pyarrow as pa

    types = {"string": pa.string(), "int": pa.int32(), "long": pa.int64()}
    schema = pa.schema([(name, types[kind]) for name, kind in _FINDING_COLUMNS])

    def compare(key: tuple[pa.Scalar, ...], left: pa.Table, right: pa.Table) -> pa.Table:
        topic, partition = key[0].as_py(), key[1].as_py()
        found = align(topic, partition, _digests(left), _digests(right))
        return pa.Table.from_pylist([_as_row(finding) for finding in found], schema=schema)

    grouped = source.groupBy("topic", "partition")
    rows = (
        grouped.cogroup(target.groupBy("topic", "partition"))
        .applyInArrow(compare, ", ".join(map(" ".join, _FINDING_COLUMNS)))
        .collect()
    )
    findings = [
        Finding(**{**row.asDict(), "finding_class": FindingClass(row["finding_class"])})
        for row in rows
    ]
    return sorted(findings, key=lambda f: (f.topic, f.partition, f.position, f.finding_class.value))


def first_copies(target: DataFrame, findings: Iterable[Finding]) -> dict[tuple[str, int, int], int]:
    """Return the first offset of each EXTRA finding's content in all of *target*.

    Keys are (topic, partition, content hash). An extra record with its first copy in an equal window is
    a duplicate, so this reads the whole target.
    """
    wanted = {f.target_hash for f in findings if f.finding_class is FindingClass.EXTRA}
    if not wanted:
        return {}
    rows = (
        target.where(f_.col("content").isin(list(wanted)))
        .groupBy("topic", "partition", "content")
        .agg(f_.min("offset").alias("first"))
        .collect()
    )
    return {(row["topic"], row["partition"], row["content"]): row["first"] for row in rows}


def settle_duplicates(
    findings: Iterable[Finding], first: dict[tuple[str, int, int], int]
) -> list[Finding]:
    """Return *findings* with every EXTRA that has an earlier copy turned into a DUPLICATE."""
    settled = []
    for finding in findings:
        copy = first.get((finding.topic, finding.partition, finding.target_hash or 0))
        if finding.finding_class is FindingClass.EXTRA and copy not in (
            None,
            finding.target_offset,
        ):
            finding = _duplicate_of(finding, copy)
        settled.append(finding)
    return settled


def _duplicate_of(finding: Finding, first_offset: int | None) -> Finding:
    return replace(finding, finding_class=FindingClass.DUPLICATE, first_target_offset=first_offset)


def _digests(table: pa.Table) -> list[RecordDigest]:
    names = ("offset", "content", "key", "value", "headers", "timestamp", "size")
    columns = [table.column(name).to_pylist() for name in names]
    return sorted(map(RecordDigest, *columns), key=lambda record: record.offset)


def _as_row(finding: Finding) -> dict[str, object]:
    row = {name: getattr(finding, name) for name, _ in _FINDING_COLUMNS}
    return row | {"finding_class": finding.finding_class.value}
