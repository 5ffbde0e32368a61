"""The faults of `tests.kit.audit_faults`, and more of them: every class of design 3.8 and 4.6.

A `SearchCase` has in addition what the operator and the mirror know (accepted gaps, the gap ledger), partitions without
known log ends, and changes of the logs during the run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import ne
from typing import NamedTuple

from kclient.mirror_ledger import GapEntry
from kclient.types import TopicPartition
from spark_jobs.accounting import AcceptedGap
from spark_jobs.engine import FailureKind
from spark_jobs.verdict import ExitCode
from tests.kit.audit_faults import (
    END,
    INSIDE,
    START,
    STRETCH,
    TOPIC,
    WHOLE,
    Apply,
    Case,
    Expected,
    Spot,
    clean_case,
    unique,
)
from tests.kit.audit_logs import Fault, Log, Logs, Rec

LARGE = 1 << 20


class Change(NamedTuple):
    """Something that happens to a log during the run."""

    before_read: int
    kind: str
    at_source: bool
    tp: TopicPartition


@dataclass
class SearchCase(Case):
    """Two clusters' logs, and what the audit must report of them."""

    compacted_at: frozenset[str] = frozenset()
    """The clusters in which the topic is compacted: "source", "target"."""
    accepted: list[AcceptedGap] = field(default_factory=list)
    ledger: list[GapEntry] = field(default_factory=list)
    unknown: list[tuple[str, TopicPartition]] = field(default_factory=list)
    """Clusters and partitions without known log ends."""
    changes: list[Change] = field(default_factory=list)
    after: list[SearchCase] = field(default_factory=list)
    """The case as the changes leave it, once it was audited."""
    moved_end: bool = False
    """The target's records have other offsets at its end: lag is not the difference of the log ends."""


SearchApply = Callable[[SearchCase, Spot], None]
AtPartition = Callable[[SearchCase, TopicPartition], None]


def _registry(*functions: Callable[..., None]) -> dict[str, Callable[..., None]]:
    return {each.__name__: each for each in functions}


# Inside one stretch of offsets.


def lost_and_repeated(case: SearchCase, spot: Spot) -> None:
    """Put a copy of one record in the place of another: the counts of the window are right.

    They differ in more than one part. Of others the class depends on the windows (docs/design/audit.md).
    """
    log = case.target[spot.tp]
    lost, kept = next(
        (one, other)
        for one, other in iter(lambda: case.rng.sample(spot.offsets, 2), None)
        if sum(map(ne, log.records[one], log.records[other])) > 1
    )
    log.records[lost] = log.records[kept]
    case.expect(
        Expected("missing", spot.tp.partition, lost, None),
        Expected("duplicate", spot.tp.partition, None, lost),
    )


def repeated_twice(case: SearchCase, spot: Spot) -> None:
    """Add one record twice: an XOR of hashes would not change."""
    log = case.target[spot.tp]
    first, second = spot.offsets[1], spot.offsets[-2]
    for at in (first, second):
        del case.source[spot.tp].records[at]
        log.records[at] = case.source[spot.tp].records[spot.offsets[3]]
        case.expect(Expected("duplicate", spot.tp.partition, None, at))


def strangers_in_a_row(case: SearchCase, spot: Spot) -> None:
    """Add records of others where the source has none."""
    for at in spot.offsets[2:5]:
        del case.source[spot.tp].records[at]
        case.target[spot.tp].records[at] = unique(case, spot.tp)
        case.expect(Expected("extra", spot.tp.partition, None, at))


def lost_in_a_row(case: SearchCase, spot: Spot) -> None:
    """Lose neighbours."""
    for at in spot.offsets[1 : case.rng.randrange(3, 7)]:
        del case.target[spot.tp].records[at]
        case.expect(Expected("missing", spot.tp.partition, at, None))


