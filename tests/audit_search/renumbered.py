"""Faults of a target that assigns its own offsets (`--renumbered`), and what an audit must report of them.

The target has the records that consumers with isolation.level=read_committed get from the source, in their order, at
offsets of its own. Between them, and behind the last one, are markers, and records that a killed mirror left.

A case has the copies of each partition in a list, so that a fault need not know its offsets. They are assigned at the
end, and the findings with them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kclient.types import TopicPartition
from spark_jobs.engine import FailureKind
from tests.audit_search.kinds import SearchCase, registry
from tests.kit.audit_faults import STRETCH, Expected, clean_case, unique
from tests.kit.audit_logs import Fault, Log, Rec


@dataclass(eq=False)
class Copy:
    """One record of the target."""

    record: Rec
    at_source: int | None
    """Its offset at the source; None: it has none there."""
    offset: int = -1


class _Seeded(NamedTuple):
    finding_class: str
    at_source: int | None
    copy: Copy | None
    records: int = 1


@dataclass
class _Partition:
    tp: TopicPartition
    source: Log
    copies: list[Copy]
    seeded: list[_Seeded] = field(default_factory=list)
    deleted: int = 0
    """How many of the first copies retention deletes."""
    broken: tuple[Copy, Copy, FailureKind] | None = None
    """The first copy that the target does not return, and the next one that it does."""


@dataclass
class _Draft:
    case: SearchCase
    partitions: list[_Partition]
    moves_starts: bool = True
    """Whether the logs may start behind 0: then nothing shows that a first record was lost."""


_APART = 52
"""The number of a copy that no other fault is near."""

_Fault = Callable[[_Draft, _Partition, int], None]
"""(draft, partition, the number of a copy)."""


def equal(draft: _Draft, partition: _Partition, at: int) -> None:
    """Change nothing."""


def missing(draft: _Draft, partition: _Partition, at: int) -> None:
    """Lose a record: the later ones close up."""
    lost = partition.copies.pop(at)
    partition.seeded.append(_Seeded("missing", lost.at_source, None))


def extra(draft: _Draft, partition: _Partition, at: int) -> None:
    """Insert a foreign record."""
    stranger = Copy(unique(draft.case, partition.tp), None)
    partition.copies.insert(at, stranger)
    partition.seeded.append(_Seeded("extra", None, stranger))


def corrupt(draft: _Draft, partition: _Partition, at: int) -> None:
    """Change one part of a record."""
    copy = partition.copies[at]
    part = draft.case.rng.choice(["key", "value"])
    copy.record = copy.record._replace(**{part: b"changed"})  # type: ignore[arg-type]
    partition.seeded.append(_Seeded("corrupt", copy.at_source, copy))


def duplicate(draft: _Draft, partition: _Partition, at: int) -> None:
    """Repeat a record some places later."""
    again = Copy(partition.copies[at].record, None)
    partition.copies.insert(at + draft.case.rng.randrange(1, 6), again)
    partition.seeded.append(_Seeded("duplicate", None, again))


def reordered(draft: _Draft, partition: _Partition, at: int) -> None:
    """Move a record over some others."""
    by = draft.case.rng.choice([-5, -3, 3, 4])
    moved = partition.copies.pop(at)
    partition.copies.insert(max(0, at + by), moved)
    partition.seeded.append(_Seeded("reordered", moved.at_source, moved))


def misrouted(draft: _Draft, partition: _Partition, at: int) -> None:
    """Move a record to another partition."""
    moved = partition.copies.pop(at)
    other = next(each for each in draft.partitions if each is not partition)
    other.copies.insert(_APART, moved)
    partition.seeded.append(_Seeded("misrouted", moved.at_source, moved))


def lost_at_source(draft: _Draft, partition: _Partition, at: int) -> None:
    """Lose a record at the source that the mirror has copied."""
    copy = partition.copies[at]
    del partition.source.records[copy.at_source or 0]
    copy.at_source = None
    partition.seeded.append(_Seeded("extra", None, copy))


def undecodable(draft: _Draft, partition: _Partition, at: int) -> None:
    """Break a batch on either side; what is opposite is no finding."""
    _break(draft, partition, at, FailureKind.UNDECODABLE)


def unreadable(draft: _Draft, partition: _Partition, at: int) -> None:
    """Let a broker return an error for some offsets."""
    _break(draft, partition, at, FailureKind.UNREADABLE)


def _break(
    draft: _Draft, partition: _Partition, at: int, kind: FailureKind, count: int = 3
) -> None:
    """Let a log not return the records of *count* copies."""
    if draft.case.rng.random() < 0.5:
        partition.broken = partition.copies[at], partition.copies[at + count], kind
        return
    low, high = (partition.copies[n].at_source or 0 for n in (at, at + count))
    if kind is FailureKind.DELETED:
        low = partition.source.start
    partition.source.faults.append(Fault(low, high, kind))
    if kind is FailureKind.UNDECODABLE:
        partition.seeded.append(_Seeded("undecodable", low, None, high - low))


def lost_first(draft: _Draft, partition: _Partition, at: int) -> None:
    """Lose the first record; both logs begin at 0."""
    draft.moves_starts = False
    missing(draft, partition, 0)


def extra_first(draft: _Draft, partition: _Partition, at: int) -> None:
    """Insert a foreign record before the first one; both logs begin at 0."""
    draft.moves_starts = False
    extra(draft, partition, 0)


def corrupt_first(draft: _Draft, partition: _Partition, at: int) -> None:
    """Change the first record; both logs begin at 0."""
    draft.moves_starts = False
    corrupt(draft, partition, 0)


def aged_at_source(draft: _Draft, partition: _Partition, at: int) -> None:
    """Let retention delete the start of the source's log."""
    partition.source.delete_below(draft.case.rng.randrange(1, STRETCH))


