"""The audit's Spark data source: record batches of a Kafka cluster as Arrow, read from the brokers in parallel.

    spark.dataSource.register(KafkaBatchSource)
    spark.read.format("kbroker-audit").option("bootstrap.servers", "...").option("ranges", ranges_json(ranges)).load()

*ranges* are explicit: [topic, partition, first offset, end offset (exclusive)]. There is no "earliest" and no
"latest", because an audit freezes its cut before it reads any record; the source for everything else is
`spark_jobs.source`. `spark_jobs.tasks` divides the ranges into tasks of about `slice.offsets` offsets, at least
`tasks` of them. `isolation.level` is that of consumers: read_committed leaves out records of aborted transactions.

`output` selects the rows: whole records (`RECORD_COLUMNS`, the default), hashes of each record (`HASH_COLUMNS`),
digests of windows (`DIGEST_COLUMNS`, of the shape in `windows`), or sums of batch headers (`HEADER_COLUMNS`). All but
records are computed in the task: payload does not leave it.

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

from spark_jobs.arrow_batches import (
    HASH_COLUMNS,
    RECORD_COLUMNS,
    digest_batches,
    hash_batches,
    record_batches,
    spark_schema,
)
from spark_jobs.content_hash import DEFAULT_HASH_KEY
from spark_jobs.cut import OffsetRange
from spark_jobs.digest import DIGEST_COLUMNS, WindowShape, merged
from spark_jobs.hash_key import PUBLIC, HashKey
from spark_jobs.header_batches import HEADER_COLUMNS, header_batches, merged_headers
from spark_jobs.reader import Connection, fetch_ranges
from spark_jobs.tasks import pack

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_jobs.snapshot import ClusterSnapshot

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
RECORDS, HASHES, DIGESTS, HEADERS = "records", "hashes", "digests", "headers"
_COLUMNS = {
    RECORDS: RECORD_COLUMNS,
    HASHES: HASH_COLUMNS,
    DIGESTS: DIGEST_COLUMNS,
    HEADERS: HEADER_COLUMNS,
}

DEFAULT_SLICE_OFFSETS = 2_000_000

HASH_SECRET = "hash.secret"
"""The option with the key of the hashes. Spark's default redaction covers names with this word."""


@dataclass
class TaskInput(InputPartition):
    """The input of one Spark task."""

    ranges: list[OffsetRange]


def ranges_json(ranges: Sequence[OffsetRange]) -> str:
    """Encode *ranges* for the `ranges` option."""
    return json.dumps([list(each) for each in ranges])


class KafkaBatchSource(DataSource):
    """The audit's data source, format name `kbroker-audit`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "kbroker-audit"

    def schema(self) -> StructType | str:
        """Return the schema of the chosen output."""
        return spark_schema(_COLUMNS[_output(self.options)])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one query; raise ValueError for bad options, before any task starts."""
        return _Reader(dict(self.options))


def _output(options: Mapping[str, str]) -> str:
    output = options.get("output", RECORDS)
    if output not in _COLUMNS:
        raise ValueError(f"output is {', '.join(_COLUMNS)}, not {output!r}")
    return output


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        missing = [name for name in ("bootstrap.servers", "ranges") if name not in options]
        if missing:
            raise ValueError(f"the kbroker-audit source needs the option(s) {', '.join(missing)}")
        level = options.get("isolation.level", READ_UNCOMMITTED)
        self._connection = Connection(options["bootstrap.servers"], (("isolation.level", level),))
        self._ranges = [OffsetRange(*each) for each in json.loads(options["ranges"])]
        self._output = _output(options)
        self._shape = WindowShape(*json.loads(options.get("windows", "[10000]")))
        self._slice_offsets = _positive(options, "slice.offsets", DEFAULT_SLICE_OFFSETS)
        self._tasks = _positive(options, "tasks", 1)
        self._key = options.get(HASH_SECRET, DEFAULT_HASH_KEY)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges of each task; at least one task, because Spark rejects an empty list."""
        tasks = pack(self._ranges, self._slice_offsets, self._tasks)
        return [TaskInput(each) for each in tasks] or [TaskInput([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task as Arrow batches."""
        assert isinstance(partition, TaskInput)
        ranges = partition.ranges
        fetched = fetch_ranges(self._connection, ranges)
        if self._output == DIGESTS:
            return digest_batches(fetched, ranges, self._shape, self._key)
        if self._output == HEADERS:
            return header_batches(fetched, ranges, self._ranges, self._shape.window)
        if self._output == HASHES:
            return hash_batches(fetched, ranges, self._key)
        return record_batches(fetched, ranges)


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    value = int(options.get(name, default))
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    return value


class KafkaReader:
    """Reads clusters for an audit, through Spark; *key* is that of the hashes."""

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
        return merged(self._load(cluster, ranges, DIGESTS, windows=json.dumps(list(shape))))

    def hashes(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the hashes of each record in *ranges*."""
        return self._load(cluster, ranges, HASHES)

    def headers(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], window: int
    ) -> DataFrame:
        """Return the sums of the batch headers in *ranges*, one row per window; nothing is decompressed."""
        return merged_headers(self._load(cluster, ranges, HEADERS, windows=json.dumps([window])))

    def _load(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], output: str, **options: str
    ) -> DataFrame:
        return (
            self._spark.read.format(KafkaBatchSource.name())
            .option("bootstrap.servers", cluster.bootstrap)
            .option("ranges", ranges_json([each for each in ranges if each.high > each.low]))
            .option("output", output)
            .option(
                "isolation.level", READ_COMMITTED if cluster.read_committed else READ_UNCOMMITTED
            )
            .option("slice.offsets", self._slice_offsets)
            .option(HASH_SECRET, self._key.text)
            .option("tasks", 2 * self._spark.sparkContext.defaultParallelism)
            .options(**options)
            .load()
        )