def moved_far(case: SearchCase, spot: Spot) -> None:
    """Move a record over others to an empty offset: where windows are small, over windows without a difference."""
    first, last = spot.offsets[case.rng.randrange(4)], spot.offsets[-1]
    for logs in (case.source, case.target):
        del logs[spot.tp].records[last]
    log = case.target[spot.tp]
    log.records[last] = log.records.pop(first)
    case.expect(Expected("reordered", spot.tp.partition, first, last))


def exchanged(case: SearchCase, spot: Spot) -> None:
    """Let two records change places, with others in between."""
    first, last = spot.offsets[case.rng.randrange(4)], spot.offsets[-case.rng.randrange(1, 4)]
    log = case.target[spot.tp]
    log.records[first], log.records[last] = log.records[last], log.records[first]
    case.expect(
        Expected("reordered", spot.tp.partition, first, last),
        Expected("reordered", spot.tp.partition, last, first),
    )


def fields_swapped(case: SearchCase, spot: Spot) -> None:
    """Exchange key and value of a record, one of them null."""
    at = case.rng.choice(spot.offsets)
    record = case.source[spot.tp].records[at]._replace(key=None, value=b"only %d" % at)
    case.source[spot.tp].records[at] = record
    case.target[spot.tp].records[at] = record._replace(key=record.value, value=None)
    case.expect(Expected("corrupt", spot.tp.partition, at, at))


def marker_for_record(case: SearchCase, spot: Spot) -> None:
    """Make a transaction marker of a record, or the other way round."""
    at = case.rng.choice(spot.offsets)
    log = case.target[spot.tp]
    log.records[at] = log.records[at]._replace(control=not log.records[at].control)
    case.expect(Expected("corrupt", spot.tp.partition, at, at))


def undecodable_on_both(case: SearchCase, spot: Spot) -> None:
    """Break the same batch on both sides."""
    low, high = spot.offsets[2], spot.offsets[5]
    for log in (case.source[spot.tp], case.target[spot.tp]):
        log.faults.append(Fault(low, high, FailureKind.UNDECODABLE))
    partition = spot.tp.partition
    case.expect(
        Expected("undecodable", partition, low, None, high - low),
        Expected("undecodable", partition, None, low, high - low),
    )


def one_undecodable_record(case: SearchCase, spot: Spot) -> None:
    """Break a batch of one offset, and lose its neighbour."""
    at, neighbour = spot.offsets[3:5]
    case.target[spot.tp].faults.append(Fault(at, at + 1, FailureKind.UNDECODABLE))
    del case.target[spot.tp].records[neighbour]
    case.expect(
        Expected("undecodable", spot.tp.partition, None, at),
        Expected("missing", spot.tp.partition, neighbour, None),
    )


def accepted_loss(case: SearchCase, spot: Spot) -> None:
    """Lose a record in a gap that the operator accepted."""
    at = case.rng.choice(spot.offsets[1:-1])
    del case.target[spot.tp].records[at]
    case.accepted.append(AcceptedGap(*spot.tp, at - 1, at + 2, "ticket"))


def lost_tombstone(case: SearchCase, spot: Spot) -> None:
    """Lose a tombstone where the target's cleaner left the record that it deletes."""
    case.compacted_at |= {"target"}
    first, last = spot.offsets[1], spot.offsets[-2]
    key = b"deleted %d" % case.rng.getrandbits(40)
    for logs in (case.source, case.target):
        records = logs[spot.tp].records
        records[first] = records[first]._replace(key=key, value=b"still there")
        records[last] = records[last]._replace(key=key, value=None)
    del case.target[spot.tp].records[last]
    case.expect(Expected("missing", spot.tp.partition, last, None))


