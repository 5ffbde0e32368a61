"""Leaves out the long runs of records that two logs have in common, so that only differences are aligned.

Theory of operation
===================
`spark_jobs.align` needs about 1 KB per record. A partition of millions of records with some differences, or a
renumbered one, is therefore passed through here first, in pieces, as arrays. What comes out has the records that
differ, and of each common run its first and its last pair:

    source   a b c d e f g h i j k l m        a . . . . . . h I j . . m
    target   a b c d e f g h X j k l m   ->   a . . . . . . h X j . . m

A run is common if the contents are equal, one after the other in both logs. Of these, the runs that are longer than
`SHORTEST` are found in two ways:

* *in place*: the offsets are equal, too. A renumbered target has none.
* *in order*: between those, and in a renumbered target. Two neighbours that both logs have once show by how many
  records the logs are shifted. At each such shift the runs of equal contents are candidates. The longest are taken, and
  of the others those that are in order with them.

A part of a run has one shift of offsets, and one set of flags, unless the target is renumbered. Records after the last
run wait for the next piece (*pending*): the run that follows them decides what they are opposite of. At most `reach`
records of a log wait. Then the first of them count as different, and are left in. If the target is renumbered, so are
those of the other log that belong to them. Too few records for a run may be all that a mirror has copied.

The end of what waits may be in a burst of equal records. A run of it fits at many shifts, so it waits, too, with what
is before it: a damaged record, for example. The end of the burst shows which shift is right (`_certain`).

Invariants (property tests cite the numbers):
 1. the records that are left in, with the counts of those left out, are all records of both logs, in order;
 2. what is left out of one log has the contents of what is left out of the other, at the same place between the pairs;
 3. with unique contents, an alignment of what is left in has the findings of an alignment of everything.

In: columns of `RecordDigest` as arrays, ascending by offset.  Out: `Reduced`.  Owner: a Spark task; pure.
Memory: `reach` records a side, and what is left in.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_jobs.align import Common, CommonRun, longest_increasing
from spark_jobs.bulk import Columns
from spark_jobs.findings import ABORTED
from spark_jobs.record_arrays import Integers

SHORTEST = 16
"""Pairs of the shortest run of which something is left out."""

REACH = 500_000
"""Records of a log that wait for a common run."""

_MOST_SHIFTS = 64
"""Shifts that are tried at a time: those of the most records."""

_NOWHERE: Integers = np.zeros(0, np.int64)

FOLLOWS_BREAK = "follows_break"
"""A column: whether records directly before this one are not compared, though the log may have some.

No run contains both sides of a break, but for one at equal offsets. Offsets that a renumbered log did not return may
have a record of which the other log has the content. Windows that are equal were left out of both logs, at their place.
"""

_ODD = np.uint64(0x9E3779B97F4A7C15)

_RANK = "rank"
_IN_BOTH = "in_both"


class Reduced(NamedTuple):
    """Two sequences of records without what was left out."""

    source: Columns
    target: Columns
    common: Common
    left_out: int
    """Pairs."""


class _Run(NamedTuple):
    """Equal contents of *size* records, from the numbers of the first ones on."""

    source: int
    target: int
    size: int

    @property
    def ends(self) -> tuple[int, int]:
        return self.source + self.size, self.target + self.size

    def without_first(self, count: int) -> _Run:
        return _Run(self.source + count, self.target + count, self.size - count)


@dataclass(slots=True)
class _Side:
    """One log: what waits, and what is left in."""

    waiting: list[Columns] = field(default_factory=list)
    pending: int = 0
    """Records in *waiting*."""
    kept: list[Columns] = field(default_factory=list)
    count: int = 0
    """Records in *kept*, and those of the spans."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Of what waits, what is to be left in."""
    previous: int = 0
    """The content of the record before what waits."""

    def add(self, columns: Columns) -> None:
        if size := _size(columns):
            self.waiting.append(columns)
            self.pending += size

    def first(self) -> int | None:
        """Return the offset of the first record that waits."""
        return int(self.waiting[0]["offset"][0]) if self.waiting else None

    def joined(self) -> Columns:
        """Return all that waits, as one piece."""
        if len(self.waiting) > 1:
            self.waiting = [joined(self.waiting)]
        return self.waiting[0] if self.waiting else {}

    def keep(self, low: int, high: int) -> None:
        """Leave in the records [low, high) of what waits; they follow those that are left in already."""
        if high > low:
            self.spans.append((low, high))
            self.count += high - low

    def drop(self, end: int) -> None:
        """Forget the first *end* records of what waits, but for those to be left in."""
        if not end:
            return
        columns = self.joined()
        left_in = np.zeros(self.pending, bool)
        for low, high in self.spans:
            left_in[low:high] = True
        if self.spans:
            self.kept.append(rows_of(columns, left_in))
            self.spans = []
        self.previous = int(columns["content"][end - 1])
        self.pending -= end
        self.waiting = []
        if self.pending:
            # A copy: a view would keep what is dropped.
            self.waiting = [{name: each[end:].copy() for name, each in columns.items()}]

    def taken(self) -> Columns:
        kept, self.kept, self.count = self.kept, [], 0
        return joined(kept) if kept else {}


