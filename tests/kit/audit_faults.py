"""Generates pairs of logs with known faults of every class, and what an audit must report of each.

A case is drawn from a seed: two or three partitions with holes, tombstones and repeated keys, a copy of them, and
faults in stretches of offsets that do not touch. Each fault records the findings and the exit code that it must cause.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kclient.types import TopicPartition
from spark_jobs.engine import FailureKind
from spark_jobs.verdict import ExitCode, Verdict
from tests.kit.audit_logs import Fault, Log, Logs, Rec

TOPIC = "t"
STRETCH = 20
"""Offsets of the log that one fault may touch."""


class Expected(NamedTuple):
    """A finding, as `tests.kit.audit_logs.named` shows it, without the partition of the target."""

    finding_class: str
    partition: int
    source_offset: int | None
    target_offset: int | None
    records: int = 1


@dataclass
class Case:
    """Two clusters' logs, and what an audit must report."""

    rng: random.Random
    source: Logs
    target: Logs
    compacted: bool = False
    complete: bool = False
    findings: list[Expected] = field(default_factory=list)
    exit_codes: set[ExitCode] = field(default_factory=set)
    explained: int = 0

    @property
    def verdict(self) -> Verdict:
        """Return the verdict that the faults must cause."""
        order = [
            (ExitCode.UNREADABLE, Verdict.ERROR),
            (ExitCode.DIVERGED, Verdict.DIVERGED),
            (ExitCode.AGED_OUT, Verdict.INCOMPLETE),
            (ExitCode.NO_VERDICT_YET, Verdict.LAGGING),
        ]
        return next((v for code, v in order if code in self.exit_codes), Verdict.CONSISTENT)

    def expect(self, *findings: Expected) -> None:
        """Add *findings* to what the audit must report."""
        self.findings += findings
        self.exit_codes.add(ExitCode.DIVERGED)


class Spot(NamedTuple):
    """Where a fault goes: a partition, and records at consecutive places of a stretch."""

    tp: TopicPartition
    offsets: list[int]


Apply = Callable[[Case, Spot], None]


def unique(case: Case, tp: TopicPartition) -> Rec:
    """Return a record that is in no log."""
    number = case.rng.getrandbits(60)
    return Rec(b"s%d" % number, b"foreign %d" % number, number)


def missing(case: Case, spot: Spot) -> None:
    """Lose a record; its offset stays empty."""
    offset = case.rng.choice(spot.offsets)
    del case.target[spot.tp].records[offset]
    case.expect(Expected("missing", spot.tp.partition, offset, None))


def extra(case: Case, spot: Spot) -> None:
    """Add a record where the source has a hole."""
    log = case.target[spot.tp]
    hole = _hole(case, spot)
    log.records[hole] = unique(case, spot.tp)
    case.expect(Expected("extra", spot.tp.partition, None, hole))


def duplicate(case: Case, spot: Spot) -> None:
    """Repeat a record where the source has a hole."""
    log = case.target[spot.tp]
    hole = _hole(case, spot)
    log.records[hole] = case.source[spot.tp].records[case.rng.choice(spot.offsets)]
    case.expect(Expected("duplicate", spot.tp.partition, None, hole))


def corrupt(case: Case, spot: Spot) -> None:
    """Change one part of a record."""
    offset = case.rng.choice(spot.offsets)
    log = case.target[spot.tp]
    before = log.records[offset]
    part = case.rng.choice(("key", "value", "headers", "timestamp", "timestamp_type"))
    changed: Any = b"changed"
    if part == "timestamp":
        changed = before.timestamp ^ 1
    elif part == "timestamp_type":
        changed = 1 - before.timestamp_type
    elif part == "headers":
        pair = ("header", case.rng.choice([None, b"", b"changed"]))
        choices = [(pair, *before.headers), (*before.headers, pair), before.headers[1:]]
        choices += [before.headers[::-1], (("", b""), *before.headers[1:])]
        changed = case.rng.choice([each for each in choices if each != before.headers])
    elif case.rng.random() < 0.5:
        changed = None if getattr(before, part) is not None else b""
    log.records[offset] = before._replace(**{part: changed})
    case.expect(Expected("corrupt", spot.tp.partition, offset, offset))


def reordered(case: Case, spot: Spot) -> None:
    """Move a record by three places; the others close up."""
    log = case.target[spot.tp]
    first = case.rng.randrange(len(spot.offsets) - 3)
    places = spot.offsets[first : first + 4]
    records = [log.records[at] for at in places]
    for at, record in zip(places, [*records[1:], records[0]], strict=True):
        log.records[at] = record
    case.expect(Expected("reordered", spot.tp.partition, places[0], places[3]))


def misrouted(case: Case, spot: Spot) -> None:
    """Move a record to a hole of another partition."""
    other = TopicPartition(TOPIC, (spot.tp.partition + 1) % len(case.source))
    offset = case.rng.choice(spot.offsets)
    low = spot.offsets[0] - spot.offsets[0] % STRETCH
    held = case.source[other].records.keys() | case.target[other].records.keys()
    hole = next((at for at in range(low, low + STRETCH) if at not in held), None)
    if hole is None:
        missing(case, spot)
        return
    case.target[other].records[hole] = case.target[spot.tp].records.pop(offset)
    case.expect(Expected("misrouted", spot.tp.partition, offset, hole))


