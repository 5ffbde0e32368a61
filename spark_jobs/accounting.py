"""Turns alignments, failures and holes into findings, and puts each offset of both logs into one class. Pure.

Theory of operation
===================
`spark_jobs.align` sees one partition at a time and only the windows that differ. This module sees the whole run:

1. *Lag.* MISSING records behind everything that the target received, unless the mirror is complete. In a renumbered
   target: behind the last common record, what compaction does not explain, but for `Alignment.passed` offsets.
2. *Explained.* Compaction of one log explains a record below its end that only the other has (`KeySpans`). Gaps that
   the operator accepted explain missing offsets. Gaps of the mirror's ledger explain offsets that neither log has
   (`spark_jobs.gap_ledger`).
3. *Duplicate.* An EXTRA record with a copy elsewhere in its partition, or a CORRUPT one that shares nothing with the
   source's record. Then the source's is MISSING. Lag is known only behind it: copies are not among `Alignment.passed`.
4. *Misrouted.* Of what is left, a record that one partition lacks and another one of the topic has in addition. What
   is explained comes first, so that no pair of records has another verdict than the two (`spark_jobs.folding`). A
   copy comes first, too: producers write equal records to all partitions, and what one repeats may lag in another.
5. *Truncated.* What is left of MISSING records behind the target's end of a complete mirror: one finding.
6. *Shifted.* Records that closed up behind a loss, if the loss is explained: neither compaction nor an accepted gap
   moves a record. Another finding explains it only if it begins before them.
7. *Visibility.* A transaction that has ended in one log only, by the last stable offsets (`spark_jobs.cut`).
8. *Gaps.* Offsets that the target never had, where the source has deleted its records.

Invariants (tests/property/test_audit_oracle.py compares with a brute-force join):
 1. each offset of the scope is in one class of `Counts`, and the classes add up to the scope;
 2. what was not read, and what is explained, is in no class that counts as compared.

In: an `Evidence`.  Out: an `Account`.  Owner: the caller.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kclient.types import TopicPartition
from spark_jobs.align import Alignment
from spark_jobs.compaction import ONLY_TARGET, KeySpans
from spark_jobs.cut import OffsetRange, PartitionCut
from spark_jobs.engine import (
    Copies,
    Failure,
    FailureKind,
    Place,
    by_partition,
    offsets_of,
)
from spark_jobs.findings import KEYLESS, Finding, FindingClass, taken_apart, taken_together
from spark_jobs.folding import has_no_other
from spark_jobs.ranges import Ranges, intersect, merged, subtract, total
from spark_jobs.verdict import Counts
from spark_jobs.visibility import OPEN_AT_SOURCE, OPEN_AT_TARGET
from spark_jobs.windows import WindowResult, WindowState

COMPACTION = "compaction"

_NO_CAUSE = 1 << 63
"""Above all offsets."""


class AcceptedGap(NamedTuple):
    """Offsets [low, high) that the target may lack, with the cause.

    A gap of the operator explains missing records, too. A gap of the mirror's ledger (*only_gaps*) explains the hole of
    the target's log that contains its first offset. It explains nothing that the source still has.
    """

    topic: str
    partition: int
    low: int
    high: int
    cause: str
    only_gaps: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class _Unread(NamedTuple):
    """What was not read in one numbering of offsets: in both logs, or in one of two with offsets of their own."""

    failures: Sequence[Failure]
    opposite: int = 0
    """Records of the other log that only these offsets may have."""
    beyond: int = 0
    """Those of `opposite` that are more than the offsets between the same pairs."""

    @property
    def offsets(self) -> int:
        """The offsets that were not read."""
        return total(offsets_of(self.failures))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that one run read, per partition."""

    source_name: str
    window: int
    """Offsets per window."""
    cuts: Sequence[PartitionCut]
    windows: Sequence[WindowResult]
    alignments: Mapping[TopicPartition, Alignment]
    tails: frozenset[TopicPartition]
    """Partitions in which the source was aligned to its end."""
    failures: Sequence[Failure] = ()
    holes: Sequence[OffsetRange] = ()
    """Offsets without a record in the part of a log that only the target still has."""
    complete: bool = False
    renumbered: bool = False
    source_compacted: frozenset[str] = frozenset()
    target_compacted: frozenset[str] = frozenset()
    accepted: Sequence[AcceptedGap] = ()
    compacted_away: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offsets that compaction explains and that are in no alignment."""
    unknown: frozenset[TopicPartition] = frozenset()
    """Partitions of which one side has no known range: its failures have the offsets of the other log."""


@dataclass(frozen=True, slots=True)
class Account:
    """The findings of a run, and the class of each offset."""

    findings: Sequence[Finding]
    """Sorted by topic, partition and position."""
    partitions: Mapping[TopicPartition, Counts]
    explained: Mapping[TopicPartition, Mapping[str, int]]
    """Explained offsets by cause."""
    failed: Mapping[TopicPartition, Ranges]
    """Offsets that a cluster did not return."""
    used: frozenset[AcceptedGap] = frozenset()
    """The gaps of the mirror's ledger that explained an offset."""
    proven: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Of renumbered targets: see `Alignment.proven`."""
    explained_gaps: Mapping[TopicPartition, Ranges] = field(default_factory=dict)
    """Offsets of gaps that are explained: the target never had a record there, and the source has deleted its own."""

    @property
    def total(self) -> Counts:
        """The sum over all partitions."""
        return add(self.partitions.values())


def add(counts: Iterable[Counts]) -> Counts:
    """Return the sum of *counts*."""
    each = list(counts)
    different: Counter[FindingClass] = Counter()
    findings: Counter[FindingClass] = Counter()
    for one in each:
        different.update(one.different)
        findings.update(one.findings)
    return Counts(
        verified=sum(one.verified for one in each),
        empty=sum(one.empty for one in each),
        explained=sum(one.explained for one in each),
        aged_out=sum(one.aged_out for one in each),
        not_read=sum(one.not_read for one in each),
        lagging=sum(one.lagging for one in each),
        different=dict(different),
        findings=dict(findings),
        unreadable=tuple(text for one in each for text in one.unreadable),
        unknown=sum(one.unknown for one in each),
        unequal_ends=sum(one.unequal_ends for one in each),
    )


class KeyLookup(NamedTuple):
    """The lookup of other records with the keys of *findings*: compaction may explain those."""

    findings: Sequence[Finding]

    @property
    def keys(self) -> frozenset[int]:
        """The hashes of their keys."""
        return frozenset(f.key_hash for f in self.findings if f.key_hash is not None)

    @property
    def partitions(self) -> set[TopicPartition]:
        """Where they are."""
        return {f.topic_partition for f in self.findings}


@dataclass(slots=True)
class Ledger:
    """The findings of a run while they are classified, per partition."""

    evidence: Evidence
    findings: dict[TopicPartition, list[Finding]] = field(default_factory=dict)
    lagging: dict[TopicPartition, int] = field(default_factory=dict)
    explained: dict[TopicPartition, Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    explained_gaps: dict[TopicPartition, Ranges] = field(default_factory=lambda: defaultdict(list))
    used: set[AcceptedGap] = field(default_factory=set)
    """See `Account`."""
    misplaced: Counter[TopicPartition] = field(default_factory=Counter)
    """Offsets of records that belong to another partition: the other half of a MISROUTED finding."""
    not_passed: Counter[TopicPartition] = field(default_factory=Counter)
    """Records of `Alignment.passed` that are copies of others, or belong to another partition."""
    explained_passed: list[Finding] = field(default_factory=list)
    """Those of `Alignment.passed` that compaction explains."""
    damaged: set[TopicPartition] | None = None
    """Partitions of which the records with `Finding.apart` are CORRUPT; None: not known yet."""
    _apart: dict[TopicPartition, list[Finding]] = field(default_factory=dict)
    """Findings with `Finding.apart`, which `findings` has as MISSING and EXTRA until it is known."""
    _failures: Mapping[TopicPartition, Sequence[Failure]] = field(init=False)
    _holes: dict[TopicPartition, Ranges] = field(default_factory=lambda: defaultdict(list))
    _equal: dict[TopicPartition, list[WindowResult]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Windows that are equal on both sides; nothing of them was aligned."""

    def __post_init__(self) -> None:
        self._failures = by_partition(self.evidence.failures)
        for hole in self.evidence.holes:
            self._holes[hole.topic_partition].append((hole.low, hole.high))
        for result in self.evidence.windows:
            tp = TopicPartition(*result.key[:2])
            # A renumbered partition is aligned whole.
            aligned = self.evidence.renumbered and tp in self.evidence.alignments
            if result.state is WindowState.EQUAL and not aligned:
                self._equal[tp].append(result)

    def classify(self) -> None:
        """Find lag, but for records that compaction of a renumbered target may explain."""
        for cut in self.evidence.cuts:
            tp = cut.topic_partition
            alignment = self.evidence.alignments.get(tp)
            found = alignment.findings if alignment else []
            self.findings[tp] = taken_apart(found)
            self._apart[tp] = [f for f in found if f.apart is not None]
            if explained := self.evidence.compacted_away.get(tp):
                self.explained[tp][COMPACTION] += explained
        self._measure_moves()
        for cut in self.evidence.cuts:
            tp = cut.topic_partition
            self.lagging[tp] = cut.lagging
            if tp in self.evidence.tails:
                lag = [
                    f
                    for f in self.findings[tp]
                    if self._is_lag(f, cut)
                    and (_is_behind(f, cut) or not self._may_be_compaction(f))
                ]
                self._drop(tp, lag)
                self.lagging[tp] = self._lagging(cut, lag)

    def find_left_lag(self) -> None:
        """Find what lags of a renumbered target with what is known by now."""
        for cut in self.evidence.cuts:
            tp = cut.topic_partition
            if self.evidence.renumbered and tp in self.evidence.tails:
                lag = [f for f in self.findings[tp] if self._is_lag(f, cut)]
                self._drop(tp, lag)
                self.lagging[tp] += sum(f.owns for f in lag)

    def _measure_moves(self) -> None:
        """Add the records of equal windows, which were not aligned, to the distances across them."""
        for tp, findings in self.findings.items():
            equal = self._equal[tp]
            self.findings[tp] = [_with_crossed(f, equal, self.evidence.window) for f in findings]

    def _is_lag(self, finding: Finding, cut: PartitionCut) -> bool:
        return not self.evidence.complete and self._is_of_end(finding, cut)

    def _is_of_end(self, finding: Finding, cut: PartitionCut) -> bool:
        """Return whether *finding* is a record that the target did not receive, as far as its log shows."""
        if not self.evidence.renumbered:
            return _is_behind(finding, cut)
        alignment = self.evidence.alignments.get(cut.topic_partition)
        if alignment is None or finding.tail_position is None:
            return False
        passed_up_to = self._passed_up_to(cut.topic_partition, alignment)
        return finding.finding_class is FindingClass.MISSING and not finding.is_before(passed_up_to)

    def _passed_up_to(self, tp: TopicPartition, alignment: Alignment) -> int:
        """Return the end of the source's offsets that the mirror has passed, as far as is known by now.

        Until the copies were looked up, records behind the last pair may be damaged ones: then it is the higher end.
        """
        if alignment.damaged is not None:
            if self.damaged is None:
                return alignment.most_passed_up_to
            if tp in self.damaged:
                return alignment.damaged.passed_up_to
        return alignment.passed_up_to - self.not_passed[tp]

    def _was_passed(self, finding: Finding) -> bool:
        """Return whether *finding* is one of `Alignment.passed`."""
        alignment = self.evidence.alignments.get(finding.topic_partition)
        return (
            alignment is not None
            and alignment.last_common is not None
            and finding.finding_class is FindingClass.EXTRA
            and finding.position > alignment.last_common_at_target
        )

    def _lagging(self, cut: PartitionCut, lag: Sequence[Finding]) -> int:
        """Return the offsets that lag in a partition of `Evidence.tails`."""
        tp = cut.topic_partition
        alignment = self.evidence.alignments.get(tp)
        below = any(f.position < cut.high for f in lag)
        renumbered = self.evidence.renumbered or (
            alignment is not None and alignment.last_shift != 0
        )
        if self.evidence.complete or below or renumbered:
            return sum(f.owns for f in lag)  # The target has offsets of its own.
        failed = intersect(offsets_of(self._failures[tp]), cut.high, cut.source_end)
        others = sum(
            f.owns
            for f in self.findings[tp]
            if cut.high <= f.first_difference < cut.source_end
            and f.finding_class is not FindingClass.EXTRA
        )
        return cut.lagging - total(failed) - others

    def find_misrouted(self) -> None:
        """Pair MISSING records with EXTRA records of other partitions of the topic, by content."""
        wanted: dict[tuple[str, int | None], list[Finding]] = defaultdict(list)
        for each in self._all(FindingClass.MISSING):
            if not each.is_run:
                wanted[each.topic, each.source_hash].append(each)
        if not wanted:
            return
        for extra in self._all(FindingClass.EXTRA):
            sources = wanted.get((extra.topic, extra.target_hash), [])
            lost = next((f for f in sources if f.partition != extra.partition), None)
            if lost is None:
                continue
            sources.remove(lost)
            self._drop(extra.topic_partition, [extra])
            self.not_passed[extra.topic_partition] += self._was_passed(extra)
            tp = lost.topic_partition
            self._drop(tp, [lost])
            self.findings[tp].append(
                replace(
                    lost,
                    finding_class=FindingClass.MISROUTED,
                    target_offset=extra.target_offset,
                    target_hash=extra.target_hash,
                    target_partition=extra.partition,
                    tail_position=None,
                )
            )
            if extra.owns:
                self.misplaced[extra.topic_partition] += extra.owns

    def key_lookup(self) -> KeyLookup:
        """Return the findings that compaction of the other log may explain: that log has no record at the offset."""
        return KeyLookup(
            [f for each in self.findings.values() for f in each if self._may_be_compaction(f)]
        )

    def _may_be_compaction(self, finding: Finding) -> bool:
        """Return whether the other log is compacted and has no record at the offset."""
        evidence = self.evidence
        if finding.is_run:
            return False
        if finding.finding_class is FindingClass.MISSING:
            compacted = evidence.target_compacted
        elif finding.finding_class in ONLY_TARGET:
            compacted = evidence.source_compacted
        else:
            return False
        return finding.topic in compacted and has_no_other(finding)

    def explain_compaction(self, lookup: KeyLookup, spans: KeySpans) -> KeyLookup:
        """Explain the records of *lookup* that compaction removes; return what later records may still explain."""
        cuts = {cut.topic_partition: cut for cut in self.evidence.cuts}
        left = []
        for finding in lookup.findings:
            cut = cuts[finding.topic_partition]
            behind = _is_behind(finding, cut) or (
                finding.finding_class in ONLY_TARGET
                and not self.evidence.renumbered
                and finding.position >= cut.source_end
            )
            if behind:
                continue
            alignment = self.evidence.alignments.get(finding.topic_partition)
            passed_up_to = alignment.passed_up_to if alignment else 0
            if spans.explain(
                finding, renumbered=self.evidence.renumbered, passed_up_to=passed_up_to
            ):
                self._explain(finding.topic_partition, [finding], COMPACTION)
                if self._was_passed(finding):
                    self.explained_passed.append(finding)
            elif not finding.flags & KEYLESS:
                left.append(finding)
        return KeyLookup(left)

    def explain_accepted(self) -> None:
        """Explain missing records in gaps that the operator accepted, but for those that may be CORRUPT."""
        maybe = {id(half) for each in self._apart.values() for half in taken_apart(each)}
        self._explain_accepted(lambda finding: id(finding) not in maybe)

    def _explain_accepted(self, chosen: Callable[[Finding], bool]) -> None:
        for gap in self.evidence.accepted:
            if gap.only_gaps:
                continue
            tp = gap.topic_partition
            inside = [
                f
                for f in self.findings.get(tp, ())
                if f.finding_class is FindingClass.MISSING
                and gap.low <= (f.source_offset or 0) < gap.high
                and chosen(f)
            ]
            self._explain(tp, inside, gap.cause)

    def fold_tails(self) -> None:
        """Make one TRUNCATED finding of the records behind the end of a complete mirror's partition."""
        for cut in self.evidence.cuts:
            tp = cut.topic_partition
            tail = [f for f in self.findings[tp] if self._is_of_end(f, cut)]
            if tail:
                self._drop(tp, tail)
                self.findings[tp].append(_folded(tail, FindingClass.TRUNCATED))

    def fold_foreign(self) -> None:
        """Make one EXTRA finding of each partition that only the target has."""
        for cut in self.evidence.cuts:
            tp = cut.topic_partition
            foreign = [f for f in self.findings[tp] if f.finding_class in ONLY_TARGET]
            if not cut.on_source and len(foreign) > 1:
                self._drop(tp, foreign)
                self.findings[tp].append(_folded(foreign, FindingClass.EXTRA))

    def extras(self) -> list[Finding]:
        """Return the findings that are duplicates if the partition has a copy: see `settle_duplicates`.

        Of what compaction explains, those that make a record MISSING unless they are copies.
        """
        lacking = {
            f.topic_partition
            for f in self._all(FindingClass.MISSING)
            if self.evidence.renumbered and f.tail_position is not None
        }
        explained = [f for f in self.explained_passed if f.topic_partition in lacking]
        found = self._all(FindingClass.EXTRA, FindingClass.CORRUPT)
        return [*filter(_may_be_copy, found), *explained]

    def settle_duplicates(self, copies: Mapping[Place, Copies]) -> None:
        """Turn EXTRA records with a copy in their partition into DUPLICATEs."""
        known = self._all(FindingClass.EXTRA, FindingClass.CORRUPT, FindingClass.DUPLICATE)
        left, every = _Unmatched(known), _Unmatched([*known, *self.explained_passed])
        for each in self.explained_passed:
            self.not_passed[each.topic_partition] += _other_copy(each, copies, every) is not None
        for cut in self.evidence.cuts:
            tp = cut.topic_partition
            settled: list[Finding] = []
            for finding in self.findings[tp]:
                first = _other_copy(finding, copies, left)
                self.not_passed[tp] += first is not None and self._was_passed(finding)
                settled += [finding] if first is None else _as_duplicate(finding, first)
            self.findings[tp] = settled

    def settle_damaged(self) -> None:
        """Turn MISSING and EXTRA records of a renumbered target that may be one (`Finding.apart`) into CORRUPT.

        Not in a partition that has a copy behind the last pair: those were like records that lag, too. Accepted
        gaps explain the MISSING ones that are left.
        """
        self.damaged = set()
        apart, self._apart = self._apart, {}
        two: set[int] = set()
        for tp, corrupt in apart.items():
            halves = set(map(id, taken_apart(corrupt)))
            if not halves:
                continue
            if halves.issubset(map(id, self.findings[tp])) and not self._repeats(tp):
                self.damaged.add(tp)
                self._drop(tp, taken_apart(corrupt))
                self.findings[tp] += taken_together(corrupt)
            else:
                two |= halves
        self._explain_accepted(lambda finding: id(finding) in two)

    def _repeats(self, tp: TopicPartition) -> bool:
        """Return whether a record behind the last pair is a copy of another, or belongs to another partition."""
        last = self.evidence.alignments[tp].last_common_at_target
        return self.not_passed[tp] > 0 or any(
            f.finding_class is FindingClass.DUPLICATE and max(f.position, f.last_offset or 0) > last
            for f in self.findings[tp]
        )

    def _add_shifts(self) -> None:
        """Add a finding for records at other offsets, if no other finding before them is left as their cause."""
        causes: dict[TopicPartition, list[int]] = defaultdict(list)
        for f in self._all(*FindingClass):
            if f.finding_class is not FindingClass.VISIBILITY:
                causes[f.topic_partition].append(f.first_difference)
            if f.target_partition is not None and f.target_offset is not None:
                causes[TopicPartition(f.topic, f.target_partition)].append(f.target_offset)
        for tp, alignment in self.evidence.alignments.items():
            if not alignment.shifted or alignment.moved is None:
                continue
            records, source_offset, target_offset, last = alignment.moved
            if min(causes[tp], default=_NO_CAUSE) > min(source_offset, target_offset):
                self.findings[tp].append(
                    Finding(
                        FindingClass.SHIFTED,
                        *tp,
                        source_offset,
                        target_offset,
                        distance=target_offset - source_offset,
                        records=records,
                        owns=0,
                        last_offset=last,
                    )
                )

    def _add_open(self) -> None:
        """Add a finding for transactions that have ended in one log only; the records were compared as such."""
        for cut in self.evidence.cuts:
            for reason, (low, high) in (
                (OPEN_AT_SOURCE, cut.open_at_source),
                (OPEN_AT_TARGET, cut.open_at_target),
            ):
                if low < high:
                    self.findings[cut.topic_partition].append(
                        Finding(
                            FindingClass.VISIBILITY,
                            *cut.topic_partition,
                            low,
                            low,
                            field=reason,
                            records=high - low,
                            owns=0,
                            last_offset=high - 1,
                        )
                    )

    def account(self) -> Account:
        """Add gaps and failures, and count every offset."""
        self._add_shifts()
        self._add_open()
        partitions, failed = {}, {}
        verified = self._verified()
        for cut in self.evidence.cuts:
            tp = cut.topic_partition
            partitions[tp] = self._count(cut, verified[tp])
            failed[tp] = offsets_of(self._failures[tp])
        findings = sorted(
            (f for of_partition in self.findings.values() for f in of_partition),
            key=lambda f: (f.topic, f.partition, f.position, f.finding_class.value, f.field or ""),
        )
        proven = dict(self._proven())
        used = frozenset(self.used)
        return Account(
            findings, partitions, self.explained, failed, used, proven, self.explained_gaps
        )

    def _proven(self) -> Iterator[tuple[TopicPartition, tuple[int, int]]]:
        """Yield the proof of each partition with one, to the end of the source's log if nothing of it is open.

        An alignment has records only. What is behind the last one was read, too: markers, for example.
        """
        ends = {cut.topic_partition: cut.source_end for cut in self.evidence.cuts}
        for tp, each in self.evidence.alignments.items():
            if each.proven is None:
                continue
            low, high = each.proven
            is_open = each.findings or self._failures[tp] or tp in self.evidence.compacted_away
            yield tp, (low, high if is_open or not each.verified else max(high, ends[tp]))

    def _verified(self) -> Counter[TopicPartition]:
        verified: Counter[TopicPartition] = Counter()
        for tp, equal in self._equal.items():
            verified[tp] += sum(result.source.records for result in equal)
        for tp, alignment in self.evidence.alignments.items():
            verified[tp] += alignment.verified
        return verified

    def _count(self, cut: PartitionCut, verified: int) -> Counts:
        tp = cut.topic_partition
        failures = self._failures[tp]
        gaps = self._add_gaps(cut, offsets_of(failures))
        aged_out, not_read = 0, 0
        different: Counter[FindingClass] = Counter()
        for of_log in self._by_numbering(tp):
            self._add_undecodable(tp, of_log.failures)
            deleted, undecodable, unread = _by_kind(of_log.failures)
            aged = subtract(
                [cut.only_source, cut.only_target, *deleted], [*undecodable, *unread, *gaps]
            )
            aged_out += total(aged)
            not_read += total(unread)
            # Each unread offset stands for one record opposite. The class of the records beyond is that of the offsets.
            if unread:
                not_read += of_log.beyond
            elif undecodable:
                different[FindingClass.UNDECODABLE] += of_log.beyond
            else:
                aged_out += of_log.beyond
        alignment = self.evidence.alignments.get(tp)
        found: Counter[FindingClass] = Counter()
        for finding in self.findings[tp]:
            different[finding.finding_class] += finding.owns
            found[finding.finding_class] += finding.records
        different[FindingClass.SHIFTED] += alignment.shifted if alignment else 0
        different[FindingClass.MISROUTED] += self.misplaced[tp]
        counts = Counts(
            verified=verified,
            explained=sum(self.explained[tp].values()),
            aged_out=aged_out + (sum(alignment.aged_out) if alignment else 0),
            not_read=not_read,
            lagging=self.lagging[tp],
            different={each: count for each, count in different.items() if count},
            findings=dict(found),
            unreadable=tuple(
                f"{f.cluster} {tp} {f.span}: {f.cause}"
                for f in failures
                if f.kind is FailureKind.UNREADABLE
            ),
            unknown=int(
                any(f.kind is FailureKind.UNREADABLE and f.low == f.high for f in failures)
            ),
        )
        # What is left of the scope has no record on either side.
        scope = self._renumbered_scope(cut, counts) if self.evidence.renumbered else cut.scope
        return replace(
            counts,
            empty=max(0, scope - counts.in_scope - counts.lagging),
            unequal_ends=int(not scope and not cut.same_end),
        )

    def _by_numbering(self, tp: TopicPartition) -> Sequence[_Unread]:
        """Return the failures of a partition, those of a log with offsets of its own apart from those of the other."""
        failures = self._failures[tp]
        if not self.evidence.renumbered or tp in self.evidence.unknown:
            return [_Unread(failures)]
        alignment = self.evidence.alignments.get(tp)
        opposite = alignment.opposite if alignment else (0, 0)
        beyond = alignment.beyond if alignment else (0, 0)
        at_source, at_target = (
            [f for f in failures if (f.cluster == self.evidence.source_name) is wanted]
            for wanted in (True, False)
        )
        return [
            _Unread(at_source, opposite[1], beyond[1]),
            _Unread(at_target, opposite[0], beyond[0]),
        ]

    def _renumbered_scope(self, cut: PartitionCut, counts: Counts) -> int:
        """Return the number of the source's offsets and of what only the target has.

        That is its records that the source does not have, and its unread offsets that no record of the source is
        opposite.
        """
        tp = cut.topic_partition
        of_source = cut.source_end - cut.low
        if tp in self.evidence.unknown:
            return of_source
        alignment = self.evidence.alignments.get(tp)
        only_target = self.misplaced[tp] + sum(
            counts.different.get(each, 0) for each in ONLY_TARGET
        )
        source, target = self._by_numbering(tp)
        return (
            of_source
            + only_target
            + (alignment.aged_out[1] if alignment else 0)
            + source.beyond
            + max(0, target.offsets - (target.opposite - target.beyond))
        )

    def _add_undecodable(self, tp: TopicPartition, failures: Sequence[Failure]) -> None:
        seen: Ranges = []
        for each in failures:
            if each.kind is not FailureKind.UNDECODABLE:
                continue
            at_source = each.cluster == self.evidence.source_name
            self.findings[tp].append(
                Finding(
                    FindingClass.UNDECODABLE,
                    tp.topic,
                    tp.partition,
                    each.low if at_source else None,
                    None if at_source else each.low,
                    field=f"{each.cluster}: {each.cause}",
                    records=each.high - each.low,
                    last_offset=each.high - 1,
                    owns=total(subtract([(each.low, each.high)], seen)),
                )
            )
            seen = merged([*seen, (each.low, each.high)])

    def _add_gaps(self, cut: PartitionCut, failed: Ranges) -> Ranges:
        """Add findings for offsets that were lost before they were copied; return all of them, explained or not."""
        tp = cut.topic_partition
        holes = self._holes[tp]
        if cut.topic in self.evidence.source_compacted | self.evidence.target_compacted:
            holes = []  # They may be compaction's: without the source nothing shows it. They have aged out.
        gaps = subtract([*holes, cut.lost], failed)
        left = gaps
        for accepted in self.evidence.accepted:
            if accepted.topic_partition != tp:
                continue
            span = accepted.low, accepted.high
            if accepted.only_gaps:
                span = _of_hole(merged([*holes, cut.lost]), *span, log_start=cut.only_target[0])
            inside = intersect(left, *span)
            if inside:
                self.explained[tp][accepted.cause] += total(inside)
                self.explained_gaps[tp] = merged([*self.explained_gaps[tp], *inside])
                left = subtract(left, inside)
                if accepted.only_gaps:
                    self.used.add(accepted)
        for low, high in left:
            self.findings[tp].append(
                Finding(
                    FindingClass.GAP,
                    tp.topic,
                    tp.partition,
                    low,
                    None,
                    records=high - low,
                    owns=high - low,
                    last_offset=high - 1,
                )
            )
        return gaps

    def _all(self, *classes: FindingClass) -> list[Finding]:
        return [f for each in self.findings.values() for f in each if f.finding_class in classes]

    def _drop(self, tp: TopicPartition, findings: Sequence[Finding]) -> None:
        dropped = set(map(id, findings))
        self.findings[tp] = [f for f in self.findings[tp] if id(f) not in dropped]

    def _explain(self, tp: TopicPartition, findings: Sequence[Finding], cause: str) -> None:
        if findings:
            self._drop(tp, findings)
            self.explained[tp][cause] += sum(f.owns for f in findings)


