"""Faults of `kinds` in other places: at the first and the last record, at the source, and with values of 1 MB.

What a place makes no sense for, and why:

- A tombstone that is the first record deletes nothing. Its loss is explained, so the record that it deletes is first.
- Truncation and lag are at the end, retention and gaps at the start.
- An accepted gap explains what the target lacks, never what the source lost.
- What a broker does not return is the same fault on either side: the kinds draw the side themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kclient.types import TopicPartition
from tests.audit_search.kinds import (
    LARGE,
    MORE_END,
    MORE_INSIDE,
    MORE_WHOLE,
    AtPartition,
    SearchApply,
    SearchCase,
)
from tests.kit.audit_faults import END, INSIDE, STRETCH, TOPIC, Apply, Expected, Spot, unique
from tests.kit.audit_logs import Rec

_Fault = Apply | SearchApply
_Inside: dict[str, _Fault] = {**INSIDE, **MORE_INSIDE}

# At the source: the two logs change places while the fault arises.

_SEEN_AS = {"missing": "extra", "extra": "missing", "duplicate": "missing"}
"""The class of a finding if the same happens to the source; others have the same class."""

_OTHER = {"source": "target", "target": "source"}


def at_source(fault: Callable[..., None]) -> Callable[..., None]:
    """Return *fault* of the target as a fault of the source."""

    def apply(case: SearchCase, *place: object) -> None:
        known, compacted = len(case.findings), case.compacted_at
        case.source, case.target, case.compacted_at = case.target, case.source, frozenset()
        fault(case, *place)
        case.source, case.target = case.target, case.source
        case.compacted_at = compacted | {_OTHER[each] for each in case.compacted_at}
        of_fault = case.findings[known:]
        if {each.finding_class for each in of_fault} == {"missing", "duplicate"}:
            of_fault = _copy_for_another(of_fault)
        else:
            of_fault = [_of_source(case, each) for each in of_fault]
        case.findings[known:] = of_fault

    return apply


def _of_source(case: SearchCase, found: Expected) -> Expected:
    partition = found.partition
    if found.finding_class == "misrouted":
        partition = (partition + 1) % sum(tp.partition < 8 for tp in case.source)
    return Expected(
        _SEEN_AS.get(found.finding_class, found.finding_class),
        partition,
        found.target_offset,
        found.source_offset,
        found.records,
    )


def _copy_for_another(findings: Sequence[Expected]) -> list[Expected]:
    """Return what a copy in the place of another record is: nothing of the target is in the source, so it is damage."""
    return [
        Expected("corrupt", each.partition, each.target_offset, each.target_offset)
        for each in findings
        if each.finding_class == "duplicate"
    ]


_ONE_SIDE = ("undecodable", "unreadable", "undecodable_on_both", "accepted_loss")

AT_SOURCE_INSIDE: dict[str, _Fault] = {
    f"{name}_at_source": at_source(fault)
    for name, fault in _Inside.items()
    if name not in _ONE_SIDE
}


def _moved_end(case: SearchCase, tp: TopicPartition) -> None:
    """Move the end of the log: the other one ends at lower offsets, with the same records."""
    END["shifted"](case, tp)
    case.moved_end = True


AT_SOURCE_END: dict[str, AtPartition] = {
    "shifted_at_source": at_source(_moved_end),
    "closed_up_at_source": at_source(MORE_END["closed_up"]),
    "pushed_back_at_source": at_source(MORE_END["pushed_back"]),
}
AT_SOURCE_WHOLE: dict[str, Callable[[SearchCase], None]] = {
    f"{name}_at_source": at_source(MORE_WHOLE[name])
    for name in ("single_record_corrupt", "single_record_lost")
}

# At the first and the last record. The offsets are ordered from there, *near* is the beginning.

_NEAR = 10
"""Offsets from the first or the last one that have a record in both logs."""


def _misrouted(case: SearchCase, spot: Spot) -> None:
    """Move the first or last record of a log to the first or last place of another one."""
    other = TopicPartition(TOPIC, (spot.tp.partition + 1) % len(case.source))
    at = spot.offsets[0]
    beyond = range(at + 1) if at < STRETCH else range(at, case.source[other].end)
    for logs in (case.source, case.target):
        for offset in beyond:
            logs[other].records.pop(offset, None)
    case.target[other].records[at] = case.target[spot.tp].records.pop(at)
    case.expect(Expected("misrouted", spot.tp.partition, at, at))


def _extra(case: SearchCase, spot: Spot) -> None:
    _hole_at_source(case, spot, unique(case, spot.tp))
    case.expect(Expected("extra", spot.tp.partition, None, spot.offsets[0]))


def _duplicate(case: SearchCase, spot: Spot) -> None:
    copied = case.rng.choice(spot.offsets[1:_NEAR])
    _hole_at_source(case, spot, case.source[spot.tp].records[copied])
    case.expect(Expected("duplicate", spot.tp.partition, None, spot.offsets[0]))


def _hole_at_source(case: SearchCase, spot: Spot, record: Rec) -> None:
    """Put *record* where the source has an empty offset."""
    at = spot.offsets[0]
    del case.source[spot.tp].records[at]
    case.target[spot.tp].records[at] = record


def _visibility(case: SearchCase, spot: Spot) -> None:
    """Let one broker call the first or last records aborted that the other returns."""
    records = case.target[spot.tp].records
    aborted = records[spot.offsets[0]].aborted
    run = []
    for at in spot.offsets[: case.rng.randrange(1, 6)]:
        if records[at].control or records[at].aborted != aborted:
            break
        run.append(at)
        records[at] = records[at]._replace(aborted=not aborted)
    low = min(run)
    case.expect(Expected("visibility", spot.tp.partition, low, low, len(run)))


_Near = Sequence[int]
_Arranged = Callable[[random.Random, _Near], list[int]]


def _one(_: random.Random, near: _Near) -> list[int]:
    return [near[0]]


def _bounds(_: random.Random, near: _Near) -> list[int]:
    """Return offsets of which those at 2 and 5 bound a broken batch: it ends behind the last offset."""
    low, high = sorted((near[0], near[3]))
    last = near[0] > near[3]
    return [low, low, low + last, low, low, high + last]


def _far(rng: random.Random, near: _Near) -> list[int]:
    """Return offsets of which the record at 0 to 3 moves to the last, in one of both directions."""
    first, last = rng.sample([near[0], near[8]], 2)
    return [first] * 4 + [last]


_ARRANGED: dict[str, tuple[_Fault, _Arranged]] = {
    **{
        name: (_Inside[name], _one)
        for name in (
            "missing",
            "corrupt",
            "fields_swapped",
            "marker_for_record",
            "large_value_corrupt",
        )
    },
    **{
        name: (_Inside[name], _bounds)
        for name in ("undecodable", "unreadable", "undecodable_on_both")
    },
    "extra": (_extra, lambda _, near: [*near]),
    "duplicate": (_duplicate, lambda _, near: [*near]),
    "misrouted": (_misrouted, _one),
    "visibility": (_visibility, lambda _, near: [*near]),
    "reordered": (INSIDE["reordered"], lambda _, near: sorted(near[:4])),
    "lost_and_repeated": (_Inside["lost_and_repeated"], lambda _, near: [*near[:2]]),
    "repeated_twice": (
        _Inside["repeated_twice"],
        lambda _, near: [near[1], near[0], near[2], near[3], near[4], near[5]],
    ),
    "strangers_in_a_row": (
        _Inside["strangers_in_a_row"],
        lambda _, near: [near[4], near[4], *near[:3]],
    ),
    "lost_in_a_row": (_Inside["lost_in_a_row"], lambda _, near: [near[7], *near[:6]]),
    "moved_far": (_Inside["moved_far"], _far),
    "exchanged": (_Inside["exchanged"], lambda _, near: [near[0]] * 4 + [near[6]] * 3),
    "one_undecodable_record": (
        _Inside["one_undecodable_record"],
        lambda _, near: [near[2]] * 3 + [near[0], near[1]],
    ),
    "accepted_loss": (_Inside["accepted_loss"], lambda _, near: [near[1], near[0], near[1]]),
    "lost_tombstone": (
        _Inside["lost_tombstone"],
        lambda _, near: [near[9], *sorted((near[0], near[8])), near[9]],
    ),
}


def _at_edge(name: str, *, last: bool) -> AtPartition:
    """Return the fault *name* of the first or last record of a log, which arises at either side."""
    fault, arranged = _ARRANGED[name]

    def apply(case: SearchCase, tp: TopicPartition) -> None:
        both = case.source[tp].records, case.target[tp].records
        near = range(STRETCH)
        if last:
            # The log may end with offsets that are empty in both logs.
            top = case.source[tp].end - case.rng.choice([0, 0, 3])
            near = range(top - 1, top - STRETCH, -1)
            for records in both:
                for at in range(top, case.source[tp].end):
                    records.pop(at, None)
        for at in near[:_NEAR]:
            record = both[0].get(at)
            fresh = at in near[:2] and (name == "lost_and_repeated" or case.rng.random() < 0.5)
            if record is None or record.control or fresh:
                both[0][at] = both[1][at] = unique(case, tp)
        sides = name not in _ONE_SIDE and case.rng.random() < 0.5
        (at_source(fault) if sides else fault)(case, Spot(tp, arranged(case.rng, near[:_NEAR])))

    return apply


FIRST: dict[str, AtPartition] = {f"first_{name}": _at_edge(name, last=False) for name in _ARRANGED}
LAST: dict[str, AtPartition] = {f"last_{name}": _at_edge(name, last=True) for name in _ARRANGED}

# With values of 1 MB.


def _large(fault: _Fault) -> SearchApply:
    """Return *fault* of a record with a value of 1 MB."""

    def apply(case: SearchCase, spot: Spot) -> None:
        known = len(case.findings)
        fault(case, spot)
        for each in case.findings[known:]:
            _enlarge(case, each)

    return apply


def _enlarge(case: SearchCase, found: Expected) -> None:
    """Give the first record of *found* a value of 1 MB wherever it is."""
    first = found.target_offset if found.source_offset is None else found.source_offset
    spans = range(first or 0, (first or 0) + found.records)
    held = [
        log.records[at]
        for log in (
            (case.target if found.source_offset is None else case.source)[
                TopicPartition(TOPIC, found.partition)
            ],
            case.target[TopicPartition(TOPIC, found.partition)],
        )
        for at in spans
        if at in log.records
    ]
    if not held:
        return
    content = held[0]._replace(aborted=False)
    value = large_value(case)
    for logs in (case.source, case.target):
        for log in logs.values():
            for at, record in log.records.items():
                if record._replace(aborted=False) == content:
                    log.records[at] = record._replace(value=value)


def large_value(case: SearchCase) -> bytes:
    """Return 1 MB that every codec makes smaller, so that a search does not take its time with it."""
    return case.rng.randbytes(1 << 10) * (LARGE >> 10)


def _large_end_not_received(case: SearchCase, tp: TopicPartition) -> None:
    """Cut the target's end, of which the last record has a value of 1 MB."""
    last = max(case.source[tp].records)
    record = case.source[tp].records[last]._replace(value=large_value(case), control=False)
    case.source[tp].records[last] = case.target[tp].records[last] = record
    END["behind"](case, tp)


LARGE_INSIDE: dict[str, _Fault] = {
    f"large_{name}": _large(_Inside[name])
    for name in (
        "missing",
        "extra",
        "duplicate",
        "reordered",
        "misrouted",
        "visibility",
        "undecodable",
    )
}
LARGE_END: dict[str, AtPartition] = {"large_behind": _large_end_not_received}
