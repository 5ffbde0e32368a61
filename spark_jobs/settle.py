"""Which differences are looked at again before a verdict, and what a later look may change. Pure.

Theory of operation
===================
The two logs are not read at one moment. Meanwhile the mirror copies, retention deletes, and a new leader may report a
lower log end for a while. So a difference of the first look may be none. A later look waits `Patience.settle_s`, takes
a new cut for the *suspects* only, and reads again what was not equal there:

    suspect     a partition with a finding, or with offsets that a cluster did not return
    carried     windows of it that were equal and read in full: they are not read again
    replaced    the later look replaces the earlier one of a partition, unless there is an *objection*
    stands      with an objection the earlier look stays, with all its findings

    look 1 --suspects--> wait, look 2 --suspects that changed--> wait, look 3 ... at most `Patience.rounds` later looks

A partition with the same findings in two looks is settled. docs/design/audit.md has the objections and their reasons.

Invariants (tests/property/test_settle.py cites the numbers):
 1. a finding vanishes only if the last look of its partition read all its offsets on both sides and no longer has it
    there. (Of a gap: on the target's side.) Otherwise the earlier look stands;
 2. carried offsets were read and equal in an earlier look of the same run, and the logs were not replaced since then;
 3. partitions that share a misrouted record are replaced together, or not at all.

In: what each look found of each partition  Out: suspects, carried offsets, objections  Owner: the caller
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kclient.types import TopicPartition
from spark_jobs.cut import PartitionCut
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.ranges import Ranges, intersect, subtract

DEFAULT_SETTLE_S = 5.0
DEFAULT_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Patience:
    """The bounds of later looks: the wait before each one in seconds, and how many there are at most."""

    settle_s: float = DEFAULT_SETTLE_S
    rounds: int = DEFAULT_ROUNDS


class Seen(NamedTuple):
    """What one look found of a partition."""

    cut: PartitionCut
    findings: tuple[Finding, ...] = ()
    failed: Ranges = []  # noqa: RUF012 - never changed
    """Offsets that a cluster did not return, for any reason."""
    unread: bool = False
    """Whether a cluster did not return a part, and neither damage nor deletion is the reason."""


class NotReplaced(NamedTuple):
    """A partition of which the earlier look stands, and why the later one could not replace it."""

    topic: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True)
class Settled:
    """What the later looks of a run did, for its report."""

    patience: Patience = field(default_factory=Patience)
    rounds: int = 0
    """Later looks that were made."""
    suspects: int = 0
    """Partitions that were looked at again."""
    records: int = 0
    """Records that the later looks hashed, on both sides; not what they compared record by record after that."""
    vanished: Mapping[FindingClass, int] = field(default_factory=dict)
    """Records of findings that a later look of the partition did not find any more."""
    read_later: int = 0
    """Partitions of which a part could be read only by a later look."""
    standing: Sequence[NotReplaced] = ()
    problem: str = ""
    """Why a later look was not made; it ends the looks."""


def suspects(seen: Mapping[TopicPartition, Seen]) -> set[TopicPartition]:
    """Return the partitions to look at again, with both partitions of each misrouted record."""
    found = {tp for tp, each in seen.items() if each.findings or each.unread}
    return found | {
        TopicPartition(f.topic, f.target_partition)
        for each in seen.values()
        for f in each.findings
        if f.target_partition is not None
    }


def carried(before: Seen, cut: PartitionCut, differing: Ranges, window: int) -> Ranges:
    """Return the offsets that a look with *cut* does not read again.

    *differing*: the offsets of windows that differ. A window that was not read in full, or of which a log has deleted a
    part since, is read again as a whole. So is one with open transactions: nothing was known of their records' fate.
    """
    old = before.cut
    again = [*differing, *(_aligned(*each, window) for each in before.failed)]
    if old.decided < old.high:
        again.append(_aligned(old.decided, old.high, window))
    if cut.low > old.low and cut.low % window:
        again.append(_aligned(cut.low, cut.low + 1, window))
    return subtract([(max(old.low, cut.low), min(old.high, cut.high))], again)


def _aligned(low: int, high: int, window: int) -> tuple[int, int]:
    """Return [low, high), extended to whole windows."""
    return low // window * window, -(-high // window) * window


class _Place(NamedTuple):
    """What makes two findings of different looks the same one."""

    finding_class: FindingClass
    topic: str
    partition: int
    source_offset: int | None
    target_offset: int | None
    places: int
    """Of the other records of a run."""


def _places(findings: Iterable[Finding]) -> Counter[_Place]:
    """Return how many records are found at each place."""
    places: Counter[_Place] = Counter()
    for each in findings:
        places[_place(each)] += each.records
    return places


def _place(f: Finding) -> _Place:
    return _Place(f.finding_class, f.topic, f.partition, f.source_offset, f.target_offset, f.places)


def is_stable(before: Seen, after: Seen) -> bool:
    """Return whether two looks found the same: then no further one is needed."""
    return not after.unread and _places(before.findings) == _places(after.findings)


def vanished(before: Seen, after: Seen) -> Counter[FindingClass]:
    """Return the records of findings that *before* has and *after* has not, by class."""
    was, now = _places(before.findings), _places(after.findings)
    counts: Counter[FindingClass] = Counter()
    for place, records in (was - now).items():
        counts[place.finding_class] += records
    # Runs may have other records without one having vanished: then the sums of the class are compared.
    for finding_class in {place.finding_class for place in (*was, *now) if place.places}:
        sums = [
            sum(n for place, n in each.items() if place.finding_class is finding_class)
            for each in (was, now)
        ]
        counts[finding_class] = max(0, sums[0] - sums[1])
    return +counts


def replaced(
    before: Mapping[TopicPartition, Seen],
    after: Mapping[TopicPartition, Seen],
    *,
    renumbered: bool = False,
    unknown: Collection[TopicPartition] = (),
) -> dict[TopicPartition, str]:
    """Return for each partition of *after* why its earlier look stands; "" if *after* replaces it.

    *unknown*: partitions of which the earlier look did not know a log range.
    """
    reasons = {
        tp: objection(before[tp], each, renumbered=renumbered, unknown=tp in unknown)
        for tp, each in after.items()
    }
    links = []
    for tp in after:
        for f in (*before[tp].findings, *after[tp].findings):
            if f.target_partition is None:
                continue
            other = TopicPartition(f.topic, f.target_partition)
            links.append((tp, other))
            if other in after and not _holds(after[other], f.target_offset):
                reasons[tp] = (
                    reasons[tp] or f"the target no longer has offset {f.target_offset} of {other}"
                )
    changed = True
    while changed:
        changed = False
        for pair in links:
            for here, there in (pair, pair[::-1]):
                if reasons.get(here) == "" and reasons.get(there, "it was not read"):
                    reasons[here] = f"a misrouted record links it with partition {there.partition}"
                    changed = True
    return reasons


def _holds(seen: Seen, target_offset: int | None) -> bool:
    """Return whether the look read *target_offset* of the target."""
    offset = target_offset or 0
    inside = seen.cut.target_low <= offset < seen.cut.target_end
    return inside and not intersect(seen.failed, offset, offset + 1)


def cut_objection(old: PartitionCut, new: PartitionCut, *, unknown: bool = False) -> str:
    """Return why a look with the cut *new* need not be made; "" if it may replace one with *old*.

    *unknown*: one log of *old* had no known range, and has that of the other one. It is no measure of the later range.
    """
    for name, had, has in (
        ("source", old.on_source, new.on_source),
        ("target", old.on_target, new.on_target),
    ):
        if had and not has:
            return f"the {name} no longer has the partition"
    if unknown:
        return ""
    for name, was, now in (
        ("source", old.source_end, new.source_end),
        ("target", old.target_end, new.target_end),
    ):
        if now < was:
            return f"the log of the {name} ends at {now}, before at {was}"
    if new.decided < old.decided and new.low < old.decided:
        return f"the last stable offset of a log has fallen: {new.decided}, before {old.decided}"
    return ""


def objection(before: Seen, after: Seen, *, renumbered: bool = False, unknown: bool = False) -> str:
    """Return why *after* cannot replace *before*; "" if it can. *unknown*: nothing of *before* was read."""
    old, new = before.cut, after.cut
    reason = cut_objection(old, new, unknown=unknown)
    if reason or unknown:
        return reason
    lost = subtract(after.failed, before.failed)
    if lost:
        return f"offsets {lost[0][0]} to {lost[0][1] - 1} could not be read again"
    if renumbered:
        moved = (old.low, old.target_low) != (new.low, new.target_low)
        return "records were deleted since, and offsets do not show which ones" if moved else ""
    gone = _places(before.findings) - _places(after.findings)
    for finding_class in FindingClass:
        of_class = [f for f in before.findings if f.finding_class is finding_class]
        spans = [_span(f) for f in of_class if _place(f) in gone]
        missed = _not_looked_at(finding_class, spans, before, after) if spans else []
        if missed:
            return f"offset {missed[0][0]} ({finding_class.value}) is no longer in both logs"
    return ""


def _not_looked_at(finding_class: FindingClass, spans: Ranges, before: Seen, after: Seen) -> Ranges:
    """Return the offsets of *spans*, which vanished, that the later look did not read."""
    old, new = before.cut, after.cut
    # What the source had deleted before the earlier look, only the target can show.
    read = [(new.low, new.high), (new.only_target[0], min(old.low, new.low))]
    if finding_class is FindingClass.GAP:
        read.append(new.lost)
    still = [_span(f) for f in after.findings if f.finding_class is finding_class]
    # The earlier look had no finding in what it could not read, though a run may have records on both sides of it.
    return subtract(spans, [*subtract(read, after.failed), *before.failed, *still])


def _span(finding: Finding) -> tuple[int, int]:
    """Return the offsets of *finding* in its partition, from the first to the last in either log."""
    if finding.lowest is not None and finding.highest is not None:
        return finding.lowest, finding.highest + 1
    offsets = [finding.source_offset, finding.last_offset]
    if finding.finding_class is not FindingClass.MISROUTED:
        offsets.append(finding.target_offset)
    known = [each for each in offsets if each is not None]
    return min(known), max(known) + 1


def same_logs(
    then: Sequence[Mapping[TopicPartition, int]],
    now: Sequence[Mapping[TopicPartition, int]],
    tp: TopicPartition,
) -> bool:
    """Return whether neither log of *tp* was replaced below the earlier cut: its last offset has the same leader epoch.

    *then* and *now*: the leader epochs of that offset in source and target. Unknown ones prove nothing.
    """
    return all(
        tp in was and tp in found and was[tp] == found[tp]
        for was, found in zip(then, now, strict=True)
    )
