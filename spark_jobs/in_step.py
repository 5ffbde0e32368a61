"""Aligns a partition of many records in bounded memory: both logs are read in step, and only differences are kept.

    both logs -> columns in order -> CommonRuns -> what differs -> parts -> align -> findings, and one Alignment

`spark_jobs.common_runs` leaves out what the logs have in common. What is left in is aligned in *parts* of about
`PART` records, one after the other, and their findings are handed over. So the memory of a task depends neither on the
records of the partition nor on how many of them differ.

*In step* means that the pieces of both logs are opposite each other. With equal offsets that is the same range of
offsets. The offsets of a renumbered target show nothing: there both logs are read twice, unless all their records fit
into the reach of `CommonRuns`. The first time, one record of `SAMPLE` on average is noted, with its number in the log.
It is chosen by its content and that of the record before. Notes that both logs have once show which numbers are
opposite each other, however many records of one log lie between them.

What a record is opposite of is decided within a part, and within the reach of `CommonRuns`. So a record that moved
farther, past more than a part of other differences, is MISSING in one place and EXTRA in another. No difference is
without a finding by that. Records behind the last pair of a part that may be damaged are held until a later part has
a pair, or the partition ends.

In: batches of `HASH_COLUMNS` of one partition, in the order of its log.  Out: `Found`.  Owner: a Spark task; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from kclient.types import TopicPartition
from spark_jobs.align import (
    NO_PAIR,
    Alignment,
    PairBefore,
    align,
    longest_increasing,
)
from spark_jobs.arrow_batches import unread_part
from spark_jobs.bulk import Columns, align_in_place
from spark_jobs.common_runs import (
    FOLLOWS_BREAK,
    REACH,
    SHORTEST,
    CommonRuns,
    Reduced,
    joined,
    rows_of,
    with_previous,
)
from spark_jobs.engine import Modes
from spark_jobs.findings import (
    ABORTED,
    CONTROL,
    Finding,
    FindingClass,
    RecordDigest,
    taken_apart,
    taken_together,
)
from spark_jobs.folding import HELD, Folded, Folding
from spark_jobs.ranges import Ranges, intersect, merged, subtract, total
from spark_jobs.record_arrays import Integers
from spark_jobs.snapshot import HashBatches

if TYPE_CHECKING:
    import pyarrow as pa

MANY = 100_000
"""Offsets to compare of one partition and side above which it is aligned here."""

PART = 100_000
"""Records left in, of one log, that make a part."""

SAMPLE = 256
"""Records of a renumbered log for one that is noted."""

STEP = 20_000
"""Records of a renumbered log between two places that are known to be opposite each other, at least."""

_END = 1 << 63

_OF_PAIRS = frozenset({FindingClass.REORDERED, FindingClass.SHIFTED, FindingClass.VISIBILITY})
_OF_BOTH = frozenset({FindingClass.CORRUPT})
"""Classes of records that both logs have, with equal contents or not."""

DIGEST_FIELDS = tuple(each.name for each in fields(RecordDigest))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is held at a time; tests take smaller ones."""

    part: int = PART
    sample: int = SAMPLE
    step: int = STEP
    shortest: int = SHORTEST
    reach: int = REACH


DEFAULT_SIZES = Sizes()


Found = Finding | Alignment | tuple[str, str]
"""What is found in a partition: findings, the alignment without them, and (cluster, text) of what was not read."""


