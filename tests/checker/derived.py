"""The logs that follow from a history: for each key the value at each offset, its writer and its readers.

A value is taken to be at an offset if a send with acks=all got that offset, or any poll returned it there. An answer to
acks=1 promises nothing. A send with an unknown outcome happened if any of its values was read; then all of them
happened.

Offsets may have gaps (markers, lost batches): rules about order go by the index among the offsets that are known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from tests.checker.history import (
    TRANSFERS,
    Event,
    HistoryError,
    Operation,
    Process,
    operations,
)
from tests.checker.log import Log
from tests.checker.transactions import Transactions, derive_transactions

Micro = TypeVar("Micro", bound=tuple[Any, ...])


@dataclass(slots=True)
class Write:
    """One value's writing."""

    value: int
    operation: Operation
    offset: int | None
    """The offset of the answer."""

    @property
    def binding(self) -> bool:
        """Whether the broker has promised to keep it."""
        return self.operation.is_acknowledged


@dataclass
class KeyLog(Log):
    """One key's log, as it must have been."""

    writes: dict[int, Write] = field(default_factory=dict)
    readers: dict[int, Operation] = field(default_factory=dict)
    """Value -> the first operation that is known to have read it."""
    read_up_to: int = -1
    """The greatest offset at which anything was read."""
    end: int | None = None
    """Where the final polls ended; None if there were none."""
    in_final_polls: dict[Process, set[int]] = field(default_factory=dict)
    """What each process read that read the key to its end."""

    def poll(self, operation: Operation, records: Iterable[tuple[int, int]]) -> None:
        """Note what *operation* polled."""
        in_final_polls = self.in_final_polls.get(operation.process)
        for offset, value in records:
            self.put(offset, value, operation)
            if operation.outcome == "ok":
                self.read_up_to = max(self.read_up_to, offset)
                self.readers.setdefault(value, operation)
                if in_final_polls is not None:
                    in_final_polls.add(value)

    @cached_property
    def index(self) -> dict[int, int]:
        """Offset -> its place among the offsets known."""
        return {offset: number for number, offset in enumerate(self.offsets)}

    @cached_property
    def offsets(self) -> list[int]:
        """The offsets known, in order."""
        return sorted(self.at)


@dataclass
class Derived:
    """Everything the rules need."""

    events: list[Event]
    operations: list[Operation]
    logs: dict[str, KeyLog]
    committed: list[tuple[str, Write]]
    """What must be there: promised, or of unknown outcome and seen."""
    transactions: Transactions
    """Transactions, and the keys that are judged by isolation level; *logs* is without those."""

    def every_log(self) -> Iterable[Log]:
        """Return the logs of all keys."""
        return (*self.logs.values(), *self.transactions.logs.values())

    def transfers(self) -> Iterable[Operation]:
        """Return the operations that send or poll, in the order of their beginnings."""
        return (operation for operation in self.operations if operation.f in TRANSFERS)


def derive(events: list[Event]) -> Derived:
    """Derive the logs from the history. Raise HistoryError if a value was written twice."""
    found = operations(events)
    transactions = derive_transactions(found)
    logs: dict[str, KeyLog] = {}

    def log_of(key: str) -> KeyLog:
        return logs.setdefault(key, KeyLog(key))

    def mine(micros: Iterable[Micro]) -> Iterable[Micro]:
        return (one for one in micros if one[0] not in transactions.logs)

    finals = (one for one in found if one.f == "final" and one.outcome == "ok")
    for operation in finals:
        for key, end in mine(operation.v.items()):
            log_of(key).end = max(end, log_of(key).end or 0)
            log_of(key).in_final_polls[operation.process] = set()
    for operation in found:
        if operation.f not in TRANSFERS:
            continue
        for key, offset, value in mine(operation.sends()):
            log = log_of(key)
            if value in log.writes:
                raise HistoryError(
                    f"value {value} of {key} is written by event {operation.begun.i}"
                    f" and by {log.writes[value].operation.begun.i}"
                )
            write = log.writes[value] = Write(value, operation, offset)
            if write.binding and offset is not None:
                log.put(offset, value, operation)
        for key, records in mine(operation.polls()):
            log_of(key).poll(operation, records)
    return Derived(events, found, logs, list(_committed(logs)), transactions)


def _committed(logs: dict[str, KeyLog]) -> Iterable[tuple[str, Write]]:
    """Yield what must be there."""
    happened = {
        id(write.operation)
        for log in logs.values()
        for value, write in log.writes.items()
        if write.operation.outcome == "info" and value in log.readers
    }
    for key, log in logs.items():
        for write in log.writes.values():
            if write.binding or id(write.operation) in happened:
                yield key, write
