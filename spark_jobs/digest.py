"""Digests: sums of the hashes of a window's records; equal digests mean equal records.

Theory of operation
===================
A *window* is a range of `window` offsets of one partition. Its digest is a row of sums, not XORs, because a record
added twice would vanish from an XOR. The sums are record count, bytes, contents, and contents hashed with their offsets
and with whether their transaction was aborted (`spark_jobs.hashes`). It also has the latest timestamp. Sums are
additive: windows merge into partitions and topics. A Spark task sums the records that it reads; Spark merges the rows
of tasks that read the same window. It gets each 64-bit sum as two 32-bit halves, because its ANSI mode rejects an
overflow.

Rows are also grouped by time bucket, so that the same pass yields the charts over record time.

In: RecordArrays.  Out: rows of `DIGEST_COLUMNS`. Memory: one row per window and bucket of the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_jobs.cut import OffsetRange
from spark_jobs.hashes import DEFAULT_HASH_KEY, content_hashes, placed_hashes
from spark_jobs.record_arrays import Integers, RecordArrays

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HALF = 0xFFFFFFFF
_MASK = (1 << 64) - 1
_GROUP = ("topic", "partition", "window", "bucket")
_SUMS = ("records", "bytes", "content_low", "content_high", "placed_low", "placed_high")
_LATEST = "max_timestamp"

UNREAD_COLUMN = ("unread", "string")
"""Null, or offsets that could not be read and why (`spark_jobs.arrow_batches.unread_part`); such a row has no sums."""

DIGEST_COLUMNS = (
    ("topic", "string"),
    ("partition", "int"),
    ("window", "long"),
    ("bucket", "long"),
    *((name, "long") for name in _SUMS),
    (_LATEST, "long"),
    UNREAD_COLUMN,
)


class WindowShape(NamedTuple):
    """How records are grouped.

    Bucket b has timestamps from first_ms + b * bucket_ms on; the first and the last bucket also have all earlier and
    later ones.
    """

    window: int
    """In offsets."""
    first_ms: int = 0
    bucket_ms: int = 1
    buckets: int = 1

    def buckets_of(self, timestamps: Integers) -> Integers:
        """Return the bucket of each of *timestamps*, any of 64 bits."""
        # The difference of two numbers of 64 bits with a sign may need one bit more; as one without a sign it fits.
        later = np.maximum(timestamps, self.first_ms).view(np.uint64)
        elapsed = later - np.uint64(self.first_ms & _MASK)
        last = np.uint64(self.buckets - 1)
        found: Integers = np.minimum(elapsed // np.uint64(self.bucket_ms), last).view(np.int64)
        return found


class WindowSums:
    """The sums of the records that one task reads; their groups are numbers of *ranges*."""

    def __init__(
        self, ranges: Sequence[OffsetRange], shape: WindowShape, key: str = DEFAULT_HASH_KEY
    ) -> None:
        self._ranges = ranges
        self._shape = shape
        self._key = key
        self._sums: dict[tuple[int, int, int], tuple[int, int, int, int, int]] = {}

    def add(self, records: RecordArrays) -> None:
        """Add *records*."""
        if not records.offsets.size:
            return
        shape = self._shape
        windows = records.offsets // shape.window
        buckets = shape.buckets_of(records.timestamps)
        contents = content_hashes(records, self._key)
        placed = placed_hashes(contents, records.offsets, records.aborted)
        sizes, times = records.sizes, records.timestamps
        groups = records.groups
        starts = _runs(groups, windows, buckets)
        if starts.size > groups.size // 4:
            # Timestamps out of order: without sorting there would be a run for almost every record.
            order = np.lexsort((buckets, windows, groups))
            groups, windows, buckets = groups[order], windows[order], buckets[order]
            contents, placed = contents[order], placed[order]
            sizes, times = sizes[order], times[order]
            starts = _runs(groups, windows, buckets)
        rows = zip(
            groups[starts].tolist(),
            windows[starts].tolist(),
            buckets[starts].tolist(),
            np.diff(starts, append=groups.size).tolist(),
            np.add.reduceat(sizes, starts).tolist(),
            np.add.reduceat(contents, starts).tolist(),
            np.add.reduceat(placed, starts).tolist(),
            np.maximum.reduceat(times, starts).tolist(),
            strict=True,
        )
        for group, window, bucket, *new in rows:
            place = (group, window, bucket)
            a, b, c, d, latest = self._sums.get(place, (0, 0, 0, 0, new[4]))
            self._sums[place] = (
                a + new[0],
                b + new[1],
                c + new[2],
                d + new[3],
                max(latest, new[4]),
            )

    def rows(self) -> list[tuple[object, ...]]:
        """Return the sums as rows of `DIGEST_COLUMNS` without the last."""
        return [
            (
                self._ranges[group].topic,
                self._ranges[group].partition,
                window,
                bucket,
                records,
                size,
                content & _HALF,
                content >> 32 & _HALF,
                placed & _HALF,
                placed >> 32 & _HALF,
                latest,
            )
            for (group, window, bucket), (
                records,
                size,
                content,
                placed,
                latest,
            ) in self._sums.items()
        ]


def merged(rows: DataFrame) -> DataFrame:
    """Return one row per window and bucket, and those of unread parts, from the rows of all tasks."""
    from pyspark.sql import functions as f_

    group = (*_GROUP, UNREAD_COLUMN[0])
    sums = [f_.sum(name).alias(name) for name in _SUMS]
    return rows.groupBy(*group).agg(*sums, f_.max(_LATEST).alias(_LATEST))


def _runs(groups: Integers, windows: Integers, buckets: Integers) -> Integers:
    """Return where runs of records with the same group, window and bucket begin."""
    changes = (
        (groups[1:] != groups[:-1]) | (windows[1:] != windows[:-1]) | (buckets[1:] != buckets[:-1])
    )
    return np.concatenate(([0], np.flatnonzero(changes) + 1))