def found_in_step(
    tp: TopicPartition,
    sides: Mapping[str, HashBatches],
    modes: Modes,
    *,
    offsets: int,
    folding: Folding,
    breaks: Sequence[int] = (),
    sizes: Sizes = DEFAULT_SIZES,
) -> Iterator[Found]:
    """Yield the findings of one partition, part by part, then the alignment, then what was not read.

    A finding with a `tail_position` that is below `Alignment.tail_begins` has none: see `without_tail`.

    *sides*: what reads the logs, by cluster, the source first. Neither has more than *offsets* offsets. The runs of
    *folding* come after all single findings.
    """
    runs = CommonRuns(renumbered=modes.renumbered, shortest=sizes.shortest, reach=sizes.reach)
    source, target = logs = [
        _Log(read(), modes.renumbered, ends)
        for read, ends in zip(sides.values(), _ends_of_breaks(tp, modes, breaks), strict=True)
    ]
    parts = _Parts(tp, modes, Folded(folding), breaks, sizes.part)
    if modes.renumbered:
        places = _known_opposite(sides, sizes) if offsets > sizes.reach else []
        pieces = _opposite(source, target, places, sizes.step, runs)
    else:
        pieces = _same_offsets(source, target)
    for here, there, are_opposite in pieces:
        runs.add(here, there, are_opposite=are_opposite)
        if runs.left_in >= sizes.part:
            waiting = runs.first_pending
            nexts = source.reached(waiting[0]), target.reached(waiting[1])
            parts.add(runs.take(), (source.failed, target.failed), nexts)
            yield from parts.taken()
    parts.add(runs.end(), (source.failed, target.failed), (_END, _END))
    yield from parts.end()
    for name, log in zip(sides, logs, strict=True):
        yield from ((name, text) for text in log.unread)


