"""One cluster as an audit reads it: log ranges and topic settings of one moment, and the reader of its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kclient.types import TopicPartition
from spark_jobs.cut import LogRange, OffsetRange
from spark_jobs.target_names import name_at_target, name_in_audit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from spark_jobs.digest import WindowShape

WHOLE_TOPIC = -1
"""The partition number that stands for all partitions of a topic, if it is not known which ones it has."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The source or the target cluster, read once before any record is read."""

    name: str
    """How the report calls it."""
    bootstrap: str
    cluster_id: str
    ranges: Mapping[TopicPartition, LogRange]
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Per topic, its effective settings."""
    unreadable: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Partitions that have no known log ends, and why. `WHOLE_TOPIC` stands for a topic without known partitions."""
    overrides: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Per topic, the settings that were set on the topic; the others are defaults."""
    prefix: str = ""
    """What the mirror's policy puts before topic names here, or their form (`spark_jobs.target_names`). All names in
    the audit are without it."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Per topic, its topic id as text; none if the cluster has no topic ids."""
    read_committed: bool = False
    """Whether it is read as by consumers with isolation.level=read_committed: the logs end at their last stable offset,
    and records of aborted transactions are left out."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Per topic of the audit that is not `prefix` and its name here: its name here (`spark_jobs.recreated_topics`)."""
    decided: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Per partition, `PartitionCut.decided`: below it records are read with whether they were aborted."""

    @property
    def offsets(self) -> int:
        """The offsets between the log starts and the log ends of all partitions."""
        return sum(held.end - held.start for held in self.ranges.values())

    def topic_of(self, name: str) -> str:
        """Return the topic here that has the audit's *name*."""
        return self.renamed.get(name, name_at_target(self.prefix, name))

    def name_of(self, topic: str) -> str | None:
        """Return the audit's name of *topic*; None if it has none."""
        for name, renamed in self.renamed.items():
            if renamed == topic:
                return name
        plain = name_in_audit(self.prefix, topic)
        return None if plain in self.renamed else plain


HashBatches: TypeAlias = Callable[[], Iterator["pa.RecordBatch"]]
"""Reads rows of `spark_jobs.arrow_batches.HASH_COLUMNS`; each call begins from the start."""


class RecordReader(Protocol):
    """Reads offset ranges of a cluster: from brokers (`spark_jobs.kafka_reader`) or generated logs (the self-test)."""

    def digests(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], shape: WindowShape
    ) -> DataFrame:
        """Return rows of `spark_jobs.digest.DIGEST_COLUMNS`, one per window and bucket."""
        ...

    def hashes(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return rows of `spark_jobs.arrow_batches.HASH_COLUMNS`, one per record."""
        ...

    def in_order(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> HashBatches:
        """Return what a Spark task calls to read the hashes of *ranges* of one partition, in the order of its log."""
        ...

    def log_ends(
        self, cluster: ClusterSnapshot, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where the logs end now; none of a partition that the cluster does not report."""
        ...
