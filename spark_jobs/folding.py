"""Bounds the findings of a partition: of each class the first are single, and the others become runs.

A mirror that lost, repeated or damaged a million records gives as many findings. All of them pass through the driver,
at about 2 KB each. So a task keeps the first `Folding.keep` of each class. Of the others it makes one finding for each
time bucket, with the exact number of records and the last offset. A run has no hash: nothing pairs it with another
record.

A run stands for records with one fate, so it never joins records that `spark_jobs.accounting` may have to separate:

* CORRUPT and VISIBILITY: with another field. CORRUPT, if it may be MISSING and EXTRA instead (`Finding.apart`): both
  are runs of the same records, and `Folding.edges` part them as MISSING ones.
* MISSING: on both sides of an offset of `Folding.edges` (the ends of accepted gaps and of the cut), or of the target's
  end. Behind it they lag, or are truncated. EXTRA: on both sides of the source's end.
* MISSING behind the last common record of a renumbered target, before and behind `Alignment.most_passed_up_to`. That is
  known at the end, so the first `HELD` wait until then. Those before it stay single, up to `Folding.keep`: copies that
  are found later may move it down.
* Records that only one log of a compacted topic has, where the other has none at the offset: compaction may explain
  them. The first `Folding.keep_compacted` are single, and the driver looks up their keys. The others are `UNDECIDED`.
  They stay in Spark until their keys were looked up there, and what is left is folded then (`Folding.found`).

The offsets of a run are those of its record with the first difference, so that the proof ends there. What else is
known of its places: the lowest and the highest offset in either log, and a sum. So a repair takes the windows that
differ, and nothing is attributed to a log.

What is lost by it: a record in a run is never MISROUTED, it is MISSING here and EXTRA there. An EXTRA one is no
DUPLICATE of a record in a window without a difference. A CORRUPT one is no DUPLICATE and MISSING one.

In: findings of one partition, ascending.  Out: findings.  Owner: a Spark task; pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from kclient.types import TopicPartition
from spark_jobs.align import Alignment, without_tail
from spark_jobs.compaction import ONLY_TARGET
from spark_jobs.engine import Modes
from spark_jobs.findings import TAKEN, UNDECIDED, Finding, FindingClass

if TYPE_CHECKING:
    from spark_jobs.digest import WindowShape

_ONLY_ONE = frozenset({FindingClass.MISSING, *ONLY_TARGET})
_FOLDED = _ONLY_ONE | {FindingClass.CORRUPT, FindingClass.REORDERED, FindingClass.VISIBILITY}

SINGLE = 200_000
"""Findings of a class that stay single, in all partitions."""
LOOKED_UP = 50_000
"""Records that only one log of compacted topics has, of which the driver looks up the keys, in all partitions."""
LEAST = 100
"""Findings of a class that stay single in each partition, however many partitions there are."""


HELD = 50_000
"""MISSING records behind the last common one that a task holds until it knows which of them do not lag."""


class Folding(NamedTuple):
    """How the findings of one partition are folded."""

    keep: int
    """Findings of a class that are single."""
    shape: WindowShape
    """With the time buckets."""
    keep_compacted: int = 0
    """The same of records that compaction may explain."""
    explainable: frozenset[FindingClass] = frozenset()
    """The classes of these."""
    edges: Sequence[int] = ()
    """Source offsets, ascending, that no run of MISSING records has on both sides."""
    ends: tuple[int, int] = (0, 0)
    """Of the logs of source and target."""
    renumbered: bool = False
    """Whether the target has offsets of its own."""
    keep_passed: int | None = None
    """Records before `Alignment.passed_up_to` that are single, if not `keep`."""

    def found(self, buckets: int) -> Folding:
        """Return how one of *buckets* sets of keys folds what compaction does not explain."""
        return self._replace(
            keep=max(1, self.keep_compacted // buckets),
            explainable=frozenset[FindingClass](),
            keep_passed=self.keep,
        )


class FindingBudget(NamedTuple):
    """How many findings of one comparison pass through the driver one by one, about; the partitions share them."""

    shape: WindowShape
    keep: int
    """Of a class, in each partition."""
    keep_compacted: int
    """The same of records that compaction may explain."""

    @classmethod
    def among(
        cls, partitions: int, shape: WindowShape, most: int, looked_up: int = LOOKED_UP
    ) -> FindingBudget:
        """Return the budget if *partitions* are compared.

        *most*: findings that are written one by one. *looked_up*: those of which the driver looks up the keys.
        """
        share = max(1, partitions)
        return cls(shape, min(most, max(LEAST, SINGLE // share)), looked_up // share)

    def folding(self, tp: TopicPartition, modes: Modes) -> Folding:
        """Return how the findings of *tp* are folded."""
        return Folding(
            self.keep,
            self.shape,
            self.keep_compacted,
            modes.explainable.get(tp.topic, frozenset()),
            modes.edges.get(tp, ()),
            (modes.ends[0].get(tp, 0), modes.ends[1].get(tp, 0)),
            modes.renumbered,
        )


class _Place(NamedTuple):
    """Findings with the same place are joined."""

    finding_class: FindingClass
    field: str | None
    bucket: int
    segment: int
    """Of a MISSING one, how many edges are not behind it; of an EXTRA one, whether it is behind the source's end."""
    behind: bool | None
    """Whether a MISSING one is behind the target's end; None: later records of the source are in both logs."""
    may_be_apart: bool
    """Whether it has `Finding.apart`: then its segment is that of the MISSING one."""