def _by_kind(failures: Iterable[Failure]) -> tuple[Ranges, Ranges, Ranges]:
    """Return the offsets that were deleted, that cannot be decoded, and, without those, that cannot be read."""
    every = list(failures)
    deleted, undecodable, unread = (
        offsets_of(f for f in every if f.kind is kind)
        for kind in (FailureKind.DELETED, FailureKind.UNDECODABLE, FailureKind.UNREADABLE)
    )
    return deleted, undecodable, subtract(unread, undecodable)


def _is_behind(finding: Finding, cut: PartitionCut) -> bool:
    """Return whether *finding* is a MISSING record behind everything that the target received."""
    return (
        finding.finding_class is FindingClass.MISSING
        and finding.tail_position is not None
        and finding.tail_position >= cut.target_end
    )


def _of_hole(holes: Ranges, low: int, high: int, *, log_start: int) -> tuple[int, int]:
    """Return the part of [low, high) in the one hole that contains *low*, or the target's log start if it is above.

    The mirror's gaps begin where its log ended. A record of the target at *low* contradicts the gap: it is empty.
    """
    low = max(low, log_start)
    return next(((low, min(high, end)) for first, end in holes if first <= low < end), (low, low))


def _may_be_copy(finding: Finding) -> bool:
    """Return whether the target is read again for another copy of its record: an alignment sees those of its windows.

    The records of a CORRUPT finding may be two if more than one part differs: damage mostly changes one. Of a run the
    contents are not known.
    """
    if finding.is_run:
        return False
    corrupt = finding.finding_class is FindingClass.CORRUPT
    return finding.finding_class is FindingClass.EXTRA or (corrupt and "," in (finding.field or ""))


