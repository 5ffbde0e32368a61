"""Records and bytes per time bucket in two clusters, and what equal counts are worth. Pure.

A bucket is a span of record timestamps, aligned to the epoch. Records without a timestamp, and those from before 1970,
share one bucket. Offsets outside the frozen cut are not counted: lag, and offsets that only one log still has.

Equal counts prove nothing: a record lost and another one twice is equal, and so is a record with other content. Counts
that differ do prove a difference, if everything was read and neither log is compacted.

Invariants (tests cite the numbers):
 1. the sums over all buckets are the records that were read;
 2. exit code 0 means: every bucket equal, everything in scope read, lag and coverage within their limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from spark_jobs.cut import PartitionCut
from spark_jobs.engine import Failure, FailureKind, by_partition, offsets_of
from spark_jobs.ranges import subtract, total
from spark_jobs.verdict import ExitCode, Limits, ordered


class Sums(NamedTuple):
    """Records, and bytes of their keys and values."""

    records: int = 0
    bytes: int = 0


Series: TypeAlias = Mapping[tuple[str, int | None], Sums]
"""(topic, start of the bucket in ms) -> sums; the start is None for the bucket of timestamps below 0."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """One topic in one time bucket."""

    topic: str
    start_ms: int | None
    source: Sums
    target: Sums

    @property
    def missing(self) -> Sums:
        """What the target has less than the source; negative if it has more."""
        return Sums(
            self.source.records - self.target.records, self.source.bytes - self.target.bytes
        )

    @property
    def differs(self) -> bool:
        """Whether the sums differ."""
        return self.source != self.target


@dataclass(frozen=True, slots=True)
class TopicScope:
    """What of one topic was counted, in offsets."""

    counted: int = 0
    """In both logs, or at the target behind the end of the source; and read."""
    lagging: int = 0
    aged_out: int = 0
    """Only one log still has these offsets, or neither has."""
    not_read: int = 0
    """A cluster did not return them, or neither did: each counts once."""

    @classmethod
    def total(cls, scopes: Iterable[TopicScope]) -> TopicScope:
        """Return the scope of several topics together."""
        every = list(scopes)
        return cls(
            sum(each.counted for each in every),
            sum(each.lagging for each in every),
            sum(each.aged_out for each in every),
            sum(each.not_read for each in every),
        )


class TopicCounts(NamedTuple):
    """The result of one topic."""

    scope: TopicScope
    total: Bucket
    """The sums over all buckets."""
    buckets: Sequence[Bucket]

    @property
    def differing(self) -> int:
        """How many of the buckets differ."""
        return sum(each.differs for each in self.buckets)


@dataclass(frozen=True, slots=True)
class TimeCounts:
    """The result of `kaudit counts`."""

    bucket_ms: int
    buckets: Sequence[Bucket]
    """Those in which either side has a record, by topic and time."""
    scopes: Mapping[str, TopicScope]
    failures: Sequence[Failure] = ()
    limits: Limits = field(default_factory=Limits)

    @property
    def differing(self) -> list[Bucket]:
        """The buckets that differ."""
        return [each for each in self.buckets if each.differs]

    @property
    def scope(self) -> TopicScope:
        """The scope of all topics."""
        return TopicScope.total(self.scopes.values())

    @property
    def exit_codes(self) -> list[ExitCode]:
        """Every exit code that applies, the decisive one first.

        If offsets were not read, counts that differ may come from that: then 1 does not apply.
        """
        scope, kinds = self.scope, {each.kind for each in self.failures}
        in_scope = scope.counted + scope.aged_out
        coverage = scope.counted / in_scope if in_scope else 1.0
        below = coverage < self.limits.min_coverage
        # With nothing counted there is no proof, whatever lag the caller accepts.
        lagging = not scope.counted or scope.lagging > self.limits.max_lag
        conditions = {
            ExitCode.CONSISTENT: True,
            ExitCode.UNREADABLE: bool(kinds - {FailureKind.DELETED}),
            ExitCode.DIVERGED: bool(self.differing) and not kinds,
            ExitCode.AGED_OUT: below or FailureKind.DELETED in kinds,
            ExitCode.NO_VERDICT_YET: lagging,
        }
        return ordered(code for code, applies in conditions.items() if applies)

    def topics(self) -> dict[str, TopicCounts]:
        """Return the result of each topic in scope."""
        buckets: dict[str, list[Bucket]] = {topic: [] for topic in self.scopes}
        for each in self.buckets:
            buckets[each.topic].append(each)
        return {
            topic: TopicCounts(self.scopes[topic], _total(topic, of_topic), of_topic)
            for topic, of_topic in buckets.items()
        }


def compare(source: Series, target: Series) -> list[Bucket]:
    """Return the buckets of both sides, by topic and time; the one of timestamps below 0 first."""
    keys = sorted(
        source.keys() | target.keys(), key=lambda key: (key[0], key[1] is not None, key[1] or 0)
    )
    return [Bucket(*key, source.get(key, Sums()), target.get(key, Sums())) for key in keys]


def scopes(cuts: Iterable[PartitionCut], failures: Iterable[Failure] = ()) -> dict[str, TopicScope]:
    """Return what of each topic is counted, without the offsets of *failures*."""
    found: dict[str, TopicScope] = {}
    failed = by_partition(failures)
    for cut in cuts:
        so_far = found.get(cut.topic, TopicScope())
        unread = offsets_of(failed.get(cut.topic_partition, ()))
        read = subtract([(cut.low, max(cut.high, cut.target_end))], unread)
        found[cut.topic] = TopicScope(
            so_far.counted + total(read),
            so_far.lagging + cut.lagging,
            so_far.aged_out + cut.aged_out + cut.lost[1] - cut.lost[0],
            so_far.not_read + total(unread),
        )
    return found


def _total(topic: str, buckets: Iterable[Bucket]) -> Bucket:
    sides = [[0, 0], [0, 0]]
    for each in buckets:
        for side, sums in zip(sides, (each.source, each.target), strict=True):
            side[0] += sums.records
            side[1] += sums.bytes
    return Bucket(topic, None, *(Sums(*side) for side in sides))
