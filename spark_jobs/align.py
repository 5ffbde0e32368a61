"""Align two record sequences of one partition and name every difference exactly.

Theory of operation
===================
Offsets alone cannot pair records: in a renumbered log one lost or repeated record shifts all records after it. Content
alone cannot either: equal records repeat. So both pairings are tried, and the alignment with fewer findings is kept:

1. *Match.* By offset first: records with equal offset and content are pairs, and the rest is paired by content. Or by
   content only: the k-th occurrence of a content in the source is paired with the k-th in the target. The second
   pairing is tried only if the first one moves a record. The offsets of a renumbered target show nothing, and its end
   may be in the middle of a burst of equal records. So there all is paired by occurrence first. Its start may be in a
   burst, too, if records before it were deleted. Then the ends of the two bursts are opposite each other, as far as
   the log start shows that records were deleted.
2. *Order.* Of the matched pairs the longest run in increasing order on both sides (patience sorting, as in patience
   diff) kept its position. Every other pair was REORDERED. So was a pair that moved over records that were left out
   (*breaks*), because these kept their position. If the best pairing of a renumbered target has such pairs, one more is
   tried: with equal records that are unmatched in their place. Compaction may have removed the first of them.
3. *Classify.* An unmatched target record is a DUPLICATE if its content occurs elsewhere in the target. The pairs
   that kept their position cut both sequences into the same gaps. Inside one gap an unmatched source record and an
   unmatched target record that are alike enough (`_LIKENESS`) are one CORRUPT record, the most alike first. Of the
   rest, a source record is MISSING and a target record is EXTRA. So are alike records behind the last pair of a
   renumbered target, if they are a copy and a record that lags. So their CORRUPT finding has both: `Finding.apart`.
   A burst of equal records is paired from its first record on, so a damaged one leaves the last one without a pair.
   In a renumbered target the two are opposite each other if only pairs of the burst are between them.
4. *Visibility.* A pair with equal content and offset that only one log calls aborted is in a VISIBILITY run.
5. *Shift.* The distance between paired records is in offsets, or in places that either log uses. It may change by one
   for each record that another finding adds, removes or moves. Any other change begins a SHIFTED run.

Invariants (property tests cite the numbers):
 1. sequences with equal offsets and contents give no findings;
 2. applying the findings to the source gives the target's multiset of contents;
 3. with contents unique in the source, n seeded faults, apart from each other, give n findings of their class;
 4. each offset of either sequence is counted once: verified, shifted, or owned by one finding;
 5. sequences with equal offsets and contents give a VISIBILITY finding for each run of which `ABORTED` differs.

Long runs of records that both logs have need not be passed: a `CommonRun` stands for what was left out
(`spark_jobs.common_runs`). Its first and its last pair are passed, and keep their position.

In: two sequences of RecordDigest, ascending by offset.  Out: an `Alignment`.
Owner: the caller; pure.  Cost: O(n log n), about 1 KB of memory per record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from spark_jobs.findings import (
    ABORTED,
    TAKEN,
    Finding,
    FindingClass,
    RecordDigest,
    taken_apart,
)
from spark_jobs.ranges import Ranges, merged
from spark_jobs.visibility import runs

PARTS = {
    "key": "key",
    "value": "value",
    "headers": "headers",
    "timestamp": "timestamp",
    "timestamp_type": "timestamp type",
}

_LIKENESS = {"offset": 2, "value": 2, "key": 1, "timestamp": 1, "headers": 0}
"""The weight of each equal part in the decision whether two records are one damaged record. Headers weigh nothing,
because most records have none; an equal key alone is not enough either, because many records share a key."""
_LIKENESS_OF_RENUMBERED = {part: weight for part, weight in _LIKENESS.items() if part != "offset"}
_ALIKE_ENOUGH = 2

_Pairs = list[tuple[int, int]]
"""Indexes of paired records in the source and in the target."""


class CommonRun(NamedTuple):
    """A pair of equal records, and how many pairs behind it were left out.

    The pairs that were left out are next to each other in both logs, and the next `CommonRun` has the last of them.
    Without a renumbered target all of them have the shift of this pair, and its flags.
    """

    source_index: int
    target_index: int
    left_out: int = 0
    beyond: int = 0
    """How many of the target's offsets that were left out are none of the source's."""
    is_burst: bool = False
    """Whether the pairs that were left out have the content of this one."""


class PairBefore(NamedTuple):
    """The last pair before both sequences: its indexes, counted back from the first records, and its shifts."""

    source_index: int
    target_index: int
    shift: int
    """In offsets."""
    ranks: int
    """In offsets that either log uses."""


NO_PAIR = PairBefore(-1, -1, 0, 0)


@dataclass(frozen=True, slots=True)
class Common:
    """What was left out of two sequences of records, and what must be known of it."""

    runs: Sequence[CommonRun] = ()
    """Ascending in both sequences."""
    at_source: AbstractSet[int] = frozenset()
    """Offsets of the target's records that are offsets of the source's, at least those that were left out there."""
    at_target: AbstractSet[int] = frozenset()
    """The same of the source's records."""
    ranks: Mapping[int, int] | None = None
    """For each offset that was not left out, its number among all offsets of both logs. None: nothing was left out."""
    before: PairBefore = NO_PAIR
    has_pair_before: bool = False
    """Whether both logs have a record before both sequences, or more records of one than of the other were before."""
    is_at_end: bool = True
    """Whether both sequences end where their logs do."""


NOTHING_LEFT_OUT = Common()


class DamagedTail(NamedTuple):
    """What is behind the last pair of a renumbered target if no finding with `Finding.apart` is MISSING and EXTRA."""

    last_common: int
    """As in `Alignment`."""
    last_common_at_target: int
    passed: int

    @property
    def passed_up_to(self) -> int:
        """The end of the source's offsets that the mirror may have passed."""
        return self.last_common + self.passed + 1