def visibility(case: Case, spot: Spot) -> None:
    """Let one broker call records aborted that the other returns to read_committed consumers."""
    log = case.target[spot.tp]
    places = [at for at in spot.offsets if not log.records[at].control]
    first = case.rng.choice(places)
    aborted = log.records[first].aborted
    run = []
    for at in spot.offsets[spot.offsets.index(first) :][: case.rng.randrange(1, 6)]:
        if log.records[at].control or log.records[at].aborted != aborted:
            break
        run.append(at)
        log.records[at] = log.records[at]._replace(aborted=not aborted)
    case.expect(Expected("visibility", spot.tp.partition, run[0], run[0], len(run)))


def undecodable(case: Case, spot: Spot) -> None:
    """Break a batch on one side."""
    kind = FailureKind.UNDECODABLE
    at_source = _break(case, spot, kind)
    low, high = spot.offsets[2], spot.offsets[5]
    at: tuple[int | None, int | None] = (low, None) if at_source else (None, low)
    case.expect(Expected("undecodable", spot.tp.partition, *at, high - low))


def unreadable(case: Case, spot: Spot) -> None:
    """Make a broker return an error for some offsets."""
    _break(case, spot, FailureKind.UNREADABLE)
    case.exit_codes.add(ExitCode.UNREADABLE)


def _break(case: Case, spot: Spot, kind: FailureKind) -> bool:
    at_source = case.rng.random() < 0.5
    log = (case.source if at_source else case.target)[spot.tp]
    log.faults.append(Fault(spot.offsets[2], spot.offsets[5], kind))
    return at_source


