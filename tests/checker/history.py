"""A history: what clients did, one JSON object a line.

``{"i": 7, "t": 123, "p": 3, "type": "ok", "f": "send", "v": [["send", "t-0", [42, 9001]]], "err": null, "meta": {}}``

- i: place in the history, counted over all workers. t: monotonic nanoseconds.
- p: the process, a client from its making to its end; a torn-down client's successor is another process.
- type: ``invoke`` begins an operation; ``ok``, ``fail`` (it has certainly not happened) or ``info`` (unknown)
  ends it, naming the beginning in ``meta.op``, or else the last one of this process with the same f. An operation
  without an end is info. What needs no beginning (polls, faults) has none.
- f and v:
  - ``send``, ``poll``, ``txn``: micro-operations ``["send", key, [offset or null, value]]`` and
    ``["poll", {key: [[offset, value], ...]}]``
  - ``assign``: the keys; ``subscribe``: the topics; ``seek``: ``{key: offset}``; ``crash``: null
  - ``final``: ``{key: end}``: this process has polled all that the key holds below *end*, to its last record
  - ``assigned``: ``{"group", "generation", "member", "keys"}``, what a group member was given
  - ``commit``, ``committed``: ``{"group", "offsets": {key: offset}}``, an offset commit, and what is asked back
  - transactions (`tests.checker.transactions`): ``init_transactions`` ``{"id": transactional id}``;
    ``begin_transaction`` ``{"id", "txn": name}``, the name of one transaction; ``send`` with ``meta.txn``;
    ``send_offsets`` ``{"txn", "group", "offsets": {key: offset}}``; ``commit_transaction`` and ``abort_transaction``
    ``{"txn"}``, any number of attempts, where ok is the answer of the coordinator; ``fenced`` ``{"id"}``: this
    process got PRODUCER_FENCED, its epoch was raised by another producer or by the coordinator. Where transactions
    commit offsets, ``committed`` is asked with require_stable (KIP-447) and does not name keys without an offset
  - ``position``: ``{key: offset}``: this process has polled all that it may see below *offset*
  - ``election``: ``{key: [leader, leader epoch]}``, completed (from the audit of ZooKeeper)
  - ``admin``, ``nemesis``: anything
- meta of a send: ``acks`` (default "all"), ``idempotent`` and ``retries`` (both default false): what the client
  does by itself; ``ordered``: it keeps the order of its sends; ``broker``: it answered; ``txn``: its transaction.
- meta of a reader: ``isolation`` on any operation of a process: ``read_committed`` or ``read_uncommitted``, its
  isolation.level. ``stable`` of a poll or a position: ``{key: last stable offset}`` of the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

TYPES = ("invoke", "ok", "fail", "info")
TRANSFERS = ("send", "poll", "txn")
"""Operations made of micro-operations."""

Process = int | str


class HistoryError(Exception):
    """The history is not one; the text names the line."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history."""

    i: int
    t: int
    p: Process
    type: str
    f: str
    v: Any = None
    err: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Give the line, without its end."""
        return json.dumps(
            {
                "i": self.i, "t": self.t, "p": self.p, "type": self.type, "f": self.f,
                "v": self.v, "err": self.err, "meta": self.meta,
            },
            separators=(",", ":"),
        )  # fmt: skip


@dataclass(slots=True)
class Operation:
    """A beginning and its end."""

    process: Process
    f: str
    begun: Event
    ended: Event | None = None

    @property
    def outcome(self) -> str:
        """ok, fail or info."""
        return "info" if self.ended is None else self.ended.type

    @property
    def v(self) -> Any:
        """What it did, as far as is known."""
        return self.begun.v if self.ended is None or self.ended.v is None else self.ended.v

    @property
    def meta(self) -> dict[str, Any]:
        """What is known about it."""
        return self.begun.meta if self.ended is None else {**self.begun.meta, **self.ended.meta}

    @property
    def is_acknowledged(self) -> bool:
        """Whether the broker has promised to keep what it sent."""
        return self.outcome == "ok" and self.meta.get("acks", "all") == "all"

    @property
    def may_repeat(self) -> bool:
        """Whether its client sends again what may be in the log already."""
        return bool(self.meta.get("retries")) and not self.meta.get("idempotent")

    @property
    def events(self) -> tuple[int, ...]:
        """Its lines."""
        ends = () if self.ended is None or self.ended is self.begun else (self.ended.i,)
        return (self.begun.i, *ends)

    def sends(self) -> Iterator[tuple[str, int | None, int]]:
        """Yield (key, offset or None, value) of what it sent, in order."""
        for micro in self.v or ():
            if micro[0] == "send":
                yield micro[1], micro[2][0], micro[2][1]

    def polls(self) -> Iterator[tuple[str, list[tuple[int, int]]]]:
        """Yield (key, [(offset, value)]) of what it polled, in order."""
        for micro in self.v or ():
            if micro[0] == "poll":
                yield from micro[1].items()


def parse_line(text: str) -> Event:
    """Read one line; raise ValueError saying what is wrong with it."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    try:
        event = Event(
            value["i"], value["t"], value["p"], value["type"], value["f"],
            value.get("v"), value.get("err"), value.get("meta") or {},
        )  # fmt: skip
    except KeyError as error:
        raise ValueError(f"no {error}") from error
    if event.type not in TYPES:
        raise ValueError(f"type {event.type!r} is none of {', '.join(TYPES)}")
    if event.f in TRANSFERS and event.v is not None:
        _check_micro_operations(event.v)
    return event


def _check_micro_operations(value: Any) -> None:
    for micro in value:
        match micro:
            case ["send", str(), [int() | None, int()]]:
                pass
            case ["poll", dict() as found]:
                for key, records in found.items():
                    if any(len(record) != 2 or record[0] is None for record in records):
                        raise ValueError(f"poll of {key}: records are [offset, value]")
            case _:
                raise ValueError(f"micro-operation {micro!r}")


def read_history(path: Path) -> list[Event]:
    """Read a history, in the order of i. Raise HistoryError."""
    events = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    events.append(parse_line(line))
                except ValueError as error:
                    raise HistoryError(f"{path}, line {number}: {error}") from error
    return ordered(events)


def ordered(events: Iterable[Event]) -> list[Event]:
    """Return *events* in the order of i; raise HistoryError where two share one."""
    result = sorted(events, key=lambda event: event.i)
    for one, other in pairwise(result):
        if one.i == other.i:
            raise HistoryError(f"two events have i {one.i}")
    return result


def operations(events: Iterable[Event]) -> list[Operation]:
    """Pair beginnings and ends, in the order of the beginnings; raise HistoryError for an end too many."""
    found: list[Operation] = []
    open_by_event: dict[int, Operation] = {}
    latest: dict[tuple[Process, str], int] = {}
    for event in events:
        if event.type == "invoke":
            operation = Operation(event.p, event.f, event)
            found.append(operation)
            open_by_event[event.i] = operation
            latest[event.p, event.f] = event.i
            continue
        begun = event.meta.get("op", latest.get((event.p, event.f)))
        if begun is None:
            found.append(Operation(event.p, event.f, event, event))
        elif begun in open_by_event:
            open_by_event.pop(begun).ended = event
            if latest.get((event.p, event.f)) == begun:
                del latest[event.p, event.f]
        else:
            raise HistoryError(f"event {event.i} ends {begun}, which is not open")
    return found