def has_no_other(finding: Finding) -> bool:
    """Return whether only one log has the record of *finding*, and the other has none at its offset.

    Only then compaction of the other log may explain it.
    """
    if finding.finding_class not in _ONLY_ONE or finding.flags & TAKEN:
        return False
    return finding.finding_class is FindingClass.MISSING or finding.owns > 0


@dataclass(slots=True)
class Folded:
    """Folds the findings of one partition, part by part."""

    folding: Folding
    _single: Counter[tuple[FindingClass, bool, bool]] = field(default_factory=Counter)
    """By whether compaction may explain them, and whether they have `Finding.apart`."""
    _runs: dict[tuple[_Place, int], Finding] = field(default_factory=dict)
    """By the part, too, where it must be seen at the end whether the source goes on."""
    _parts: int = 0
    _held: list[Finding] = field(default_factory=list)
    """See `HELD`."""

    def left(self, finding_class: FindingClass) -> int:
        """Return how many more findings of the class stay single, apart from what compaction may explain."""
        return max(0, self.folding.keep - self._single[finding_class, False, False])

    def add(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """Yield those of the next part that stay single, and those that are `UNDECIDED`."""
        self._parts += 1
        for each in findings:
            if each.finding_class not in _FOLDED:
                yield each
                continue
            place = self._place(each)
            explainable = self._may_be_explained(each, place)
            counted = each.finding_class, explainable, each.apart is not None
            most = self.folding.keep_compacted if explainable else self.folding.keep
            if not each.is_run and self._single[counted] < most:
                self._single[counted] += 1
                yield each
            elif explainable:
                yield replace(each, flags=each.flags | UNDECIDED)
            elif each.tail_position is None:
                self._join(each, place, 0)
            elif self.folding.renumbered and not each.is_run and len(self._held) < HELD:
                self._held.append(each)
            else:
                self._join(each, place, self._parts)

    def begin_tail(self) -> None:
        """Note that the next part has a record of both logs: no record before is of the source's end."""
        held, self._held = self._held, []
        for each in held:
            self._join_at_end(replace(each, tail_position=None))

    def end(self, alignment: Alignment) -> list[Finding]:
        """Return the runs, and what was held; *alignment* is that of the whole partition."""
        runs, self._runs = self._runs, {}
        held, self._held = self._held, []
        keep = self.folding.keep if self.folding.keep_passed is None else self.folding.keep_passed
        single: list[Finding] = []
        for each in [*held, *runs.values()]:
            found = without_tail(each, alignment)
            if found.tail_position is None or not found.is_before(alignment.most_passed_up_to):
                self._join_at_end(found)
            elif not found.is_run and len(single) < keep:
                single.append(found)
            else:
                # As a run: compaction explains no record that has no `tail_position` for that reason only.
                self._join_at_end(as_run(replace(found, tail_position=None)))
        return [*single, *self._runs.values()]

    def _join_at_end(self, finding: Finding) -> None:
        self._join(finding, self._place(finding), 0)

    def _may_be_explained(self, finding: Finding, place: _Place) -> bool:
        """Return whether compaction may explain *finding*: no log compacts what is behind its end."""
        if finding.finding_class not in self.folding.explainable or not has_no_other(finding):
            return False
        if finding.finding_class is FindingClass.MISSING:
            return not place.behind
        return finding.position < self.folding.ends[0]

    def _place(self, finding: Finding) -> _Place:
        shape = self.folding.shape
        bucket = ((finding.timestamp_ms or 0) - shape.first_ms) // shape.bucket_ms
        segment, behind = 0, None
        if finding.finding_class is FindingClass.MISSING or finding.apart:
            segment = bisect_right(self.folding.edges, finding.source_offset or 0)
            if finding.tail_position is not None:
                behind = finding.tail_position >= self.folding.ends[1]
        elif finding.finding_class in _ONLY_ONE:
            segment = int(finding.position >= self.folding.ends[0])
        return _Place(
            finding.finding_class,
            finding.field,
            max(0, min(shape.buckets - 1, bucket)),
            segment,
            behind,
            finding.apart is not None,
        )

    def _join(self, finding: Finding, place: _Place, part: int) -> None:
        run = self._runs.get((place, part))
        if run is None:
            self._runs[place, part] = finding
            return
        self._runs[place, part] = _joined(run, finding)


def _joined(one: Finding, other: Finding) -> Finding:
    """Return the run of both, each a finding or a run."""
    each = [as_run(one), as_run(other)]
    apart = None
    if one.apart and other.apart:
        apart = _joined(one.apart[0], other.apart[0]), _joined(one.apart[1], other.apart[1])
    first = min(each, key=lambda of: of.first_difference)
    return replace(
        first,
        records=sum(of.records for of in each),
        owns=sum(of.owns for of in each),
        last_offset=max(of.last_offset or 0 for of in each),
        lowest=min(of.lowest or 0 for of in each),
        highest=max(of.highest or 0 for of in each),
        places=sum(of.places for of in each) % _SUMS,
        apart=apart,
    )


_SUMS = 1 << 62
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)


