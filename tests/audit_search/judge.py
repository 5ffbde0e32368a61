"""A judge of audits: a join of two logs, record by record, in plain Python. It imports no comparison of `spark_jobs`.

Two things are judged. *Classes and verdict*: each offset of either log is put into one class, from which the verdict
and the exit codes follow. *Findings*: each one must be true of the logs, and together they must turn the contents of
the source into those of the target, so that none is left out.

The judge compares offset by offset. It does not decide which of several records moved, only that one did, and how far.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kclient.types import TopicPartition
from spark_jobs.engine import FailureKind
from spark_jobs.findings import Finding
from spark_jobs.verdict import ExitCode, Verdict
from tests.audit_search.kinds import SearchCase
from tests.kit.audit_logs import Log, Rec

_IN_ONE_PLACE = ("different", "truncated", "explained", "verified", "empty")


class View(NamedTuple):
    """One log as an audit may see it."""

    records: Mapping[int, Rec]
    start: int
    end: int
    faults: Mapping[int, FailureKind]
    compacted: bool
    aborted: frozenset[int] = frozenset()
    """Offsets below the last stable offsets of both logs that consumers with read_committed do not get.

    `records` does not show it.
    """
    stable: int = 0
    """The last stable offset."""

    def of_key(self, key: bytes | None) -> list[int]:
        """Return the offsets of the readable records with *key*."""
        return [
            at for at, each in self.records.items() if each.key == key and at not in self.faults
        ]


class Open(NamedTuple):
    """Offsets of which all transactions have ended in one log only, [low, high)."""

    low: int
    high: int
    cause: str


@dataclass
class Judgement:
    """What an audit must report."""

    classes: dict[TopicPartition, Counter[str]] = field(default_factory=dict)
    explained: set[tuple[TopicPartition, bool, int]] = field(default_factory=set)
    """(partition, whether the source has the record, offset) of records that only one log has, for a known reason."""
    open: dict[TopicPartition, Open] = field(default_factory=dict)
    """Transactions that have ended in one log only."""

    @property
    def total(self) -> Counter[str]:
        """The offsets of each class."""
        return sum(self.classes.values(), Counter())

    @property
    def codes(self) -> set[ExitCode]:
        """The exit codes that apply, except 0."""
        total = self.total
        compared = sum(total[each] for each in _IN_ONE_PLACE)
        codes = {
            code
            for code, names in (
                (ExitCode.UNREADABLE, ("not read", "unknown")),
                (ExitCode.DIVERGED, ("different", "truncated", "gap", "undecodable")),
                (ExitCode.AGED_OUT, ("aged out",)),
                (ExitCode.NO_VERDICT_YET, ("lagging",)),
            )
            if any(total[name] for name in names)
        }
        if self.open:
            codes.add(ExitCode.DIVERGED)
        in_scope = total.total() - total["lagging"] - total["unknown"]
        if compared < in_scope and not total["aged out"]:
            codes.add(ExitCode.NO_VERDICT_YET)
        return codes

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        total = self.total
        if total["not read"] or total["unknown"]:
            return Verdict.ERROR
        broken = total["different"] or total["truncated"] or total["gap"] or total["undecodable"]
        if broken or self.open:
            return Verdict.DIVERGED
        if total["aged out"]:
            return Verdict.INCOMPLETE
        return Verdict.LAGGING if total["lagging"] else Verdict.CONSISTENT


def judge(case: SearchCase) -> Judgement:
    """Return what an audit of *case* must report."""
    result = Judgement()
    for tp in sorted(case.source.keys() | case.target.keys()):
        classes: Counter[str] = Counter()
        sides = views(case, tp)
        unknown = any(each == tp for _, each in case.unknown)
        for offset in _offsets(sides):
            name = "not read" if unknown else _class(case, tp, sides, offset)
            if name.startswith("explained "):
                result.explained.add((tp, name.endswith("source"), offset))
                name = "explained"
            classes[name] += 1
        classes.pop("in neither log", None)
        result.classes[tp] = classes
        found = None if unknown else _open(case, tp, sides)
        if found is not None:
            result.open[tp] = found
    return result


def _open(case: SearchCase, tp: TopicPartition, sides: tuple[View, View]) -> Open | None:
    """Return what is open in one log only, and not because the other one lacks its end."""
    if tp not in case.source or tp not in case.target:
        return None
    source, target = sides
    both = range(max(source.start, target.start), min(source.end, target.end))
    for cause, behind, other in (
        ("in an open transaction at the source", source, target),
        ("in an open transaction at the target", target, source),
    ):
        found = [at for at in both if behind.stable <= at < other.stable]
        if found and behind.end >= other.end:
            return Open(found[0], found[-1] + 1, cause)
    return None


def views(case: SearchCase, tp: TopicPartition) -> tuple[View, View]:
    """Return the source's and the target's log of *tp*; a log that was never written has the source's start."""
    here, there = case.source.get(tp) or Log(), case.target.get(tp) or Log()
    if not there.end:
        there = Log(start=here.start, end=here.start)
    stable = [log.end if log.stable is None else log.stable for log in (here, there)]
    source, target = (
        View(
            {at: record._replace(aborted=False) for at, record in log.records.items()},
            log.start,
            log.end,
            {at: fault.kind for fault in log.faults for at in range(fault.low, fault.high)},
            name in case.compacted_at and tp.topic == "t",
            frozenset(at for at in log.records if log.records[at].aborted and at < min(stable)),
            own_stable,
        )
        for name, log, own_stable in zip(("source", "target"), (here, there), stable, strict=True)
    )
    return source, target