@dataclass(frozen=True, slots=True)
class Alignment:
    """The differences of one partition, and the number of offsets without any."""

    findings: list[Finding]
    """Ascending by position."""
    verified: int = 0
    """Pairs with equal content at the same offset."""
    shifted: int = 0
    """Offsets of pairs with equal content at another offset, as a consequence of the findings."""
    last_shift: int = 0
    """By how many offsets the last pair that kept its position is shifted."""
    moved: tuple[int, int, int, int] | None = None
    """Of the pairs at another offset: how many, the first one's offsets in source and target, the last in target."""
    aged_out: tuple[int, int] = (0, 0)
    """Of a renumbered target: records of source and target that are opposite the deleted start of the other log."""
    opposite: tuple[int, int] = (0, 0)
    """Of a renumbered target: records of source and target opposite offsets that the other log did not return."""
    beyond: tuple[int, int] = (0, 0)
    """Those of `opposite` that are more than the offsets between the same pairs."""
    proven: tuple[int, int] | None = None
    """Of a renumbered target: the first offsets of the source, [low, high), without any difference."""
    tail_begins: int = 0
    """Of a partition that was aligned in parts: no MISSING record below this offset is of the source's end."""
    unused: tuple[int, int] = (0, 0)
    """Of a renumbered target: offsets of source and target behind the last pair that were not read, and that have no
    record opposite."""
    last_common: int | None = None
    """Of a renumbered target: the source's offset of the last record that both logs have, or that before its start."""
    last_common_at_target: int = -1
    """The target's offset of that record."""
    passed: int = 0
    """Of a renumbered target: the EXTRA records behind `last_common_at_target`. As many offsets of the source behind
    `last_common` do not lag: docs/design/audit.md."""
    damaged: DamagedTail | None = None
    """Of a renumbered target, if records behind the last pair may be damaged."""

    @property
    def passed_up_to(self) -> int:
        """The end of the source's offsets that the mirror may have passed."""
        return 0 if self.last_common is None else self.last_common + self.passed + 1

    @property
    def most_passed_up_to(self) -> int:
        """The same while it is not known whether records behind the last pair are damaged: the higher end."""
        damaged = 0 if self.damaged is None else self.damaged.passed_up_to
        return max(self.passed_up_to, damaged)


def without_tail(finding: Finding, alignment: Alignment) -> Finding:
    """Return *finding* without its `tail_position`, if later records of the source are in both logs."""
    if finding.tail_position is None or (finding.source_offset or 0) >= alignment.tail_begins:
        return finding
    return replace(finding, tail_position=None)


def align(
    topic: str,
    partition: int,
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    *,
    compacted: bool = False,
    renumbered: bool = False,
    breaks: Sequence[int] = (),
    unread: tuple[Ranges, Ranges] = ([], []),
    common: Common = NOTHING_LEFT_OUT,
) -> Alignment:
    """Return every difference between *source* and *target*.

    *breaks* are offsets, ascending, before which records were left out because they are equal, at equal offsets.
    *common* is what was left out besides.

    A log that is *compacted* keeps the offsets of its records, so that only records at the same offset can be one
    damaged record. A *renumbered* target has offsets of its own: a shift is no finding. If it is compacted too, only
    records with equal key and timestamp can be one. Others are two records, of which compaction may have removed one
    here and the other there. Its offsets do not show which of its records belong to *unread* offsets of the source, and
    the other way round. An unmatched record between the same pairs as an unread range of the other log is no finding. A
    range from -1 is what retention has deleted.
    """
    aligner = _Aligner(
        topic, partition, source, target, compacted, renumbered, breaks, unread, common
    )
    fixed = {each.source_index: each.target_index for each in common.runs}
    pairings: list[Callable[..., _Pairs]] = [_by_offset, _by_content]
    tried: list[Alignment] = []
    if renumbered:
        # The offsets and the end show nothing: they may be in the middle of a burst of equal records.
        skipped = _before_start(source, target, unread) if not fixed else (0, 0)
        pairings = [_by_occurrence, _by_content, _by_offset]
        if any(skipped):
            first = aligner.align(_by_occurrence(source, target, fixed, skipped=skipped))
            if not first.findings:
                return first
            # The first record may be a copy instead.
            tried.append(first)
    for pairing in pairings:
        tried.append(aligner.align(pairing(source, target, fixed)))
        classes = {f.finding_class for f in taken_apart(tried[-1].findings)}
        # Compaction may explain the two halves of a damaged record, but no damaged one.
        may_hide = renumbered and compacted and classes >= _HALVES
        if not classes & _MOVES and not tried[-1].shifted and not may_hide:
            break
    best = min(tried, key=_findings_of)
    if renumbered and any(f.finding_class is FindingClass.REORDERED for f in best.findings):
        pairs = aligner.in_place(_by_occurrence(source, target, fixed))
        best = min(best, aligner.align(pairs), key=_findings_of)
    deletes = renumbered and not compacted and not fixed and any(unread)
    if deletes and any(f.tail_position is None for f in best.findings):
        skipped = _before_records(source, target, unread)
        if any(skipped):
            pairs = _by_occurrence(source, target, fixed, skipped=skipped)
            best = min(best, aligner.align(pairs), key=_findings_of)
    return best


def _findings_of(alignment: Alignment) -> int:
    return len(taken_apart(alignment.findings))


_MOVES = frozenset({FindingClass.REORDERED, FindingClass.SHIFTED})
_HALVES = frozenset({FindingClass.MISSING, FindingClass.EXTRA})


def _by_offset(
    source: Sequence[RecordDigest], target: Sequence[RecordDigest], fixed: Mapping[int, int]
) -> _Pairs:
    """Pair records with equal offset and content, then the others by content; ascending by source.

    The pairs *fixed* are pairs in any case.
    """
    taken = set(fixed.values())
    places = {record.offset: index for index, record in enumerate(target) if index not in taken}
    pairs: _Pairs = list(fixed.items())
    lost = []
    for index, record in enumerate(source):
        if index in fixed:
            continue
        place = places.get(record.offset)
        if place is not None and target[place].content == record.content:
            pairs.append((index, place))
        else:
            lost.append(index)
    if lost:
        used = {place for _, place in pairs}
        found = [place for place in range(len(target)) if place not in used]
        pairs += _match(source, target, lost, found)
    return sorted(pairs) if lost or fixed else pairs


