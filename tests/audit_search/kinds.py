"""The faults of `tests.kit.audit_faults`, and more of them: every class of design 3.8 and 4.6.

A `SearchCase` has in addition what the operator and the mirror know (accepted gaps, the gap ledger), partitions without
known log ends, and changes of the logs during the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import ne
from typing import NamedTuple

from kclient.mirror_ledger import GapEntry
from kclient.types import TopicPartition
from spark_jobs.accounting import AcceptedGap
from spark_jobs.engine import FailureKind
from spark_jobs.verdict import ExitCode
from tests.kit.audit_faults import (
    STRETCH,
    TOPIC,
    Case,
    Expected,
    Spot,
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
    renumbered: bool = False
    """The target has offsets of its own, and the operator audits it with `--renumbered`."""
    moved_end: bool = False
    """The records of one log have other offsets at its end: lag is not the difference of the log ends."""


SearchApply = Callable[[SearchCase, Spot], None]
AtPartition = Callable[[SearchCase, TopicPartition], None]


def registry(*functions: Callable[..., None]) -> dict[str, Callable[..., None]]:
    """Return *functions* by name."""
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
    case.accepted.append(AcceptedGap(*spot.tp, max(at - 1, 0), at + 2, "ticket"))


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


MORE_INSIDE: dict[str, SearchApply] = registry(
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


def aged_on_both(case: SearchCase, tp: TopicPartition) -> None:
    """Let retention delete more in one log than in the other."""
    lows = case.rng.sample(range(1, STRETCH), 2)
    case.source[tp].delete_below(lows[0])
    case.target[tp].delete_below(lows[1])
    case.exit_codes.add(ExitCode.AGED_OUT)


def gap_from_the_first(case: SearchCase, tp: TopicPartition) -> None:
    """Skip all that the source has deleted: the target lacks the first record that the partition had."""
    high = STRETCH // 2
    case.source[tp].delete_below(high)
    for offset in range(high):
        del case.target[tp].records[offset]
    case.expect(Expected("gap", tp.partition, 0, None, high))
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
    for offset in superseded(log, (case.source, case.target), tp, STRETCH):
        if case.rng.random() < 0.8:
            del log.records[offset]


def superseded(log: Log, logs: tuple[Logs, Logs], tp: TopicPartition, below: int) -> list[int]:
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


MORE_START: dict[str, AtPartition] = registry(
    aged_on_both,
    gap_from_the_first,
    gap_in_ledger,
    gap_accepted,
    undecodable_where_aged,
    compacted_source,
    compacted_target,
)


# At the end of a partition's log.


def expect_end_lacking(case: SearchCase, tp: TopicPartition, at: int) -> None:
    """Expect what the target lacks of the end, from *at* on: truncated, or lag where the mirror is not complete."""
    if case.complete:
        case.expect(Expected("truncated", tp.partition, at, None))
    else:
        case.exit_codes.add(ExitCode.NO_VERDICT_YET)


def last_record_not_received(case: SearchCase, tp: TopicPartition) -> None:
    """End the target's log before the source's last record, which is a tombstone of a compacted topic."""
    case.compacted_at |= {"target"}
    at = case.source[tp].append(Rec(b"key-1", None, 77))
    expect_end_lacking(case, tp, at)


def repeated_at_the_end_of_the_source(case: SearchCase, tp: TopicPartition) -> None:
    """Append a copy of an earlier record to the source; the target does not have it."""
    log = case.source[tp]
    at = log.append(log.records[case.rng.choice(list(log.records))])
    expect_end_lacking(case, tp, at)


def end_lost_at_the_source(case: SearchCase, tp: TopicPartition) -> None:
    """Cut the source's end, as the election of an unclean leader does: the target keeps what was acknowledged."""
    log = case.source[tp]
    log.end -= case.rng.randrange(1, STRETCH // 2)
    lost = [at for at in sorted(log.records) if at >= log.end]
    for at in lost:
        del log.records[at]
        case.expect(Expected("extra", tp.partition, None, at))


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


def open_at_source(case: SearchCase, tp: TopicPartition) -> None:
    """Lose the end of a transaction at the source, so that its last stable offset stays."""
    _open(case, tp, case.source[tp])


def open_at_target(case: SearchCase, tp: TopicPartition) -> None:
    """Lose the end of a transaction at the target, so that its last stable offset stays."""
    _open(case, tp, case.target[tp])


def open_on_both(case: SearchCase, tp: TopicPartition) -> None:
    """Leave one transaction open in both logs: no finding."""
    low = case.source[tp].end - case.rng.randrange(1, STRETCH)
    for log in (case.source[tp], case.target[tp]):
        log.stable = low
        _decide_otherwise(case, log)


def undecided(case: SearchCase, tp: TopicPartition) -> None:
    """Let the target lag, so that a transaction which has ended at the source is open there: no finding."""
    log = case.target[tp]
    log.end -= case.rng.randrange(1, STRETCH // 3)
    behind = [at for at in sorted(log.records) if at >= log.end]
    for at in behind:
        del log.records[at]
    log.stable = log.end - case.rng.randrange(1, STRETCH // 3)
    if case.rng.random() < 0.3:  # Another transaction is still open at the source.
        case.source[tp].stable = log.stable + case.rng.randrange(STRETCH // 2)
    _decide_otherwise(case, log)
    if not case.complete:
        case.exit_codes.add(ExitCode.NO_VERDICT_YET)
    elif behind:
        case.expect(Expected("truncated", tp.partition, behind[0], None, len(behind)))


def _open(case: SearchCase, tp: TopicPartition, log: Log) -> None:
    log.stable = log.end - case.rng.randrange(1, STRETCH)
    _decide_otherwise(case, log)
    case.expect(Expected("visibility", tp.partition, log.stable, log.stable, log.end - log.stable))


def _decide_otherwise(case: SearchCase, log: Log) -> None:
    """Let the broker call other records aborted above the last stable offset, where no Fetch response shows it."""
    for at, record in log.records.items():
        if at >= (log.stable or 0) and not record.control and case.rng.random() < 0.4:
            log.records[at] = record._replace(aborted=not record.aborted)


MORE_END: dict[str, AtPartition] = registry(
    last_record_not_received,
    repeated_at_the_end_of_the_source,
    end_lost_at_the_source,
    closed_up,
    pushed_back,
    open_at_source,
    open_at_target,
    open_on_both,
    undecided,
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


def single_record_lost(case: SearchCase) -> None:
    """Lose the only record of a partition; the target's log ends behind its offset."""
    tp = TopicPartition(TOPIC, 14)
    case.source[tp], case.target[tp] = Log(), Log(end=1)
    case.source[tp].append(unique(case, tp))
    case.expect(Expected("missing", 14, 0, None))


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


MORE_WHOLE: dict[str, Callable[[SearchCase], None]] = registry(
    extra_topic,
    missing_topic,
    empty_partitions,
    single_record_corrupt,
    single_record_lost,
    deleted_before_copied,
    emptied_source,
    unknown_log_ends,
)
