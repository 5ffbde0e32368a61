"""The data source `kbroker`: batch and streaming reads of topics.

Theory of operation
===================
The driver's Python process looks up partitions and offsets (`offsets`), plans ranges (`planning`). Each Spark task
reads the ranges of its plan with one consumer (`spark_jobs.reader`).

A stream keeps its offsets in Spark's checkpoint as {topic: {partition: next offset}}, the connector's form. A Python
source cannot write to the checkpoint itself, and Spark keeps the end of a micro-batch, not its start. So the first
micro-batch of a new query is empty: its end is the starting offsets. From then on the checkpoint has the start of every
micro-batch, and a restart reads exactly the records that the failed run would have read.

Trigger.Once runs a single micro-batch, which is then not empty unless it starts at `latest`. If it fails, the restart
looks up the starting offsets again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_jobs.cut import OffsetRange
from spark_jobs.reader import Connection, fetch_ranges
from spark_jobs.source.offsets import OffsetLookup
from spark_jobs.source.options import (
    AtOffsets,
    Offsets,
    OptionError,
    Position,
    SourceOptions,
    optional_columns,
    parse,
)
from spark_jobs.source.planning import (
    OffsetsByTopic,
    Plan,
    available,
    below,
    divide,
    from_json,
    limit_offsets,
    plan_batch,
    plan_micro_batch,
    to_json,
)
from spark_jobs.source.rows import row_batches, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_NO_LIMIT = (1 << 63) - 1

log = logging.getLogger(__name__)


class DataLoss(Exception):
    """Records of a query are no longer in the log; the text names the partitions and offsets."""


@dataclass
class SourceTask(InputPartition):
    """The input of one Spark task."""

    ranges: list[OffsetRange] = field(default_factory=list)


class KbrokerDataSource(DataSource):
    """The data source to register: `spark.dataSource.register(KbrokerDataSource)`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "kbroker"

    def schema(self) -> StructType | str:
        """Return the columns; raise OptionError for wrong options."""
        return spark_schema(**optional_columns(self.options)._asdict())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = self._options(schema, streaming=False)
        return _BatchReader(options, OffsetLookup(options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        options = self._options(schema, streaming=True)
        return _StreamReader(options, OffsetLookup(options))

    def _options(self, schema: StructType, *, streaming: bool) -> SourceOptions:
        options = parse(self.options, streaming=streaming)
        expected = spark_schema(**options.columns._asdict())
        if schema.simpleString() != expected.simpleString():
            raise OptionError("the kbroker source has a fixed schema; leave out schema(...)")
        for text in options.warnings:
            log.warning("kbroker source: %s", text)
        return options


class _BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, lookup: OffsetLookup) -> None:
        self._options = options
        self._lookup = lookup

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks; offsets are looked up once, when Spark plans the query."""
        options, lookup = self._options, self._lookup
        try:
            chosen = lookup.partitions()
            starting = lookup.resolve(options.starting, chosen, starting=True)
            log_starts = lookup.log_starts(chosen)
            ending = lookup.resolve(options.ending, chosen, starting=False)
            log_ends = lookup.log_ends(chosen)
        finally:
            lookup.close()
        if options.starting == "earliest":
            starting = log_starts  # Retention may have gone on between the two.
        # A new leader may report a lower end for a moment. A log was as long as any offset that a broker reported.
        reported = _reported(options.ending, ending)
        log_ends = {tp: max(end, reported.get(tp, end)) for tp, end in log_ends.items()}
        if options.ending == "latest":
            ending = log_ends
        plan = plan_batch(starting, ending, log_starts, log_ends)
        return _tasks(options, plan) or [SourceTask()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(self._options, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches. Spark calls it from one thread of the driver's Python process."""

    def __init__(self, options: SourceOptions, lookup: OffsetLookup) -> None:
        self._options = options
        self._lookup = lookup
        self._initial: OffsetsByTopic | None = None
        """The starting offsets, if the query has no completed micro-batch. Spark asks twice, and must get the same."""
        self._planned = False
        """Whether Spark has planned a micro-batch."""
        self._latest: Offsets = {}
        self._target: Offsets | None = None
        """The end of a query with Trigger.AvailableNow."""
        self._last_batch_at = float("-inf")

    def initialOffset(self) -> OffsetsByTopic:  # noqa: N802
        """Return the starting offsets of a new query, or of one without a completed micro-batch."""
        if self._initial is None:
            partitions = self._lookup.partitions()
            found = self._lookup.resolve(self._options.starting, partitions, starting=True)
            if self._target is not None:
                self._target |= {tp: max(at, self._target.get(tp, at)) for tp, at in found.items()}
            self._initial = to_json(found)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return a limit that is never `ReadAllAvailable`, which then can only mean Trigger.Once."""
        return ReadMaxRows(self._options.max_offsets_per_trigger or _NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Look up the end of the query."""
        self._target = self._log_ends({})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> OffsetsByTopic:  # noqa: N802
        """Return the end of the next micro-batch; *start* if it would be empty or too small."""
        # Spark repeats a first micro-batch without asking for its end; then the checkpoint has another start.
        new = start == self._initial and not self._planned
        self._planned = True
        begun = from_json(start)
        self._latest = self._log_ends(begun) if self._target is None else self._target_from(begun)
        once = isinstance(limit, ReadAllAvailable)
        if new and (not once or self._options.starting == "latest"):
            return to_json(begun)
        if once:
            return to_json(self._latest)
        if self._waits_for_more(begun):
            return to_json(begun)
        if isinstance(limit, ReadMaxRows):
            return to_json(self._limited(begun, limit.max_rows))
        return to_json(self._latest)

    def reportLatestOffset(self) -> OffsetsByTopic | None:  # noqa: N802
        """Return the log ends of the last lookup, for the progress of the query."""
        return to_json(self._latest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of one micro-batch; raise DataLoss if records are no longer there."""
        begun, ended = from_json(start), from_json(end)
        if self._initial is not None and not self._planned:
            # Spark repeats the first micro-batch: its end is the starting offsets that the checkpoint has.
            begun = {tp: min(begun.get(tp, offset), offset) for tp, offset in ended.items()}
        self._planned = True
        if begun == ended:
            return []
        log_ends = self._log_ends(ended)
        log_starts = self._lookup.log_starts(ended.keys() & log_ends.keys())
        return _tasks(self._options, plan_micro_batch(begun, ended, log_starts, log_ends))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the offsets are in Spark's checkpoint."""

    def stop(self) -> None:
        """Close the connection."""
        self._lookup.close()

    def _log_ends(self, begun: Offsets) -> Offsets:
        """Return the log ends; look again when one is below *begun*, which a new leader may report for a moment."""
        for attempt in range(self._options.retries):
            if attempt:
                time.sleep(self._options.retry_interval_s)
            ends = self._lookup.log_ends(self._lookup.partitions())
            if not below(ends, begun):
                break
        return ends

    def _target_from(self, begun: Offsets) -> Offsets:
        """Return the end of a query with Trigger.AvailableNow; look up again where it is below *begun*.

        A restart looks up the end before Spark passes the offsets of the checkpoint.
        """
        assert self._target is not None
        if low := below(self._target, begun):
            again = self._log_ends(begun)
            self._target |= {tp: again[tp] for tp in low if tp in again}
        return self._target

    def _waits_for_more(self, begun: Offsets) -> bool:
        """Return whether minOffsetsPerTrigger delays the micro-batch. Trigger.AvailableNow reads to its end."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        now = time.monotonic()
        waited = now - self._last_batch_at >= self._options.max_trigger_delay_s
        if not waited and available(begun, self._latest) < least:
            return True
        self._last_batch_at = now
        return False

    def _limited(self, begun: Offsets, limit: int) -> Offsets:
        if available(begun, self._latest) <= limit:
            return self._latest
        added = self._latest.keys() - begun.keys()
        return limit_offsets(limit, begun, self._latest, self._lookup.log_starts(added))


def _reported(position: Position, resolved: Offsets) -> Offsets:
    """Return those of the *resolved* offsets of *position* that a broker reported, and the query does not name."""
    named = position.offsets if isinstance(position, AtOffsets) else {}
    return {tp: offset for tp, offset in resolved.items() if named.get(tp, -1) < 0}


def _tasks(options: SourceOptions, plan: Plan) -> list[SourceTask]:
    """Return the tasks of *plan*; raise DataLoss, or log it if the query goes on."""
    if plan.losses:
        text = "; ".join(plan.losses)
        if options.fail_on_data_loss:
            raise DataLoss(f"{text}. failOnDataLoss=false reads on without these records")
        log.warning("kbroker source: records are lost: %s", text)
    pieces = divide(plan.ranges, options.min_partitions, options.max_records_per_partition)
    return [SourceTask([piece]) for piece in pieces]


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, SourceTask)
    settings = {"client.id": "kbroker-source", **dict(options.client)}
    connection = Connection(
        options.bootstrap, tuple(sorted(settings.items())), options.poll_timeout_s
    )
    return row_batches(
        fetch_ranges(connection, partition.ranges),
        partition.ranges,
        headers=options.include_headers,
        batches=options.include_batches,
        fail_on_data_loss=options.fail_on_data_loss,
    )