class CommonRuns:
    """Leaves common runs out of two logs that arrive piece by piece."""

    def __init__(self, *, renumbered: bool, shortest: int = SHORTEST, reach: int = REACH) -> None:
        self._renumbered = renumbered
        self._shortest = max(3, shortest)
        self._reach = reach
        self._source, self._target = _Side(), _Side()
        self._runs: list[CommonRun] = []
        self._ranks = 0
        self._left_out = 0
        self._tried = 0
        self._shift: int | None = None
        """Of the offsets of the pair directly before what waits; None if there is no such pair."""

    @property
    def left_in(self) -> int:
        """The records that are left in and not taken yet, of the log that has more."""
        return max(self._source.count, self._target.count)

    @property
    def pending(self) -> tuple[int, int]:
        """The records of source and target that wait for a common run."""
        return self._source.pending, self._target.pending

    @property
    def first_pending(self) -> tuple[int | None, int | None]:
        """The offsets of the first records that wait."""
        return self._source.first(), self._target.first()

    def add(self, source: Columns, target: Columns, *, are_opposite: bool = True) -> None:
        """Add the next records of both logs: the same range of offsets of both, unless the target is renumbered.

        *are_opposite* is whether all that was added of one log is opposite what was added of the other. If not, it
        waits: the end of a burst of equal records, for example, shows which of them are opposite each other.
        """
        if not self._renumbered:
            source, target = self._ranked(source, target)
        self._source.add(source)
        self._target.add(target)
        if not are_opposite and max(self.pending) <= self._reach:
            return
        waiting = sum(self.pending)
        # With nothing in common every attempt is in vain, so they become rarer.
        if 4 * waiting >= 5 * self._tried or max(self.pending) > self._reach:
            self._settle()
            self._tried = sum(self.pending) if sum(self.pending) > waiting // 2 else 0

    def end(self) -> Reduced:
        """Return what is left in, with all that still waits."""
        self._settle(is_end=True)
        for side in (self._source, self._target):
            side.keep(0, side.pending)
            side.drop(side.pending)
        return self.take()

    def take(self) -> Reduced:
        """Return what is left in so far; the next `take` returns what follows."""
        source, target = self._source.taken(), self._target.taken()
        ranks, in_both = None, (frozenset[int](), frozenset[int]())
        if not self._renumbered:
            ranks = {
                offset: rank
                for side in (source, target)
                if side
                for offset, rank in zip(side["offset"].tolist(), side[_RANK].tolist(), strict=True)
            }
            in_both = _in_both(source), _in_both(target)
        common = Common(self._runs, at_source=in_both[1], at_target=in_both[0], ranks=ranks)
        found = Reduced(source, target, common, self._left_out)
        self._runs, self._left_out = [], 0
        return found

    def _ranked(self, source: Columns, target: Columns) -> tuple[Columns, Columns]:
        """Add to each record the number of its offset among all, and whether the other log has the offset."""
        sides = source, target
        offsets = [each["offset"] if each else np.zeros(0, np.int64) for each in sides]
        every = np.union1d(*offsets)
        ranked = [
            {
                **each,
                _RANK: self._ranks + np.searchsorted(every, of_side),
                _IN_BOTH: np.isin(of_side, of_other),
            }
            if each
            else each
            for each, of_side, of_other in zip(sides, offsets, offsets[::-1], strict=True)
        ]
        self._ranks += every.size
        return ranked[0], ranked[1]

    def _settle(self, *, is_end: bool = False) -> None:
        """Take the common runs out of what waits, up to the last one; and the oldest, if too much waits."""
        source, target = self._source.joined(), self._target.joined()
        done = (0, 0)
        runs = self._chosen(source, target)
        if self._renumbered and not is_end and max(self.pending) <= self._reach:
            runs = _certain(runs, source)
        for run in runs:
            self._shift = _shift(
                source, target, run.source + run.size - 1, run.target + run.size - 1
            )
            self._source.keep(done[0], run.source)
            self._target.keep(done[1], run.target)
            self._keep_ends(source, target, run)
            done = run.ends
        oldest = self._oldest(source, target, done)
        if any(oldest):
            self._shift = None
        for side, end, more in zip((self._source, self._target), done, oldest, strict=True):
            side.keep(end, end + more)
            side.drop(end + more)

    def _oldest(self, source: Columns, target: Columns, done: tuple[int, int]) -> tuple[int, int]:
        """Return how many records behind *done* no longer wait, where more than `reach` do."""
        left = self._source.pending - done[0], self._target.pending - done[1]
        if max(left) <= self._reach:
            return 0, 0
        if self._renumbered:
            if min(left) > self._reach // 2:
                return self._share(min(left)), self._share(min(left))
            contents = [
                each["content"][end:] if each else _NOWHERE
                for each, end in zip((source, target), done, strict=True)
            ]
            share = self._share(max(left))
            if left[0] > left[1]:
                return share, _opposite_first(share, *contents)
            return _opposite_first(share, *contents[::-1]), share
        # Records of one offset stay together.
        columns, end = (source, done[0]) if left[0] >= left[1] else (target, done[1])
        middle = columns["offset"][end + self._share(max(left))]
        here, there = (
            max(0, int(np.searchsorted(each["offset"], middle)) - end) if each else 0
            for each, end in zip((source, target), done, strict=True)
        )
        return here, there

    def _share(self, waiting: int) -> int:
        """Return how many of the *waiting* records no longer do, at a time: half, at most a fifth of `reach`."""
        return min(waiting // 2, max(1, self._reach // 5))

    def _keep_ends(self, source: Columns, target: Columns, run: _Run) -> None:
        """Leave in the first and the last pair of each part of *run*."""
        for low, high in self._parts(source, target, run):
            here, there = run.source + low, run.target + low
            size = high - low
            middle = max(0, size - 2)
            contents = source["content"][here : here + size]
            is_burst = bool((contents == contents[0]).all())
            beyond = 0
            if middle and not self._renumbered:
                beyond = int((~target[_IN_BOTH][there + 1 : there + 1 + middle]).sum())
            for number, left_out in ((0, middle), (size - 1, 0)) if size > 1 else ((0, 0),):
                self._runs.append(
                    CommonRun(
                        self._source.count,
                        self._target.count,
                        left_out,
                        beyond if left_out else 0,
                        is_burst,
                    )
                )
                self._source.keep(here + number, here + number + 1)
                self._target.keep(there + number, there + number + 1)
            self._left_out += middle

    def _parts(self, source: Columns, target: Columns, run: _Run) -> Iterator[tuple[int, int]]:
        """Divide *run* where the shift of the offsets or the flags change."""
        if self._renumbered:
            yield 0, run.size
            return
        here, there = (slice(at, at + run.size) for at in run[:2])
        shift = target["offset"][there] - source["offset"][here]
        flags = (source["flags"][here] & ABORTED) * 2 + (target["flags"][there] & ABORTED)
        changes = np.flatnonzero((np.diff(shift) != 0) | (np.diff(flags) != 0)) + 1
        edges = [0, *changes.tolist(), run.size]
        yield from itertools.pairwise(edges)

    def _chosen(self, source: Columns, target: Columns) -> list[_Run]:
        """Return the common runs, ascending in both logs."""
        if not source or not target:
            return []
        contents = source["content"], target["content"]
        previous = self._source.previous, self._target.previous
        breaks = _breaks(source), _breaks(target)
        chosen: list[_Run] = []
        if not self._renumbered:
            chosen = self._in_place(source, target)
        found, done = [], (0, 0)
        if size := self._continued(source, target, breaks):
            found = [_Run(0, 0, size)]
            done = size, size
            previous = int(contents[0][size - 1]), int(contents[1][size - 1])
            chosen = [
                run.without_first(max(0, size - run.source, size - run.target)) for run in chosen
            ]
            chosen = [run for run in chosen if run.size > 0]
        for run in [*chosen, _Run(contents[0].size, contents[1].size, 0)]:
            between = [
                _Run(done[0] + each.source, done[1] + each.target, each.size)
                for each in in_order(
                    contents[0][done[0] : run.source],
                    contents[1][done[1] : run.target],
                    self._shortest,
                    (breaks[0] - done[0], breaks[1] - done[1]),
                    moves_down=self._renumbered,
                    previous=previous if self._renumbered else (0, 0),
                )
            ]
            found += (
                between
                if self._renumbered
                else [self._without_copies(source, target, each) for each in between]
            )
            if run.size:
                found.append(run)
            done = run.ends
        return found

    def _without_copies(self, source: Columns, target: Columns, run: _Run) -> _Run:
        """Return *run* without short ends at other offsets, if a record of them is at its offset in both logs.

        Beside a copy of its first or last record a run would otherwise be one pair longer with the copy.
        """
        low, high = 0, run.size
        here, there = (
            each["offset"][at : at + run.size]
            for each, at in zip((source, target), run[:2], strict=True)
        )
        shift = there - here
        edges = [0, *(np.flatnonzero(np.diff(shift)) + 1).tolist(), run.size]
        for begin, end in itertools.pairwise(edges[:-1]):
            if not self._is_copy(source, target, run, begin, end, shift):
                break
            low = end
        for begin, end in reversed(list(itertools.pairwise(edges[1:]))):
            if begin <= low or not self._is_copy(source, target, run, begin, end, shift):
                break
            high = begin
        return _Run(run.source + low, run.target + low, high - low)

    def _is_copy(
        self, source: Columns, target: Columns, run: _Run, begin: int, end: int, shift: Integers
    ) -> bool:
        """Return whether the pairs [begin, end) of *run* are few, shifted, and have records that are in place."""
        if not shift[begin] or end - begin >= self._shortest:
            return False
        here, there = (slice(at + begin, at + end) for at in run[:2])
        return _is_in_place(source, here, target) or _is_in_place(target, there, source)

    def _continued(
        self, source: Columns, target: Columns, breaks: tuple[Integers, Integers]
    ) -> int:
        """Return how many pairs continue the run that ended with what arrived before."""
        if self._shift is None:
            return 0
        size = min(_size(source), _size(target))
        equal = source["content"][:size] == target["content"][:size]
        if not self._renumbered:
            equal &= target["offset"][:size] - source["offset"][:size] == self._shift
        size = size if equal.all() else int(equal.argmin())
        return min([size, *(int(each[0]) for each in breaks if each.size)])

    def _in_place(self, source: Columns, target: Columns) -> list[_Run]:
        """Return the runs of equal contents at equal offsets."""
        _, here, there = np.intersect1d(
            source["offset"], target["offset"], assume_unique=True, return_indices=True
        )
        equal = source["content"][here] == target["content"][there]
        here, there = here[equal], there[equal]
        follows = (np.diff(here) == 1) & (np.diff(there) == 1)
        return [
            _Run(int(here[low]), int(there[low]), high - low)
            for low, high in _stretches(follows)
            if high - low >= self._shortest
        ]


def in_order(
    source: Integers,
    target: Integers,
    shortest: int,
    breaks: tuple[Integers, Integers] = (_NOWHERE, _NOWHERE),
    *,
    moves_down: bool = False,
    previous: tuple[int, int] = (0, 0),
) -> list[_Run]:
    """Return runs of equal numbers, at least *shortest* long, ascending in both arrays and disjoint.

    No run contains a number of *breaks* in its array, but for its first one. *moves_down*: a run of equal numbers
    begins behind those that are opposite the ones that *target* has before it. What is left of them in *source* is
    behind the run, and may lag. *previous*: the number before each array.
    """
    if min(source.size, target.size) < shortest:
        return []
    candidates = [
        _Run(low + max(0, -shift), low + max(0, shift), high - low)
        for shift in _shifts(source, target, previous, may_repeat=moves_down)
        for low, high in _equal_at(source, target, shift, breaks)
        if high - low >= shortest
    ]
    candidates.sort(key=lambda run: (-run.size, run.source, run.target))
    chain: list[_Run] = []
    for run in candidates:
        at = bisect_left(chain, run)
        before = chain[at - 1] if at else None
        after = chain[at] if at < len(chain) else None
        if (before is None or _in_order(before, run)) and (after is None or _in_order(run, after)):
            chain.insert(at, run)
    disjoint, done = [], (0, 0)
    for run in chain:
        left = run.without_first(max(0, done[0] - run.source, done[1] - run.target))
        if moves_down and left.size >= shortest:
            left = _behind_burst(left, done, source, target, breaks)
        if left.size >= shortest:
            disjoint.append(left)
            done = left.ends
    return disjoint


def _behind_burst(
    run: _Run,
    done: tuple[int, int],
    source: Integers,
    target: Integers,
    breaks: tuple[Integers, Integers],
) -> _Run:
    """Return *run* where it is if equal numbers behind *done* are opposite each other in turn, without what is beyond.

    That is so if *run* and all that *source* has before it are equal numbers. What else *target* has is beside them.
    """
    content = target[run.target]
    contains_break = any(
        bool(((of_side > low) & (of_side < high)).any())
        for of_side, low, high in zip(breaks, done, run.ends, strict=True)
    )
    if contains_break or not (source[done[0] : run.ends[0]] == content).all():
        return run
    equal = np.concatenate(([False], target[done[1] : run.target] == content))
    directly = int(equal[::-1].argmin())
    before = int(equal.sum()) - directly
    begin = done[0] + before
    return _Run(begin, run.target - directly, min(run.size + directly, run.ends[0] - begin))


def _certain(runs: list[_Run], source: Columns) -> list[_Run]:
    """Return *runs* of what waits without the last ones, if nothing shows by how many records those are shifted.

    A run is certain if the source has two neighbours of it once, or if it continues one that is.
    """
    if not runs:
        return runs
    once = np.zeros(_size(source), bool)
    once[_unique(with_previous(source["content"]))[1]] = True
    count, done, continues = 0, (0, 0), True
    for number, run in enumerate(runs, start=1):
        continues = continues and run[:2] == done
        continues = continues or bool(once[run.source + 1 : run.source + run.size].any())
        if continues:
            count = number
        done = run.ends
    return runs[:count]


def _opposite_first(share: int, longer: Integers, shorter: Integers) -> int:
    """Return how many of the first numbers of *shorter* belong to the first *share* of *longer*; at most *share*.

    They are the beginning that both have, and all up to the last number that *longer* has once, in the same order. Or
    it has that number not behind its *share*. In bursts of equal numbers it is the last such change, and what both have
    behind it. A run would end before them, if the log with *shorter* has stood still since. So all belong to them if
    the end of *shorter* is the beginning of *longer*. Then it stands still behind repeated records.
    """
    if not shorter.size:
        return 0
    if shorter.size <= share and _ends_with_beginning(shorter, longer):
        return shorter.size
    size = min(shorter.size, share)
    equal = longer[:size] == shorter[:size]
    begin = size if equal.all() else int(equal.argmin())
    pairs: list[tuple[int, int]] = []
    for here, there in ((longer, shorter), (with_previous(longer), with_previous(shorter))):
        once, at_longer = _not_behind(here, share)
        # Of a record that was repeated the first copy counts.
        first, at_shorter = np.unique(there[:share], return_index=True)
        _, of_once, of_first = np.intersect1d(once, first, assume_unique=True, return_indices=True)
        pairs += zip(at_longer[of_once].tolist(), at_shorter[of_first].tolist(), strict=True)
    pairs = longest_increasing(sorted(set(pairs)))
    of_share = [pair for pair in pairs if pair[0] < share]
    # The equal numbers behind the last of them belong there, too: the others of a burst, for example.
    at, end = of_share[-1] if of_share else (-1, -1)
    size = min(shorter.size, share - max(0, at - end)) - end - 1
    equal = longer[at + 1 : at + 1 + size] == shorter[end + 1 : end + 1 + size]
    return max(begin, end + 1 + (size if equal.all() else int(equal.argmin())))


def _not_behind(numbers: Integers, share: int) -> tuple[Integers, Integers]:
    """Return the numbers that occur once, or only among the first *share*, ascending; and where they occur first."""
    found, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    chosen = (counts == 1) | ~np.isin(found, numbers[share:])
    return found[chosen], first[chosen]


def _ends_with_beginning(shorter: Integers, longer: Integers) -> bool:
    """Return whether the last numbers of *shorter*, at least one, are the first ones of *longer*."""
    size = shorter.size
    may_begin = (shorter == longer[0]) & (longer[:size][::-1] == shorter[-1])
    return any(
        bool((shorter[at:] == longer[: size - at]).all())
        for at in np.flatnonzero(may_begin).tolist()
    )


def _shift(source: Columns, target: Columns, here: int, there: int) -> int:
    return int(target["offset"][there] - source["offset"][here])


def _in_order(one: _Run, other: _Run) -> bool:
    """Return whether *other* begins and ends behind *one* in both logs; they may overlap."""
    return (
        one.source < other.source
        and one.target < other.target
        and one.ends[0] < other.ends[0]
        and one.ends[1] < other.ends[1]
    )


def _shifts(
    source: Integers, target: Integers, previous: tuple[int, int], *, may_repeat: bool
) -> Sequence[int]:
    """Return by how many places the arrays may be shifted, the likeliest first.

    *may_repeat*: of what *target* has again, the first copy shows it, too.
    """
    once, at_source = _unique(with_previous(source, previous[0]))
    changes = with_previous(target, previous[1])
    if may_repeat:
        found, at_target = np.unique(changes, return_index=True)
    else:
        found, at_target = _unique(changes)
    _, here, there = np.intersect1d(once, found, assume_unique=True, return_indices=True)
    shifts, counts = np.unique(at_target[there] - at_source[here], return_counts=True)
    likely = np.argsort(-counts, kind="stable")[:_MOST_SHIFTS]
    # One change may be all that shows a shift: the end of a long burst of equal records.
    return list(dict.fromkeys([*shifts[likely].tolist(), 0, target.size - source.size]))


def with_previous(contents: Integers, previous: int = 0) -> Integers:
    """Return a hash of each content and the one before it; *previous* is that before the first.

    Where a producer writes equal records one after the other no content is unique. The change to the next one is.
    """
    before = np.concatenate((np.array([previous], np.int64), contents[:-1])).view(np.uint64)
    mixed = contents.view(np.uint64) + (before << np.uint64(1)) * _ODD
    found: Integers = ((mixed ^ (mixed >> np.uint64(32))) * _ODD).view(np.int64)
    return found


def _unique(values: Integers) -> tuple[Integers, Integers]:
    """Return the numbers that occur once, ascending, and where."""
    found, first, counts = np.unique(values, return_index=True, return_counts=True)
    return found[counts == 1], first[counts == 1]


def _breaks(columns: Columns) -> Integers:
    return np.flatnonzero(columns[FOLLOWS_BREAK]) if FOLLOWS_BREAK in columns else _NOWHERE


def _equal_at(
    source: Integers, target: Integers, shift: int, breaks: tuple[Integers, Integers]
) -> list[tuple[int, int]]:
    """Return the stretches of equal numbers if target[n + shift] is opposite source[n], counted from the first pair."""
    here, there = source[max(0, -shift) :], target[max(0, shift) :]
    size = min(here.size, there.size)
    equal = np.concatenate(([False], here[:size] == there[:size], [False]))
    edges = np.flatnonzero(np.diff(equal.astype(np.int8)))
    cuts = np.concatenate((breaks[0] - max(0, -shift), breaks[1] - max(0, shift)))
    cuts = cuts[(cuts > 0) & (cuts < size)]
    cuts = np.unique(cuts[equal[cuts] & equal[cuts + 1]])
    edges = np.sort(np.concatenate((edges, cuts, cuts)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _is_in_place(one: Columns, chosen: slice, other: Columns) -> bool:
    """Return whether the *other* log has a record of the *chosen* ones of the first at its offset."""
    offsets, contents = one["offset"][chosen], one["content"][chosen]
    at = np.minimum(np.searchsorted(other["offset"], offsets), other["offset"].size - 1)
    return bool(((other["offset"][at] == offsets) & (other["content"][at] == contents)).any())


def _stretches(follows: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return [low, high) of each stretch; *follows* is whether each number but the first continues the one before."""
    edges = [0, *(np.flatnonzero(~follows) + 1).tolist(), follows.size + 1]
    return list(itertools.pairwise(edges))


def _size(columns: Columns) -> int:
    return int(columns["offset"].size) if columns else 0


def _in_both(columns: Columns) -> frozenset[int]:
    """Return the offsets of *columns* that the other log has, too."""
    return frozenset(columns["offset"][columns[_IN_BOTH]].tolist()) if columns else frozenset()


def rows_of(columns: Columns, chosen: slice | npt.NDArray[np.bool_]) -> Columns:
    """Return the *chosen* records."""
    return {name: each[chosen] for name, each in columns.items()}


def joined(pieces: Sequence[Columns]) -> Columns:
    """Return *pieces*, at least one, as one."""
    return {name: np.concatenate([each[name] for each in pieces]) for name in pieces[0]}
