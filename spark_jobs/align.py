"""Align two record sequences of one partition and name every difference exactly.

Theory of operation
===================
Offsets cannot pair records: one lost or repeated record shifts all records after it. So records are paired by
content, in four steps; each works on the records that the step before left unpaired:

1. *Trim.* The equal prefix and suffix are dropped: a clean range costs one comparison per record.
2. *Match.* The k-th occurrence of a content in the source is paired with the k-th in the target. Surplus copies
   on either side stay unmatched.
3. *Order.* Of the matched pairs the longest run in increasing order on both sides (patience sorting, as in
   patience diff) kept its position; every other pair was REORDERED.
4. *Classify.* An unmatched target record is a DUPLICATE if its content occurs elsewhere in the target. The pairs
   that kept their position cut both sequences into the same gaps. Inside one gap an unmatched source record and an
   unmatched target record that are alike enough (`_LIKENESS`) are one CORRUPT record, the most alike first. Of the
   rest, a source record is MISSING and a target record is EXTRA.

Invariants (property tests cite the numbers):
 1. equal sequences give no findings;
 2. applying the findings to the source gives the target's multiset of contents;
 3. with contents unique in the source, n seeded faults, apart from each other, give n findings of their class.

In: two sequences of RecordDigest, ascending by offset.  Out: list of Finding, ascending by position.
Owner: the caller; pure.  Cost: O(n log n) after the trim.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from spark_jobs.findings import Finding, FindingClass, RecordDigest

_PARTS = ("key", "value", "headers", "timestamp")

_LIKENESS = {"offset": 2, "value": 2, "key": 1, "timestamp": 1, "headers": 0}
"""The weight of each equal part in the decision whether two records are one damaged record. Headers weigh nothing,
because most records have none; an equal key alone is not enough either, because many records share a key."""
_ALIKE_ENOUGH = 2


def align(
    topic: str,
    partition: int,
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
) -> list[Finding]:
    """Return every difference between *source* and *target* as findings, ascending by position."""
    low, source_end, target_end = _trim(source, target)
    source_rest, target_rest = source[low:source_end], target[low:target_end]
    pairs = _match(source_rest, target_rest)
    kept = _longest_increasing(pairs)
    findings = [
        *_reordered(topic, partition, source_rest, target_rest, pairs, kept),
        *_unmatched(topic, partition, source_rest, target_rest, pairs, kept, target),
    ]
    findings.sort(key=lambda finding: (finding.position, finding.finding_class.value))
    return findings


def _trim(source: Sequence[RecordDigest], target: Sequence[RecordDigest]) -> tuple[int, int, int]:
    """Return (start, source end, target end) of the records between the equal prefix and the equal suffix."""
    shorter = min(len(source), len(target))
    low = 0
    while low < shorter and source[low].content == target[low].content:
        low += 1
    source_end, target_end = len(source), len(target)
    while (
        source_end > low
        and target_end > low
        and source[source_end - 1].content == target[target_end - 1].content
    ):
        source_end -= 1
        target_end -= 1
    return low, source_end, target_end


def _match(source: Sequence[RecordDigest], target: Sequence[RecordDigest]) -> list[tuple[int, int]]:
    """Pair the k-th occurrence of each content on both sides; indexes, ascending by source."""
    places: dict[int, list[int]] = defaultdict(list)
    for index, record in enumerate(target):
        places[record.content].append(index)
    used: dict[int, int] = defaultdict(int)
    pairs = []
    for index, record in enumerate(source):
        occurrence = used[record.content]
        of_content = places.get(record.content, ())
        if occurrence < len(of_content):
            used[record.content] = occurrence + 1
            pairs.append((index, of_content[occurrence]))
    return pairs


def _longest_increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
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
    run: list[tuple[int, int]] = []
    number = top_pairs[-1] if top_pairs else -1
    while number >= 0:
        run.append(pairs[number])
        number = before[number]
    run.reverse()
    return run


def _reordered(
    topic: str,
    partition: int,
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    pairs: Sequence[tuple[int, int]],
    kept: Sequence[tuple[int, int]],
) -> Iterable[Finding]:
    stayed = {source_index for source_index, _ in kept}
    kept_targets = [target_index for _, target_index in kept]
    kept_sources = [source_index for source_index, _ in kept]
    for source_index, target_index in pairs:
        if source_index in stayed:
            continue
        # The number of records with kept positions that it moved across.
        distance = bisect_left(kept_targets, target_index) - bisect_left(kept_sources, source_index)
        yield Finding(
            FindingClass.REORDERED,
            topic,
            partition,
            source[source_index].offset,
            target[target_index].offset,
            distance=distance,
            source_hash=source[source_index].content,
            target_hash=target[target_index].content,
            timestamp_ms=source[source_index].timestamp,
        )


def _unmatched(
    topic: str,
    partition: int,
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    pairs: Sequence[tuple[int, int]],
    kept: Sequence[tuple[int, int]],
    whole_target: Sequence[RecordDigest],
) -> Iterable[Finding]:
    matched_sources = {source_index for source_index, _ in pairs}
    matched_targets = {target_index for _, target_index in pairs}
    lost = [index for index in range(len(source)) if index not in matched_sources]
    found = [index for index in range(len(target)) if index not in matched_targets]
    first_copies = _first_copies(whole_target, {target[index].content for index in found})
    unknown = []
    for index in found:
        record = target[index]
        first = first_copies[record.content]
        if first == record.offset:
            unknown.append(index)
            continue
        yield Finding(
            FindingClass.DUPLICATE,
            topic,
            partition,
            None,
            record.offset,
            first_target_offset=first,
            target_hash=record.content,
            timestamp_ms=record.timestamp,
        )
    corrupt = _pair_corrupt(source, target, lost, unknown, kept)
    for source_index, target_index in corrupt:
        before, after = source[source_index], target[target_index]
        differing = [part for part in _PARTS if getattr(before, part) != getattr(after, part)]
        yield Finding(
            FindingClass.CORRUPT,
            topic,
            partition,
            before.offset,
            after.offset,
            field=",".join(differing),
            source_hash=before.content,
            target_hash=after.content,
            timestamp_ms=before.timestamp,
        )
    paired_sources = {source_index for source_index, _ in corrupt}
    paired_targets = {target_index for _, target_index in corrupt}
    for index in lost:
        if index not in paired_sources:
            record = source[index]
            yield Finding(
                FindingClass.MISSING,
                topic,
                partition,
                record.offset,
                None,
                source_hash=record.content,
                timestamp_ms=record.timestamp,
            )
    for index in unknown:
        if index not in paired_targets:
            record = target[index]
            yield Finding(
                FindingClass.EXTRA,
                topic,
                partition,
                None,
                record.offset,
                target_hash=record.content,
                timestamp_ms=record.timestamp,
            )


def _first_copies(target: Sequence[RecordDigest], contents: set[int]) -> dict[int, int]:
    """Return for each of *contents* the offset of its first copy anywhere in *target*."""
    first: dict[int, int] = {}
    if contents:
        for record in target:
            if record.content in contents and record.content not in first:
                first[record.content] = record.offset
    return first


def _pair_corrupt(
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    lost: Sequence[int],
    found: Sequence[int],
    kept: Sequence[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Pair unmatched records of the same gap that are one record with changed parts."""
    kept_sources = [source_index for source_index, _ in kept]
    kept_targets = [target_index for _, target_index in kept]
    gaps: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for index in lost:
        gaps[bisect_left(kept_sources, index)][0].append(index)
    for index in found:
        gaps[bisect_left(kept_targets, index)][1].append(index)
    corrupt: list[tuple[int, int]] = []
    for lost_here, found_here in gaps.values():
        if lost_here and found_here:
            corrupt.extend(_pair_gap(source, target, lost_here, found_here))
    return corrupt


def _pair_gap(
    source: Sequence[RecordDigest],
    target: Sequence[RecordDigest],
    lost: Sequence[int],
    found: Sequence[int],
) -> list[tuple[int, int]]:
    """Pair by most shared parts, then by nearness in the gap; each record once."""
    candidates: set[tuple[int, int]] = set()
    for part in _LIKENESS:
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
        likeness = sum(
            weight
            for part, weight in _LIKENESS.items()
            if getattr(before, part) == getattr(after, part)
        )
        if likeness >= _ALIKE_ENOUGH:
            ranked.append((-likeness, abs(rank - other), rank, other))
    paired: list[tuple[int, int]] = []
    used_lost: set[int] = set()
    used_found: set[int] = set()
    for _, _, rank, other in sorted(ranked):
        if rank not in used_lost and other not in used_found:
            used_lost.add(rank)
            used_found.add(other)
            paired.append((lost[rank], found[other]))
    return paired