def _offsets(sides: tuple[View, View]) -> range:
    """Return all offsets of two logs. One that was never written starts nowhere."""
    source, target = sides
    first = min(side.start for side in sides if side.end or not source.end + target.end)
    return range(first, max(source.end, target.end))


def _class(case: SearchCase, tp: TopicPartition, sides: tuple[View, View], offset: int) -> str:
    source, target = sides
    low = max(source.start, target.start)
    accepted = _is_accepted(case, tp, offset)
    if source.end <= offset < target.start:
        return "in neither log"
    if target.end <= offset < source.start:
        return "explained gap" if accepted else "gap"
    if offset < low:
        if source.start <= offset:
            return "aged out"
        return _class_without_source(sides, offset, accepted=accepted)
    beyond = target.end <= offset
    if beyond and not case.complete:
        return "lagging"
    failed = _failed(source, target, offset)
    if failed:
        return failed
    here, there = source.records.get(offset), target.records.get(offset)
    if here == there:
        hidden_in_one = (offset in source.aborted) != (offset in target.aborted)
        return "different" if hidden_in_one else "empty" if here is None else "verified"
    if there is None and accepted:
        return "explained source"
    if beyond:
        return "truncated"
    if there is None and compacted_away(target, source, offset):
        return "explained source"
    if here is None and offset < source.end and compacted_away(source, target, offset):
        return "explained target"
    return "different"


def _class_without_source(sides: tuple[View, View], offset: int, *, accepted: bool) -> str:
    """Return the class of an offset that the source has deleted."""
    source, target = sides
    failed = {
        FailureKind.UNDECODABLE: "undecodable",
        FailureKind.UNREADABLE: "not read",
        FailureKind.DELETED: "aged out",
    }.get(target.faults.get(offset))  # type: ignore[arg-type]
    if failed:
        return failed
    if offset in target.records or source.compacted or target.compacted:
        return "aged out"
    return "explained gap" if accepted else "gap"


def _failed(source: View, target: View, offset: int) -> str:
    kinds = {side.faults[offset] for side in (source, target) if offset in side.faults}
    if FailureKind.UNDECODABLE in kinds:
        return "undecodable"
    if FailureKind.UNREADABLE in kinds:
        return "not read"
    return "aged out" if kinds else ""


