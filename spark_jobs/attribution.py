"""Which log has changed since the mirror copied it: three-way evidence for each finding. Pure.

Theory of operation
===================
kmirror can leave digests of what it copied at the target (`kclient.mirror_evidence`). It has per *extent* of offsets
the number of batches and the sum of the hashes of their headers. For the extents of findings the headers of both logs
are read. Batches that both logs have prove nothing. Of the others, D, the mirror has copied the subset with the sum
that is left:

    sum of the extent = sum of the batches in both logs + sum of a subset of D

`judge` looks for that subset. A batch of the source in the subset was copied, so the target has lost or changed it. A
batch of the source outside of it was not copied, so the source has changed. Batches of the target vice versa. If no
subset has the sum, neither log has what was copied. Of more than `MOST_DIFFERING` batches only the batches of one log
are tried: no other subset then is an answer. That a wrong subset has a given sum is an accident of 2**-48 or less.

An answer is given only for what the mirror's digests and both logs show. A digest that is missing, compaction, a log
that starts inside the extent, or a part that was not read make it UNKNOWN. No answer changes a class or a verdict.

In: findings, extents, headers of both logs   Out: a `Where` and its reason per finding   Owner: the caller
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations, pairwise
from typing import NamedTuple, TypeAlias

from kclient.mirror_evidence import MASK, Copied, CopiedTopic, Extent
from kclient.types import TopicPartition
from spark_jobs.cut import OffsetRange
from spark_jobs.engine import Failure, FailureKind, by_partition
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.ranges import merged
from spark_jobs.snapshot import ClusterSnapshot

MOST_DIFFERING = 14
"""Batches of an extent that differ, up to which every subset is tried: 2**14 sums of integers."""

MOST_OFFSETS = 2_000_000
"""Offsets of the extents that one run reads the headers of."""


class Where(Enum):
    """Which log is not what the mirror copied."""

    SOURCE = "source"
    """The target has what the mirror copied, and the source does not."""
    TARGET = "target"
    """The source has what the mirror copied, and the target does not."""
    MIRROR = "mirror"
    """The mirror wrote other bytes than it read."""
    NEITHER = "neither"
    """In the extent neither log has all that the mirror copied. Or the source changed in one place of the finding, and
    the target in another."""
    UNKNOWN = "unknown"


class Reason(Enum):
    """Why the answer is UNKNOWN."""

    NO_DIGEST = "no digest of these offsets"
    COMPACTED = "the topic is compacted"
    SHORTENED = "a log starts inside the extent"
    NOT_READ = "batches were not read"
    LIMIT = "more findings than are attributed in one run"
    EQUAL = "the batch headers are equal"
    MANY = "too many batches differ, and neither log has all that was copied"
    AMBIGUOUS = "several sets of batches have the sum"


class Answer(NamedTuple):
    """Where a finding comes from; *reason* only with UNKNOWN."""

    where: Where
    reason: Reason | None = None


class Batch(NamedTuple):
    """A batch of a log: offsets [base_offset, next_offset), and the hash of its header."""

    base_offset: int
    next_offset: int
    hash: int


class Judged(NamedTuple):
    """Offsets [low, high), a batch of one log that the other lacks, and where that comes from."""

    low: int
    high: int
    where: Where


@dataclass(frozen=True, slots=True)
class EvidenceRead:
    """The evidence topics that the target has; *problem* is why they could not be read."""

    topics: tuple[str, ...] = ()
    copied: Copied = field(default_factory=Copied)
    problem: str = ""


def judge(
    extent: Extent, source: Iterable[Batch], target: Iterable[Batch]
) -> list[Judged] | Reason:
    """Return what differs between both logs in *extent*, and where each difference comes from."""
    at_source, at_target = set(source), set(target)
    common = at_source & at_target
    only_source, only_target = sorted(at_source - common), sorted(at_target - common)
    differing = [*only_source, *only_target]
    if extent.read != extent.written:
        return [Judged(each.base_offset, each.next_offset, Where.MIRROR) for each in differing]
    wanted = extent.batches - len(common)
    left = (extent.read - sum(each.hash for each in common)) & MASK
    found = _subsets(only_source, only_target, wanted, left)
    if len(found) > 1:
        return Reason.AMBIGUOUS
    if not found and len(differing) > MOST_DIFFERING:
        return Reason.MANY
    if not found:
        return [Judged(each.base_offset, each.next_offset, Where.NEITHER) for each in differing]
    copied = found[0]
    return [
        Judged(
            each.base_offset,
            each.next_offset,
            Where.TARGET if (each in copied) == (each in at_source) else Where.SOURCE,
        )
        for each in differing
    ]


def _subsets(
    only_source: Sequence[Batch], only_target: Sequence[Batch], wanted: int, left: int
) -> list[frozenset[Batch]]:
    """Return the sets of *wanted* differing batches with the sum *left*: what the mirror can have copied."""
    differing = [*only_source, *only_target]
    if len(differing) <= MOST_DIFFERING:
        candidates: Iterable[Sequence[Batch]] = combinations(differing, max(0, wanted))
    else:
        candidates = (only_source, only_target)
    return [
        frozenset(each)
        for each in candidates
        if len(each) == wanted and sum(one.hash for one in each) & MASK == left and _is_log(each)
    ]


def _is_log(batches: Iterable[Batch]) -> bool:
    """Return whether no two of *batches* have an offset in common."""
    ordered = sorted(batches)
    return all(before.next_offset <= after.base_offset for before, after in pairwise(ordered))


Ranges: TypeAlias = tuple[list[OffsetRange], list[OffsetRange]]


class _Difference(NamedTuple):
    """The offsets [low, high) of a finding at which the logs differ, and the extents that have them."""

    low: int
    high: int
    extents: tuple[Extent, ...]


class Attribution:
    """Attributes the *findings* of a run over *clusters*, source and target."""

    def __init__(
        self,
        findings: Sequence[Finding],
        evidence: EvidenceRead,
        clusters: tuple[ClusterSnapshot, ClusterSnapshot],
        compacted: frozenset[str],
    ) -> None:
        self._clusters = clusters
        self._compacted = compacted
        self._copied = evidence.copied
        self._known: dict[TopicPartition, list[Extent]] = {}
        self._wanted: dict[TopicPartition, dict[Extent, None]] = {}
        self._offsets = 0
        self._prepared = [self._prepare(each) for each in findings]

    def to_read(self) -> Ranges:
        """Return the offsets of which the headers are needed, of source and target."""
        ranges: Ranges = ([], [])
        for tp, extents in sorted(self._wanted.items()):
            # Joined: a batch that reaches from one range into the next would come twice.
            for low, high in merged((each.first, each.until) for each in extents):
                for of_side, cluster in zip(ranges, self._clusters, strict=True):
                    end = min(high, cluster.ranges[tp].end)
                    if low < end:
                        of_side.append(OffsetRange(*tp, low, end))
        return ranges

    def answers(
        self,
        source: Mapping[TopicPartition, Sequence[Batch]],
        target: Mapping[TopicPartition, Sequence[Batch]],
        failures: Iterable[Failure],
    ) -> list[Answer]:
        """Return an answer per finding, from the batches of `to_read` and what could not be read of them.

        A batch that cannot be decoded has a wrong CRC: its log does not have what was copied there.
        """
        failed = by_partition(each for each in failures if each.kind is not FailureKind.UNDECODABLE)
        judged: dict[tuple[TopicPartition, Extent], list[Judged] | Reason] = {}
        for tp, extents in self._wanted.items():
            for each in extents:
                inside = (_inside(each, side.get(tp, ())) for side in (source, target))
                missing = any(f.low < each.until and each.first < f.high for f in failed[tp])
                judged[tp, each] = Reason.NOT_READ if missing else judge(each, *inside)
        return [
            found if isinstance(found, Answer) else _answer(tp, found, judged)
            for tp, found in self._prepared
        ]

    def _prepare(self, finding: Finding) -> tuple[TopicPartition, Answer | list[_Difference]]:
        tp = finding.topic_partition
        if finding.topic in self._compacted:
            return tp, Answer(Where.UNKNOWN, Reason.COMPACTED)
        if finding.is_run:
            return tp, Answer(Where.UNKNOWN, Reason.LIMIT)
        differences = [self._difference(tp, *span) for span in _spans(finding)]
        extents = {each: None for difference in differences for each in difference.extents}
        if not extents or not all(_covers(each) for each in differences):
            return tp, Answer(Where.UNKNOWN, Reason.NO_DIGEST)
        starts = [side.ranges[tp].start for side in self._clusters]
        if any(each.first < max(starts) for each in extents):
            return tp, Answer(Where.UNKNOWN, Reason.SHORTENED)
        known = self._wanted.get(tp, {})
        new = sum(each.until - each.first for each in extents if each not in known)
        if new and self._offsets + new > MOST_OFFSETS:
            return tp, Answer(Where.UNKNOWN, Reason.LIMIT)
        self._offsets += new
        self._wanted.setdefault(tp, {}).update(extents)
        return tp, differences

    def _difference(self, tp: TopicPartition, low: int, high: int) -> _Difference:
        extents = self._extents(tp)
        begin = bisect_right(extents, low, key=lambda each: each.until)
        end = bisect_left(extents, high, key=lambda each: each.first)
        return _Difference(low, high, tuple(extents[begin:end]))

    def _extents(self, tp: TopicPartition) -> list[Extent]:
        """Return the evidence of a partition that both clusters have."""
        found = self._known.get(tp)
        if found is None:
            found = []
            source, target = self._clusters
            if tp in source.ranges and tp in target.ranges and source.cluster_id:
                ids = (each.topic_ids.get(tp.topic, "") for each in self._clusters)
                copy = TopicPartition(target.topic_of(tp.topic), tp.partition)
                found = self._copied.extents(copy, CopiedTopic(source.cluster_id, *ids))
            self._known[tp] = found
        return found


def _spans(finding: Finding) -> list[tuple[int, int]]:
    """Return the offsets of its partition at which *finding* shows a difference of both logs."""
    if finding.last_offset is not None:
        return [(finding.position, finding.last_offset + 1)]
    offsets = {finding.source_offset}
    if finding.finding_class is not FindingClass.MISROUTED:
        offsets.add(finding.target_offset)
    return [(each, each + 1) for each in sorted(each for each in offsets if each is not None)]


def _covers(difference: _Difference) -> bool:
    """Return whether the extents have all offsets of *difference*."""
    at = difference.low
    for each in difference.extents:
        if each.first > at:
            return False
        at = each.until
    return at >= difference.high


def _inside(extent: Extent, batches: Sequence[Batch]) -> Iterator[Batch]:
    """Return the batches that begin in *extent*; *batches* ascend."""
    begin = bisect_left(batches, extent.first, key=lambda each: each.base_offset)
    end = bisect_left(batches, extent.until, key=lambda each: each.base_offset)
    return iter(batches[begin:end])


def _answer(
    tp: TopicPartition,
    differences: Sequence[_Difference],
    judged: Mapping[tuple[TopicPartition, Extent], list[Judged] | Reason],
) -> Answer:
    found = set()
    for low, high, extents in differences:
        for extent in extents:
            of_extent = judged[tp, extent]
            if isinstance(of_extent, Reason):
                return Answer(Where.UNKNOWN, of_extent)
            found |= {each.where for each in of_extent if each.low < high and low < each.high}
    if not found:
        return Answer(Where.UNKNOWN, Reason.EQUAL)
    return Answer(found.pop() if len(found) == 1 else Where.NEITHER)


@dataclass(frozen=True, slots=True)
class Attributed:
    """What the evidence of a run shows, in records of the findings."""

    evidence: EvidenceRead
    where: Mapping[Where, int] = field(default_factory=dict)
    reasons: Mapping[Reason, int] = field(default_factory=dict)
    """Of those with UNKNOWN."""

    @classmethod
    def of(
        cls, evidence: EvidenceRead, findings: Iterable[Finding], answers: Iterable[Answer]
    ) -> Attributed:
        """Count the *answers* for *findings*."""
        where: Counter[Where] = Counter()
        reasons: Counter[Reason] = Counter()
        for finding, answer in zip(findings, answers, strict=True):
            where[answer.where] += finding.records
            if answer.reason is not None:
                reasons[answer.reason] += finding.records
        return cls(evidence, where, reasons)
