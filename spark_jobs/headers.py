"""The header audit: batch headers and CRCs of two clusters, compared per window. Pure.

docs/design/audit-incremental.md has what equal headers prove, and what they do not. In short: they prove equal batches
up to what CRC-32C does not notice, so the verdict is never CONSISTENT. Headers that differ prove nothing: the windows
are then compared by content.

A batch belongs to the window of its base offset. It may reach into later windows, so each window has a *reach*: the end
of its last batch. The content is compared up to there.

Invariants (tests cite the numbers):
 1. HEADERS-EQUAL: every offset in scope was read on both sides, every CRC is right, and all windows are equal;
 2. each offset of a batch with another header is in a range of `to_compare`;
 3. a window that was not read in full is never the reason for DIVERGED.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from kclient.mirror_evidence import header_hash
from kclient.types import TopicPartition
from kclient.wire.batches import BatchInfo, Buffer
from spark_jobs.cut import OffsetRange, PartitionCut
from spark_jobs.engine import Failure, FailureKind, by_partition, offsets_of
from spark_jobs.ranges import merged
from spark_jobs.time_counts import TopicScope
from spark_jobs.verdict import ExitCode, Limits, ordered
from spark_jobs.windows import WindowKey, WindowResult, WindowState

_MASK = (1 << 64) - 1


class HeaderVerdict(Enum):
    """The verdict of a header audit."""

    ERROR = "ERROR"
    DIVERGED = "DIVERGED"
    INCOMPLETE = "INCOMPLETE"
    LAGGING = "LAGGING"
    CONTENT_EQUAL = "CONTENT-EQUAL"
    """Some headers differ; in their windows the records are equal by their hashes."""
    HEADERS_EQUAL = "HEADERS-EQUAL"


@dataclass(frozen=True, slots=True)
class HeaderSums:
    """Sums over the batches of a window; *hashes* modulo 2**64."""

    batches: int = 0
    records: int = 0
    bytes: int = 0
    hashes: int = 0
    reach: int = field(default=0, compare=False)
    """The end of the last batch. The hashes cover it."""

    def __add__(self, other: HeaderSums) -> HeaderSums:
        return HeaderSums(
            self.batches + other.batches,
            self.records + other.records,
            self.bytes + other.bytes,
            (self.hashes + other.hashes) & _MASK,
            max(self.reach, other.reach),
        )


def sums_of(data: Buffer, info: BatchInfo) -> HeaderSums:
    """Return the sums of one batch: its header without the leader epoch, which each cluster writes itself."""
    hashed = header_hash(data, info.position)
    return HeaderSums(1, info.record_count, info.size, hashed, info.next_offset)


Sums = Mapping[WindowKey, HeaderSums]


def differing(source: Sums, target: Sums) -> list[WindowKey]:
    """Return the windows of which the headers differ, sorted."""
    nothing = HeaderSums()
    return sorted(
        key
        for key in source.keys() | target.keys()
        if source.get(key, nothing) != target.get(key, nothing)
    )


def to_compare(
    keys: Iterable[WindowKey],
    sums: tuple[Sums, Sums],
    cuts: Iterable[PartitionCut],
    size: int,
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Return the offsets of the windows *keys* and of their batches, in source and target."""
    spans: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
    for key in keys:
        reach = max(of_side[key].reach for of_side in sums if key in of_side)
        low = key.window * size
        spans[TopicPartition(*key[:2])].append((low, max(low + size, reach)))
    ranges: tuple[list[OffsetRange], list[OffsetRange]] = ([], [])
    for cut in cuts:
        tp = cut.topic_partition
        for low, high in merged(spans.get(tp, ())):
            for of_side, end in zip(ranges, (cut.high, cut.target_end), strict=True):
                if max(low, cut.low) < min(high, end):
                    of_side.append(OffsetRange(*tp, max(low, cut.low), min(high, end)))
    return ranges


