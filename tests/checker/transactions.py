"""Transactions of a history (KIP-98): what each sent, how it ended as far as clients know, and what readers saw of it.

The outcome of a transaction
============================
- committed: `commit_transaction` was answered. Or its outcome is unknown, and a reader with read_committed saw a record
  of it, or a group was found at offsets that no other transaction can have committed.
- aborted: `abort_transaction` was answered, or no commit was attempted, or each attempt certainly failed: a
  coordinator commits only what a producer asks it to commit.
- open: otherwise. All of its records may be visible, or none.

Times are places in the history. A commit is decided after its first attempt begins. A *fence* of a transaction is the
answer to `init_transactions` of a later producer with its transactional id, or the event `fenced`: by then the
coordinator has decided, so that a commit that is first attempted behind its fence cannot succeed.

Judged here are keys that a transaction writes to, and keys that a process with an isolation level polls. Of the other
rules only those about offsets judge them, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from tests.checker.history import TRANSFERS, Event, HistoryError, Operation, Process
from tests.checker.log import Log

READ_COMMITTED = "read_committed"


class Answer(Enum):
    """How a transaction ended, by the answers to its producer."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Record:
    """One value that was sent to a key."""

    key: str
    value: int
    write: Operation
    transaction: Transaction | None
    read: Operation | None = None
    """The first poll that returned it."""
    seen: Operation | None = None
    """The first poll with read_committed that returned it."""

    @property
    def is_durable(self) -> bool:
        """Whether each later reader with read_uncommitted must see it."""
        return self.write.is_acknowledged or self.read is not None

    @property
    def is_visible(self) -> bool:
        """Whether each later reader with read_committed must see it."""
        if self.transaction is None:
            return self.is_durable
        return self.transaction.is_committed and self.write.outcome != "fail"

    def known(self, *, committed: bool) -> int:
        """Return since when it is known that it is visible (*committed*) or durable."""
        if committed and self.transaction is not None:
            return self.transaction.known
        ends = [self.read] if self.read is not None else []
        ends += [self.write] if self.write.is_acknowledged else []
        return min(end(one) for one in ends)


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction of a producer."""

    name: str
    id: str
    """The transactional id."""
    process: Process
    begun: Event
    records: list[Record] = field(default_factory=list)
    offsets: list[tuple[str, str, int, Event]] = field(default_factory=list)
    """Group, key, offset, and the event with which they were sent."""
    commits: list[Operation] = field(default_factory=list)
    aborts: list[Operation] = field(default_factory=list)
    fence: Event | None = None
    seen: Operation | None = None
    """The first poll with read_committed that returned a record of it."""
    applied: Operation | None = None
    """The first request for offsets of which only this transaction explains the answer."""

    @property
    def answer(self) -> Answer:
        """Return its end by the answers to its producer."""
        if any(one.outcome == "ok" for one in self.commits):
            return Answer.COMMITTED
        if any(one.outcome == "ok" for one in self.aborts):
            return Answer.ABORTED
        if all(one.outcome == "fail" for one in self.commits):
            return Answer.ABORTED
        return Answer.UNKNOWN

    @property
    def is_committed(self) -> bool:
        """Whether it is known to be committed."""
        if self.answer is Answer.UNKNOWN:
            return self.seen is not None or self.applied is not None
        return self.answer is Answer.COMMITTED

    @property
    def attempted(self) -> Event | None:
        """The beginning of the first attempt to commit."""
        return self.commits[0].begun if self.commits else None

    @property
    def known(self) -> int:
        """Return since when it is certain that it was decided, if it is committed."""
        proofs = [one for one in (self.seen, self.applied) if one is not None]
        proofs += [one for one in self.commits if one.outcome == "ok"]
        fence, attempted = self.fence, self.attempted
        is_fenced_later = fence is not None and attempted is not None and attempted.i < fence.i
        return min([end(one) for one in proofs] + ([fence.i] if fence and is_fenced_later else []))

    @property
    def events(self) -> tuple[int, ...]:
        """Its lines, without those of its records."""
        return (self.begun.i, *(i for one in (*self.commits, *self.aborts) for i in one.events))

    def __str__(self) -> str:
        return f"transaction {self.name} of {self.id} ({self.answer.value})"


@dataclass
class IsolatedLog(Log):
    """One key of which readers with different isolation levels see different records."""

    records: dict[int, Record] = field(default_factory=dict)
    """By value, in the order in which they were sent."""


@dataclass
class Transactions:
    """All transactions of a history, and the keys that are judged by isolation level."""

    all: dict[str, Transaction]
    """By name, in the order of their beginnings."""
    logs: dict[str, IsolatedLog]
    committed_readers: frozenset[Process]
    """Processes with read_committed."""

    def by_group(self) -> dict[tuple[str, str], list[tuple[int, Transaction]]]:
        """Return by group and key the offsets of transactions."""
        found: dict[tuple[str, str], list[tuple[int, Transaction]]] = defaultdict(list)
        for transaction in self.all.values():
            for group, key, offset, _ in transaction.offsets:
                found[group, key].append((offset, transaction))
        return found


def end(operation: Operation) -> int:
    """Return the place of the end of an operation that has one."""
    assert operation.ended is not None
    return operation.ended.i


def derive_transactions(operations: list[Operation]) -> Transactions:
    """Gather the transactions. Raise HistoryError for one that was not begun, or a value that was written twice."""
    begun = _gather(operations)
    _fence(begun, operations)
    levels = {
        one.process: one.meta["isolation"] for one in operations if "isolation" in one.begun.meta
    }
    keys = {
        key
        for one in operations
        if one.f in TRANSFERS
        for key in (*_sent_in_transactions(one), *(_polled(one) if one.process in levels else ()))
    }
    committed = frozenset(process for process, level in levels.items() if level == READ_COMMITTED)
    found = Transactions(begun, {key: IsolatedLog(key) for key in sorted(keys)}, committed)
    if keys or begun:
        for operation in operations:
            if operation.f in TRANSFERS:
                _sends(operation, found)
        for operation in operations:
            if operation.f in TRANSFERS and operation.ended is not None:
                _polls(operation, found)
        _find_applied(found, operations)
    return found


def _sent_in_transactions(operation: Operation) -> Iterator[str]:
    if "txn" in operation.begun.meta:
        for key, _, _ in operation.sends():
            yield key


def _polled(operation: Operation) -> Iterator[str]:
    for key, _ in operation.polls():
        yield key


def _gather(operations: Iterable[Operation]) -> dict[str, Transaction]:
    """Return the transactions with their ends and their offsets."""
    found: dict[str, Transaction] = {}
    for one in operations:
        if one.f == "begin_transaction":
            name = one.v["txn"]
            if name in found:
                raise HistoryError(f"event {one.begun.i} begins transaction {name} again")
            found[name] = Transaction(name, one.v["id"], one.process, one.begun)
        elif one.f in ("send_offsets", "commit_transaction", "abort_transaction"):
            transaction = _named(found, one.begun, one.begun.v["txn"])
            if one.f == "send_offsets":
                group = one.begun.v["group"]
                for key, offset in one.begun.v["offsets"].items():
                    transaction.offsets.append((group, key, offset, one.begun))
            elif one.f == "commit_transaction":
                transaction.commits.append(one)
            else:
                transaction.aborts.append(one)
    return found


def _named(found: dict[str, Transaction], event: Event, name: str) -> Transaction:
    if name not in found:
        raise HistoryError(f"event {event.i} names transaction {name}, which was not begun")
    return found[name]


def _fence(begun: dict[str, Transaction], operations: Iterable[Operation]) -> None:
    """Find the fence of each transaction."""
    inits: dict[str, list[Operation]] = defaultdict(list)
    fenced: dict[tuple[Process, str], Event] = {}
    for one in operations:
        if one.f == "init_transactions" and one.outcome == "ok":
            inits[one.begun.v["id"]].append(one)
        elif one.f == "fenced":
            fenced.setdefault((one.process, one.v["id"]), one.begun)
    firsts: dict[str, list[Event]] = {}
    """By transactional id: for each `init_transactions` the first answer to it or to a later one."""
    for name, found in inits.items():
        answers: list[Event] = []
        for one in reversed(found):
            assert one.ended is not None
            earliest = answers[-1] if answers else one.ended
            answers.append(one.ended if one.ended.i < earliest.i else earliest)
        firsts[name] = answers[::-1]
    own: dict[tuple[Process, str], list[int]] = defaultdict(list)
    for name, found in inits.items():
        for one in found:
            own[one.process, name].append(end(one))
    for transaction in begun.values():
        before = own.get((transaction.process, transaction.id), [])
        at = bisect_right(before, transaction.begun.i)
        since = before[at - 1] if at else transaction.begun.i
        later = bisect_right(inits[transaction.id], since, key=lambda one: one.begun.i)
        fences = firsts.get(transaction.id, [])[later : later + 1]
        fences += [fenced[key] for key in [(transaction.process, transaction.id)] if key in fenced]
        transaction.fence = min(fences, key=lambda event: event.i, default=None)


def _sends(operation: Operation, found: Transactions) -> None:
    name = operation.begun.meta.get("txn")
    transaction = None if name is None else _named(found.all, operation.begun, name)
    for key, offset, value in operation.sends():
        log = found.logs.get(key)
        if log is None:
            continue
        if value in log.records:
            raise HistoryError(
                f"value {value} of {key} is written by event {operation.begun.i}"
                f" and by {log.records[value].write.begun.i}"
            )
        record = log.records[value] = Record(key, value, operation, transaction)
        if transaction is not None:
            transaction.records.append(record)
        if operation.is_acknowledged and offset is not None:
            log.put(offset, value, operation)


def _polls(operation: Operation, found: Transactions) -> None:
    is_committed = operation.process in found.committed_readers
    at = end(operation)
    for key, records in operation.polls():
        log = found.logs.get(key)
        if log is None:
            continue
        for offset, value in records:
            log.put(offset, value, operation)
            record = log.records.get(value)
            if record is None:
                continue
            if record.read is None or at < end(record.read):
                record.read = operation
            if is_committed and (record.seen is None or at < end(record.seen)):
                record.seen = operation
                transaction = record.transaction
                if transaction is not None and (
                    transaction.seen is None or at < end(transaction.seen)
                ):
                    transaction.seen = operation


class Candidates:
    """What can have committed an offset, in the order in which that became possible."""

    def __init__(self, found: Transactions, operations: Iterable[Operation]) -> None:
        self.keys = set(found.by_group())
        """Groups and keys that transactions commit offsets of."""
        self._by_offset: dict[tuple[str, str, int], list[tuple[int, Transaction | None]]] = (
            defaultdict(list)
        )
        for (group, key), offsets in found.by_group().items():
            for offset, transaction in offsets:
                attempted = transaction.attempted
                if attempted is not None and transaction.answer is not Answer.ABORTED:
                    self._by_offset[group, key, offset].append((attempted.i, transaction))
        for one in operations:
            if one.f == "commit" and one.outcome != "fail":
                for key, offset in one.begun.v["offsets"].items():
                    self._by_offset[one.begun.v["group"], key, offset].append((one.begun.i, None))
        for possible in self._by_offset.values():
            possible.sort(key=lambda one: one[0])
            del possible[2:]

    def of(self, group: str, key: str, offset: int, before: int) -> list[Transaction | None]:
        """Return at most two of them; None is a commit without a transaction."""
        return [one for at, one in self._by_offset.get((group, key, offset), ()) if at < before]


def _find_applied(found: Transactions, operations: list[Operation]) -> None:
    """Find transactions of which only the offsets prove that they were committed."""
    candidates = Candidates(found, operations)
    for one in operations:
        if one.f != "committed" or one.outcome != "ok":
            continue
        for key, offset in one.v["offsets"].items():
            possible = candidates.of(one.v["group"], key, offset, end(one))
            if len(possible) == 1 and possible[0] is not None:
                transaction = possible[0]
                if transaction.applied is None or end(one) < end(transaction.applied):
                    transaction.applied = one