def aged_at_target(draft: _Draft, partition: _Partition, at: int) -> None:
    """Let retention delete the start of the target's log."""
    partition.deleted = draft.case.rng.randrange(1, STRETCH)


def deleted_meanwhile(draft: _Draft, partition: _Partition, at: int) -> None:
    """Let retention delete the start of either log while the audit reads it."""
    _break(draft, partition, 0, FailureKind.DELETED, draft.case.rng.randrange(1, STRETCH))


def behind(draft: _Draft, partition: _Partition, at: int) -> None:
    """Cut the target's end: lag, or loss if the mirror is complete."""
    count = draft.case.rng.randrange(1, STRETCH // 2)
    lost = [each.at_source for each in partition.copies[-count:]]
    del partition.copies[-count:]
    if draft.case.complete:
        partition.seeded.append(_Seeded("truncated", lost[0], None, count))


def extra_last(draft: _Draft, partition: _Partition, at: int) -> None:
    """Append a foreign record."""
    extra(draft, partition, len(partition.copies))


def repeated_last(draft: _Draft, partition: _Partition, at: int) -> None:
    """Append a copy of an earlier record, as a retry would."""
    again = Copy(partition.copies[-draft.case.rng.randrange(1, 6)].record, None)
    partition.copies.append(again)
    partition.seeded.append(_Seeded("duplicate", None, again))


def corrupt_last(draft: _Draft, partition: _Partition, at: int) -> None:
    """Change the last record."""
    corrupt(draft, partition, len(partition.copies) - 1)


def open_at_source(draft: _Draft, partition: _Partition, at: int) -> None:
    """Leave a transaction open at the source: the log ends at the last stable offset."""
    log = partition.source
    log.stable = log.end - draft.case.rng.randrange(1, STRETCH // 2)
    partition.copies = [each for each in partition.copies if (each.at_source or 0) < log.stable]


_INSIDE: dict[str, _Fault] = registry(
    equal,
    missing,
    extra,
    corrupt,
    duplicate,
    reordered,
    misrouted,
    lost_at_source,
    undecodable,
    unreadable,
)
_START: dict[str, _Fault] = registry(
    lost_first, extra_first, corrupt_first, aged_at_source, aged_at_target, deleted_meanwhile
)
_END: dict[str, _Fault] = registry(behind, extra_last, repeated_last, corrupt_last, open_at_source)

PREFIX = "renumbered_"
RENUMBERED = {f"{PREFIX}{name}": fault for name, fault in {**_INSIDE, **_START, **_END}.items()}
AT_START, AT_END = ({f"{PREFIX}{name}" for name in each} for each in (_START, _END))


def drawn_renumbered(rng: random.Random, kinds: tuple[str, ...]) -> SearchCase:
    """Return a case with a fault of each of *kinds*, apart from each other."""
    case = SearchCase(**vars(clean_case(rng)))
    case.renumbered = True
    draft = _Draft(case, [_copied(tp, log) for tp, log in case.source.items()])
    free = [1, 2, 3]
    rng.shuffle(free)
    # From the end to the start: the numbers of the copies before a fault stay.
    places = sorted((free.pop() * STRETCH + rng.randrange(5) for _ in kinds), reverse=True)
    for kind, place in zip(sorted(kinds, key=AT_START.__contains__), places, strict=True):
        RENUMBERED[kind](draft, rng.choice(draft.partitions), place)
    by = rng.choice([0, 0, 5, 1 << 61]) if draft.moves_starts else 0
    for each in draft.partitions:
        _assign(draft, each, by)
    for each in draft.partitions:
        case.findings += [_expected(each, seeded, by) for seeded in each.seeded]
    return case


def _copied(tp: TopicPartition, log: Log) -> _Partition:
    for at in range(log.end):
        # Contents are never equal: which of two equal records moved is not decided here.
        if at in log.records:
            log.records[at] = log.records[at]._replace(timestamp=tp.partition * 100_000 + at)
    copies = [
        Copy(record, at)
        for at, record in sorted(log.records.items())
        if not record.control and not record.aborted
    ]
    return _Partition(tp, log, copies)


_MARKER = Rec(b"", b"", 1, control=True)


def _leave_remains(draft: _Draft, partition: _Partition, log: Log, count: int) -> None:
    """Append what a killed mirror left: records of aborted transactions, and markers of some."""
    for _ in range(count):
        log.append(unique(draft.case, partition.tp)._replace(aborted=True))
        if draft.case.rng.random() < 0.5:
            log.append(_MARKER)


def _assign(draft: _Draft, partition: _Partition, by: int) -> None:
    """Give the copies offsets; the source's are higher by *by*."""
    rng = draft.case.rng
    start = rng.choice([0, 0, 7, 2000]) if draft.moves_starts else 0
    log = Log(start=start, end=start)
    for copy in partition.copies:
        _leave_remains(draft, partition, log, rng.choice([0] * 12 + [1, 3]))
        copy.offset = log.append(copy.record)
    if rng.random() < 0.5:
        log.append(_MARKER)
    _leave_remains(draft, partition, log, rng.choice([0, 0, 1, 3]))
    if partition.deleted:
        log.delete_below(partition.copies[partition.deleted].offset)
    if partition.broken is not None:
        first, last, kind = partition.broken
        low, high = start if kind is FailureKind.DELETED else first.offset, last.offset
        log.faults.append(Fault(low, high, kind))
        if kind is FailureKind.UNDECODABLE:
            draft.case.expect(
                Expected("undecodable", partition.tp.partition, None, low, high - low)
            )
    case = draft.case
    case.target[partition.tp] = log
    source = partition.source
    case.source[partition.tp] = Log(
        {at + by: record for at, record in source.records.items()},
        source.start + by,
        source.end + by,
        [fault._replace(low=fault.low + by, high=fault.high + by) for fault in source.faults],
        None if source.stable is None else source.stable + by,
    )


def _expected(partition: _Partition, seeded: _Seeded, by: int) -> Expected:
    return Expected(
        seeded.finding_class,
        partition.tp.partition,
        None if seeded.at_source is None else seeded.at_source + by,
        None if seeded.copy is None else seeded.copy.offset,
        seeded.records,
    )