def _is_accepted(case: SearchCase, tp: TopicPartition, offset: int) -> bool:
    if any(gap.topic_partition == tp and gap.low <= offset < gap.high for gap in case.accepted):
        return True
    start = case.source[tp].start if tp in case.source else 0
    return offset < start and any(
        (gap.topic, gap.partition) == tp and gap.first <= offset < gap.until for gap in case.ledger
    )


def compacted_away(cleaned: View, other: View, offset: int) -> bool:
    """Return whether the cleaner of one log may have removed the record that the *other* has at *offset*."""
    record = other.records[offset]
    copies = [list(side.records.values()).count(record) for side in (cleaned, other)]
    if not cleaned.compacted or copies[0] >= copies[1]:
        return False  # It has the record, if elsewhere.
    if record.control:
        return True
    if record.key is None:
        return False
    received = [*cleaned.of_key(record.key), *other.of_key(record.key)]
    if any(offset < at < cleaned.end for at in received):
        return True
    return record.value is None and not any(at < offset for at in cleaned.of_key(record.key))


def problems(case: SearchCase, judged: Judgement, findings: list[Finding]) -> Iterator[str]:
    """Yield what is wrong with *findings*: false ones, and differences without one."""
    sides = {tp: views(case, tp) for tp in case.source.keys() | case.target.keys()}
    for each in findings:
        reason = _untrue(each, sides)
        if reason:
            yield f"{reason}: {each}"
    left: dict[TopicPartition, Counter[Rec]] = {}
    for tp, (source, target) in sides.items():
        left[tp] = Counter(
            record
            for at, record in source.records.items()
            if _compares(source, target, at, case) and (tp, True, at) not in judged.explained
        )
        left[tp].subtract(
            record
            for at, record in target.records.items()
            if _compares(source, target, at, case) and (tp, False, at) not in judged.explained
        )
    for each in findings:
        _apply(each, sides, left)
    for tp, both in sides.items():
        own = [each for each in findings if each.topic_partition == tp]
        yield from _not_compared(case, tp, both, own)
        yield from _not_open(tp, judged.open.get(tp), own)
        yield from _moves(tp, _common(case, judged, tp, both, findings), own)
    for tp, (source, target) in sides.items():
        hidden = [
            range(each.source_offset or 0, (each.last_offset or 0) + 1)
            for each in findings
            if each.finding_class.value == "visibility"
            and not _is_open(each)
            and each.topic_partition == tp
        ]
        for at, record in source.records.items():
            same = record == target.records.get(at) and _compares(source, target, at, case)
            in_one = (at in source.aborted) != (at in target.aborted)
            if same and in_one and not any(at in each for each in hidden):
                yield f"{tp}: {at} is aborted in one log only, without a finding"
    for tp, counts in left.items():
        for record, count in counts.items():
            # Records of a moved end may lag.
            if count and not (case.moved_end and count > 0 and not case.complete):
                yield f"{tp}: {count:+} of {record} without a finding"


def _compares(source: View, target: View, at: int, case: SearchCase) -> bool:
    if at < max(source.start, target.start) or at in source.faults or at in target.faults:
        return False
    return at < target.end or case.complete or case.moved_end


def _apply(
    each: Finding,
    sides: Mapping[TopicPartition, tuple[View, View]],
    left: Mapping[TopicPartition, Counter[Rec]],
) -> None:
    tp = each.topic_partition
    source, target = sides[tp]
    match each.finding_class.value:
        case "missing":
            left[tp][source.records[each.source_offset or 0]] -= 1
        case "truncated":
            last = each.last_offset if each.records > 1 else each.source_offset
            behind = [
                at
                for at in source.records
                if (each.source_offset or 0) <= at <= (last or 0) and at not in source.faults
            ]
            left[tp].subtract(source.records[at] for at in behind[-each.records :])
        case "extra" if each.records > 1:
            left[tp].update(target.records[at] for at in target.records if at not in target.faults)
        case "extra" | "duplicate":
            left[tp][target.records[each.target_offset or 0]] += 1
        case "corrupt":
            left[tp][source.records[each.source_offset or 0]] -= 1
            left[tp][target.records[each.target_offset or 0]] += 1
        case "misrouted":
            record = source.records[each.source_offset or 0]
            left[tp][record] -= 1
            left[TopicPartition(tp.topic, each.target_partition or 0)][record] += 1


