"""A judge of audits with `--renumbered`: the longest common subsequence of both logs, in plain Python.

It compares contents in their order, never offsets, and shares no code with `spark_jobs.align`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kclient.types import TopicPartition
from spark_jobs.engine import FailureKind
from spark_jobs.findings import Finding
from tests.audit_search.judge import Judgement
from tests.audit_search.kinds import SearchCase
from tests.kit.audit_logs import Log, Rec

_NOT_COMPARED = {
    FailureKind.UNREADABLE: "not read",
    FailureKind.UNDECODABLE: "undecodable",
    FailureKind.DELETED: "aged out",
}
"""The class of offsets that were not read, the worst first."""


class _Held(NamedTuple):
    offset: int
    record: Rec


def judge_renumbered(case: SearchCase) -> Judgement:
    """Return what an audit of *case* must report."""
    result = Judgement()
    for tp in sorted(case.source.keys() | case.target.keys()):
        result.classes[tp] = _classes(case, case.source[tp], case.target[tp])
    return result


def _committed(log: Log) -> list[_Held]:
    """Return what consumers with read_committed get of *log*."""
    return [
        _Held(at, record)
        for at, record in sorted(log.records.items())
        if at < _end(log)
        and not record.control
        and not record.aborted
        and not any(fault.low <= at < fault.high for fault in log.faults)
    ]


def _end(log: Log) -> int:
    return log.end if log.stable is None else log.stable


def longest_common(here: Sequence[_Held], there: Sequence[_Held]) -> list[tuple[int, int]]:
    """Return the pairs of a longest common subsequence, by dynamic programming."""
    lengths = [[0] * (len(there) + 1) for _ in range(len(here) + 1)]
    for i in reversed(range(len(here))):
        for j in reversed(range(len(there))):
            equal = here[i].record == there[j].record
            lengths[i][j] = (
                1 + lengths[i + 1][j + 1] if equal else max(lengths[i + 1][j], lengths[i][j + 1])
            )
    pairs, i, j = [], 0, 0
    while i < len(here) and j < len(there):
        if here[i].record == there[j].record:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _unread(log: Log, pairs: Sequence[int]) -> Counter[int]:
    """Return by place how many offsets of *log* were not read; its records in pairs are at the offsets *pairs*."""
    found: Counter[int] = Counter()
    for fault in log.faults:
        found[sum(at < fault.low for at in pairs)] += fault.high - fault.low
    return found


def _not_compared(log: Log, unread: Counter[int], opposite: Counter[int]) -> Counter[str]:
    """Return the classes of what was not read of *log*, and of the records *opposite*, both by place."""
    classes: Counter[str] = Counter()
    for fault in log.faults:
        classes[_NOT_COMPARED[fault.kind]] += fault.high - fault.low
    beyond = opposite - unread  # More records than unread offsets: none of them was compared.
    if log.start > 0:
        classes["aged out"] += beyond.pop(0, 0)
    if beyond:
        kinds = {fault.kind for fault in log.faults}
        name = next(name for kind, name in _NOT_COMPARED.items() if kind in kinds)
        classes[name] += beyond.total()
    return classes


def _classes(case: SearchCase, source: Log, target: Log) -> Counter[str]:
    here, there = _committed(source), _committed(target)
    pairs = longest_common(here, there)
    at_source, at_target = ([here[i].offset for i, _ in pairs], [there[j].offset for _, j in pairs])
    alone = (
        [each for n, each in enumerate(here) if n not in {i for i, _ in pairs}],
        [each for n, each in enumerate(there) if n not in {j for _, j in pairs}],
    )
    # A place is the number of pairs before it.
    places = (
        [sum(at < each.offset for at in at_source) for each in alone[0]],
        [sum(at < each.offset for at in at_target) for each in alone[1]],
    )
    unread = _unread(source, at_source), _unread(target, at_target)
    classes: Counter[str] = Counter(verified=len(pairs))
    moved = Counter(each.record for each in alone[0]) & Counter(each.record for each in alone[1])
    left = list(zip(alone[1], places[1], strict=True))
    # Records of source and target by place: the unread offsets of the other log stand for them.
    hidden: tuple[Counter[int], Counter[int]] = Counter(), Counter()
    for each, place in zip(*(alone[0], places[0]), strict=True):
        if moved[each.record]:
            twin = next(other for other in left if other[0].record == each.record)
            left.remove(twin)
            classes["different"] += 1
            continue
        beside = next((other for other in left if other[1] == place), None)
        if beside is not None and not moved[beside[0].record]:
            left.remove(beside)  # It is damaged.
            classes["different"] += 1
        elif place in unread[1]:
            hidden[0][place] += 1
        elif place == 0 and target.start > 0:
            classes["aged out"] += 1
        elif place == len(pairs) and not any(place == other[1] for other in left):
            classes["truncated" if case.complete else "lagging"] += 1
        else:
            classes["different"] += 1
    for _, place in left:
        if place in unread[0]:
            hidden[1][place] += 1
            continue
        classes["aged out" if place == 0 and source.start > 0 else "different"] += 1
    for log, of_log, opposite in zip((source, target), unread, reversed(hidden), strict=True):
        classes += _not_compared(log, of_log, opposite)
    # What is left of the source's offsets has no record for these consumers.
    of_source = sum(fault.high - fault.low for fault in source.faults)
    classes["empty"] = _end(source) - source.start - of_source - len(here)
    return classes


def false_distances(case: SearchCase, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the findings with another distance than the record moved, among the records that both logs have."""
    for each in findings:
        if each.finding_class.value != "reordered":
            continue
        tp = TopicPartition(each.topic, each.partition)
        here, there = _committed(case.source[tp]), _committed(case.target[tp])
        both = {held.record for held in here} & {held.record for held in there}
        ranks = [
            [held.offset for held in side if held.record in both].index(offset or 0)
            for side, offset in ((here, each.source_offset), (there, each.target_offset))
        ]
        if each.distance != ranks[1] - ranks[0]:
            yield f"the distance is {ranks[1] - ranks[0]}: {each}"
