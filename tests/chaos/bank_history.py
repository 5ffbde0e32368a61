"""The history of a bank, for the checker (`tests.checker`): from what its clients noted and its readers saw (S38).

A client notes each step of its transactions with the monotonic time, which is one clock for all processes of a machine
(`Journal`). A posting is a value of the history: its transaction, its order and its account are found again in what
readers saw. Each view of a reader is a process of the history, because it begins at the beginning of each partition.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.bank import GROUP, ORDERS, POSTINGS, Posting, View
from tests.checker.history import Event, Process

HISTORY = "history"
"""The word of its lines among those of a client."""
Named = tuple[str, str, int]
"""Transaction, order and account of a posting."""


class Journal:
    """What one producer of a client does, a line for each step."""

    def __init__(self, process: str, id: str, note: Callable[[str, str], None]) -> None:
        self._process, self._id, self._note = process, id, note
        self._txn = ""
        self._is_attempted = False
        self._delivered: list[tuple[int, str, int, int]] = []

    def _line(self, type_: str, f: str, v: Any, err: str | None = None) -> None:
        line = [time.monotonic_ns(), self._process, type_, f, v, err]
        self._note(HISTORY, json.dumps(line, separators=(",", ":")))

    def initializes(self) -> None:
        """Note that the transactional id is requested."""
        self._line("invoke", "init_transactions", {"id": self._id})

    def initialized(self) -> None:
        """Note the answer."""
        self._line("ok", "init_transactions", {"id": self._id})

    def begins(self, txn: str) -> None:
        """Note a new transaction."""
        self._txn, self._is_attempted, self._delivered = txn, False, []
        self._line("ok", "begin_transaction", {"id": self._id, "txn": txn})

    def sends(self, postings: Iterable[Posting]) -> None:
        """Note postings that are sent from now on."""
        sent = [[one.partition, one.order, one.account] for one in postings]
        self._line("invoke", "send", {"txn": self._txn, "postings": sent})

    def delivered(self, posting: Posting, offset: int) -> None:
        """Take an acknowledgement. It is written down when the transaction ends; any thread may call."""
        if posting.transaction == self._txn and offset >= 0:
            self._delivered.append((posting.partition, posting.order, posting.account, offset))

    def sends_offsets(self, after: dict[int, int]) -> None:
        """Note the offsets of the transaction."""
        offsets = {f"{ORDERS}-{partition}": offset for partition, offset in after.items()}
        self._line("invoke", "send_offsets", {"txn": self._txn, "group": GROUP, "offsets": offsets})

    def commits(self) -> None:
        """Note an attempt to commit."""
        self._is_attempted = True
        self._line("invoke", "commit_transaction", {"txn": self._txn})

    def committed(self) -> None:
        """Note that the commit was answered."""
        self._acknowledge()
        self._line("ok", "commit_transaction", {"txn": self._txn})

    def aborts(self) -> None:
        """Note an attempt to abort."""
        self._line("invoke", "abort_transaction", {"txn": self._txn})

    def aborted(self) -> None:
        """Note that the abort succeeded. After an attempt to commit it proves nothing."""
        self._acknowledge()
        self._line("info" if self._is_attempted else "ok", "abort_transaction", {"txn": self._txn})

    def failed(self, problem: Exception, *, is_fenced: bool) -> None:
        """Note an error: what it ends has an unknown outcome."""
        self._line("info", "error", {"txn": self._txn}, f"{type(problem).__name__} {problem}")
        if is_fenced:
            self._line("ok", "fenced", {"id": self._id})

    def _acknowledge(self) -> None:
        self._line("ok", "send", {"txn": self._txn, "postings": list(self._delivered)})


@dataclass
class _Step:
    """An event without its place."""

    t: int
    p: Process
    type: str
    f: str
    v: Any
    err: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    begun: _Step | None = None


class _Values:
    """The numbers of postings. The same record at the same place is the same object, however often it is read."""

    def __init__(self) -> None:
        self._numbers: dict[Named, int] = {}
        self._records: dict[tuple[int, int, int], tuple[int, int]] = {}

    def number(self, named: Named) -> int:
        """Return the value of a posting."""
        return self._numbers.setdefault(named, len(self._numbers) + 1)

    def record(self, partition: int, offset: int, posting: Posting) -> tuple[int, int]:
        """Return offset and value of what was read."""
        number = self.number((posting.transaction, posting.order, posting.account))
        return self._records.setdefault((partition, offset, number), (offset, number))


def history(
    notes: Iterable[str], views: Iterable[View], finals: Iterable[View], everything: View
) -> list[Event]:
    """Return the history: lines of clients, views, views of the end and one of them with read_uncommitted."""
    values = _Values()
    sent: dict[int, _Step] = {}
    steps = [step for line in notes for step in _noted(line, values, sent)]
    committed = {"isolation": "read_committed"}
    number = itertools.count()
    for view in views:
        steps += _seen(view, f"{view.reader}-{next(number)}", "position", committed, values)
    for view in finals:
        steps += _seen(view, f"final-{view.reader}", "final", committed, values)
    uncommitted = {"isolation": "read_uncommitted"}
    steps += _seen(everything, "final-uncommitted", "final", uncommitted, values)
    steps.sort(key=lambda step: step.t)
    place = {id(step): i for i, step in enumerate(steps)}
    events = []
    for i, step in enumerate(steps):
        meta = step.meta if step.begun is None else {**step.meta, "op": place[id(step.begun)]}
        events.append(Event(i, step.t, step.p, step.type, step.f, step.v, step.err, meta))
    return events


def _noted(line: str, values: _Values, sent: dict[int, _Step]) -> Iterator[_Step]:
    """Yield the steps of one line; *sent* has the sends by value.

    A client that was killed while it wrote leaves a part of a line. What it announces had not begun.
    """
    _, _, text = line.rpartition(f" {HISTORY} ")
    try:
        t, p, type_, f, v, err = json.loads(text)
    except ValueError:
        return
    if f != "send":
        yield _Step(t, p, type_, f, v, err)
        return
    txn = v["txn"]
    meta = {"txn": txn, "idempotent": True}
    for partition, order, account, *place in v["postings"]:
        value = values.number((txn, order, account))
        micro = ["send", f"{POSTINGS}-{partition}", [place[0] if place else None, value]]
        step = _Step(t, p, type_, "send", [micro], None, meta, sent.get(value))
        if type_ == "invoke":
            sent[value] = step
        if type_ == "invoke" or step.begun is not None:
            yield step


def _seen(
    view: View, process: str, end: str, meta: dict[str, Any], values: _Values
) -> Iterator[_Step]:
    """Yield what a view polled, and its position in each partition."""
    for partition, position in view.positions.items():
        key = f"{POSTINGS}-{partition}"
        began, *polls = view.polls[partition]
        yield _Step(began[0], process, "ok", "seek", {key: 0}, None, meta)
        left = list(view.postings[partition].items())
        at = 0
        for t, count in polls:
            found = [values.record(partition, offset, one) for offset, one in left[at:count]]
            yield _Step(t, process, "ok", "poll", [["poll", {key: found}]])
            at = count
        stopped = polls[-1][0] if polls else began[0]
        begun = _Step(stopped, process, "invoke", end, {key: position})
        yield begun
        yield _Step(stopped, process, "ok", end, {key: position}, begun=begun)
    if view.asked is not None:
        began_ns, ended_ns, offsets = view.asked
        found_offsets = {f"{ORDERS}-{partition}": offset for partition, offset in offsets.items()}
        request = {"group": GROUP, "offsets": found_offsets}
        begun = _Step(began_ns, process, "invoke", "committed", request)
        yield begun
        yield _Step(ended_ns, process, "ok", "committed", request, begun=begun)