def _before_start(
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    unread: tuple[Ranges, Ranges],
) -> tuple[int, int]:
    """Return how many first records of each log the other one has deleted, if its start is in a burst of equal ones.

    They are no more than the offsets that were deleted.
    """

    def skipped(own: Sequence[RecordDigest], other: Sequence[RecordDigest], deleted: int) -> int:
        content = own[0].content
        begin = next((n for n, each in enumerate(other) if each.content == content), len(other))
        left, size = _burst(own, 0, content), _burst(other, begin, content)
        # The rest of the target's last burst may lag.
        if size > left and not (own is target and left == len(own)):
            return min(begin + size - left, deleted)
        return 0

    return _behind_deleted_starts(source, target, unread, skipped)


def _before_records(
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    unread: tuple[Ranges, Ranges],
) -> tuple[int, int]:
    """Return how many first records of each log the other one has deleted, if it begins where most records are equal.

    They are no more than the offsets that were deleted.
    """

    def skipped(own: Sequence[RecordDigest], other: Sequence[RecordDigest], deleted: int) -> int:
        equal = _equal_from(own, other)[: deleted + 1]
        return max(range(len(equal)), key=equal.__getitem__, default=0)

    return _behind_deleted_starts(source, target, unread, skipped)


def _behind_deleted_starts(
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    unread: tuple[Ranges, Ranges],
    skipped: Callable[[Sequence[RecordDigest], Sequence[RecordDigest], int], int],
) -> tuple[int, int]:
    """Return what *skipped* returns for each log: given the other one, which has deleted its start, and its offsets."""
    counts = [0, 0]
    for side, (own, other) in enumerate(((target, source), (source, target))):
        deleted = _deleted_at_the_start(unread[1 - side])
        if own and deleted:
            counts[side] = skipped(own, other, deleted)
    return counts[0], counts[1]


def _equal_from(own: Sequence[RecordDigest], other: Sequence[RecordDigest]) -> list[int]:
    """Return for each record of *other* how many from it on are the first ones of *own* (the Z-function)."""
    contents = [*(each.content for each in own), None, *(each.content for each in other)]
    equal = [0] * len(contents)
    low = high = 0
    for at in range(1, len(contents)):
        size = max(0, min(high - at, equal[at - low]))
        while at + size < len(contents) and contents[at + size] == contents[size]:
            size += 1
        equal[at] = size
        if at + size > high:
            low, high = at, at + size
    return equal[len(own) + 1 :]


def _deleted_at_the_start(unread: Ranges) -> int:
    """Return the offset below which a log has deleted its records, by the ranges *unread* (-1: before the run), or 0.

    Retention may go on while the log is read.
    """
    return next((high for low, high in merged(unread) if low < 0), 0)


def _burst(records: Sequence[RecordDigest], begin: int, content: int) -> int:
    """Return how many of *records* have *content*, one after the other, from index *begin* on."""
    end = begin
    while end < len(records) and records[end].content == content:
        end += 1
    return end - begin


def _by_occurrence(
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    fixed: Mapping[int, int],
    *,
    skipped: tuple[int, int] = (0, 0),
) -> _Pairs:
    """Pair by occurrence what is not *fixed*, without the *skipped* first records; ascending by source."""
    taken = set(fixed.values())
    lost = [index for index in range(skipped[0], len(source)) if index not in fixed]
    found = [index for index in range(skipped[1], len(target)) if index not in taken]
    return sorted([*fixed.items(), *_match(source, target, lost, found)])


def _by_content(
    source: Sequence[RecordDigest], target: Sequence[RecordDigest], fixed: Mapping[int, int]
) -> _Pairs:
    """Drop the equal prefix and suffix, then pair by occurrence; ascending by source.

    With *fixed* pairs the others are paired by occurrence.
    """
    if fixed:
        return _by_occurrence(source, target, fixed)
    shorter = min(len(source), len(target))
    low = 0
    while low < shorter and source[low].content == target[low].content:
        low += 1
    tail = 0
    while (
        tail < shorter - low
        and source[len(source) - 1 - tail].content == target[len(target) - 1 - tail].content
    ):
        tail += 1
    ends = len(source) - tail, len(target) - tail
    middle = _match(source, target, range(low, ends[0]), range(low, ends[1]))
    return [
        *((index, index) for index in range(low)),
        *middle,
        *((ends[0] + index, ends[1] + index) for index in range(tail)),
    ]


def _match(
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    lost: Sequence[int],
    found: Sequence[int],
) -> _Pairs:
    """Pair the k-th occurrence of each content among *lost* with the k-th among *found*; ascending by source."""
    places: dict[int, list[int]] = defaultdict(list)
    for index in found:
        places[target[index].content].append(index)
    used: dict[int, int] = defaultdict(int)
    pairs = []
    for index in lost:
        content = source[index].content
        occurrence = used[content]
        of_content = places.get(content, ())
        if occurrence < len(of_content):
            used[content] = occurrence + 1
            pairs.append((index, of_content[occurrence]))
    return pairs


