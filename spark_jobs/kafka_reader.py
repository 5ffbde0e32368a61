"""Reads offset ranges of a cluster in Spark tasks, for an audit: digests of windows, hashes of records, batch headers.

The ranges are explicit. There is no "earliest" and no "latest": an audit freezes its cut before it reads any record.
The data source for everything else is `spark_jobs.source`. `spark_jobs.tasks` divides the ranges into tasks. Payload
does not leave a task. A part that cannot be read is a row of its own, with topic, partition and offsets: no record is
skipped silently.

The tasks are those of ``mapInArrow`` over the numbers of the tasks, and not those of a Python data source. For a data
source Spark starts three more kinds of Python processes: to look it up, to create it and to plan each read. They are
7 s of the 24 s of processor time that an audit of one record takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kclient.types import TopicPartition
from spark_jobs.arrow_batches import (
    HASH_COLUMNS,
    Columns,
    digest_batches,
    hash_batches,
    spark_schema,
)
from spark_jobs.cut import OffsetRange
from spark_jobs.digest import DIGEST_COLUMNS, WindowShape, merged
from spark_jobs.hash_key import PUBLIC, HashKey
from spark_jobs.header_batches import HEADER_COLUMNS, header_batches, merged_headers
from spark_jobs.reader import READ_COMMITTED, Connection, Fetched, Unread, fetch_ranges
from spark_jobs.tasks import pack

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.snapshot import ClusterSnapshot, HashBatches

DEFAULT_SLICE_OFFSETS = 2_000_000

ToArrow: TypeAlias = Callable[
    [Iterable[Fetched | Unread], Sequence[OffsetRange]], Iterator["pa.RecordBatch"]
]
"""What a task does with the batches of its ranges."""


class KafkaReader:
    """Reads clusters for an audit, through Spark; *key* is that of the hashes.

    Spark sends the key to its executors with the code of a task; no plan and no event of Spark shows it.
    """

    def __init__(
        self,
        spark: SparkSession,
        slice_offsets: int = DEFAULT_SLICE_OFFSETS,
        key: HashKey = PUBLIC,
    ) -> None:
        self._spark = spark
        self._slice_offsets = slice_offsets
        self._key = key

    def digests(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], shape: WindowShape
    ) -> DataFrame:
        """Return the digests of the records in *ranges*, one row per window and bucket."""
        key = self._key.text
        return merged(
            self._read(
                cluster,
                ranges,
                lambda fetched, of_task: digest_batches(fetched, of_task, shape, key),
                DIGEST_COLUMNS,
                marks_aborted=True,
            )
        )

    def hashes(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the hashes of each record in *ranges*."""
        key = self._key.text
        return self._read(
            cluster,
            ranges,
            lambda fetched, of_task: hash_batches(fetched, of_task, key),
            HASH_COLUMNS,
            marks_aborted=True,
        )

    def in_order(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> HashBatches:
        """Return what a Spark task calls to read the hashes of *ranges* of one partition, in the order of its log."""
        key, parts = self._key.text, _parts(cluster, ranges, marks_aborted=True)

        def read() -> Iterator[pa.RecordBatch]:
            for connection, part in parts:
                if part:
                    yield from hash_batches(fetch_ranges(connection, part), part, key)

        return read

    def headers(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], window: int
    ) -> DataFrame:
        """Return the sums of the batch headers in *ranges*, one row per window; nothing is decompressed."""
        whole = list(ranges)
        return merged_headers(
            self._read(
                cluster,
                ranges,
                lambda fetched, of_task: header_batches(fetched, of_task, whole, window),
                HEADER_COLUMNS,
            )
        )

    def log_ends(
        self, cluster: ClusterSnapshot, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where the logs of *partitions* end now; none if the cluster does not answer."""
        # Imported here: Spark's workers import this module, and have no use for an admin client.
        from spark_jobs.cluster import log_ends

        return log_ends(cluster, partitions)

    def _read(
        self,
        cluster: ClusterSnapshot,
        ranges: Sequence[OffsetRange],
        to_arrow: ToArrow,
        columns: Columns,
        *,
        marks_aborted: bool = False,
    ) -> DataFrame:
        """Return the rows that *to_arrow* gives for the batches of *ranges*, as *columns*.

        With *marks_aborted* the records below `ClusterSnapshot.decided` have whether they were aborted.
        """
        most = 2 * self._spark.sparkContext.defaultParallelism
        tasks = [
            (connection, of_task)
            for connection, part in _parts(cluster, ranges, marks_aborted=marks_aborted)
            for of_task in pack(part, self._slice_offsets, most)
        ]

        def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    connection, of_task = tasks[number]
                    yield from to_arrow(fetch_ranges(connection, of_task), of_task)

        # One task number in each partition. Spark rejects a range with no partition.
        numbers = self._spark.range(0, len(tasks), 1, max(1, len(tasks)))
        return numbers.mapInArrow(read, spark_schema(columns))


def _parts(
    cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], *, marks_aborted: bool
) -> list[tuple[Connection, list[OffsetRange]]]:
    """Return the parts of *ranges* and how to read them, in the order of a log."""
    stable, others = committed_part(cluster, ranges, marks_aborted=marks_aborted)
    committed = Connection(
        cluster.bootstrap, (READ_COMMITTED,), keeps_aborted=not cluster.read_committed
    )
    return [(committed, stable), (Connection(cluster.bootstrap), others)]


def committed_part(
    cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], *, marks_aborted: bool
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Return the parts of *ranges* to read with isolation.level=read_committed, and the others.

    Above the last stable offset of a log such a read returns nothing.
    """
    stable, others = [], []
    for each in ranges:
        end = each.low
        if cluster.read_committed:
            end = each.high
        elif marks_aborted:
            name = cluster.name_of(each.topic)
            tp = TopicPartition(name if name is not None else each.topic, each.partition)
            end = min(each.high, max(each.low, cluster.decided.get(tp, each.low)))
        stable.append(each._replace(high=end))
        others.append(each._replace(low=end))
    return [each for each in stable if each.high > each.low], [
        each for each in others if each.high > each.low
    ]
