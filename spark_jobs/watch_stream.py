"""The stream of `kaudit watch`: Spark reads both clusters and hashes records; the driver applies each micro-batch.

One query reads both clusters through the data source `kbroker`, so that Spark's checkpoint moves both sides together.
A row that reaches the driver is a topic, partition, offset and hash; payload stays in the Spark tasks.

Owner: the main thread calls everything except `_apply`, which Spark calls from its own thread; a lock guards the state.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.types import TopicPartition
from spark_jobs.running_verdict import (
    Failure,
    Outcome,
    Overdue,
    Positions,
    RunningVerdict,
    Side,
    TooManyWaiting,
    Waiting,
    WatchFinding,
)
from spark_jobs.source.planning import from_json, to_json
from spark_jobs.target_names import name_at_target, name_in_audit, sql_name_in_audit
from spark_jobs.verdict import ExitCode
from spark_jobs.watch_checkpoint import Checkpoint, CheckpointUnusable, Start
from spark_jobs.watch_report import finding_line

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_STARTS = 10
"""Attempts to start the query. Spark gives the Python worker of a stream 10 s to start; a busy host takes longer."""

_NOT_CONNECTED = "Python worker failed to connect back"

_MOST_LINES = 20
"""Findings of one micro-batch that are printed."""

LogEnds = Callable[[Side, Sequence[TopicPartition]], Mapping[TopicPartition, int]]
"""Looks up the log ends of one cluster; a partition with an error is missing."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """How to read both clusters. *prefix* is before the names of the target's topics, or their form."""

    source: str
    target: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a watch proceeds: *settle* and *every* in seconds, *offsets* of a cluster in one micro-batch."""

    settle: float
    every: float
    offsets: int


class WatchStream:
    """One run of a watch."""

    def __init__(
        self,
        clusters: Clusters,
        start: Start,
        checkpoint: Checkpoint,
        pace: Pace,
        *,
        log_ends: LogEnds,
        progress: Callable[[str], None],
    ) -> None:
        self._clusters = clusters
        self._start = start
        self._checkpoint = checkpoint
        self._pace = pace
        self._log_ends = log_ends
        self._progress = progress
        self._lock = threading.Lock()
        self._state = checkpoint.last_state(start, time.monotonic())
        """The state behind the last micro-batch that was applied."""
        self._batch = checkpoint.last_batch()
        """The number of that micro-batch; -1 before the first one."""
        self._has_read = False
        """Whether this process has applied a micro-batch."""
        self._advanced: set[WatchFinding] = set()
        """Findings that were printed and are in no state on the disk: after a failure they are found again."""
        self._failure: Failure | None = None
        self._limit: str | None = None
        self._ended = False
        self._earlier: list[tuple[float, Positions]] = []
        """Log ends and when they were known: those of the settle time ago, and all later ones."""
        self._reported: dict[str, Waiting] = {}
        """The overdue records that `progress` has, by kind, partition and side."""

    def run(self, spark: SparkSession, until: Callable[[], bool]) -> None:
        """Run the query until *until* returns true or the query fails; `outcome` has the cause."""
        self._look_at_ends()
        for attempt in range(1, _STARTS + 1):
            problem = self._run_query(self._begin(spark), until)
            if problem is None or _NOT_CONNECTED not in problem or attempt == _STARTS:
                break
            self._progress(
                f"Spark's Python worker did not start within 10 s; attempt {attempt + 1}"
            )
        if problem is not None and self._failure is None and self._limit is None:
            self._failure = failure_of(problem)
        with self._lock:
            # Spark may still be in `_apply`; the verdict and what is printed beside it are of one state.
            self._ended = True

    def _run_query(self, query: StreamingQuery, until: Callable[[], bool]) -> str | None:
        """Run *query* until it fails or *until* returns true; return the error of a query that failed."""
        try:
            return self._watched(query, until)
        except BaseException:
            # There is no verdict, and the lock of the checkpoint is released: this process writes nothing any more.
            with self._lock:
                self._ended = True
            with suppress(Exception):  # Spark's process may be gone.
                query.stop()
            raise

    def _watched(self, query: StreamingQuery, until: Callable[[], bool]) -> str | None:
        from pyspark.errors import StreamingQueryException

        looked = time.monotonic()
        try:
            while not until() and not query.awaitTermination(1):
                if time.monotonic() - looked >= self._pace.every:
                    self._advance(query)
                    self._report(self._overdue())
                    if not until():  # each look may take 20 s while a cluster does not answer
                        self._look_at_ends()
                    looked = time.monotonic()
        except StreamingQueryException as problem:
            # The state is that of the last micro-batch on the disk: what was found behind it is found again.
            self._advance(query)
            return str(problem)
        # It may have failed since it was waited for.
        failure = query.exception()
        query.stop()
        self._advance(query)
        return None if failure is None else str(failure)

    def _advance(self, query: StreamingQuery) -> None:
        """Take in up to where Spark has read both logs, behind the last micro-batch that it has completed."""
        progress = _progress_of(query)
        if progress is None:
            return
        read = positions_of(
            [each["endOffset"] for each in progress["sources"]], self._clusters.prefix
        )
        with self._lock:
            findings = self._state.advance(read, time.monotonic())
        self._print_findings([each for each in findings if each not in self._advanced])
        self._advanced.update(findings)

    def _look_at_ends(self) -> None:
        """Look up the log ends if the last lookup is old enough to serve beside it."""
        now = time.monotonic()
        if self._earlier and now - self._earlier[-1][0] < self._pace.settle / 2:
            return
        # An end that is not known now is not below an earlier one.
        known = self._earlier[-1][1] if self._earlier else {}
        ends = {**known, **self._all_ends()}
        self._earlier.append((time.monotonic(), ends))
        while len(self._earlier) > 1 and self._earlier[1][0] <= now - self._pace.settle:
            del self._earlier[0]

    def _ends_before(self, now: float) -> Positions:
        """Return the log ends of the settle time before *now*; none if this run did not look so long ago."""
        old = [ends for known, ends in self._earlier if known <= now - self._pace.settle]
        return old[-1] if old else {}

    def outcome(self, unwatched: Sequence[str]) -> Outcome:
        """Return the verdict of now, with log ends that are looked up now."""
        settle, now = self._pace.settle, time.monotonic()
        earlier = self._ends_before(now)
        ends = self._all_ends()
        # Where no end was known at first, that of the next look-up counts, at last that of now.
        due = dict(ends)
        for _, known in reversed(self._earlier):
            due |= known
        due |= earlier
        with self._lock:
            return self._state.outcome(
                self._state.overdue(ends, now, settle, earlier),
                unwatched=unwatched,
                limit=self._limit,
                failure=self._failure,
                behind=self._state.behind(ends),
                earlier=earlier,
                due=due,
                has_read=self._has_read,
            )

    @property
    def state(self) -> RunningVerdict:
        """The state; call it when the query has ended."""
        return self._state

    def _begin(self, spark: SparkSession) -> StreamingQuery:
        from spark_jobs.source import KbrokerDataSource

        spark.dataSource.register(KbrokerDataSource)
        both = self._rows(spark, Side.SOURCE).unionAll(self._rows(spark, Side.TARGET))
        return (
            both.writeStream.foreachBatch(self._apply)
            .option("checkpointLocation", str(self._checkpoint.spark))
            .trigger(processingTime=trigger_interval(self._pace.every))
            .start()
        )

    def _rows(self, spark: SparkSession, side: Side) -> DataFrame:
        from pyspark.sql import functions as f

        at_source = side is Side.SOURCE
        prefix = "" if at_source else self._clusters.prefix
        reads = {
            TopicPartition(name_at_target(prefix, tp.topic), tp.partition): offset
            for tp, offset in self._start.reads[0 if at_source else 1].items()
        }
        starting = to_json(reads)
        assigned = {topic: [int(each) for each in found] for topic, found in starting.items()}
        rows = (
            spark.readStream.format("kbroker")
            .option(
                "kafka.bootstrap.servers",
                self._clusters.source if at_source else self._clusters.target,
            )
            .option("kafka.client.id", "kaudit-watch")
            .option("assign", json.dumps(assigned))
            .option("startingOffsets", json.dumps(starting))
            .option("maxOffsetsPerTrigger", str(self._pace.offsets))
            .option("includeHeaders", "true")
            .load()
        )
        return rows.select(
            f.lit(side.value).alias("side"),
            f.expr(sql_name_in_audit(prefix)).alias("topic"),
            "partition",
            "offset",
            _hash().alias("hash"),
        )

    def _apply(self, rows: DataFrame, batch: int) -> None:
        """Apply micro-batch number *batch*. Spark repeats it if the process ends before it is committed."""
        try:
            arrived = _records(rows)
            now = time.monotonic()
            with self._lock:
                if self._ended:
                    raise RuntimeError("the watch has ended; a later one repeats this micro-batch")
                if self._batch != batch - 1:
                    self._state = self._checkpoint.state_before(batch, self._start, now)
                findings = [
                    each for each in self._state.apply(arrived, now) if each not in self._advanced
                ]
                self._checkpoint.save_state(batch, self._state)
                self._advanced.clear()
                self._batch, self._has_read = batch, True
                text = self._text(batch, arrived)
        except TooManyWaiting as problem:
            self._limit = str(problem)
            self._restore()
            raise
        except CheckpointUnusable as problem:
            self._failure = Failure(ExitCode.UNREADABLE, str(problem))
            self._restore()
            raise
        except Exception:
            self._restore()
            raise
        self._progress(text)
        self._print_findings(findings)

    def _print_findings(self, findings: Sequence[WatchFinding]) -> None:
        for each in findings[:_MOST_LINES]:
            self._progress(f"FINDING {finding_line(each)}")
        if len(findings) > _MOST_LINES:
            self._progress(f"FINDING ... {len(findings) - _MOST_LINES:,} more in this micro-batch")

    def _restore(self) -> None:
        """Return to the state behind the last micro-batch: a failed one may have changed a part of it."""
        with self._lock:
            if not self._ended:
                self._state = self._checkpoint.last_state(self._start, time.monotonic())
                self._batch = self._checkpoint.last_batch()

    def _report(self, overdue: Overdue) -> None:
        """Print which records have become overdue, and which no longer are."""
        groups = {"LATE": overdue.late, "EXTRA": overdue.extra, "UNREAD": overdue.unread}
        now = {
            f"{kind} {each.topic_partition} at the {each.side.value}": each
            for kind, group in groups.items()
            for each in group
        }
        for what, each in now.items():
            if what not in self._reported:
                self._progress(
                    f"{what}: {each.records:,} records from offset {each.first} on have no counterpart"
                )
        for what in self._reported.keys() - now.keys():
            self._progress(f"no longer {what}")
        self._reported = now

    def _text(self, batch: int, arrived: Mapping[tuple[Side, TopicPartition], Any]) -> str:
        counts = {
            side: sum(len(records) for (each, _), records in arrived.items() if each is side)
            for side in Side
        }
        spans = self._state.spans()
        findings = sum(sum(each.findings.values()) for each in spans)
        return (
            f"micro-batch {batch}: {counts[Side.SOURCE]:,} source and {counts[Side.TARGET]:,} target "
            f"records; in all {sum(each.equal for each in spans):,} equal, {findings:,} findings, "
            f"{self._state.waiting:,} waiting"
        )

    def _overdue(self) -> Overdue:
        settle, now = self._pace.settle, time.monotonic()
        earlier = self._ends_before(now)
        with self._lock:
            waiting = self._state.settled(now, settle, earlier)
        ends = self._ends(
            {
                side: [each.topic_partition for each in waiting if each.side is side.other]
                for side in Side
            }
        )
        with self._lock:
            # By the same time: the log ends show nothing about records that arrived meanwhile.
            return self._state.overdue(ends, now, settle, earlier)

    def _all_ends(self) -> Positions:
        """Return the log ends of all partitions that are known."""
        return self._ends({side: list(self._start.starts) for side in Side})

    def _ends(
        self, asked: Mapping[Side, Sequence[TopicPartition]]
    ) -> dict[tuple[Side, TopicPartition], int]:
        """Return the log ends of *asked* that are known."""
        return {
            (side, tp): end
            for side, partitions in asked.items()
            if partitions
            for tp, end in self._log_ends(side, partitions).items()
        }


def _hash() -> Column:
    """Return the content hash: of a JSON object, in which null, empty and absent parts have different texts."""
    from pyspark.sql import functions as f

    content = f.struct(
        "key",
        "value",
        "headers",
        f.unix_micros("timestamp").alias("timestamp"),
        "timestampType",
    )
    return f.xxhash64(f.to_json(content, {"ignoreNullFields": "false"}))


def _records(rows: DataFrame) -> dict[tuple[Side, TopicPartition], list[tuple[int, int]]]:
    """Return offset and hash of all records, per side and partition, in the order of the offsets."""
    table = rows.toArrow().sort_by(
        [(name, "ascending") for name in ("side", "topic", "partition", "offset")]
    )
    columns = [
        table.column(name).to_pylist() for name in ("side", "topic", "partition", "offset", "hash")
    ]
    return {
        (Side(side), TopicPartition(topic, partition)): [(each[3], each[4]) for each in group]
        for (side, topic, partition), group in itertools.groupby(
            zip(*columns, strict=True), key=lambda each: each[:3]
        )
    }


def _progress_of(query: StreamingQuery) -> Mapping[str, Any] | None:
    """Return the progress of the last micro-batch; None without one, and where Spark's process is gone."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        return query.lastProgress
    except (Py4JError, OSError, KeyError):
        return None


def trigger_interval(every: float) -> str:
    """Return *every*, in seconds, as Spark reads an interval: without an exponent."""
    return f"{every:.3f} seconds"


def positions_of(offsets: Sequence[str | None], prefix: str) -> Positions:
    """Return up to where both logs were read, by the names in the audit.

    *offsets* are those of the query's progress: of the source, then of the target. Without offsets: nothing.
    """
    found: dict[tuple[Side, TopicPartition], int] = {}
    for side, text in zip(Side, offsets, strict=True):
        for tp, offset in from_json(json.loads(text or "null") or {}).items():
            name = tp.topic if side is Side.SOURCE else name_in_audit(prefix, tp.topic)
            if name is not None:
                found[side, TopicPartition(name, tp.partition)] = offset
    return found


def failure_of(text: str) -> Failure:
    """Return the error in a long message of Spark."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for name in ("DataLoss: ", "RangeUnreadable: ", "OffsetsUnavailable: "):
        for line in reversed(lines):
            if name in line:
                return Failure(ExitCode.UNREADABLE, line.partition(name)[2])
    return Failure(ExitCode.INTERNAL, lines[0] if lines else "the query failed without a message")