def as_run(finding: Finding) -> Finding:
    """Return *finding* as a run of its own, so that others can be joined with it."""
    if finding.is_run:
        return finding
    offsets = [each for each in (finding.source_offset, finding.target_offset) if each is not None]
    last = finding.position if finding.last_offset is None else finding.last_offset
    here, there = (
        -1 if each is None else each for each in (finding.source_offset, finding.target_offset)
    )
    return replace(
        finding,
        source_hash=None,
        target_hash=None,
        key_hash=None,
        flags=0,
        first_target_offset=None,
        distance=None,
        apart=finding.apart and (as_run(finding.apart[0]), as_run(finding.apart[1])),
        last_offset=last,
        lowest=min(offsets),
        highest=max(*offsets, last),
        places=sum(
            (each + 2) * factor
            for each, factor in zip((here, there, last, finding.records), _FACTORS, strict=True)
        )
        % _SUMS,
    )


def folded(findings: Iterable[Finding], folding: Folding, alignment: Alignment) -> list[Finding]:
    """Return the *findings* of one partition, folded, in order."""
    runs = Folded(folding)
    return in_order([*runs.add(findings), *runs.end(alignment)])


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return *findings* of one partition, sorted."""
    return sorted(findings, key=lambda f: (f.position, f.finding_class.value))