def _ends_of_breaks(
    tp: TopicPartition, modes: Modes, breaks: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return of each log before which offsets records are not compared, as known before the read."""
    if not modes.renumbered:
        return list(breaks), list(breaks)
    here, there = modes.unread.get(tp, ([], []))
    return [high for _, high in here], [high for _, high in there]


@dataclass(slots=True)
class _Log:
    """One log as it arrives."""

    batches: Iterator[pa.RecordBatch]
    renumbered: bool
    ends_of_breaks: list[int]
    """Before which offsets records are not compared: see `FOLLOWS_BREAK`."""
    covered: int = -1
    """All records below this offset have arrived."""
    failed: Ranges = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    arrived: list[Columns] = field(default_factory=list)
    passed: int = 0
    """Records that were taken."""
    passed_breaks: int = 0
    """How many of `ends_of_breaks` are not behind what has arrived."""

    @property
    def ended(self) -> bool:
        """Whether nothing more arrives."""
        return self.covered == _END

    def pull(self) -> None:
        """Wait for the next records, or for what could not be read."""
        batch = next(self.batches, None)
        if batch is None:
            self.covered = _END
            return
        # A mirror that renumbers records does not copy transaction markers.
        columns, texts = columns_of(batch, without_markers=self.renumbered)
        for text in texts:
            low, high = unread_part(text)[:2]
            self.failed.append((low, high))
            self.unread.append(text)
            if self.renumbered:
                self.ends_of_breaks.append(high)
            self.covered = max(self.covered, high)
        if columns:
            passed = np.searchsorted(sorted(self.ends_of_breaks), columns["offset"], "right")
            follows = np.diff(passed, prepend=self.passed_breaks) > 0
            self.passed_breaks = int(passed[-1])
            self.arrived.append({**columns, FOLLOWS_BREAK: follows})
            self.covered = max(self.covered, int(columns["offset"][-1]) + 1)

    def below(self, offset: int, without: Ranges) -> Columns:
        """Take what has arrived below *offset*, without the records in *without*."""
        taken: list[Columns] = []
        left: list[Columns] = []
        for columns in self.arrived:
            at = int(np.searchsorted(columns["offset"], offset))
            taken += [rows_of(columns, slice(at))] if at else []
            left += [rows_of(columns, slice(at, None))] if at < _size(columns) else []
        self.arrived = left
        found = joined(taken) if taken else {}
        for low, high in without:
            if found:
                inside = (found["offset"] >= low) & (found["offset"] < high)
                found = rows_of(found, ~inside) if inside.any() else found
        return found if found and _size(found) else {}

    def up_to(self, number: int, most: int) -> Columns:
        """Take at most *most* of the next records, none from record *number* of the log on."""
        while not self.arrived and not self.ended:
            self.pull()
        if not self.arrived:
            return {}
        columns = self.arrived[0]
        size = min(_size(columns), most, max(0, number - self.passed))
        if size == _size(columns):
            self.arrived.pop(0)
        else:
            self.arrived[0] = rows_of(columns, slice(size, None))
        self.passed += size
        return rows_of(columns, slice(size)) if size else {}

    def is_done(self, number: int) -> bool:
        """Return whether all records before record *number* were taken."""
        return self.passed >= number or (self.ended and not self.arrived)

    def reached(self, waiting: int | None) -> int:
        """Return the offset of the next record that is in no part yet: *waiting*, or what follows."""
        if waiting is not None:
            return waiting
        return int(self.arrived[0]["offset"][0]) if self.arrived else self.covered


_Piece = tuple[Columns, Columns, bool]
"""The next records of source and target, and whether all records until here are opposite each other."""


def _same_offsets(source: _Log, target: _Log) -> Iterator[_Piece]:
    """Yield the records of both logs, the same offsets of both at a time; no offset that either did not return."""
    done = -1
    while not (source.ended and target.ended):
        behind = source if source.covered <= target.covered else target
        behind.pull()
        bound = min(source.covered, target.covered)
        failed = [each for each in (*source.failed, *target.failed) if each[1] > done]
        yield source.below(bound, failed), target.below(bound, failed), True
        done = bound


def _opposite(
    source: _Log,
    target: _Log,
    places: Sequence[tuple[int, int]],
    step: int,
    runs: CommonRuns,
) -> Iterator[_Piece]:
    """Yield the next records of one log or the other: both up to the next of the opposite *places*, and so on.

    On the way the log of which fewer records wait in *runs* is next.
    """
    for here, there in [*places, (_END, _END)]:
        while not (source.is_done(here) and target.is_done(there)):
            at_source, at_target = runs.pending
            if target.is_done(there) or (at_source <= at_target and not source.is_done(here)):
                yield source.up_to(here, step), {}, False
            else:
                yield {}, target.up_to(there, step), False
        yield {}, {}, True


def _known_opposite(sides: Mapping[str, HashBatches], sizes: Sizes) -> list[tuple[int, int]]:
    """Return numbers of records of both logs that are opposite each other, ascending in both."""
    (here, at_source), (there, at_target) = (
        _sampled(each, sizes.sample) for each in sides.values()
    )
    _, first, second = np.intersect1d(here, there, assume_unique=True, return_indices=True)
    order = np.argsort(at_source[first])
    pairs = list(
        zip(at_source[first[order]].tolist(), at_target[second[order]].tolist(), strict=True)
    )
    places, last = [], (0, 0)
    for pair in longest_increasing(pairs):
        if max(pair[0] - last[0], pair[1] - last[1]) >= sizes.step:
            places.append(pair)
            last = pair
    return places


def _sampled(read: HashBatches, sample: int) -> tuple[Integers, Integers]:
    """Return hashes of some records and those before them, if they occur once, and the numbers of the records."""
    contents, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    count = last = 0
    for batch in read():
        columns, _ = columns_of(batch, without_markers=True)
        if not columns:
            continue
        content = with_previous(columns["content"], last)
        chosen = np.flatnonzero(content.view(np.uint64) % np.uint64(sample) == 0)
        contents.append(content[chosen])
        numbers.append(chosen + count)
        count, last = count + content.size, int(columns["content"][-1])
    found, first, counts = np.unique(
        np.concatenate(contents), return_index=True, return_counts=True
    )
    return found[counts == 1], np.concatenate(numbers)[first[counts == 1]]


def columns_of(batch: pa.RecordBatch, *, without_markers: bool) -> tuple[Columns, list[str]]:
    """Return the columns of `RecordDigest`, none without records, and the texts of what was not read."""
    import pyarrow.compute as pc

    unread = batch.column("unread")
    texts = []
    if unread.null_count < len(unread):
        texts = [text for text in unread.to_pylist() if text is not None]
        batch = batch.filter(pc.is_null(unread))
    if without_markers and batch.num_rows:
        batch = batch.filter(pc.equal(pc.bit_wise_and(batch.column("flags"), CONTROL), 0))
    if not batch.num_rows:
        return {}, texts
    return {
        name: batch.column(name).to_numpy().astype(np.int64, copy=False) for name in DIGEST_FIELDS
    }, texts


def _size(columns: Columns) -> int:
    return int(columns["offset"].size)


def _digests(columns: Columns) -> list[RecordDigest]:
    if not columns:
        return []
    return list(map(RecordDigest, *(columns[name].tolist() for name in DIGEST_FIELDS)))


@dataclass(slots=True)
class _Held:
    """Findings with `Finding.apart` that wait for a later pair: at most `HELD` of them single, the others as runs."""

    folding: Folding
    single: list[Finding] = field(default_factory=list)
    folded: Folded | None = None

    def add(self, findings: Iterable[Finding]) -> None:
        """Hold *findings*."""
        if self.folded is None:
            self.folded = Folded(self.folding._replace(keep=min(self.folding.keep, HELD)))
        self.single += self.folded.add(findings)

    def taken(self) -> list[Finding]:
        """Return what was held, and hold it no more."""
        found, self.single = self.single, []
        if self.folded is not None:
            found += self.folded.end(Alignment([]))
            self.folded = None
        return found


@dataclass(slots=True)
class _Parts:
    """The alignments of the parts, one after the other."""

    tp: TopicPartition
    modes: Modes
    folded: Folded
    breaks: Sequence[int]
    part: int
    found: list[Finding] = field(default_factory=list)
    """Findings that were not taken."""
    whole: Alignment = field(default_factory=lambda: Alignment([]))
    lasts: tuple[int, int] = (-1, -1)
    """The last offset of each log in the parts so far."""
    before: PairBefore = NO_PAIR
    has_common: bool = False
    """Whether a part had a record of both logs."""
    ahead: int = 0
    """Without such a part: by how many records the source's parts were larger; then no records are opposite."""
    proven: tuple[int, int] | None = None
    """Of a renumbered target: see `Alignment.proven`."""
    is_proven: bool = True
    """Of a renumbered target: whether all parts so far are proven to their ends."""
    lacking: int = 0
    """Of a renumbered target: MISSING records behind the last one that both logs have."""
    held: _Held = field(init=False)
    """Of a renumbered target: what has `Finding.apart` in the last part with a pair."""
    held_behind: _Held = field(init=False)
    """The same of the parts behind it."""
    given: list[int] = field(default_factory=lambda: [0, 0])
    """Of a renumbered target: below which offset of each log unread offsets were given to a part."""

    def __post_init__(self) -> None:
        self.held, self.held_behind = (_Held(self.folded.folding) for _ in range(2))

    def add(self, reduced: Reduced, failed: tuple[Ranges, Ranges], nexts: tuple[int, int]) -> None:
        """Align the next part; *nexts* are the offsets of the first records behind it."""
        alignment = self._in_place(reduced)
        if alignment is None:
            alignment = align(
                *self.tp,
                _digests(reduced.source),
                _digests(reduced.target),
                compacted=self.tp.topic in self.modes.compacted,
                renumbered=self.modes.renumbered,
                breaks=[each for each in self.breaks if each > max(self.lasts)],
                unread=self._unread(failed, nexts),
                common=replace(
                    reduced.common,
                    before=self.before,
                    has_pair_before=self.has_common or self.ahead != 0,
                    is_at_end=nexts == (_END, _END),
                ),
            )
        self._join(alignment, reduced)
        self._pass(reduced)

    def taken(self) -> list[Finding]:
        """Return the findings of the parts since the last time."""
        taken, self.found = self.found, []
        return taken

    def end(self) -> Iterator[Finding | Alignment]:
        """Yield the findings that are left, and the alignment of the partition without findings."""
        # Which record of the source is opposite is not known across parts.
        self.found += self.folded.add([*self.held.taken(), *taken_apart(self.held_behind.taken())])
        yield from self.taken()
        yield from self.folded.end(self.whole)
        proven = self.proven
        if self.modes.renumbered and proven is None:
            proven = (0, 0)
        yield replace(self.whole, proven=proven)

    def _in_place(self, reduced: Reduced) -> Alignment | None:
        """Return the alignment of a part in which nearly all records are damaged in place."""
        source, target, common, left_out = reduced
        if self.modes.renumbered or not source or not target or _size(source) < self.part:
            return None
        if not np.array_equal(source["offset"], target["offset"]):
            return None
        aborted = (source["flags"] ^ target["flags"]) & ABORTED
        if any(
            run.source_index != run.target_index or (run.left_out and aborted[run.source_index])
            for run in common.runs
        ):
            return None
        alignment = align_in_place(
            *self.tp,
            source,
            target,
            keep=self.folded.left(FindingClass.CORRUPT),
            shape=self.folded.folding.shape,
        )
        return alignment and replace(alignment, verified=alignment.verified + left_out)

    def _unread(
        self, failed: tuple[Ranges, Ranges], nexts: tuple[int, int]
    ) -> tuple[Ranges, Ranges]:
        """Return what was not read beside the records of a part."""
        if not self.modes.renumbered:
            return [], []
        known = self.modes.unread.get(self.tp, ([], []))
        sides = []
        for side, ranges in enumerate([*known[n], *failed[n]] for n in range(2)):
            deleted = [each for each in ranges if each[0] < 0 and not self.has_common]
            beside = [
                (low, high)
                for low, high in merged(each for each in ranges if each[0] >= 0)
                if high > self.lasts[side] and low <= nexts[side]
            ]
            sides.append([*deleted, *self._not_given(side, beside)])
        return sides[0], sides[1]

    def _not_given(self, side: int, ranges: Ranges) -> Ranges:
        """Return unread *ranges* of a log, without the offsets that stand for records of the parts before."""
        before, new = (
            intersect(ranges, 0, self.given[side]),
            subtract(ranges, [(0, self.given[side])]),
        )
        if ranges:
            self.given[side] = max(self.given[side], ranges[-1][1])
        if not before:
            return new
        first = before[0][0]
        # It may be empty: records beside it are no findings.
        return [(first, first + min(total(before), self.whole.unused[side])), *new]

    def _join(self, alignment: Alignment, reduced: Reduced) -> None:
        whole = self.whole
        classes = {each.finding_class for each in alignment.findings if each.apart is None}
        pairs = bool(
            reduced.common.runs or alignment.verified or alignment.shifted or classes & _OF_PAIRS
        )
        if self.modes.renumbered:
            self._prove(alignment, reduced, pairs=pairs)
        tail_begins = whole.tail_begins
        found_again = pairs or bool(classes & _OF_BOTH)
        begins = found_again or whole.last_common is None
        if found_again:
            alone = taken_apart(alignment.findings)
            tail = [f.source_offset for f in alone if f.tail_position is not None]
            behind = int(reduced.source["offset"][-1]) + 1 if reduced.source else whole.tail_begins
            tail_begins = min((each for each in tail if each is not None), default=behind)
        self.has_common = self.has_common or pairs
        if found_again:
            self.folded.begin_tail()
        placed = self._placed(alignment.findings, begins=found_again)
        self.found += self.folded.add(self._held_back(placed, begins=found_again))
        moved = whole.moved or alignment.moved
        if whole.moved and alignment.moved:
            records, *ends, _ = whole.moved
            moved = records + alignment.moved[0], ends[0], ends[1], alignment.moved[3]
        self.whole = Alignment(
            [],
            whole.verified + alignment.verified,
            whole.shifted + alignment.shifted,
            alignment.last_shift if pairs else whole.last_shift,
            moved,
            (
                whole.aged_out[0] + alignment.aged_out[0],
                whole.aged_out[1] + alignment.aged_out[1],
            ),
            (
                whole.opposite[0] + alignment.opposite[0],
                whole.opposite[1] + alignment.opposite[1],
            ),
            (whole.beyond[0] + alignment.beyond[0], whole.beyond[1] + alignment.beyond[1]),
            tail_begins=tail_begins,
            # Records of the next part may be opposite them.
            unused=alignment.unused,
            last_common=alignment.last_common if begins else whole.last_common,
            last_common_at_target=alignment.last_common_at_target
            if begins
            else whole.last_common_at_target,
            passed=alignment.passed + (0 if found_again else whole.passed),
            damaged=alignment.damaged
            if found_again
            else whole.damaged
            and whole.damaged._replace(passed=whole.damaged.passed + alignment.passed),
        )

    def _held_back(self, findings: Sequence[Finding], *, begins: bool) -> list[Finding]:
        """Return *findings* without those to hold; and those that were held if *begins*: then they are CORRUPT.

        A pair in a later part shows that they are in one place.
        """
        before: list[Finding] = []
        if begins:
            before = taken_together([*self.held.taken(), *self.held_behind.taken()])
        (self.held if begins else self.held_behind).add(f for f in findings if f.apart)
        return [*before, *(f for f in findings if not f.apart)]

    def _placed(self, findings: Sequence[Finding], *, begins: bool) -> Sequence[Finding]:
        """Return *findings* with what is known of the parts before; *begins*: this part has a record of both logs."""
        if not self.modes.renumbered:
            return findings
        here, there = self.whole.last_common, self.whole.last_common_at_target
        first = 0 if begins else there + 1 + self.lacking
        tail = sum(each.tail_position is not None for each in taken_apart(findings))
        self.lacking = tail if begins else self.lacking + tail
        if here is None or (here < 0 and not first):
            return findings

        def placed(each: Finding) -> Finding:
            follows, position = each.follows, each.tail_position
            if follows == -1:
                follows = here if each.source_offset is None else there
            if position is not None:
                position += first
            apart = each.apart and (placed(each.apart[0]), placed(each.apart[1]))
            return replace(each, follows=follows, tail_position=position, apart=apart)

        return [placed(each) for each in findings]

    def _prove(self, alignment: Alignment, reduced: Reduced, *, pairs: bool) -> None:
        """Extend what is proven from the first offset of the source on, if all before this part is."""
        begin, end = alignment.proven or (0, 0)
        if not pairs and self.proven is None and any(alignment.aged_out):
            return  # Nothing that both logs still have was compared yet.
        if not reduced.source:
            self.is_proven = self.is_proven and not alignment.findings
        elif self.proven is None:
            self.proven = (begin, end) if self.is_proven else (begin, begin)
        elif self.is_proven and end > begin:
            self.proven = self.proven[0], max(self.proven[1], end)
        if reduced.source:
            self.is_proven = self.is_proven and end > int(reduced.source["offset"][-1])

    def _pass(self, reduced: Reduced) -> None:
        """Note where the part ends."""
        source, target, common, _ = reduced
        ends = [
            int(each["offset"][-1]) if each else last
            for each, last in zip((source, target), self.lasts, strict=True)
        ]
        self.lasts = ends[0], ends[1]
        sizes = [_size(each) if each else 0 for each in (source, target)]
        self.ahead += sizes[0] - sizes[1]
        if common.runs:
            here, there = common.runs[-1][:2]
            offsets = int(source["offset"][here]), int(target["offset"][there])
            ranks = [0, 0] if common.ranks is None else [common.ranks[each] for each in offsets]
            self.before = PairBefore(
                here - sizes[0], there - sizes[1], offsets[1] - offsets[0], ranks[1] - ranks[0]
            )
        else:
            here, there, shift, ranks_shift = self.before
            self.before = PairBefore(here - sizes[0], there - sizes[1], shift, ranks_shift)
