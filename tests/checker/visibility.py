"""Rules about what readers see of transactions, by isolation level.

A *view* is what one process reads of a key, from where it begins (a seek, or its first record) to its position: the
offset behind its last record, or a position that it states. Each view with read_committed that reads past a record of
a committed transaction has that record, and none has a record of another transaction. Each view with read_uncommitted
has all that was acknowledged or read by others.

A position is not above the last stable offset, so what is below it does not change: the time of a view does not matter.

A record of which neither an answer nor a reader names the offset is judged only in views that read a key to its end
(`final`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.checker.anomaly import Anomaly
from tests.checker.derived import Derived
from tests.checker.history import Operation, Process
from tests.checker.transactions import Answer, IsolatedLog, Record, end


def aborted_reads(derived: Derived) -> Iterator[Anomaly]:
    """G1a: no reader with read_committed sees what was aborted, and no reader what certainly was not written."""
    for key, log in derived.transactions.logs.items():
        for record in log.records.values():
            transaction = record.transaction
            if record.read is not None and record.write.outcome == "fail":
                yield Anomaly(
                    "G1a",
                    f"value {record.value} of {key} was read, but its send failed",
                    (*record.write.events, *record.read.events),
                    key=key,
                )
            elif (
                record.seen is not None
                and transaction is not None
                and transaction.answer is Answer.ABORTED
            ):
                yield Anomaly(
                    "aborted-read",
                    f"{record.seen.process} read value {record.value} of {key} with read_committed,"
                    f" of {transaction}",
                    (*transaction.events, *record.seen.events),
                    key=key,
                )


def early_reads(derived: Derived) -> Iterator[Anomaly]:
    """No reader sees a record before it is sent, none with read_committed before its producer asks for the commit."""
    for log in derived.transactions.logs.values():
        for record in log.records.values():
            if record.read is not None and end(record.read) < record.write.begun.i:
                yield Anomaly(
                    "early-read",
                    f"{record.read.process} read value {record.value} of {log.key} before it was sent",
                    (*record.read.events, *record.write.events),
                    key=log.key,
                )
    for transaction in derived.transactions.all.values():
        seen, attempted = transaction.seen, transaction.attempted
        if seen is not None and attempted is not None and end(seen) < attempted.i:
            yield Anomaly(
                "early-read",
                f"{seen.process} read records of {transaction} before the first attempt to commit it",
                (*seen.events, attempted.i),
            )


def phantoms(derived: Derived) -> Iterator[Anomaly]:
    """What was read was written."""
    for key, log in derived.transactions.logs.items():
        for offset, values in log.at.items():
            for value, reader in values.items():
                if value not in log.records:
                    yield Anomaly(
                        "phantom",
                        f"value {value} was read from {key} at offset {offset}, no client wrote it",
                        reader.events,
                        key=key,
                    )


def last_stable_offset(derived: Derived) -> Iterator[Anomaly]:
    """With read_committed, records and positions are below the last stable offset of the same answer (meta.stable)."""
    for operation in derived.operations:
        stable = operation.meta.get("stable")
        if not stable or operation.process not in derived.transactions.committed_readers:
            continue
        positions: list[tuple[str, int]] = []
        if operation.f in ("position", "final"):
            positions += operation.v.items()
        elif operation.f == "poll":
            positions += ((key, found[-1][0] + 1) for key, found in operation.polls() if found)
        for key, position in positions:
            if key in stable and position > stable[key]:
                yield Anomaly(
                    "beyond-stable",
                    f"the position of {operation.process} in {key} is {position}, above the last"
                    f" stable offset {stable[key]}",
                    operation.events,
                    key=key,
                )


class _Due:
    """What views of one key with one isolation level must have, by offset."""

    def __init__(self, log: IsolatedLog, *, committed: bool) -> None:
        self.records: list[tuple[int, Record]] = []
        for offset in sorted(log.at):
            for value in log.at[offset]:
                record = log.records.get(value)
                if record is not None and (record.is_visible if committed else record.is_durable):
                    self.records.append((offset, record))
                    break  # a second value at this offset is an anomaly of its own

    def index(self, offset: int) -> int:
        """Return the index of the first record at *offset* or above it."""
        return bisect_left(self.records, offset, key=lambda one: one[0])


@dataclass(slots=True)
class _View:
    """One process in one key, in the order of the history."""

    due: _Due
    position: int
    index: int = field(init=False)
    """Of the next record due."""

    def __post_init__(self) -> None:
        self.index = self.due.index(self.position)

    def advance(self, to: int) -> Iterator[tuple[int, Record]]:
        """Read up to *to*; yield what was due before it."""
        due, index = self.due.records, self.index
        while index < len(due) and due[index][0] < to:
            yield due[index]
            index += 1
        self.index, self.position = index, max(to, self.position)

    def take(self, offset: int) -> Iterator[tuple[int, Record]]:
        """Read the record at *offset*; yield what was due before it."""
        yield from self.advance(offset)
        due = self.due.records
        if self.index < len(due) and due[self.index][0] == offset:
            self.index += 1
        self.position = offset + 1


class _Views:
    """The views of all processes."""

    def __init__(self, derived: Derived) -> None:
        found = derived.transactions
        self._logs, self._committed_readers = found.logs, found.committed_readers
        self._due = {
            (key, committed): _Due(log, committed=committed)
            for key, log in found.logs.items()
            for committed in (False, True)
        }
        self._of: dict[Process, dict[str, _View]] = {}
        self._reported: set[tuple[Process, str, int]] = set()
        self._in_final_views: dict[tuple[Process, str], set[int]] = {
            (one.process, key): set()
            for one in derived.operations
            if one.f == "final" and one.outcome == "ok"
            for key in one.v
            if key in found.logs
        }

    def follow(self, operation: Operation) -> Iterator[Anomaly]:
        """Judge one operation."""
        process = operation.process
        views = self._of.setdefault(process, {})
        match operation.f:
            case "assign":
                for key in views.keys() - set(operation.v):
                    del views[key]
            case "subscribe" | "crash" | "assigned":
                views.clear()
            case "seek":
                for key, offset in operation.v.items():
                    if key in self._logs:
                        views[key] = self._view(process, key, offset)
            case "poll" if operation.ended is not None:
                yield from self._poll(operation, views)
            case "position" if operation.outcome == "ok":
                yield from self._advance(operation, views)
            case "final" if operation.outcome == "ok":
                for key in self._logs.keys() & operation.v.keys():
                    views.setdefault(key, self._view(process, key, 0))
                yield from self._advance(operation, views)
                yield from self._final(operation)

    def _advance(self, operation: Operation, views: dict[str, _View]) -> Iterator[Anomaly]:
        for key, offset in operation.v.items():
            if key in views:
                for at, record in views[key].advance(offset):
                    yield self._missing(operation, at, record)

    def _view(self, process: Process, key: str, offset: int) -> _View:
        return _View(self._due[key, process in self._committed_readers], offset)

    def _poll(self, operation: Operation, views: dict[str, _View]) -> Iterator[Anomaly]:
        process = operation.process
        rebalanced = operation.meta.get("rebalanced", ())
        for key, records in operation.polls():
            if key in rebalanced:
                views.pop(key, None)
            if key not in self._logs or not records:
                continue
            in_final_view = self._in_final_views.get((process, key))
            view = views.get(key)
            if view is None:
                view = views[key] = self._view(process, key, records[0][0])
            for offset, value in records:
                if offset < view.position:
                    yield Anomaly(
                        "nonmonotonic-poll",
                        f"{process} polled value {value} of {key} at offset {offset}, its position"
                        f" was {view.position}",
                        operation.events,
                        key=key,
                    )
                    view = views[key] = self._view(process, key, offset)
                for at, record in view.take(offset):
                    yield self._missing(operation, at, record)
                if in_final_view is not None:
                    in_final_view.add(value)

    def _missing(self, operation: Operation, at: int, record: Record) -> Anomaly:
        self._reported.add((operation.process, record.key, record.value))
        text = (
            f"{operation.process} read past value {record.value} of {record.key} at offset {at}"
            " and did not see it"
        )
        return self._absent(operation, record, text, "read-skip")

    def _absent(self, operation: Operation, record: Record, text: str, name: str) -> Anomaly:
        transaction = record.transaction
        if transaction is None or operation.process not in self._committed_readers:
            return Anomaly(name, text, (*record.write.events, *operation.events), key=record.key)
        is_torn = transaction.seen is not None or transaction.applied is not None
        proof = transaction.seen or transaction.applied
        also = f"; {proof.process} saw others of the same transaction or its offsets" if proof else ""  # fmt: skip
        return Anomaly(
            "torn-transaction" if is_torn else "lost-transaction",
            f"{text}, of {transaction}{also}",
            (*transaction.events, *(proof.events if proof else ()), *operation.events),
            key=record.key,
        )

    def _final(self, operation: Operation) -> Iterator[Anomaly]:
        """Find what must be below the end of the key and was not judged by its offset."""
        process = operation.process
        committed = process in self._committed_readers
        for key, position in operation.v.items():
            log = self._logs.get(key)
            for record in log.records.values() if log is not None else ():
                if not (record.is_visible if committed else record.is_durable):
                    continue
                if (process, key, record.value) in self._reported:
                    continue
                if (
                    record.known(committed=committed) < operation.begun.i
                    and record.value not in self._in_final_views[process, key]
                ):
                    text = (
                        f"{process} read {key} to its end at {position}, value"
                        f" {record.value} is not there"
                    )
                    yield self._absent(operation, record, text, "unseen")


def views(derived: Derived) -> Iterator[Anomaly]:
    """lost-transaction, torn-transaction, read-skip, unseen, nonmonotonic-poll: the views of each isolation level."""
    if derived.transactions.logs:
        state = _Views(derived)
        for operation in derived.operations:
            yield from state.follow(operation)


def unjudged(derived: Derived) -> Iterator[Anomaly]:
    """Report keys with visible records that no process with read_committed read to their ends."""
    read = {
        key
        for one in derived.operations
        if one.f == "final"
        and one.outcome == "ok"
        and one.process in derived.transactions.committed_readers
        for key in one.v
    }
    for key, log in derived.transactions.logs.items():
        due = [one for one in log.records.values() if one.is_visible]
        if key not in read and due:
            yield Anomaly(
                "unjudged",
                f"no reader with read_committed read {key} to its end: {len(due)} records are not accounted for",
                due[-1].write.events,
                bad=False,
                key=key,
            )
