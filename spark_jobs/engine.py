"""What one reconciliation reads of the clusters' records, and the failures that it gets back.

`spark_jobs.reconcile` decides which offsets to read and what the results mean. An `Engine` reads and hashes:
`spark_jobs.spark_engine` with Spark from brokers, tests/kit from lists. A part of a log that cannot be read is a
`Failure` beside the results; it never ends the run for other partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from kclient.types import TopicPartition
from spark_jobs.align import Alignment
from spark_jobs.cut import OffsetRange
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.ranges import Ranges, merged
from spark_jobs.snapshot import ClusterSnapshot


class FailureKind(Enum):
    """Why offsets could not be read."""

    UNDECODABLE = "undecodable"
    """A batch has a wrong CRC or invalid records."""
    DELETED = "deleted"
    """The log's start moved past the offsets during the run: retention or DeleteRecords."""
    UNREADABLE = "unreadable"
    """The broker returned an error or nothing."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Offsets [low, high) of one partition that one cluster did not return."""

    cluster: str
    topic: str
    partition: int
    low: int
    high: int
    kind: FailureKind
    cause: str

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def span(self) -> str:
        """The offsets as text."""
        if self.high <= self.low:
            return "without known offsets"
        return f"offsets {self.low} to {self.high - 1}"

    def document(self) -> dict[str, object]:
        """Return the JSON object of a report."""
        return {
            "cluster": self.cluster,
            "topic": self.topic,
            "partition": self.partition,
            "from": self.low,
            "until": self.high,
            "kind": self.kind.value,
            "cause": self.cause,
        }


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Rows of `spark_jobs.digest.merged`, and what could not be read."""

    rows: Sequence[Mapping[str, int]]
    failures: Sequence[Failure] = ()


@dataclass(frozen=True, slots=True)
class Differences:
    """The alignment of each partition, and what could not be read; records in failed offsets are aligned on no side."""

    alignments: Mapping[TopicPartition, Alignment]
    failures: Sequence[Failure] = ()
    undecided: frozenset[TopicPartition] = frozenset()
    """Partitions with `UNDECIDED` findings: these are in no alignment, and `Engine.explain_undecided` returns them."""


class SpanRanges(NamedTuple):
    """Where other records with the keys of findings are looked for, below the cut and behind it."""

    source: Sequence[OffsetRange]
    target: Sequence[OffsetRange]
    beyond_source: Sequence[OffsetRange]
    beyond_target: Sequence[OffsetRange]


class Explained(NamedTuple):
    """What compaction explains of the findings of `Differences.undecided`."""

    offsets: Mapping[TopicPartition, int]
    """How many offsets the explained ones own."""
    left: Mapping[TopicPartition, Sequence[Finding]]
    """The others."""


@dataclass(frozen=True, slots=True)
class Holes:
    """The offsets of the requested ranges without a record, and what could not be read."""

    ranges: Sequence[OffsetRange]
    failures: Sequence[Failure] = ()


@dataclass(frozen=True, slots=True)
class Modes:
    """How to align: see `spark_jobs.align.align`."""

    compacted: frozenset[str] = field(default_factory=frozenset)
    renumbered: bool = False
    unread: Mapping[TopicPartition, tuple[Ranges, Ranges]] = field(default_factory=dict)
    """Of renumbered targets: the offsets that source and target have deleted, or did not return in another read."""
    edges: Mapping[TopicPartition, Sequence[int]] = field(default_factory=dict)
    """Source offsets, ascending, before and behind which missing records may have another cause."""
    ends: tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]] = ({}, {})
    """Of the logs of source and target."""
    explainable: Mapping[str, frozenset[FindingClass]] = field(default_factory=dict)
    """By topic, the classes of findings that compaction may explain."""
    breaks: Mapping[TopicPartition, Sequence[int]] = field(default_factory=dict)
    """Offsets, ascending, before which records are left out, because they are equal at equal offsets."""


Place = tuple[str, int, int]
"""(topic, partition, hash)."""


class Copies(NamedTuple):
    """Where a target partition has records of one content."""

    records: int
    first: int
    last: int


class KeySpan(NamedTuple):
    """The first and the last offset of a key."""

    first: int
    last: int
    deletes: bool = False
    """Whether the last one is a tombstone."""
    repeats: bool = False
    """Whether two records of the key are equal."""


class KeysFound(NamedTuple):
    """Where ranges of a log have some keys."""

    spans: Mapping[Place, KeySpan] = {}
    """By key hash."""
    unread: frozenset[TopicPartition] = frozenset()
    """Partitions of which the broker did not return a part: it may have the keys, too."""


class _OfPartition(Protocol):
    @property
    def topic_partition(self) -> TopicPartition: ...


T = TypeVar("T", bound=_OfPartition)


def by_partition(parts: Iterable[T]) -> Mapping[TopicPartition, Sequence[T]]:
    """Return the failures, or the offset ranges, of each partition; none for any other."""
    found: dict[TopicPartition, list[T]] = defaultdict(list)
    for each in parts:
        found[each.topic_partition].append(each)
    return found


def joined(failures: Iterable[Failure]) -> list[Failure]:
    """Return *failures*, sorted, with those of one batch that several tasks have read made one."""
    found: list[Failure] = []
    for each in sorted(failures, key=lambda f: (f.cluster, *f.topic_partition, f.low, f.high)):
        before = found[-1] if found else None
        if (
            before is not None
            and each.low <= before.high
            and replace(before, high=each.high) == replace(each, low=before.low)
        ):
            found[-1] = replace(before, high=max(each.high, before.high))
        else:
            found.append(each)
    return found


def offsets_of(failures: Iterable[Failure]) -> Ranges:
    """Return the offsets that *failures* of one partition name."""
    return merged((each.low, each.high) for each in failures)


class Engine(Protocol):
    """Reads and hashes records; see the module."""

    def window_rows(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> WindowRows:
        """Return the digests of *ranges* per window and time bucket."""
        ...

    def differences(
        self,
        source: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        target: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        modes: Modes,
    ) -> Differences:
        """Align the records of both sides, partition by partition."""
        ...

    def explain_undecided(
        self,
        source: ClusterSnapshot,
        target: ClusterSnapshot,
        ranges: SpanRanges,
        modes: Modes,
    ) -> Explained:
        """Look up the keys of the findings that the last `differences` left undecided."""
        ...

    def holes(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> Holes:
        """Return the offsets of *ranges* without a record."""
        ...

    def copies(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], contents: frozenset[int]
    ) -> dict[Place, Copies]:
        """Return where *ranges* have records with one of *contents*, by content hash."""
        ...

    def spans_of_keys(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], keys: frozenset[int]
    ) -> KeysFound:
        """Return the first and the last offset of each of *keys* in *ranges*."""
        ...

    def log_ends(
        self, cluster: ClusterSnapshot, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where the logs end now; none of a partition that the cluster does not report."""
        ...
