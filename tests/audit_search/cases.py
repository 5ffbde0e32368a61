"""One case of faults: which kinds there are, which may meet, and the logs and changes of a seed."""

from __future__ import annotations

import random
from dataclasses import replace

from kclient.types import TopicPartition
from spark_jobs.engine import FailureKind
from tests.audit_search.kinds import (
    LARGE,
    MORE_END,
    MORE_INSIDE,
    MORE_START,
    MORE_WHOLE,
    Change,
    SearchCase,
    superseded,
)
from tests.audit_search.placements import (
    AT_SOURCE_END,
    AT_SOURCE_INSIDE,
    AT_SOURCE_WHOLE,
    FIRST,
    LARGE_END,
    LARGE_INSIDE,
    LAST,
)
from tests.audit_search.renumbered import AT_END, AT_START, RENUMBERED, drawn_renumbered
from tests.kit.audit_faults import (
    END,
    INSIDE,
    START,
    STRETCH,
    TOPIC,
    WHOLE,
    Spot,
    clean_case,
    unique,
)
from tests.kit.audit_logs import Fault, Log, Logs, Rec

MEANWHILE = ("growth", "retention", "compaction", "deletion", "creation", "no_answer")
"""Changes during the run: what is found depends on the moment."""

_READS = 6
"""Most changes happen before one of the first reads. Later ones look up where keys and contents are."""

ALL_INSIDE = {**INSIDE, **MORE_INSIDE, **AT_SOURCE_INSIDE, **LARGE_INSIDE}
ALL_START = {**START, **MORE_START, **FIRST}
ALL_END = {**END, **MORE_END, **AT_SOURCE_END, **LARGE_END, **LAST}
ALL_WHOLE = {**WHOLE, **MORE_WHOLE, **AT_SOURCE_WHOLE}
KINDS = [*ALL_INSIDE, *ALL_START, *ALL_END, *ALL_WHOLE, *MEANWHILE, *RENUMBERED]
PLAIN = [
    kind
    for kind in KINDS
    if not any(
        kind in each
        for each in (
            AT_SOURCE_INSIDE,
            AT_SOURCE_END,
            AT_SOURCE_WHOLE,
            FIRST,
            LAST,
            LARGE_INSIDE,
            LARGE_END,
        )
    )
]
"""Those that are not another one in another place or with another size."""

_ONE_PLACE = (
    {*ALL_START, *AT_START},
    {*ALL_END, *AT_END},
    *({name, name.removesuffix("_at_source")} for name in AT_SOURCE_WHOLE),
)
"""Kinds that would be in one place: at one end of a log, or in one partition."""


def is_renumbered(*kinds: str) -> bool:
    """Return whether all *kinds* are of a target with offsets of its own."""
    return all(kind in RENUMBERED for kind in kinds)


def may_meet(*kinds: str) -> bool:
    """Return whether *kinds* are faults of their own beside each other: not in one place.

    A target has offsets of its own or not.
    """
    if any(map(is_renumbered, kinds)) and not is_renumbered(*kinds):
        return False
    return len(set(kinds)) == len(kinds) and not any(
        len(end & set(kinds)) > 1 for end in _ONE_PLACE
    )


def drawn(seed: int, *kinds: str) -> SearchCase:
    """Return the case of *seed* with a fault of each of *kinds*, apart from each other."""
    rng = random.Random(f"{seed} {kinds}")
    if is_renumbered(*kinds):
        return drawn_renumbered(rng, kinds)
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
        None if log.stable is None else log.stable + by,
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
        for offset in superseded(log, logs, each.tp, log.end - STRETCH):
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