def longest_increasing(pairs: _Pairs) -> _Pairs:
    """Return the longest run of *pairs* with increasing target indexes (patience sorting)."""
    tops: list[int] = []  # the smallest target index that ends a run of each length
    top_pairs: list[int] = []
    before: list[int] = []
    for number, (_, target_index) in enumerate(pairs):
        pile = bisect_left(tops, target_index)
        before.append(top_pairs[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(target_index)
            top_pairs.append(number)
        else:
            tops[pile] = target_index
            top_pairs[pile] = number
    run: _Pairs = []
    number = top_pairs[-1] if top_pairs else -1
    while number >= 0:
        run.append(pairs[number])
        number = before[number]
    run.reverse()
    return run


@dataclass(frozen=True, slots=True)
class _Aligner:
    topic: str
    partition: int
    source: Sequence[RecordDigest]
    target: Sequence[RecordDigest]
    compacted: bool
    renumbered: bool
    breaks: Sequence[int]
    unread: tuple[Ranges, Ranges]
    common: Common
    left_out: dict[int, CommonRun] = field(init=False)
    """By the index of the pair before it in the source."""
    fixed: AbstractSet[int] = field(init=False)
    """Indexes in the source of the pairs of `common`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fixed", {each.source_index for each in self.common.runs})
        runs = {each.source_index: each for each in self.common.runs if each.left_out}
        object.__setattr__(self, "left_out", runs)

    def _count(self, pair: tuple[int, int]) -> int:
        """Return how many pairs *pair* stands for."""
        run = self.left_out.get(pair[0])
        return 1 if run is None else 1 + run.left_out

    def _in_order(self, pairs: _Pairs) -> _Pairs:
        """Return the pairs that keep their position: those of `common`, and the longest runs between them."""
        if not self.common.runs:
            return longest_increasing(pairs)
        fixed = [each[:2] for each in self.common.runs]
        sources, targets = zip(*fixed, strict=True)
        segments: dict[int, _Pairs] = defaultdict(list)
        for pair in pairs:
            segment = bisect_right(sources, pair[0])
            at_anchor = segment > 0 and sources[segment - 1] == pair[0]
            if not at_anchor and bisect_right(targets, pair[1]) == segment:
                segments[segment].append(pair)
        found = list(longest_increasing(segments[0]))
        for number, anchor in enumerate(fixed, start=1):
            found.append(anchor)
            if number in segments:
                found += longest_increasing(segments[number])
        return found

    def in_place(self, pairs: _Pairs) -> _Pairs:
        """Return *pairs*; those that moved have an equal record in place, if one is unmatched there.

        Equal records are paired by occurrence. So compaction of the first of them moves the others.
        """
        kept = self._in_order(pairs)
        stayed = set(kept)
        moved = [pair for pair in pairs if pair not in stayed]
        for side, records in enumerate((self.source, self.target)):
            matched = {pair[side] for pair in pairs}
            contents = {records[pair[side]].content for pair in moved}
            unmatched: dict[int, list[int]] = defaultdict(list)
            for index, record in enumerate(records):
                if index not in matched and record.content in contents:
                    unmatched[record.content].append(index)
            if not unmatched:
                continue
            places, others = [pair[side] for pair in kept], [pair[1 - side] for pair in kept]
            replaced: dict[tuple[int, int], tuple[int, int]] = {}
            for pair in moved:
                free = unmatched.get(records[pair[side]].content, [])
                gap = bisect_left(others, pair[1 - side])
                low = places[gap - 1] if gap else -1
                high = places[gap] if gap < len(places) else len(records)
                at = bisect_right(free, low)
                if at < len(free) and free[at] < high:
                    index = free.pop(at)
                    replaced[pair] = (index, pair[1]) if side == 0 else (pair[0], index)
            pairs = sorted(replaced.get(pair, pair) for pair in pairs)
            moved = [pair for pair in moved if pair not in replaced]
        return pairs

    def _crosses(self, pair: tuple[int, int]) -> bool:
        """Return whether *pair* moved over records that were left out because they are equal."""
        if pair[0] in self.fixed:
            return False
        before, after = self.source[pair[0]].offset, self.target[pair[1]].offset
        return bisect_right(self.breaks, before) != bisect_right(self.breaks, after)

    def align(self, pairs: _Pairs) -> Alignment:
        """Classify everything that *pairs* leave, and the pairs that moved."""
        staying = [pair for pair in pairs if not self._crosses(pair)] if self.breaks else pairs
        increasing = all(a[1] < b[1] for a, b in pairwise(staying))
        kept = staying if increasing else self._in_order(staying)
        at_offsets = {record.offset for record in self.source} | self.common.at_source
        findings = [
            *self._reordered(pairs, kept, at_offsets),
            *self._unmatched(pairs, kept, at_offsets),
        ]
        delta = [self.target[t].offset - self.source[s].offset for s, t in kept]
        hidden = list(self._hidden(kept))
        findings += hidden
        counts = [self._count(pair) for pair in kept]
        shifted = sum(count for count, each in zip(counts, delta, strict=True) if each)
        in_place = sum(counts) - shifted
        beyond = sum(
            (self.target[t].offset not in at_offsets)
            + (self.left_out[s].beyond if s in self.left_out else 0)
            for (s, t), each in zip(kept, delta, strict=True)
            if each
        )
        if shifted and not self.renumbered:
            runs = list(self._shifts(kept, delta))
            findings += runs
            shifted -= sum(run.owns for run in runs)
        findings.sort(key=lambda finding: (finding.position, finding.finding_class.value))
        if self.renumbered:  # The target's offsets are not part of the comparison.
            return self._without_offsets(kept, findings)
        return Alignment(
            findings,
            in_place - sum(run.owns for run in hidden),
            shifted + beyond,
            delta[-1] if delta else 0,
            self._moved([pair for pair, each in zip(kept, delta, strict=True) if each]),
        )

    def _hidden(self, kept: _Pairs) -> Iterator[Finding]:
        """Yield the runs of pairs at one offset that a consumer with read_committed gets from one log only.

        At different offsets one record may be above a last stable offset, and nothing is known of it.
        """
        pairs = ((self.source[s], self.target[t]) for s, t in kept)
        found = runs(
            (number, bool(before.flags & ABORTED))
            for number, (before, after) in enumerate(pairs)
            if before.offset == after.offset and (before.flags ^ after.flags) & ABORTED
        )
        for run in found:
            source_index, target_index = kept[run.first]
            records = sum(map(self._count, kept[run.first : run.last + 1]))
            yield self._finding(
                FindingClass.VISIBILITY,
                self.source[source_index],
                self.target[target_index],
                field=run.reason,
                records=records,
                owns=records,
                last_offset=self.target[kept[run.last][1]].offset,
            )

    def _moved(self, pairs: _Pairs) -> tuple[int, int, int, int] | None:
        if not pairs:
            return None
        (source_index, first), (_, last) = pairs[0], pairs[-1]
        ends = self.source[source_index].offset, self.target[first].offset
        return sum(map(self._count, pairs)), *ends, self.target[last].offset

    def _without_offsets(self, kept: _Pairs, findings: Sequence[Finding]) -> Alignment:
        """Return the alignment of a renumbered target: what is opposite unread offsets is no finding."""
        places = (
            [self.source[source_index].offset for source_index, _ in kept],
            [self.target[target_index].offset for _, target_index in kept],
        )
        # A gap is the place between two pairs: gap n is before pair n.
        unread = [
            {bisect_left(offsets, low) for low, _ in ranges}
            for offsets, ranges in zip(places, self.unread, strict=True)
        ]
        differing = {gap for gaps in unread for gap in gaps}
        left: list[Finding] = []
        opposite: tuple[Counter[int], Counter[int]] = Counter(), Counter()
        for finding in findings:
            found: list[Finding] = []
            for each in finding.apart or (finding,):
                offsets = (each.source_offset, each.target_offset)
                gaps = [
                    None if offset is None else bisect_left(side, offset)
                    for side, offset in zip(places, offsets, strict=True)
                ]
                differing |= {gap for gap in gaps if gap is not None}
                if gaps[0] is None and gaps[1] in unread[0]:
                    opposite[1][gaps[1]] += 1
                elif gaps[1] is None and gaps[0] in unread[1]:
                    opposite[0][gaps[0]] += 1
                else:
                    found.append(replace(each, owns=1))
            if finding.apart and len(found) == 2:
                found = [replace(finding, owns=1, apart=(found[0], found[1]))]
            left += found
        if self.compacted:
            left = _marked(left)
        alone = taken_apart(left)
        both = [f for f in alone if f.source_offset is not None and f.target_offset is not None]
        # The first records of the source that are left are no start: compaction may have removed others before.
        start = max((high for low, high in self.unread[0] if low < 0), default=0)
        at_source = [*places[0][-1:], *(f.source_offset or 0 for f in both)]
        last_common = max(at_source, default=start - 1)
        at_target = max([*places[1][-1:], *(f.target_offset or 0 for f in both)], default=-1)
        passed = [
            f for f in alone if f.finding_class is FindingClass.EXTRA and f.position > at_target
        ]
        source = _opposite(opposite[0], self.unread[1], places[1])
        target = _opposite(opposite[1], self.unread[0], places[0])
        return Alignment(
            left,
            sum(map(self._count, kept)),
            aged_out=(source.aged_out, target.aged_out),
            opposite=(source.records, target.records),
            beyond=(source.beyond, target.beyond),
            proven=self._proven(places[0], differing),
            unused=(target.unused, source.unused),
            last_common=last_common,
            last_common_at_target=at_target,
            passed=len(passed),
            damaged=_damaged_tail(
                [f for f in left if f.apart is not None], passed, last_common, at_target
            ),
        )

    def _proven(self, places: Sequence[int], differing: set[int]) -> tuple[int, int]:
        """Return the first offsets of the source without a difference, from the gaps that have one."""
        begin = self.source[0].offset if self.source else 0
        if not places:
            return begin, begin
        if any(low < 0 for ranges in self.unread for low, _ in ranges):
            # What is before the first pair may have aged out: nothing claims to prove it.
            begin, differing = places[0], differing - {0}
        if not differing:
            return begin, self.source[-1].offset + 1
        first = min(differing)
        return begin, places[first - 1] + 1 if first else begin

    def _finding(
        self,
        finding_class: FindingClass,
        source: RecordDigest | None,
        target: RecordDigest | None,
        **details: object,
    ) -> Finding:
        known = source or target
        assert known is not None
        finding = Finding(
            finding_class,
            self.topic,
            self.partition,
            None if source is None else source.offset,
            None if target is None else target.offset,
            source_hash=None if source is None else source.content,
            target_hash=None if target is None else target.content,
            timestamp_ms=known.timestamp,
            key_hash=known.key,
            flags=known.flags,
        )
        return replace(finding, **details)  # type: ignore[arg-type]

    def _reordered(self, pairs: _Pairs, kept: _Pairs, at_offsets: set[int]) -> Iterator[Finding]:
        if len(kept) == len(pairs):
            return
        stayed = {source_index for source_index, _ in kept}
        by_target = sorted(pairs, key=lambda pair: pair[1])
        rank = {
            t: number
            for (_, t), number in zip(
                by_target, accumulate(map(self._count, by_target)), strict=True
            )
        }
        for (source_index, target_index), number in zip(
            pairs, accumulate(map(self._count, pairs)), strict=True
        ):
            if source_index in stayed:
                continue
            before, after = self.source[source_index], self.target[target_index]
            yield self._finding(
                FindingClass.REORDERED,
                before,
                after,
                # Among the records that both logs have, from its place in one to its place in the other.
                distance=rank[target_index] - number,
                owns=1 + (after.offset not in at_offsets),
            )

    def _shifts(self, kept: _Pairs, delta: Sequence[int]) -> Iterator[Finding]:
        """Yield one finding for each run of pairs with a change of offsets that no other finding explains."""
        # Records that change places among themselves move over holes that both logs have: by ranks, not by offsets.
        rank = self.common.ranks
        if rank is None:
            offsets = {record.offset for side in (self.source, self.target) for record in side}
            rank = {offset: number for number, offset in enumerate(sorted(offsets))}
        run: Finding | None = None
        last: tuple[int, int, int, int] = self.common.before
        ahead = deque(
            (
                bisect_left(self.source, each, key=lambda record: record.offset),
                bisect_left(self.target, each, key=lambda record: record.offset),
            )
            for each in self.breaks
        )
        for (source_index, target_index), shift in zip(kept, delta, strict=True):
            while ahead and ahead[0][0] <= source_index and ahead[0][1] <= target_index:
                first = ahead.popleft()
                last = (max(last[0], first[0] - 1), max(last[1], first[1] - 1), 0, 0)
                if run is not None:
                    yield run
                run = None
            places = rank[self.target[target_index].offset] - rank[self.source[source_index].offset]
            # Each record between this pair and the one before may have moved the following ones by one place, or not.
            explained = range(last[0] + 1 - source_index, target_index - last[1])
            changed = shift - last[2] not in explained and places - last[3] not in explained
            last = (source_index, target_index, shift, places)
            if changed:
                if run is not None:
                    yield run
                run = None
                if shift:
                    run = self._finding(
                        FindingClass.SHIFTED,
                        self.source[source_index],
                        self.target[target_index],
                        distance=shift,
                        records=0,
                        owns=0,
                    )
            if run is not None and shift:
                count = self._count((source_index, target_index))
                run = replace(
                    run,
                    records=run.records + count,
                    owns=run.owns + count,
                    last_offset=self.target[target_index].offset,
                )
        if run is not None:
            yield run

    def _unmatched(self, pairs: _Pairs, kept: _Pairs, at_offsets: set[int]) -> Iterator[Finding]:
        matched_sources = {source_index for source_index, _ in pairs}
        matched_targets = {target_index for _, target_index in pairs}
        lost = [index for index in range(len(self.source)) if index not in matched_sources]
        found = [index for index in range(len(self.target)) if index not in matched_targets]
        copies = self._copies(found, matched_targets)
        follows = _Follows(self.source, self.target, kept if self.renumbered else None)
        unknown = []
        for index in found:
            record = self.target[index]
            first = copies[record.content]
            if first == record.offset:
                unknown.append(index)
                continue
            yield self._finding(
                FindingClass.DUPLICATE,
                None,
                record,
                first_target_offset=first,
                owns=int(record.offset not in at_offsets),
                follows=follows.of_target(index),
            )
        corrupt, maybe = _pair_corrupt(
            self.source,
            self.target,
            lost,
            unknown,
            kept,
            compacted=self.compacted,
            renumbered=self.renumbered,
            has_pair_before=self.common.has_pair_before,
            is_at_end=self.common.is_at_end,
            bursts=self._begins_of_bursts() if self.renumbered and lost and unknown else None,
            unread=self.unread[0],
        )
        alone: tuple[dict[int, Finding], dict[int, Finding]] = (
            dict(
                self._lost(set(lost) - {pair[0] for pair in corrupt}, kept, pairs, corrupt, follows)
            ),
            {},
        )
        strange = self._never_at_source(unknown, kept) if self.renumbered and self.compacted else ()
        for index in sorted(set(unknown) - {pair[1] for pair in corrupt}):
            record = self.target[index]
            alone[1][index] = self._finding(
                FindingClass.EXTRA,
                None,
                record,
                flags=record.flags | (TAKEN if index in strange else 0),
                owns=int(record.offset not in at_offsets),
                follows=follows.of_target(index),
            )
        for source_index, target_index in [*corrupt, *maybe]:
            before, after = self.source[source_index], self.target[target_index]
            apart = alone[0].pop(source_index, None), alone[1].pop(target_index, None)
            yield self._finding(
                FindingClass.CORRUPT,
                before,
                after,
                field=_differing(before, after),
                owns=1 + (after.offset not in at_offsets),
                apart=None if None in apart else apart,
            )
        for of_side in alone:
            yield from of_side.values()

    def _never_at_source(self, found: Sequence[int], kept: _Pairs) -> set[int]:
        """Return which of the target's records *found* the source cannot have cleaned.

        Between the records of the pairs around them neither log has an offset without a record, and each log has these
        records once. A target that has one may have cleaned a first copy: then a pair is of a repeated one.
        """
        counts = [Counter(each.content for each in side) for side in (self.source, self.target)]
        targets = [target_index for _, target_index in kept]
        strange: set[int] = set()
        for index in found:
            gap = bisect_left(targets, index)
            if not 0 < gap < len(kept):
                continue
            low, high = kept[gap - 1][0], kept[gap][0]
            before, behind = self.source[low], self.source[high]
            first, last = kept[gap - 1][1], kept[gap][1]
            is_whole = (
                behind.offset - before.offset == high - low
                and self.target[last].offset - self.target[first].offset == last - first
            )
            if is_whole and all(
                count[each.content] == 1 for count in counts for each in (before, behind)
            ):
                strange.add(index)
        return strange

    def _begins_of_bursts(self) -> list[int]:
        """Return for each record of the source the index of the first one of its burst of equal records."""
        begins: list[int] = []
        for index, record in enumerate(self.source):
            run = self.left_out.get(index - 1)
            follows = index > 0 and record.content == self.source[index - 1].content
            continues = follows and (run is None or run.is_burst)
            begins.append(begins[-1] if continues else index)
        return begins

    def _lost(
        self, lost: set[int], kept: _Pairs, pairs: _Pairs, corrupt: _Pairs, follows: _Follows
    ) -> Iterator[tuple[int, Finding]]:
        """Yield the MISSING findings of the records *lost*, with the indexes of these."""
        last = max((source_index for source_index, _ in [*pairs, *corrupt]), default=-1)
        shift = max(0, self.common.before.shift)
        if kept:
            # Records that only the target has move the end up. A shift down may have ended before the tail.
            shift = max(0, self.target[kept[-1][1]].offset - self.source[kept[-1][0]].offset)
        at_offsets = set(self.common.at_target)
        if lost and not self.renumbered:
            at_offsets.update(record.offset for record in self.target)
        tail = 0
        if self.renumbered:
            # Its offsets show only how much room the target has behind the last record that both logs have.
            place = max((target_index for _, target_index in [*pairs, *corrupt]), default=-1)
            tail = self.target[place].offset + 1 if place >= 0 else 0
        for index in sorted(lost):
            record = self.source[index]
            behind = tail if self.renumbered else record.offset + shift
            tail += index > last
            yield (
                index,
                self._finding(
                    FindingClass.MISSING,
                    record,
                    None,
                    flags=record.flags | (TAKEN if record.offset in at_offsets else 0),
                    tail_position=behind if index > last else None,
                    follows=follows.of_source(index),
                ),
            )

    def _copies(self, found: Sequence[int], matched: set[int]) -> dict[int, int]:
        """Return for each content among *found* the offset of a copy: a matched one, else the first."""
        contents = {self.target[index].content for index in found}
        first: dict[int, int] = {}
        if contents:
            for index, record in enumerate(self.target):
                if record.content in contents and index in matched:
                    first.setdefault(record.content, record.offset)
            for index in found:
                first.setdefault(self.target[index].content, self.target[index].offset)
        return first


class _Opposite(NamedTuple):
    """Records of one log that are opposite what the other log does not have or did not return."""

    aged_out: int
    records: int
    beyond: int
    unused: int


def _opposite(records: Counter[int], unread: Ranges, places: Sequence[int]) -> _Opposite:
    """Return what the *records* by gap are opposite of: *unread* offsets of the other log, with pairs at *places*.

    An unread offset stands for a record of its own gap only. At the start of a log that has deleted records, what is
    more than its unread offsets has aged out.
    """
    offsets: Counter[int] = Counter()
    for low, high in merged(each for each in unread if each[0] >= 0):
        offsets[bisect_left(places, low)] += high - low
    beyond = {gap: max(0, count - offsets[gap]) for gap, count in records.items()}
    aged_out = beyond.pop(0, 0) if any(low < 0 for low, _ in unread) else 0
    last = len(places)
    return _Opposite(
        aged_out,
        records.total() - aged_out,
        sum(beyond.values()),
        max(0, offsets[last] - records[last]),
    )


class _Follows:
    """Finds the common record before a record that only one log has; nothing without the common records."""

    def __init__(
        self,
        source: Sequence[RecordDigest],
        target: Sequence[RecordDigest],
        common: _Pairs | None,
    ) -> None:
        self._source, self._target, self._common = source, target, common
        self._sources = [index for index, _ in common or ()]
        self._targets = [index for _, index in common or ()]

    def of_source(self, index: int) -> int | None:
        """Return the target's offset of the common record before the source's record *index*; -1 if there is none."""
        if self._common is None:
            return None
        before = bisect_left(self._sources, index)
        return self._target[self._targets[before - 1]].offset if before else -1

    def of_target(self, index: int) -> int | None:
        """Return the source's offset of the common record before the target's record *index*; -1 if there is none."""
        if self._common is None:
            return None
        before = bisect_left(self._targets, index)
        return self._source[self._sources[before - 1]].offset if before else -1


def _pair_corrupt(
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    lost: Sequence[int],
    found: Sequence[int],
    kept: _Pairs,
    *,
    compacted: bool,
    renumbered: bool,
    has_pair_before: bool,
    is_at_end: bool,
    bursts: Sequence[int] | None,
    unread: Ranges,
) -> tuple[_Pairs, _Pairs]:
    """Pair unmatched records of the same gap that are one record with changed parts, and those that may be one.

    Behind the last pair of a renumbered target nothing shows that the records are in one place. A mirror without
    transactions repeats records there, and those of the source were not copied yet. They are alike if all have one
    key and one timestamp, for example. The first copies may be among what was left out.

    *bursts*, of a renumbered target: for each record of the source the first one of its burst of equal records. A
    damaged record before a pair of a burst may be the unmatched one behind it: each pair between them may be one
    place further. A record opposite *unread* offsets of the source is known to be none.
    """
    if not lost or not found:
        return [], []
    if compacted and not renumbered:
        places = {target[index].offset: index for index in found}
        return [
            (index, places[source[index].offset])
            for index in lost
            if source[index].offset in places
        ], []
    kept_sources = [source_index for source_index, _ in kept]
    kept_targets = [target_index for _, target_index in kept]
    gaps: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for index in lost:
        gaps[bisect_left(kept_sources, index)][0].append(index)
    for index in found:
        gaps[bisect_left(kept_targets, index)][1].append(index)
    not_read = {bisect_left(kept_sources, low, key=lambda n: source[n].offset) for low, _ in unread}
    corrupt: _Pairs = []
    maybe: _Pairs = []
    likeness = _LIKENESS_OF_RENUMBERED if renumbered else _LIKENESS
    paired = bool(kept) or has_pair_before
    overtaken = renumbered and not paired and _deleted_at_the_start(unread) > 0
    before: dict[int, deque[int]] = defaultdict(deque)
    """By burst of the source: unmatched records of the target before a pair of it that are alike enough."""
    for gap, (lost_here, found_here) in sorted(gaps.items()):
        is_tail = renumbered and gap == len(kept) and paired
        pairs: _Pairs = []
        if bursts is not None:
            pairs = [
                (index, before[bursts[index]].popleft())
                for index in lost_here
                if before.get(bursts[index])
            ]
            moved = {index for index, _ in pairs}
            lost_here = [index for index in lost_here if index not in moved]
        if lost_here and found_here:
            passed = len(found_here) if is_tail and not compacted else None
            in_place = _pair_gap(source, target, lost_here, found_here, likeness, passed)
            if compacted:
                in_place = [e for e in in_place if _same_key_and_timestamp(source, target, *e)]
            pairs += in_place
        pairs = _one_record(
            source,
            target,
            pairs,
            kept,
            overtaken=overtaken,
            cleans=is_tail and is_at_end and compacted,
        )
        if is_tail and not compacted:
            maybe += pairs
        else:
            corrupt += pairs
        if bursts is not None and gap < len(kept) and gap not in not_read:
            follows, used = kept_sources[gap], {index for _, index in pairs}
            before[bursts[follows]].extend(
                index
                for index in found_here
                if index not in used and _may_be_damaged(source[follows], target[index], compacted)
            )
    return corrupt, maybe


def _one_record(
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    pairs: _Pairs,
    kept: _Pairs,
    *,
    overtaken: bool,
    cleans: bool,
) -> _Pairs:
    """Return *pairs* without those that a healthy mirror has if it is *overtaken*, or if its source *cleans*."""
    if overtaken:
        pairs = _surely_one(source, target, pairs)
    if cleans:
        pairs = [each for each in pairs if not _has_hole(source, target, each, kept)]
    return pairs


def _surely_one(
    source: Sequence[RecordDigest], target: Sequence[RecordDigest], pairs: _Pairs
) -> _Pairs:
    """Return those of *pairs* with equal key and timestamp, or with a value that each log has once.

    If the source has deleted its start, all records of the target may be from before it. Many may have one value.
    """
    counts = [Counter(each.value for each in side) for side in (source, target)]
    return [
        (at_source, at_target)
        for at_source, at_target in pairs
        if _same_key_and_timestamp(source, target, at_source, at_target)
        or (
            source[at_source].value == target[at_target].value
            and all(count[source[at_source].value] == 1 for count in counts)
        )
    ]


def _has_hole(
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    pair: tuple[int, int],
    kept: _Pairs,
) -> bool:
    """Return whether the source may have cleaned the record of which the target's one of *pair* is a copy.

    Then it has an offset without a record there: between the pairs around it, or before the record that lags.
    """
    behind = bisect_left(kept, pair[1], key=lambda each: each[1])
    low = kept[behind - 1][0] if behind else -1
    high = kept[behind][0] if behind < len(kept) else pair[0]
    first = source[low].offset if low >= 0 else -1
    return source[high].offset - first > high - low


def _may_be_damaged(before: RecordDigest, after: RecordDigest, compacted: bool) -> bool:
    """Return whether *after* of a renumbered target is alike enough to *before*."""
    if compacted:
        return (before.key, before.timestamp) == (after.key, after.timestamp)
    return _likeness(before, after, _LIKENESS_OF_RENUMBERED) >= _ALIKE_ENOUGH


def _differing(before: RecordDigest, after: RecordDigest) -> str:
    """Return the parts that differ, as `Finding.field` of CORRUPT."""
    differing = [
        label for part, label in PARTS.items() if getattr(before, part) != getattr(after, part)
    ]
    return ",".join(differing) or "content"


def _marked(findings: Sequence[Finding]) -> list[Finding]:
    """Return *findings* of a compacted topic, with `TAKEN` if each log lacks a record of the key that the other has.

    Of each key a log has the last records. So one log has all records of the key that the other one has, but for those
    that lag. Only records with equal timestamps are compared: a cleaner may work while a log is read.
    """
    sides: dict[tuple[int | None, int | None], tuple[set[int | None], set[int | None]]]
    sides = defaultdict(lambda: (set(), set()))
    for each in findings:
        if each.finding_class is FindingClass.EXTRA:
            sides[each.key_hash, each.timestamp_ms][1].add(each.target_hash)
        elif each.finding_class is FindingClass.MISSING and each.tail_position is None:
            sides[each.key_hash, each.timestamp_ms][0].add(each.source_hash)
    both = {place for place, (lost, more) in sides.items() if lost - more and more - lost}
    return [
        replace(each, flags=each.flags | TAKEN)
        if each.finding_class in _HALVES
        and each.tail_position is None
        and (each.key_hash, each.timestamp_ms) in both
        else each
        for each in findings
    ]


def _damaged_tail(
    damaged: Sequence[Finding], passed: Sequence[Finding], last_common: int, at_target: int
) -> DamagedTail | None:
    """Return what is behind the last pair if of the EXTRA records *passed* there the *damaged* ones are CORRUPT.

    A record that moved towards the log start may be a later one of the source than those: see `Alignment.last_common`.
    """
    if not damaged:
        return None
    at_target = max(at_target, *(f.position for f in damaged))
    behind = sum(f.position > at_target for f in passed)
    return DamagedTail(
        max(last_common, *(f.source_offset or 0 for f in damaged)), at_target, behind
    )


def _likeness(before: RecordDigest, after: RecordDigest, weights: Mapping[str, int]) -> int:
    return sum(
        weight for part, weight in weights.items() if getattr(before, part) == getattr(after, part)
    )


def _same_key_and_timestamp(
    source: Sequence[RecordDigest], target: Sequence[RecordDigest], at_source: int, at_target: int
) -> bool:
    before, after = source[at_source], target[at_target]
    return (before.key, before.timestamp) == (after.key, after.timestamp)


def _pair_gap(
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    lost: Sequence[int],
    found: Sequence[int],
    weights: Mapping[str, int],
    passed: int | None,
) -> _Pairs:
    """Pair by most shared parts, then by nearness in the gap; each record once.

    In a tail, records of the source behind the first *passed* ones mostly lag. Any of many may have an equal value (the
    next tombstone, for example). Only with equal key and timestamp it is that record, behind lost ones.
    """
    candidates: set[tuple[int, int]] = set()
    for part in weights:
        by_part: dict[int, list[int]] = defaultdict(list)
        for rank, index in enumerate(found):
            by_part[getattr(target[index], part)].append(rank)
        for rank, index in enumerate(lost):
            # In a gap with many equal parts (all headers empty, for example) only near records can be the same
            # record. This keeps the cost of a destroyed range linear instead of quadratic.
            ranks = by_part.get(getattr(source[index], part), ())
            middle = bisect_left(ranks, rank)
            candidates.update((rank, near) for near in ranks[max(0, middle - 2) : middle + 3])

    ranked = []
    for rank, other in candidates:
        before, after = source[lost[rank]], target[found[other]]
        may_lag = passed is not None and rank >= passed
        if may_lag and not _same_key_and_timestamp(source, target, lost[rank], found[other]):
            continue
        likeness = _likeness(before, after, weights)
        if likeness >= _ALIKE_ENOUGH:
            ranked.append((-likeness, abs(rank - other), rank, other))
    paired: _Pairs = []
    used_lost: set[int] = set()
    used_found: set[int] = set()
    for _, _, rank, other in sorted(ranked):
        if rank not in used_lost and other not in used_found:
            used_lost.add(rank)
            used_found.add(other)
            paired.append((lost[rank], found[other]))
    return paired
