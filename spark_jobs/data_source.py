"""A Spark data source over kclient: record batches of a Kafka cluster as Arrow, read from the brokers in parallel.

    spark.dataSource.register(KafkaBatchSource)
    spark.read.format("kbroker").option("bootstrap.servers", "...").option("ranges", ranges_json(ranges)).load()

*ranges* are explicit: [topic, partition, first offset, end offset (exclusive)]. There is no "earliest" and no
"latest", because an audit freezes its cut before it reads any record. Each range is split into slices of at most
`slice.offsets` offsets, one Spark task each.

Unlike Spark's own Kafka source it keeps the order of headers and repeated header keys, distinguishes null from empty,
and checks the CRC of every batch. A corrupt batch, or a range that is no longer in the log, ends the read with an
error that names topic, partition and offset. It never skips records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark_jobs.cut import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_jobs.snapshot import ClusterSnapshot, RecordReader

SCHEMA = (
    "topic string, partition int, offset long, timestamp long, timestamp_type int, key binary, value binary, "
    "headers binary"
)
"""*timestamp* in ms since the epoch; *timestamp_type* 0 CreateTime, 1 LogAppendTime; *headers*: see
`spark_jobs.reader.headers_bytes` (null where a record has none)."""

DEFAULT_SLICE_OFFSETS = 250_000


@dataclass
class Slice(InputPartition):
    """The input of one Spark task."""

    offsets: OffsetRange


def ranges_json(ranges: Sequence[OffsetRange]) -> str:
    """Encode *ranges* for the `ranges` option."""
    return json.dumps([list(each) for each in ranges])


def split(ranges: Sequence[OffsetRange], slice_offsets: int) -> list[OffsetRange]:
    """Cut *ranges* into pieces of at most *slice_offsets*, in round-robin order over the ranges.

    The order spreads concurrent tasks over all leaders instead of reading one broker at a time.
    """
    pieces = [
        [
            OffsetRange(each.topic, each.partition, low, min(low + slice_offsets, each.high))
            for low in range(each.low, each.high, slice_offsets)
        ]
        for each in ranges
    ]
    longest = max(map(len, pieces), default=0)
    return [
        of_range[turn] for turn in range(longest) for of_range in pieces if turn < len(of_range)
    ]


class KafkaBatchSource(DataSource):
    """The registered data source, format name `kbroker`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "kbroker"

    def schema(self) -> StructType | str:
        """Return the fixed schema."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one query; raise ValueError for bad options, before any task starts."""
        return _Reader(dict(self.options))


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        missing = [name for name in ("bootstrap.servers", "ranges") if name not in options]
        if missing:
            raise ValueError(f"the kbroker source needs the option(s) {', '.join(missing)}")
        self._bootstrap = options["bootstrap.servers"]
        self._ranges = [OffsetRange(*each) for each in json.loads(options["ranges"])]
        self._slice_offsets = int(options.get("slice.offsets", DEFAULT_SLICE_OFFSETS))
        if self._slice_offsets < 1:
            raise ValueError(f"slice.offsets must be at least 1, not {self._slice_offsets}")

    def partitions(self) -> Sequence[InputPartition]:
        """Return one slice per task; at least one, because Spark rejects an empty list."""
        slices = [Slice(each) for each in split(self._ranges, self._slice_offsets)]
        return slices or [Slice(OffsetRange("", 0, 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one slice as Arrow batches."""
        # Imported here, because this runs in Spark's Python workers and the lines above in the driver.
        from spark_jobs.reader import read_range

        assert isinstance(partition, Slice)
        if partition.offsets.high > partition.offsets.low:
            yield from read_range(self._bootstrap, partition.offsets)


def kafka_reader(
    spark: SparkSession, *, slice_offsets: int = DEFAULT_SLICE_OFFSETS
) -> RecordReader:
    """Return a reader of clusters: (cluster, ranges) -> their records as `SCHEMA`."""

    def read(cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> DataFrame:
        return (
            spark.read.format(KafkaBatchSource.name())
            .option("bootstrap.servers", cluster.bootstrap)
            .option("ranges", ranges_json([each for each in ranges if each.high > each.low]))
            .option("slice.offsets", slice_offsets)
            .load()
        )

    return read
