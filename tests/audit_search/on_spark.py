"""Many cases in one audit on Spark: each is a topic of its own, so that one run of some seconds judges all of them.

The driver reads the encoded logs (`BatchEngine`); Spark's tasks decode, hash and align them, and Spark merges, joins
and collects. At the target the topics have a prefix.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from kclient.types import TopicPartition
from kclient.wire.batches import parse
from spark_jobs.accounting import Account
from spark_jobs.arrow_batches import (
    HASH_COLUMNS,
    Columns,
    arrow_schema,
    digest_batches,
    hash_batches,
    spark_schema,
)
from spark_jobs.comparison import Options
from spark_jobs.cut import OffsetRange
from spark_jobs.digest import DIGEST_COLUMNS, WindowShape, merged
from spark_jobs.engine import FailureKind
from spark_jobs.gap_ledger import LedgerRead
from spark_jobs.in_step import MANY
from spark_jobs.reader import Fetched, Unread
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.snapshot import ClusterSnapshot, HashBatches
from spark_jobs.spark_engine import SparkEngine
from spark_jobs.verdict import decide
from tests.audit_search.cases import drawn, is_renumbered
from tests.audit_search.kinds import SearchCase
from tests.audit_search.search import Storage, compared, snapshots, storage
from tests.kit.audit_batches import BatchEngine, in_order
from tests.kit.audit_logs import Logs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

V = TypeVar("V")

PREFIX = "east."
_ROWS = "number int, low long, high long, batch binary, aborted boolean, kind string, cause string"

_ToColumns: TypeAlias = Callable[
    [Iterable[Fetched | Unread], Sequence[OffsetRange]], "Iterator[pa.RecordBatch]"
]


class EncodedReader:
    """Gives Spark what a `BatchEngine` fetches."""

    def __init__(self, spark: SparkSession, engine: BatchEngine) -> None:
        self._spark = spark
        self._engine = engine

    def digests(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], shape: WindowShape
    ) -> DataFrame:
        """Return the digests of the records in *ranges*."""

        def digest(
            fetched: Iterable[Fetched | Unread], wanted: Sequence[OffsetRange]
        ) -> Iterator[pa.RecordBatch]:
            return digest_batches(fetched, wanted, shape)

        return merged(self._frame(cluster, ranges, digest, DIGEST_COLUMNS))

    def hashes(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the hashes of each record in *ranges*."""
        return self._frame(cluster, ranges, hash_batches, HASH_COLUMNS)

    def in_order(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> HashBatches:
        """Return what reads the hashes of *ranges* of one partition, in the order of its log."""
        import pyarrow as pa

        found = [
            batch
            for task, fetched in self._engine.tasks(cluster, ranges)
            for batch in hash_batches(fetched, task)
        ]
        return in_order(pa.Table.from_batches(found, arrow_schema(HASH_COLUMNS)))

    def log_ends(
        self, cluster: ClusterSnapshot, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where the logs of *partitions* end now."""
        return self._engine.log_ends(cluster, partitions)

    def _frame(
        self,
        cluster: ClusterSnapshot,
        ranges: Sequence[OffsetRange],
        to_columns: _ToColumns,
        columns: Columns,
    ) -> DataFrame:
        wanted: list[OffsetRange] = []
        rows: list[tuple[object, ...]] = []
        for task, fetched in self._engine.tasks(cluster, ranges):
            rows += [_row(each, len(wanted)) for each in fetched]
            wanted += task

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return to_columns(_fetched(batches), wanted)

        frame = self._spark.createDataFrame(rows, _ROWS)
        return frame.mapInArrow(read, spark_schema(columns))


def _row(each: Fetched | Unread, first: int) -> tuple[object, ...]:
    at = each.number + first, each.low, each.high
    if isinstance(each, Unread):
        return (*at, None, False, each.kind.value, each.cause)
    return (*at, bytearray(each.data), each.is_aborted, None, None)


def _fetched(batches: Iterator[pa.RecordBatch]) -> Iterator[Fetched | Unread]:
    for batch in batches:
        for row in batch.to_pylist():
            at = row["number"], row["low"], row["high"]
            if row["batch"] is None:
                yield Unread(*at, FailureKind(row["kind"]), row["cause"])
            else:
                data = memoryview(row["batch"])
                yield Fetched(*at, parse(data), data, row["aborted"])


def seed_on_spark(spark: SparkSession, seed: int, chosen: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the disagreements of *seed* of all *chosen* kinds, in two audits."""
    cases = [drawn(seed, *kinds) for kinds in chosen if not is_renumbered(*kinds)]
    stored = storage(random.Random(f"storage {seed} on Spark"))
    return [
        text
        for complete in (False, True)
        for some in [[case for case in cases if case.complete is complete]]
        for text in disagreements_on_spark(spark, some, stored, complete=complete)
    ]


def disagreements_on_spark(
    spark: SparkSession, cases: Sequence[SearchCase], stored: Storage, *, complete: bool
) -> list[str]:
    """Return where one audit of all *cases*, which are all *complete* or none, and the judge disagree."""
    both = [[snapshots(case)[side] for case in cases] for side in range(2)]
    source, target = (
        ClusterSnapshot(
            name,
            "",
            name,
            _of_topics([each.ranges for each in clusters]),
            {
                f"{n}{topic}": configs
                for n, each in enumerate(clusters)
                for topic, configs in each.configs.items()
            },
            _of_topics([each.unreadable for each in clusters]),
            prefix=prefix,
        )
        for name, clusters, prefix in zip(("source", "target"), both, ("", PREFIX), strict=True)
    )
    logs: tuple[Logs, Logs] = (
        _of_topics([case.source for case in cases]),
        _of_topics([case.target for case in cases], PREFIX),
    )
    options = Options(
        stored.window,
        complete,
        accepted=tuple(
            gap._replace(topic=f"{n}{gap.topic}")
            for n, case in enumerate(cases)
            for gap in case.accepted
        ),
        ledger=LedgerRead(
            entries=tuple(
                replace(entry, topic=f"{PREFIX}{n}{entry.topic}")
                for n, case in enumerate(cases)
                for entry in case.ledger
            )
        ),
    )
    shape, buckets = WindowShape(stored.window, 0, 20_000, 60), TimeBuckets(0, 20_000)
    engine = BatchEngine(*logs, shape, stored.layouts, slice_offsets=stored.slice_offsets)
    run = reconcile(
        SparkEngine(
            EncodedReader(spark, engine),
            stored.window,
            buckets,
            many=MANY if stored.sizes is None else 0,
            looked_up=0,  # In the driver they are looked up wherever there is no Spark.
        ),
        source,
        target,
        options,
        buckets=buckets,
    )
    return [
        f"case {n}: {text}"
        for n, case in enumerate(cases)
        for text in compared(case, _restricted(run, f"{n}"))
    ]


def _of_topics(
    parts: Sequence[Mapping[TopicPartition, V]], prefix: str = ""
) -> dict[TopicPartition, V]:
    return {
        TopicPartition(f"{prefix}{n}{tp.topic}", tp.partition): each
        for n, part in enumerate(parts)
        for tp, each in part.items()
    }


def _restricted(run: Reconciliation, number: str) -> Reconciliation:
    """Return what *run* found in the topics that begin with *number*, without the number."""

    def mine(topic: str) -> bool:
        return topic.removesuffix("t").removesuffix("u").removesuffix("v") == number

    def partitions(of: Mapping[TopicPartition, V]) -> dict[TopicPartition, V]:
        return {
            TopicPartition(tp.topic[len(number) :], tp.partition): each
            for tp, each in of.items()
            if mine(tp.topic)
        }

    account = run.account
    part = Account(
        [
            replace(each, topic=each.topic[len(number) :])
            for each in account.findings
            if mine(each.topic)
        ],
        partitions(account.partitions),
        partitions(account.explained),
        partitions(account.failed),
    )
    return replace(run, account=part, outcome=decide(part.total, run.options.limits))