@dataclass(frozen=True, slots=True)
class HeaderAudit:
    """The result of one header audit."""

    window: int
    sums: tuple[Sums, Sums]
    other_headers: Sequence[WindowKey]
    by_content: Sequence[WindowResult]
    """Every window of which the content was compared."""
    scopes: Mapping[str, TopicScope]
    compacted: frozenset[str] = frozenset()
    failures: Sequence[Failure] = ()
    limits: Limits = field(default_factory=Limits)
    damaged: Sequence[Failure] = ()
    """Those of *failures* that the read of the headers has found: batches with a wrong CRC."""

    @property
    def other_content(self) -> list[WindowResult]:
        """Windows of which the content differs, in what was read."""
        return [each for each in self.by_content if each.state is not WindowState.EQUAL]

    @property
    def diverged(self) -> list[WindowResult]:
        """Windows of which the content differs, read in full, and of a topic that is not compacted."""
        return [each for each in self.other_content if not self._is_open(each)]

    @property
    def open_windows(self) -> list[WindowResult]:
        """Windows that differ, perhaps because of compaction or because a part was not read."""
        return [each for each in self.other_content if self._is_open(each)]

    def _is_open(self, each: WindowResult) -> bool:
        key = each.key
        if key.topic in self.compacted:
            return True
        failed = offsets_of(by_partition(self.failures)[TopicPartition(*key[:2])])
        low, high = key.window * self.window, (key.window + 1) * self.window
        return any(first < high and low < end for first, end in failed)

    @property
    def undecoded(self) -> list[Failure]:
        """Batches with a right CRC that could not be decoded when their content was compared."""
        return [
            each
            for each in self.failures
            if each.kind is FailureKind.UNDECODABLE and each not in self.damaged
        ]

    @property
    def scope(self) -> TopicScope:
        """The scope of all topics, in offsets."""
        return TopicScope.total(self.scopes.values())

    @property
    def not_read(self) -> int:
        """Offsets of the scope that a cluster did not return, whatever the reason."""
        return self.scope.not_read

    @property
    def in_scope(self) -> int:
        """Offsets of either log, without lag."""
        return self.scope.counted + self.scope.aged_out + self.not_read

    @property
    def verdict(self) -> HeaderVerdict:
        """The first that applies."""
        kinds = {each.kind for each in self.failures}
        conditions = {
            HeaderVerdict.ERROR: FailureKind.UNREADABLE in kinds,
            HeaderVerdict.DIVERGED: bool(self.damaged or self.diverged),
            HeaderVerdict.INCOMPLETE: self.scope.counted < self.in_scope or bool(self.open_windows),
            HeaderVerdict.LAGGING: self._lags,
            HeaderVerdict.CONTENT_EQUAL: bool(self.other_headers),
        }
        return next(
            (each for each, applies in conditions.items() if applies), HeaderVerdict.HEADERS_EQUAL
        )

    @property
    def _lags(self) -> bool:
        # With nothing compared there is no proof, whatever lag the caller accepts.
        return not self.scope.counted or self.scope.lagging > self.limits.max_lag

    @property
    def exit_codes(self) -> list[ExitCode]:
        """Every exit code that applies, the decisive one first."""
        kinds = {each.kind for each in self.failures}
        coverage = self.scope.counted / self.in_scope if self.in_scope else 1.0
        below = coverage < self.limits.min_coverage
        aged = self.scope.aged_out > 0 or FailureKind.DELETED in kinds
        conditions = {
            ExitCode.CONSISTENT: True,
            ExitCode.UNREADABLE: FailureKind.UNREADABLE in kinds,
            ExitCode.DIVERGED: bool(self.damaged or self.diverged),
            ExitCode.AGED_OUT: below and aged,
            ExitCode.NO_VERDICT_YET: self._lags
            or bool(self.open_windows or self.undecoded)
            or (below and not aged),
        }
        return ordered(code for code, applies in conditions.items() if applies)