class _Unmatched:
    """How many of the target's records with one content no record of the source stands beside, at most.

    Of a run the contents are not known: each of its records may have that content.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._single: Counter[Place] = Counter()
        self._runs: dict[TopicPartition, list[Finding]] = defaultdict(list)
        for each in findings:
            if each.is_run:
                self._runs[each.topic_partition].append(each)
            else:
                self._single[each.topic, each.partition, each.target_hash or 0] += 1

    def have_all(self, place: Place, held: Copies) -> bool:
        """Return whether all records *held* at *place* may be among these."""
        left = held.records - self._single[place]
        runs = self._runs.get(TopicPartition(*place[:2]), ()) if left > 0 else ()
        return left <= sum(
            each.records
            for each in runs
            if (each.lowest or 0) <= held.last and (each.highest or 0) >= held.first
        )


def _other_copy(
    finding: Finding, copies: Mapping[Place, Copies], unmatched: _Unmatched
) -> int | None:
    """Return the offset of another copy, if the target's record of *finding* is a duplicate."""
    if not _may_be_copy(finding):
        return None
    place = (finding.topic, finding.partition, finding.target_hash or 0)
    held = copies.get(place)
    if held is None:
        return None
    # A surplus beside a record of the source, or the second copy of an EXTRA record.
    others = not unmatched.have_all(place, held)
    first = held.first if held.first != finding.target_offset else held.last
    is_second = others or first < (finding.target_offset or 0)
    return first if first != finding.target_offset and is_second else None


