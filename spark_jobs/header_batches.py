"""Sums of batch headers in a Spark task, and the rows in which they leave it. Records stay encoded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_jobs.cut import OffsetRange
from spark_jobs.digest import UNREAD_COLUMN
from spark_jobs.engine import FailureKind
from spark_jobs.headers import HeaderSums, sums_of
from spark_jobs.reader import Fetched, Unread
from spark_jobs.windows import WindowKey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_HALF = 0xFFFFFFFF
_SUMS = ("batches", "records", "bytes", "hashes_low", "hashes_high")

HEADER_COLUMNS = (
    ("topic", "string"),
    ("partition", "int"),
    ("window", "long"),
    *((name, "long") for name in _SUMS),
    ("reach", "long"),
    UNREAD_COLUMN,
)


def header_rows(
    fetched: Iterable[Fetched | Unread],
    ranges: Sequence[OffsetRange],
    whole: Iterable[OffsetRange],
    window: int,
) -> Iterator[tuple[object, ...]]:
    """Yield the sums of *ranges* as rows of `HEADER_COLUMNS`, at the end, and a row for each part that was not read.

    *ranges* are parts of the ranges *whole*, and a batch may overlap two of them. It counts where it begins, or where a
    whole range begins. If its begin is no longer in the log, no range may have counted it: its rest was not read.
    """
    starts = {each[:3] for each in whole}
    sums: dict[WindowKey, HeaderSums] = {}
    unread = []
    for each in fetched:
        wanted = ranges[each.number]
        if isinstance(each, Unread):
            unread.append((wanted, each))
            continue
        base = each.info.base_offset
        if base < wanted.low and wanted[:3] not in starts:
            if each.low > wanted.low:
                cause = f"{wanted.topic_partition}: the batch at offset {base} was deleted in part"
                gone = Unread(each.number, each.low, each.high, FailureKind.DELETED, cause)
                unread.append((wanted, gone))
            continue
        key = WindowKey(wanted.topic, wanted.partition, base // window)
        sums[key] = sums.get(key, HeaderSums()) + sums_of(each.data, each.info)
    for key, found in sums.items():
        hashes = found.hashes & _HALF, found.hashes >> 32
        yield *key, found.batches, found.records, found.bytes, *hashes, found.reach, None
    for wanted, part in unread:
        text = json.dumps([part.low, part.high, part.kind.value, part.cause])
        yield wanted.topic, wanted.partition, None, *[None] * len(_SUMS), None, text


def header_batches(
    fetched: Iterable[Fetched | Unread],
    ranges: Sequence[OffsetRange],
    whole: Iterable[OffsetRange],
    window: int,
) -> Iterator[pa.RecordBatch]:
    """Yield `header_rows` as one Arrow batch."""
    from spark_jobs.arrow_batches import as_arrow

    rows = list(header_rows(fetched, ranges, whole, window))
    if rows:
        yield as_arrow(rows, HEADER_COLUMNS)


def merged_headers(rows: DataFrame) -> DataFrame:
    """Return one row per window, and those of unread parts, from the rows of all tasks."""
    from pyspark.sql import functions as f_

    sums = [f_.sum(name).alias(name) for name in _SUMS]
    group = ("topic", "partition", "window", UNREAD_COLUMN[0])
    return rows.groupBy(*group).agg(*sums, f_.max("reach").alias("reach"))


def header_sums(rows: Iterable[Mapping[str, int]]) -> dict[WindowKey, HeaderSums]:
    """Return the sums per window from rows without unread parts."""
    found: dict[WindowKey, HeaderSums] = {}
    for row in rows:
        key = WindowKey(str(row["topic"]), row["partition"], row["window"])
        hashes = row["hashes_low"] + (row["hashes_high"] << 32)
        found[key] = found.get(key, HeaderSums()) + HeaderSums(
            row["batches"], row["records"], row["bytes"], hashes, row["reach"]
        )
    return found