def _not_compared(
    case: SearchCase, tp: TopicPartition, sides: tuple[View, View], findings: Sequence[Finding]
) -> Iterator[str]:
    """Yield what is wrong with the gaps and the undecodable batches of *findings*: offsets, cluster and cause."""
    source, target = sides
    classes = {at: _class(case, tp, sides, at) for at in _offsets(sides)}
    gaps = [each for each in findings if each.finding_class.value == "gap"]
    for each in gaps:
        if each.source_offset is None or each.target_offset is not None or each.field:
            yield f"a gap has offsets of the source and no other cause: {each}"
    found = Counter(at for each in gaps for at in _span(each))
    expected = Counter(at for at, name in classes.items() if name == "gap")
    if found != expected:
        yield f"{tp}: gaps at {sorted(found)}, not {sorted(expected)}"
    for name, side in (("source", source), ("target", target)):
        broken = {at for at, kind in side.faults.items() if kind is FailureKind.UNDECODABLE}
        seen: Counter[int] = Counter()
        for each in findings:
            at_source, at_target = each.source_offset, each.target_offset
            if each.finding_class.value != "undecodable" or (
                (at_source if name == "source" else at_target) is None
            ):
                continue
            seen.update(_span(each))
            # On Spark the topics of a case have a prefix.
            cause = rf"{name}: \S*{re.escape(str(tp))}, batch at offset {each.position}: "
            if None not in (at_source, at_target) or not re.match(cause, each.field or ""):
                yield f"the cluster, or the batch in the cause, is another one: {each}"
        expected = Counter(at for at in broken if classes.get(at) == "undecodable")
        if seen != expected:
            yield f"{tp}: {name} undecodable at {sorted(seen)}, not {sorted(expected)}"


def _is_open(each: Finding) -> bool:
    """Return whether the finding is about last stable offsets, not about a record."""
    return each.finding_class.value == "visibility" and "open transaction" in (each.field or "")


def _not_open(
    tp: TopicPartition, expected: Open | None, findings: Sequence[Finding]
) -> Iterator[str]:
    """Yield it if *findings* name other offsets or another cause than *expected*."""
    found = [
        Open(_span(each).start, _span(each).stop, each.field or "")
        for each in findings
        if _is_open(each)
    ]
    starts = all(each.position == _span(each).start for each in findings if _is_open(each))
    if found != ([expected] if expected else []) or not starts:
        yield f"{tp}: open {found}, not {expected}"


def _span(each: Finding) -> range:
    """Return the offsets of a run: as many as it has records, up to its last one."""
    last = each.position if each.last_offset is None else each.last_offset
    return range(last + 1 - each.records, last + 1)


_Common = tuple[list[int], list[int]]
"""The offsets of the records that both logs have, in source and target."""


def _common(
    case: SearchCase,
    judged: Judgement,
    tp: TopicPartition,
    sides: tuple[View, View],
    findings: Sequence[Finding],
) -> _Common:
    """Return what is left of both logs of *tp* without the records that *findings* name as being in one only."""
    source, target = sides
    alone: tuple[set[int], set[int]] = (set(), set())
    for each in findings:
        kind = each.finding_class.value
        if each.topic_partition == tp:
            if kind in ("missing", "truncated", "corrupt", "misrouted"):
                alone[0].update(_span(each) if kind == "truncated" else [each.source_offset or 0])
            if kind in ("extra", "duplicate", "corrupt"):
                alone[1].update(target.records if each.records > 1 else [each.target_offset or 0])
        if kind == "misrouted" and (each.topic, each.target_partition) == tp:
            alone[1].add(each.target_offset or 0)
    left: list[list[int]] = [
        sorted(
            at
            for at in side.records
            if at not in gone
            and _compares(source, target, at, case)
            and (tp, side is source, at) not in judged.explained
        )
        for side, gone in zip(sides, alone, strict=True)
    ]
    return left[0], left[1]


