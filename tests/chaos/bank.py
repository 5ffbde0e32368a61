"""A bank of transfers: what its records are, and what a consumer with read_committed may see of them (S38).

A client reads orders, writes two postings for each (a debit and a credit, in different partitions), and commits the
offsets of the orders, all in one transaction.

What a reader may see
=====================
A reader reads one partition after the other, each from the beginning to its last stable offset. That is its *position*
in the partition. The markers of one transaction are written one by one, so a reader may see a posting in one partition
and be below the other posting in the next one. It may not be above it without seeing it. So a view is a cut of the
final postings: in each partition exactly those below the position, no matter when it was read.

Rules
=====
1. A view has, in each partition, exactly the final postings below its position.
2. The postings of a transaction are all final, or none is.
3. Each order that is in the log of orders has exactly its two final postings, and no other order has one.

From 1 and 3 it follows that the sum of a view is 0, without the postings with a counterpart at or above the position.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.audits.problem import Problem

ORDERS = "orders"
POSTINGS = "postings"
GROUP = "bank"
ORDER_PARTITIONS = 4
POSTING_PARTITIONS = 6
ACCOUNTS = 60


class Order(NamedTuple):
    """Move *amount* from account *debtor* to account *creditor*."""

    debtor: int
    creditor: int
    amount: int

    def encode(self) -> bytes:
        """Return the value of its record."""
        return json.dumps(self).encode()

    @classmethod
    def decode(cls, value: bytes) -> Order:
        """Read the value of a record."""
        return cls(*json.loads(value))


class Posting(NamedTuple):
    """One half of a transfer."""

    order: str
    """Partition and offset of the order."""
    account: int
    amount: int
    transaction: str
    """A name of the transaction that no other one has."""
    size: int
    """The number of postings in that transaction."""

    @property
    def partition(self) -> int:
        """The partition of its account."""
        return self.account % POSTING_PARTITIONS

    def encode(self) -> bytes:
        """Return the value of its record."""
        return json.dumps(self).encode()

    @classmethod
    def decode(cls, value: bytes) -> Posting:
        """Read the value of a record."""
        return cls(*json.loads(value))


def transfer(place: str, order: Order, transaction: str, size: int) -> tuple[Posting, Posting]:
    """Return the two postings of an order."""
    return (
        Posting(place, order.debtor, -order.amount, transaction, size),
        Posting(place, order.creditor, order.amount, transaction, size),
    )


@dataclass
class View:
    """What a reader saw, from the beginning of each partition to its position there."""

    reader: str
    positions: dict[int, int] = field(default_factory=dict)
    postings: dict[int, dict[int, Posting]] = field(default_factory=lambda: defaultdict(dict))
    """By partition and offset."""
    polls: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By partition: monotonic times (ns) of its beginning and of each poll, and the number of postings until then."""
    asked: tuple[int, int, dict[int, int]] | None = None
    """The committed offsets of the group by partition of orders, between two times (ns)."""

    def to_json(self) -> str:
        """Return it as one line."""
        rows = [[p, o, *one] for p, held in self.postings.items() for o, one in held.items()]
        asked = self.asked and [*self.asked[:2], list(self.asked[2].items())]
        polls = list(self.polls.items())
        return json.dumps([self.reader, list(self.positions.items()), rows, polls, asked])

    @classmethod
    def from_json(cls, line: str) -> View:
        """Read a line."""
        reader, positions, rows, polls, asked = json.loads(line)
        view = cls(reader, dict(positions))
        view.polls = {partition: [(t, count) for t, count in held] for partition, held in polls}
        view.asked = asked and (asked[0], asked[1], dict(asked[2]))
        for partition, offset, *posting in rows:
            view.postings[partition][offset] = Posting(*posting)
        return view

    def polled(self, partition: int) -> None:
        """Note the time of the beginning of a partition, or of a poll."""
        now = (time.monotonic_ns(), len(self.postings[partition]))
        self.polls.setdefault(partition, []).append(now)

    @property
    def count(self) -> int:
        """The number of postings."""
        return sum(map(len, self.postings.values()))

    def balance(self, final: View) -> int:
        """Return the sum of the postings with a counterpart below the position of this view."""
        places = final.places()
        return sum(
            one.amount
            for held in self.postings.values()
            for one in held.values()
            if all(o < self.positions[p] for p, o in places.get(one.order, ()))
        )

    def transactions(self) -> set[str]:
        """Return the names of the transactions."""
        return {one.transaction for held in self.postings.values() for one in held.values()}

    def places(self) -> dict[str, list[tuple[int, int]]]:
        """Return partition and offset of the postings of each order."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for partition, held in self.postings.items():
            for offset, one in held.items():
                found[one.order].append((partition, offset))
        return found


def judge(orders: Mapping[str, Order], views: Iterable[View], final: View) -> list[Problem]:
    """Return what breaks a rule of this module."""
    problems = _judge_final(orders, final)
    for number, view in enumerate(views):
        problems += _judge_view(f"view {number} of {view.reader}", view, final)
    return problems


def _judge_final(orders: Mapping[str, Order], final: View) -> list[Problem]:
    problems = []
    by_order: dict[str, list[Posting]] = defaultdict(list)
    by_transaction: dict[str, list[Posting]] = defaultdict(list)
    for held in final.postings.values():
        for one in held.values():
            by_order[one.order].append(one)
            by_transaction[one.transaction].append(one)
    for place in by_order.keys() - orders.keys():
        problems.append(Problem("invented", place, f"{by_order[place]}"))
    for place, order in orders.items():
        found = by_order[place]
        if not found:
            problems.append(Problem("order-lost", place, f"{order} has no postings"))
            continue
        wanted = transfer(place, order, found[0].transaction, found[0].size)
        if sorted(found) != sorted(wanted):
            rule = "half" if len(found) < len(wanted) else "applied-twice"
            problems.append(Problem(rule, place, f"{order}: {found}"))
    for name, postings in by_transaction.items():
        if any(one.size != len(postings) for one in postings):
            text = f"{len(postings)} of {postings[0].size} postings are visible: {postings}"
            problems.append(Problem("half-a-transaction", name, text))
    return problems


def _judge_view(name: str, view: View, final: View) -> list[Problem]:
    problems = []
    for partition, position in view.positions.items():
        seen = view.postings[partition]
        due = {o: one for o, one in final.postings[partition].items() if o < position}
        where = f"{name}, {POSTINGS}-{partition}"
        for offset in sorted(seen.keys() | due.keys()):
            if offset not in due:
                text = f"{seen[offset]} at offset {offset} was visible, and is not final"
                problems.append(Problem("visible-and-gone", where, text))
            elif offset not in seen:
                text = (
                    f"{due[offset]} at offset {offset} was not visible, the position is {position}"
                )
                problems.append(Problem("hidden", where, text))
            elif seen[offset] != due[offset]:
                text = f"offset {offset}: {seen[offset]}, later {due[offset]}"
                problems.append(Problem("another-record", where, text))
    if not problems and (sum_ := view.balance(final)):
        problems.append(Problem("sum", name, f"{sum_}, not 0"))
    return problems
