"""Digests: hashes of records and of windows of records; equal digests mean equal records.

Theory of operation
===================
A record's *content* is a 64-bit hash over all that a consumer receives except the offset: key, value, headers in
order, timestamp and timestamp type. Spark's xxhash64 skips nulls, so each nullable part is hashed together with a
null flag: a null value is a tombstone, not an empty value.

A *window* is a range of `window` offsets of one partition. Its digest is a row of sums, not XORs, because a record
added twice would vanish from an XOR: record count, bytes, the sum of contents, and the sum of contents hashed with
their offsets. Sums are additive: windows merge into partitions and topics. Each 64-bit hash is summed as two 32-bit
halves, because Spark's ANSI mode rejects an overflow.

Rows are also grouped by time bucket, so that the same pass yields the charts over record time.

In: records as `spark_jobs.data_source.SCHEMA`.  Out: DataFrames. This module runs no Spark action.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f_

_HALF = 0xFFFFFFFF


def part_hash(*columns: Column) -> Column:
    """Return the 64-bit hash of *columns* in order, with null distinct from empty."""
    return f_.xxhash64(*(each for column in columns for each in (column.isNull(), column)))


def with_hashes(records: DataFrame) -> DataFrame:
    """Return (topic, partition, offset, timestamp, size, key, value, headers, content): hashes, no payload."""
    return records.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        (
            f_.coalesce(f_.octet_length("key"), f_.lit(0))
            + f_.coalesce(f_.octet_length("value"), f_.lit(0))
        ).alias("size"),
        part_hash(f_.col("key")).alias("key"),
        part_hash(f_.col("value")).alias("value"),
        part_hash(f_.col("headers")).alias("headers"),
        part_hash(*map(f_.col, ("key", "value", "headers", "timestamp", "timestamp_type"))).alias(
            "content"
        ),
    )


def _halves(hashed: Column, name: str) -> tuple[Column, Column]:
    return (
        f_.sum(hashed.bitwiseAND(f_.lit(_HALF))).alias(f"{name}_low"),
        f_.sum(f_.shiftrightunsigned(hashed, 32)).alias(f"{name}_high"),
    )


def window_digests(
    records: DataFrame, *, window: int, first_ms: int, bucket_ms: int, buckets: int
) -> DataFrame:
    """Return one row per (topic, partition, window, bucket) with its sums.

    *window* is in offsets. Bucket b holds timestamps from first_ms + b * bucket_ms on; the first and the last
    bucket also hold all earlier and later ones.
    """
    hashed = records.select(
        "topic",
        "partition",
        f_.floor(f_.col("offset") / window).alias("window"),
        f_.greatest(
            f_.lit(0),
            f_.least(f_.lit(buckets - 1), f_.floor((f_.col("timestamp") - first_ms) / bucket_ms)),
        ).alias("bucket"),
        "offset",
        (
            f_.coalesce(f_.octet_length("key"), f_.lit(0))
            + f_.coalesce(f_.octet_length("value"), f_.lit(0))
        ).alias("size"),
        part_hash(*map(f_.col, ("key", "value", "headers", "timestamp", "timestamp_type"))).alias(
            "content"
        ),
    )
    return hashed.groupBy("topic", "partition", "window", "bucket").agg(
        f_.count("*").alias("records"),
        f_.sum("size").alias("bytes"),
        *_halves(f_.col("content"), "content"),
        *_halves(f_.xxhash64("content", "offset"), "placed"),
    )