def _hole(case: Case, spot: Spot) -> int:
    """Return an empty offset inside the stretch; make one if there is none."""
    held = case.source[spot.tp].records
    low, high = spot.offsets[0], spot.offsets[-1]
    holes = [at for at in range(low, high) if at not in held]
    if holes:
        return case.rng.choice(holes)
    middle = spot.offsets[len(spot.offsets) // 2]
    del held[middle]
    del case.target[spot.tp].records[middle]
    spot.offsets.remove(middle)
    return middle


INSIDE: dict[str, Apply] = {
    each.__name__: each
    for each in (
        missing,
        extra,
        duplicate,
        corrupt,
        reordered,
        misrouted,
        visibility,
        undecodable,
        unreadable,
    )
}
"""Faults inside one stretch; any two of them may be in one partition."""


def aged_at_source(case: Case, tp: TopicPartition) -> None:
    """Let retention delete the start of the source's log."""
    case.source[tp].delete_below(STRETCH // 2)
    case.exit_codes.add(ExitCode.AGED_OUT)


def aged_at_target(case: Case, tp: TopicPartition) -> None:
    """Let retention delete the start of the target's log."""
    case.target[tp].delete_below(STRETCH // 2)
    case.exit_codes.add(ExitCode.AGED_OUT)


def deleted_meanwhile(case: Case, tp: TopicPartition) -> None:
    """Let DeleteRecords remove the start of one log during the run."""
    log = (case.source if case.rng.random() < 0.5 else case.target)[tp]
    log.faults.append(Fault(0, STRETCH // 2, FailureKind.DELETED))
    case.exit_codes.add(ExitCode.AGED_OUT)


def skipped_gap(case: Case, tp: TopicPartition) -> None:
    """Let the source delete records before the mirror copied them; the mirror skips them."""
    low, high = 3, STRETCH // 2
    case.source[tp].delete_below(high)
    for offset in range(low, high):
        del case.target[tp].records[offset]
    case.expect(Expected("gap", tp.partition, low, None, high - low))
    case.exit_codes.add(ExitCode.AGED_OUT)


START: dict[str, Callable[[Case, TopicPartition], None]] = {
    each.__name__: each for each in (aged_at_source, aged_at_target, deleted_meanwhile, skipped_gap)
}
"""Faults at the start of a partition's log."""


def behind(case: Case, tp: TopicPartition) -> None:
    """Cut the target's end: lag, or loss if the mirror is complete."""
    log = case.target[tp]
    cut = log.end - case.rng.randrange(1, STRETCH // 2)
    log.records = {at: record for at, record in log.records.items() if at < cut}
    log.end = cut
    lost = [at for at in sorted(case.source[tp].records) if at >= cut]
    if not case.complete:
        case.exit_codes.add(ExitCode.NO_VERDICT_YET)
    elif lost:
        name = "truncated"
        case.expect(Expected(name, tp.partition, lost[0], None, len(lost)))


def ahead(case: Case, tp: TopicPartition) -> None:
    """Append to the target what the source never had."""
    at = case.target[tp].append(unique(case, tp))
    case.expect(Expected("extra", tp.partition, None, at))


def appended_again(case: Case, tp: TopicPartition) -> None:
    """Append a copy of an earlier record to the target, as a retry would."""
    records = case.source[tp].records
    record = records[case.rng.choice([at for at in records if at >= 5 * STRETCH])]
    at = case.target[tp].append(record)
    case.expect(Expected("duplicate", tp.partition, None, at))


def shifted(case: Case, tp: TopicPartition) -> None:
    """Move the end of the target's log to higher offsets."""
    log = case.target[tp]
    first = log.end - STRETCH // 2
    moved = {at: record for at, record in log.records.items() if at >= first}
    if not moved:
        return
    by = case.rng.randrange(1, 4)
    log.records = {(at + by if at >= first else at): record for at, record in log.records.items()}
    log.end += by
    low = min(moved)
    case.expect(Expected("shifted", tp.partition, low, low + by, len(moved)))


END: dict[str, Callable[[Case, TopicPartition], None]] = {
    each.__name__: each for each in (behind, ahead, appended_again, shifted)
}
"""Faults at the end of a partition's log."""


def extra_partition(case: Case) -> None:
    """Give the target a partition that the source lacks."""
    tp = TopicPartition(TOPIC, 9)
    log = Log()
    count = case.rng.randrange(1, 5)
    for _ in range(count):
        log.append(unique(case, tp))
    case.target[tp] = log
    case.expect(Expected("extra", 9, None, 0, count))


def missing_partition(case: Case) -> None:
    """Give the source a partition that the target lacks."""
    tp = TopicPartition(TOPIC, 8)
    log = Log()
    for _ in range(3):
        log.append(unique(case, tp))
    case.source[tp] = log
    if case.complete:
        case.expect(Expected("truncated", 8, 0, None, 3))
    else:
        case.exit_codes.add(ExitCode.NO_VERDICT_YET)


WHOLE: dict[str, Callable[[Case], None]] = {
    each.__name__: each for each in (extra_partition, missing_partition)
}
"""Faults in whole partitions."""

EVERY = [*INSIDE, *START, *END, *WHOLE]


def clean_case(rng: random.Random, *, stretches: int = 6) -> Case:
    """Return equal logs of two or three partitions, with holes."""
    source: Logs = {}
    for partition in range(rng.randrange(2, 4)):
        log = Log(end=stretches * STRETCH)
        for offset in range(log.end):
            if rng.random() < 0.85:
                log.records[offset] = _record(rng, partition, offset)
        source[TopicPartition(TOPIC, partition)] = log
    return Case(
        rng, source, {tp: log.copy() for tp, log in source.items()}, complete=rng.random() < 0.5
    )


def _record(rng: random.Random, partition: int, offset: int) -> Rec:
    control = rng.random() < 0.03
    return Rec(
        rng.choice([None, b"", b"key-%d" % rng.randrange(50)]),
        rng.choice([b"value-%d-%d" % (partition, offset)] * 8 + [None, b""]),
        (partition * 100_000 + offset) * 10,
        rng.choice([(), (("header", b"%d" % rng.randrange(5)), ("header", None), ("again", b""))]),
        rng.choice([0, 0, 0, 1]),
        control=control,
        aborted=not control and rng.random() < 0.1,
    )


def case_with(seed: int, *kinds: str) -> Case:
    """Return the case of *seed* with one fault of each of *kinds*, in stretches apart from each other."""
    rng = random.Random(seed)
    case = clean_case(rng)
    partitions = list(case.source)
    free = {tp: [1, 2, 3, 4] for tp in partitions}
    tp = rng.choice(partitions)
    for kind in kinds:
        if kind in INSIDE:
            tp = rng.choice(partitions)
            number = rng.choice(free[tp])
            for (
                other
            ) in partitions:  # a misrouted record needs the stretch of another partition, too
                free[other] = [each for each in free[other] if each != number]
            low = number * STRETCH
            held = case.source[tp].records
            offsets = [at for at in range(low + 2, low + STRETCH - 2) if at in held]
            INSIDE[kind](case, Spot(tp, offsets))
        elif kind in START:
            # In a log that was never compacted a hole is a gap: without holes there is only the fault.
            for offset in range(STRETCH):
                record = case.source[tp].records.setdefault(offset, unique(case, tp))
                case.target[tp].records[offset] = record
            START[kind](case, tp)
        elif kind in END:
            END[kind](case, tp)
        else:
            WHOLE[kind](case)
    return case


def compact(case: Case, *, at_source: bool) -> None:
    """Remove superseded records from one log, as the log cleaner does at any time."""
    case.compacted = True
    logs = case.source if at_source else case.target
    for log in logs.values():
        last = {record.key: at for at, record in log.records.items()}
        held: set[bytes | None] = set()
        for at, record in sorted(log.records.items()):
            superseded = last[record.key] > at
            # A tombstone goes after the records that it deletes.
            expired = record.value is None and record.key not in held
            old = record.key is not None and (superseded or expired)
            if not record.control and old and at < log.end // 2 and case.rng.random() < 0.7:
                del log.records[at]
                case.explained += 1
            else:
                held.add(record.key)