def large_value_corrupt(case: SearchCase, spot: Spot) -> None:
    """Change one byte of a value of 1 MB."""
    at = case.rng.choice(spot.offsets)
    value = case.rng.randbytes(1000) * (LARGE // 1000)
    place = case.rng.randrange(len(value))
    record = case.source[spot.tp].records[at]._replace(value=value)
    changed = value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
    case.source[spot.tp].records[at] = record
    case.target[spot.tp].records[at] = record._replace(value=changed)
    case.expect(Expected("corrupt", spot.tp.partition, at, at))


MORE_INSIDE: dict[str, SearchApply] = _registry(
    lost_and_repeated,
    repeated_twice,
    strangers_in_a_row,
    lost_in_a_row,
    moved_far,
    exchanged,
    fields_swapped,
    marker_for_record,
    undecodable_on_both,
    one_undecodable_record,
    accepted_loss,
    lost_tombstone,
    large_value_corrupt,
)


# At the start of a partition's log.


def first_lost(case: SearchCase, tp: TopicPartition) -> None:
    """Lose the first record; the target's log starts at its offset."""
    del case.target[tp].records[0]
    case.expect(Expected("missing", tp.partition, 0, None))


def first_corrupt(case: SearchCase, tp: TopicPartition) -> None:
    """Change the first record."""
    log = case.target[tp]
    log.records[0] = log.records[0]._replace(value=b"changed")
    case.expect(Expected("corrupt", tp.partition, 0, 0))


def aged_on_both(case: SearchCase, tp: TopicPartition) -> None:
    """Let retention delete more in one log than in the other."""
    lows = case.rng.sample(range(1, STRETCH), 2)
    case.source[tp].delete_below(lows[0])
    case.target[tp].delete_below(lows[1])
    case.exit_codes.add(ExitCode.AGED_OUT)


def gap_in_ledger(case: SearchCase, tp: TopicPartition) -> None:
    """Skip records that the source has deleted; the mirror's ledger has the gap."""
    low, high = 3, STRETCH // 2
    case.source[tp].delete_below(high)
    for offset in range(low, high):
        del case.target[tp].records[offset]
    case.ledger.append(GapEntry("source", *tp, low, high, "retention"))
    case.exit_codes.add(ExitCode.AGED_OUT)


def gap_accepted(case: SearchCase, tp: TopicPartition) -> None:
    """Skip records that the source has deleted; the operator accepted the gap."""
    gap_in_ledger(case, tp)
    case.ledger.pop()
    case.accepted.append(AcceptedGap(*tp, 3, STRETCH // 2, "ticket"))


def undecodable_where_aged(case: SearchCase, tp: TopicPartition) -> None:
    """Break a batch where only the target still has the log."""
    case.source[tp].delete_below(STRETCH // 2)
    case.target[tp].faults.append(Fault(2, 5, FailureKind.UNDECODABLE))
    case.expect(Expected("undecodable", tp.partition, None, 2, 3))
    case.exit_codes.add(ExitCode.AGED_OUT)


def compacted_source(case: SearchCase, tp: TopicPartition) -> None:
    """Let the source's log cleaner remove superseded records."""
    case.compacted_at |= {"source"}
    _clean(case, tp, case.source[tp])


def compacted_target(case: SearchCase, tp: TopicPartition) -> None:
    """Let the target's log cleaner remove superseded records."""
    case.compacted_at |= {"target"}
    _clean(case, tp, case.target[tp])


def _clean(case: Case, tp: TopicPartition, log: Log) -> None:
    for offset in _superseded(log, (case.source, case.target), tp, STRETCH):
        if case.rng.random() < 0.8:
            del log.records[offset]


def _superseded(log: Log, logs: tuple[Logs, Logs], tp: TopicPartition, below: int) -> list[int]:
    """Return what the cleaner of *log* may remove; a later record that one log does not return supersedes none."""
    faults = [fault for side in logs if tp in side for fault in side[tp].faults]
    readable = Log(
        {
            at: record
            for at, record in log.records.items()
            if not any(each.low <= at < each.high for each in faults)
        }
    )
    return readable.superseded(below)


MORE_START: dict[str, AtPartition] = _registry(
    first_lost,
    first_corrupt,
    aged_on_both,
    gap_in_ledger,
    gap_accepted,
    undecodable_where_aged,
    compacted_source,
    compacted_target,
)


# At the end of a partition's log.


def last_lost(case: SearchCase, tp: TopicPartition) -> None:
    """Lose the last record; the target's log ends behind its offset."""
    last = max(case.target[tp].records)
    del case.target[tp].records[last]
    case.expect(Expected("missing", tp.partition, last, None))


def last_corrupt(case: SearchCase, tp: TopicPartition) -> None:
    """Change the last record."""
    log = case.target[tp]
    last = max(log.records)
    log.records[last] = log.records[last]._replace(key=b"changed")
    case.expect(Expected("corrupt", tp.partition, last, last))


def last_record_not_received(case: SearchCase, tp: TopicPartition) -> None:
    """End the target's log before the source's last record, which is a tombstone of a compacted topic."""
    case.compacted_at |= {"target"}
    at = case.source[tp].append(Rec(b"key-1", None, 77))
    if case.complete:
        case.expect(Expected("truncated", tp.partition, at, None))
    else:
        case.exit_codes.add(ExitCode.NO_VERDICT_YET)


def closed_up(case: SearchCase, tp: TopicPartition) -> None:
    """Lose a record; the later ones close up, because the target assigned the offsets."""
    log = case.target[tp]
    lost = case.rng.choice([at for at in sorted(log.records) if at >= 5 * STRETCH][:3])
    del log.records[lost]
    log.records = {at - (at > lost): record for at, record in log.records.items()}
    log.end -= 1
    case.moved_end = True
    case.expect(Expected("missing", tp.partition, lost, None))


def pushed_back(case: SearchCase, tp: TopicPartition) -> None:
    """Insert a foreign record; the later records follow it."""
    log = case.target[tp]
    place = case.rng.choice([at for at in sorted(log.records) if at >= 5 * STRETCH][:3])
    log.records = {at + (at >= place): record for at, record in log.records.items()}
    log.records[place] = unique(case, tp)
    log.end += 1
    case.moved_end = True
    case.expect(Expected("extra", tp.partition, None, place))


MORE_END: dict[str, AtPartition] = _registry(
    last_lost, last_corrupt, last_record_not_received, closed_up, pushed_back
)


# In whole partitions and topics.


def extra_topic(case: SearchCase) -> None:
    """Give the target a topic that the source lacks."""
    tp = TopicPartition("u", 40)
    case.target[tp] = Log()
    case.target[tp].append(unique(case, tp))
    case.expect(Expected("extra", 40, None, 0))


def missing_topic(case: SearchCase) -> None:
    """Give the source a topic of one record that the target lacks."""
    log = Log()
    log.append(unique(case, TopicPartition("v", 7)))
    case.source[TopicPartition("v", 7)] = log
    if case.complete:
        case.expect(Expected("truncated", 7, 0, None))
    else:
        case.exit_codes.add(ExitCode.NO_VERDICT_YET)


def empty_partitions(case: SearchCase) -> None:
    """Give both clusters partitions without records: no finding."""
    case.target[TopicPartition(TOPIC, 20)] = Log()
    case.source[TopicPartition(TOPIC, 21)] = Log()
    for logs in (case.source, case.target):
        logs[TopicPartition(TOPIC, 22)] = Log()
        logs[TopicPartition(TOPIC, 23)] = Log(start=5, end=5)


def single_record_corrupt(case: SearchCase) -> None:
    """Change the only record of a partition."""
    tp = TopicPartition(TOPIC, 10)
    record = unique(case, tp)
    for logs, value in ((case.source, record.value), (case.target, None)):
        logs[tp] = Log()
        logs[tp].append(record._replace(value=value))
    case.expect(Expected("corrupt", 10, 0, 0))


def deleted_before_copied(case: SearchCase) -> None:
    """Let the source delete records before the mirror copies them: its log starts behind the target's end."""
    tp = TopicPartition(TOPIC, 11)
    log = Log()
    for _ in range(12):
        log.append(unique(case, tp))
    case.target[tp] = log.copy()
    case.target[tp].records = {at: log.records[at] for at in range(4)}
    case.target[tp].end = 4
    log.delete_below(9)
    case.source[tp] = log
    case.expect(Expected("gap", 11, 4, None, 5))
    case.exit_codes.add(ExitCode.AGED_OUT)
    if case.complete:
        case.expect(Expected("truncated", 11, 9, None, 3))
    else:
        case.exit_codes.add(ExitCode.NO_VERDICT_YET)


def emptied_source(case: SearchCase) -> None:
    """Let retention delete all of the source's log."""
    tp = TopicPartition(TOPIC, 12)
    log = Log()
    for _ in range(5):
        log.append(unique(case, tp))
    case.target[tp] = log.copy()
    log.delete_below(5)
    case.source[tp] = log
    case.exit_codes.add(ExitCode.AGED_OUT)


def unknown_log_ends(case: SearchCase) -> None:
    """Let a cluster return an error for the log ends of a partition."""
    tp = TopicPartition(TOPIC, 13)
    for logs in (case.source, case.target):
        logs[tp] = Log()
        logs[tp].append(Rec(b"k", b"v", 5))
    case.unknown.append((case.rng.choice(["source", "target"]), tp))
    case.exit_codes.add(ExitCode.UNREADABLE)


MORE_WHOLE: dict[str, Callable[[SearchCase], None]] = _registry(
    extra_topic,
    missing_topic,
    empty_partitions,
    single_record_corrupt,
    deleted_before_copied,
    emptied_source,
    unknown_log_ends,
)

MEANWHILE = ("growth", "retention", "compaction", "deletion", "creation", "no_answer")
"""Changes during the run: what is found depends on the moment."""

_READS = 6
"""Most changes happen before one of the first reads. Later ones look up where keys and contents are."""

ALL_INSIDE: dict[str, Apply | SearchApply] = {**INSIDE, **MORE_INSIDE}
ALL_START = {**START, **MORE_START}
ALL_END = {**END, **MORE_END}
ALL_WHOLE = {**WHOLE, **MORE_WHOLE}
KINDS = [*ALL_INSIDE, *ALL_START, *ALL_END, *ALL_WHOLE, *MEANWHILE]

_ONE_END_ONLY = (set(ALL_START), set(ALL_END))


def may_meet(*kinds: str) -> bool:
    """Return whether *kinds* are faults of their own beside each other: not at the same end of a log."""
    return len(set(kinds)) == len(kinds) and not any(
        len(end & set(kinds)) > 1 for end in _ONE_END_ONLY
    )


def drawn(seed: int, *kinds: str) -> SearchCase:
    """Return the case of *seed* with a fault of each of *kinds*, apart from each other."""
    rng = random.Random(f"{seed} {kinds}")
    case = SearchCase(**vars(clean_case(rng)))
    _add_rare_records(case)
    partitions = list(case.source)
    free = [1, 2, 3, 4]
    rng.shuffle(free)
    tp = rng.choice(partitions)
    # Partitions are added when no other fault needs one. A cleaner comes last: what it removes is superseded in its
    # own log.
    late = [ALL_WHOLE, ("compacted_source", "compacted_target")]
    for kind in sorted(kinds, key=lambda kind: [kind in each for each in reversed(late)]):
        if kind in ALL_INSIDE:
            tp = rng.choice(partitions)
            low = free.pop() * STRETCH
            held = case.source[tp].records
            for at in range(low + 5, low + 12):
                case.target[tp].records[at] = held.setdefault(at, unique(case, tp))
            offsets = [at for at in range(low + 2, low + STRETCH - 2) if at in held]
            ALL_INSIDE[kind](case, Spot(tp, offsets))
        elif kind in ALL_START:
            if not kind.startswith("compacted"):
                # In a log that was never compacted a hole is a gap: without holes there is only the fault.
                for offset in range(STRETCH):
                    record = case.source[tp].records.setdefault(offset, unique(case, tp))
                    case.target[tp].records[offset] = record
            ALL_START[kind](case, tp)
        elif kind in ALL_END:
            ALL_END[kind](case, tp)
        elif kind in ALL_WHOLE:
            ALL_WHOLE[kind](case)
        else:
            if kind == "compaction":
                case.compacted_at |= {"source", "target"}
            at = rng.randrange(_READS * 2 if kind == "no_answer" else _READS)
            one = Change(at, kind, rng.random() < 0.5, tp)
            case.changes.append(one)
            if kind == "no_answer" and rng.random() < 0.5:
                case.changes.append(one._replace(before_read=at + 1, kind="answer"))
    _move(case, rng.choice([0, 0, 0, 5, (1 << 31) - 60, (1 << 62) - 200]))
    return case


def _add_rare_records(case: SearchCase) -> None:
    """Add what is rare and legal: extreme timestamps, nulls, empty fields, headers with one key twice, 1 MB."""
    rng = case.rng
    for tp, log in case.source.items():
        for _ in range(6):
            at = rng.choice(list(log.records))
            mark = b"rare %d" % rng.getrandbits(40)
            record = rng.choice(
                [
                    Rec(None, mark, -1),
                    Rec(mark, None, (1 << 63) - 1),
                    Rec(mark, b"", 0, (("h", None), ("h", b""), ("h", None))),
                    Rec(None, None, rng.getrandbits(50)),
                    Rec(b"", mark, rng.getrandbits(50), tuple(("n", b"%d" % n) for n in range(70))),
                    Rec(mark, mark, 12, (("", b""),), 1),
                ]
            )
            if rng.random() < 0.005:
                record = record._replace(value=rng.randbytes(500) * (LARGE // 500))
            log.records[at] = case.target[tp].records[at] = record


def _move(case: SearchCase, by: int) -> None:
    """Let all logs begin *by* offsets later."""
    if not by:
        return
    for logs in (case.source, case.target):
        for tp in logs:
            logs[tp] = _moved(logs[tp], by)
    case.findings = [
        each._replace(
            source_offset=None if each.source_offset is None else each.source_offset + by,
            target_offset=None if each.target_offset is None else each.target_offset + by,
        )
        for each in case.findings
    ]
    case.accepted = [g._replace(low=g.low + by, high=g.high + by) for g in case.accepted]
    case.ledger = [replace(g, first=g.first + by, until=g.until + by) for g in case.ledger]


def _moved(log: Log, by: int) -> Log:
    if not log.end:  # It was never written.
        return log
    return Log(
        {at + by: record for at, record in log.records.items()},
        log.start + by,
        log.end + by,
        [fault._replace(low=fault.low + by, high=fault.high + by) for fault in log.faults],
    )


_NO_ANSWER = "no answer"
"""The cause of what is unreadable by a change."""


def change(case: SearchCase, logs: tuple[Logs, Logs], each: Change) -> None:
    """Do to *logs*, source and target, what happens during the run."""
    side = logs[not each.at_source]
    log = side.get(each.tp)
    if log is None:
        return
    if each.kind == "growth":
        for _ in range(5):
            log.append(unique(case, each.tp))
    elif each.kind == "retention":
        low = min(log.end, log.start + case.rng.randrange(1, 4 * STRETCH))
        log.faults = [f._replace(low=max(low, f.low)) for f in log.faults if f.high > low]
        log.delete_below(low)
    elif each.kind == "compaction":
        for offset in _superseded(log, logs, each.tp, log.end - STRETCH):
            del log.records[offset]
    elif each.kind == "deletion":
        del side[each.tp]
    elif each.kind == "no_answer":
        low = case.rng.choice([log.start, case.rng.randrange(log.start, log.end + 1)])
        log.faults = [*log.faults, Fault(low, log.end, FailureKind.UNREADABLE, _NO_ANSWER)]
    elif each.kind == "answer":
        log.faults = [fault for fault in log.faults if fault.cause != _NO_ANSWER]
    elif each.kind == "creation":
        side[TopicPartition(TOPIC, 30)] = log.copy()
