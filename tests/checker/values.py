"""Rules about values: each is where it should be, once, and only if it was written."""

from __future__ import annotations

from collections.abc import Iterator

from tests.checker.anomaly import Anomaly
from tests.checker.derived import Derived, KeyLog, Write
from tests.checker.log import Log


def inconsistent_offsets(derived: Derived) -> Iterator[Anomaly]:
    """One offset holds one value."""
    for log in derived.every_log():
        for offset, values in log.at.items():
            if len(values) > 1:
                yield Anomaly(
                    "inconsistent-offsets",
                    f"{log.key} offset {offset} holds {' and '.join(map(str, values))}",
                    tuple(operation.events[-1] for operation in values.values()),
                    key=log.key,
                )


def lost_writes(derived: Derived) -> Iterator[Anomaly]:
    """A client read beyond a committed value that no client ever read. torn-txn: others of its operation were read."""
    for key, write in derived.committed:
        log = derived.logs[key]
        offsets = log.offsets_of.get(write.value)
        if write.value in log.readers:
            continue
        others = [
            value
            for other, _, value in write.operation.sends()
            if other in derived.logs and value in derived.logs[other].readers
        ]
        if offsets is not None and min(offsets) <= log.read_up_to:
            torn = bool(others) and write.operation.f == "txn"
            yield Anomaly(
                "torn-txn" if torn else "lost-write",
                f"{key} offset {min(offsets)}: value {write.value} was acknowledged,"
                " records behind it were read, it never was",
                write.operation.events,
                key=key,
            )
        elif offsets is None and others and log.end is not None:
            yield Anomaly(
                "torn-txn",
                f"value {write.value} of {key} was never seen, but {others[0]} of the same operation was",
                write.operation.events,
                key=key,
            )


def unseen(derived: Derived) -> Iterator[Anomaly]:
    """Final polls read everything: what was acknowledged is in there, at its offset."""
    for key, log in derived.logs.items():
        promised = [write for write in log.writes.values() if write.binding]
        if log.end is None:
            if promised:
                yield Anomaly(
                    "unjudged",
                    f"no client read {key} to its end: {len(promised)} acknowledged values are not accounted for",
                    promised[-1].operation.events,
                    bad=False,
                    key=key,
                )
            continue
        for write in promised:
            if write.value not in log.readers:
                yield Anomaly("unseen", _unseen(key, log, write), write.operation.events, key=key)


def vanished(derived: Derived) -> Iterator[Anomaly]:
    """A value that one client read is there for all: final polls return it, too."""
    for key, log in derived.logs.items():
        for value, reader in log.readers.items():
            for process, seen in log.in_final_polls.items():
                if value not in seen:
                    yield Anomaly(
                        "vanished",
                        f"value {value} of {key} was read by {reader.process}, not by {process},"
                        " which read everything in the end",
                        reader.events,
                        key=key,
                    )


def _unseen(key: str, log: KeyLog, write: Write) -> str:
    broker = write.operation.meta.get("broker")
    by = "" if broker is None else f" by broker {broker}"
    where = "" if write.offset is None else f" at offset {write.offset}"
    return f"value {write.value} of {key} was acknowledged{by}{where}; final polls ended at {log.end} without it"


def weak_losses(derived: Derived) -> Iterator[Anomaly]:
    """What was acknowledged with acks=1 may go with its leader: a figure, no verdict."""
    for key, log in derived.logs.items():
        if log.end is None:
            continue
        gone = [
            write
            for write in log.writes.values()
            if write.operation.outcome == "ok"
            and not write.binding
            and write.value not in log.readers
        ]
        if gone:
            yield Anomaly(
                "lost-acks-1",
                f"{len(gone)} values of {key}, acknowledged with acks=1, are not there",
                gone[0].operation.events,
                bad=False,
                key=key,
            )


def duplicates(derived: Derived) -> Iterator[Anomaly]:
    """One value is at one offset, unless a client without idempotence may have sent it twice."""
    for log in derived.logs.values():
        for value in log.offsets_of:
            write = log.writes.get(value)
            excused = write is not None and write.operation.may_repeat
            yield from _duplicate(log, value, excused=excused)
    for isolated in derived.transactions.logs.values():
        for value, record in isolated.records.items():
            excused = record.transaction is None and record.write.may_repeat
            yield from _duplicate(isolated, value, excused=excused)


def _duplicate(log: Log, value: int, *, excused: bool) -> Iterator[Anomaly]:
    offsets = log.offsets_of.get(value, ())
    if len(offsets) > 1:
        evidence = [log.at[offset][value].events[-1] for offset in offsets]
        yield Anomaly(
            "duplicate",
            f"value {value} of {log.key} is at {', '.join(map(str, sorted(offsets)))}",
            tuple(dict.fromkeys(evidence)),
            bad=not excused,
            key=log.key,
            offsets=tuple(sorted(offsets)),
        )


def aborted_reads(derived: Derived) -> Iterator[Anomaly]:
    """G1a: what certainly was not written is not read. phantom: nor what no client ever sent."""
    for key, log in derived.logs.items():
        for value, reader in log.readers.items():
            write = log.writes.get(value)
            if write is None:
                yield Anomaly(
                    "phantom",
                    f"value {value} was read from {key}, no client wrote it",
                    reader.events,
                    key=key,
                )
            elif write.operation.outcome == "fail":
                yield Anomaly(
                    "G1a",
                    f"value {value} of {key} was read, but its send failed"
                    f" ({write.operation.ended.err if write.operation.ended else ''})",
                    (*write.operation.events, *reader.events),
                    key=key,
                )


def precommitted_reads(derived: Derived) -> Iterator[Anomaly]:
    """A transaction does not read what it has not committed yet."""
    for operation in derived.transfers():
        sent = {(key, value) for key, _, value in operation.sends()}
        for key, records in operation.polls():
            own = [value for _, value in records if (key, value) in sent]
            if own:
                yield Anomaly(
                    "precommitted-read",
                    f"the operation polled {own[0]} of {key}, which it sent itself",
                    operation.events,
                    key=key,
                )


def stale_acks(derived: Derived) -> Iterator[Anomaly]:
    """A diagnosis: a vanished value was acknowledged by a broker that another had succeeded already."""
    elections: dict[str, list[tuple[int, int, int, int]]] = {}
    for operation in derived.operations:
        if operation.f == "election":
            for key, (leader, epoch) in operation.v.items():
                elections.setdefault(key, []).append(
                    (operation.begun.t, leader, epoch, operation.begun.i)
                )
    if not elections:
        return
    for key, log in derived.logs.items():
        for write in log.writes.values():
            ended, broker = write.operation.ended, write.operation.meta.get("broker")
            if not write.binding or write.value in log.readers or ended is None or broker is None:
                continue
            before = [one for one in elections.get(key, ()) if one[0] < ended.t]
            if before and before[-1][1] != broker:
                yield Anomaly(
                    "stale-ack",
                    f"value {write.value} of {key} was acknowledged by broker {broker},"
                    f" after broker {before[-1][1]} was elected with epoch {before[-1][2]}",
                    (before[-1][3], *write.operation.events),
                    key=key,
                )