def _moves(tp: TopicPartition, common: _Common, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield which of *findings* have another distance than the record moved, or have one although nothing moved."""
    at_source, at_target = common
    reordered = {each.target_offset for each in findings if each.finding_class.value == "reordered"}
    for each in findings:
        here, there = each.source_offset, each.target_offset
        expected = None
        if here is not None and there is not None and not each.is_run:
            if each.finding_class.value == "reordered":
                expected = bisect_right(at_target, there) - bisect_right(at_source, here)
            elif each.finding_class.value == "shifted":
                expected = there - here
        if each.distance != expected:
            yield f"the distance is {expected}: {each}"
        if each.finding_class.value == "shifted":
            last = there if each.last_offset is None else each.last_offset
            run = [at for at in at_target if (there or 0) <= at <= (last or 0)]
            count = sum(at not in reordered for at in run)
            if (each.records, last in run) != (count, True):
                yield f"{tp}: {count} records are shifted: {each}"


_WITH = {
    "missing": (True, False),
    "truncated": (True, False),
    "extra": (False, True),
    "duplicate": (False, True),
}
"""Whether a finding of the class has a record in the source, and in the target; of other classes it has both."""


def _untrue(each: Finding, sides: Mapping[TopicPartition, tuple[View, View]]) -> str:
    """Return why the finding is not true of the logs; "" if it is."""
    tp = each.topic_partition
    kind = each.finding_class.value
    if kind in ("gap", "undecodable") or _is_open(each):
        return ""
    source, target = sides[tp]
    if kind == "misrouted":
        target = sides[TopicPartition(tp.topic, each.target_partition or 0)][1]
    here = None if each.source_offset is None else source.records.get(each.source_offset)
    there = None if each.target_offset is None else target.records.get(each.target_offset)
    if (here is not None, there is not None) != _WITH.get(kind, (True, True)):
        return "no such record"
    if here is None or there is None:
        return _untrue_of_one(each, source, target, here or there or Rec(None, None))
    if kind == "corrupt":
        return "" if each.field == _parts(here, there) else f"differs in {_parts(here, there)}"
    if here != there:
        return "not the same content"
    if kind == "visibility":
        sides_of = (each.source_offset in source.aborted, each.target_offset in target.aborted)
        field = "aborted at the source" if sides_of[0] else "aborted at the target"
        return "" if sides_of[0] != sides_of[1] and field == each.field else "not in one log only"
    still = kind != "misrouted" and each.source_offset == each.target_offset
    return "not moved" if still else ""


def _untrue_of_one(each: Finding, source: View, target: View, record: Rec) -> str:
    held = [list(side.records.values()).count(record) for side in (source, target)]
    match each.finding_class.value:
        case "missing":
            return "" if held[0] > held[1] or _unread(target) else "the target has it"
        case "duplicate":
            first = each.first_target_offset
            false = first == each.target_offset or target.records.get(first or 0) != record
            return "no copy there" if false else ""
        case "extra" if each.records == 1:
            return "" if held[1] > held[0] or _unread(source) else "the source has it"
    return ""


def _unread(side: View) -> bool:
    return bool(side.faults) or side.start > 0


def _parts(here: Rec, there: Rec) -> str:
    labels = {
        "key": "key",
        "value": "value",
        "headers": "headers",
        "timestamp": "timestamp",
        "timestamp_type": "timestamp type",
    }
    parts = [text for name, text in labels.items() if getattr(here, name) != getattr(there, name)]
    return ",".join(parts) or "content"