def _as_duplicate(finding: Finding, first: int) -> list[Finding]:
    """Return *finding* as a duplicate of the record at *first*, and a record that it replaced as missing."""
    duplicate = replace(finding, finding_class=FindingClass.DUPLICATE, first_target_offset=first)
    if finding.source_offset is None:
        return [duplicate]
    missing = replace(
        finding,
        finding_class=FindingClass.MISSING,
        target_offset=None,
        target_hash=None,
        field=None,
        owns=1,
    )
    # The timestamp, key and flags of a finding with two records are those of the source's.
    alone = replace(duplicate, source_offset=None, source_hash=None, field=None, timestamp_ms=None)
    return [missing, replace(alone, key_hash=None, flags=0, owns=finding.owns - 1)]


def _with_crossed(finding: Finding, equal: Sequence[WindowResult], size: int) -> Finding:
    if finding.finding_class is not FindingClass.REORDERED or finding.distance is None:
        return finding
    low, high = sorted((finding.source_offset or 0, finding.target_offset or 0))
    crossed = sum(each.source.records for each in equal if low < each.key.window * size < high)
    is_later = (finding.target_offset or 0) > (finding.source_offset or 0)
    return replace(finding, distance=finding.distance + (crossed if is_later else -crossed))


def _folded(findings: Sequence[Finding], finding_class: FindingClass) -> Finding:
    first = min(findings, key=lambda f: f.position)
    return replace(
        first,
        finding_class=finding_class,
        first_target_offset=None,
        records=sum(f.records for f in findings),
        owns=sum(f.owns for f in findings),
        last_offset=max(f.position if f.last_offset is None else f.last_offset for f in findings),
        lowest=None,
        highest=None,
        places=0,
    )
