"""Histories for tests, played from a seed on logs or a cluster that keep every guarantee: no rule may find anything."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.checker.history import Event
from tests.checker.history_builder import Builder
from tests.checker.transactions import READ_COMMITTED


class _Play:
    """Logs that keep every promise, and what clients see of them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.builder = Builder()
        self.keys = [f"t-{n}" for n in range(chance.randint(1, 3))]
        self.logs: dict[str, list[tuple[int, int]]] = {key: [] for key in self.keys}
        self._positions: dict[tuple[int, str], int] = {}

    def begin(self, p: int) -> int:
        """Let a process begin to read everything."""
        self.builder.done(p, "assign", self.keys)
        self.builder.done(p, "seek", dict.fromkeys(self.keys, 0))
        return p

    def _append(self, key: str, value: int) -> int:
        last = self.logs[key][-1][0] if self.logs[key] else -1
        offset = last + 1 + (self.chance.random() < 0.05)
        self.logs[key].append((offset, value))
        return offset

    def send(self, p: int, value: int) -> None:
        """Send *value*: three of four are acknowledged."""
        key = self.chance.choice(self.keys)
        meta: dict[str, Any] = {"idempotent": True, "retries": True}
        fate = self.chance.random()
        if fate < 0.75:
            self.builder.send(value, self._append(key, value), p=p, key=key, **meta)
        elif fate < 0.85:
            self.builder.send(value, None, "fail", p=p, key=key, **meta)
        else:
            if self.chance.random() < 0.5:
                self._append(key, value)
            self.builder.send(
                value, None, self.chance.choice(("info", "open")), p=p, key=key, **meta
            )

    def poll(self, p: int) -> None:
        """Poll a few records of one key."""
        key = self.chance.choice(self.keys)
        at = self._positions.get((p, key), 0)
        found = self.logs[key][at : at + self.chance.randint(1, 8)]
        if found:
            self.builder.poll(*found, p=p, key=key)
            self._positions[p, key] = at + len(found)


def clean_history(seed: int, *, sends: int = 60) -> list[Event]:
    """Play clients on logs that keep every promise: answers get lost, clients crash, offsets have gaps."""
    chance = random.Random(seed)
    play = _Play(chance)
    processes = [play.begin(0), play.begin(1)]
    for value in range(1, sends + 1):
        number = chance.randrange(len(processes))
        play.send(processes[number], value)
        if chance.random() < 0.6:
            play.poll(processes[number])
        if chance.random() < 0.03:
            play.builder.event(processes[number], "info", "crash")
            processes[number] = play.begin(processes[number] + 10)
    for key in play.keys:
        play.builder.final(*play.logs[key], key=key)
    return play.builder.events


@dataclass
class _Transaction:
    """A transaction in a cluster that keeps every guarantee."""

    id: str
    epoch: int
    values: dict[int, str]
    """Value -> key, of what was appended."""
    offset: int | None = None
    fate: str | None = None
    lost: bool = False
    """Whether a record was not appended: its producer does not commit it."""


class _Cluster:
    """Two keys and a group, transactional producers and readers; what they do is interleaved step by step."""

    def __init__(self, chance: random.Random, *, offsets: bool) -> None:
        self.chance, self.with_offsets = chance, offsets
        self.builder = Builder()
        self.keys = ["t-0", "t-1"]
        self.logs: dict[str, list[tuple[int, _Transaction | None] | None]] = {
            key: [] for key in self.keys
        }
        """By offset: the value and its transaction; None for a marker."""
        self.epochs: dict[str, int] = {}
        self.transactions: list[_Transaction] = []
        self.group = 0
        self._values = itertools.count(1)

    def decide(self, transaction: _Transaction, fate: str) -> None:
        """Commit or abort, unless it was decided before."""
        if transaction.fate is None:
            transaction.fate = fate
            for key in sorted(set(transaction.values.values())):
                self.logs[key].append(None)
            if fate == "commit" and transaction.offset is not None:
                self.group = transaction.offset

    def stable(self, key: str) -> int:
        """Return the last stable offset."""
        for offset, found in enumerate(self.logs[key]):
            if found is not None and found[1] is not None and found[1].fate is None:
                return offset
        return len(self.logs[key])

    def shown(self, key: str, begin: int, to: int, isolation: str) -> list[tuple[int, int]]:
        """Return what a reader sees between two offsets."""
        return [
            (offset, found[0])
            for offset, found in enumerate(self.logs[key][:to])
            if found is not None
            and offset >= begin
            and (isolation != READ_COMMITTED or found[1] is None or found[1].fate == "commit")
        ]

    def producer(self, p: int, id: str) -> Iterator[None]:
        """Begin under a transactional id, and make transactions."""
        event = self.builder.event
        begun = event(p, "invoke", "init_transactions", {"id": id})
        yield
        self.epochs[id] = epoch = self.epochs.get(id, -1) + 1
        for one in self.transactions:
            if one.id == id:
                self.decide(one, "abort")
        yield
        if self.chance.random() < 0.9:
            event(p, "ok", "init_transactions", {"id": id}, op=begun.i)
        for _ in range(self.chance.randint(1, 2)):
            yield from self._transaction(p, f"{id}{len(self.transactions)}", id, epoch)

    def _transaction(self, p: int, name: str, id: str, epoch: int) -> Iterator[None]:
        made = _Transaction(id, epoch, {})
        self.transactions.append(made)
        self.builder.begin(name, p=p, id=id)
        for _ in range(self.chance.randint(1, 3)):
            yield
            self._send(p, name, made)
        if self.with_offsets and id == "x":
            offset = self.chance.randint(1, 4)
            if self._is_live(made):
                made.offset = offset
            self.builder.offsets(name, {"in-0": offset}, p=p)
        yield
        if self.chance.random() < 0.1 and made.fate is None:
            self.decide(made, "abort")  # the coordinator aborts what takes too long
            self.epochs[id] += 1
        word = "commit" if not made.lost and self.chance.random() < 0.75 else "abort"
        begun = self.builder.event(p, "invoke", f"{word}_transaction", {"txn": name})
        yield
        was_live = self._is_live(made)
        if was_live and self.chance.random() < 0.9:
            self.decide(made, word)
        yield
        if self.chance.random() < 0.6:
            done = was_live and made.fate == word
            outcome = "ok" if done else "fail" if not was_live else "info"
            self.builder.event(p, outcome, f"{word}_transaction", {"txn": name}, op=begun.i)
        elif not was_live and self.chance.random() < 0.5:
            self.builder.done(p, "fenced", {"id": id})

    def _is_live(self, made: _Transaction) -> bool:
        return made.fate is None and made.epoch == self.epochs[made.id]

    def _send(self, p: int, name: str, made: _Transaction) -> None:
        key, value = self.chance.choice(self.keys), next(self._values)
        if not self._is_live(made) or self.chance.random() < 0.1:
            made.lost = True
            self.builder.send(
                value, None, self.chance.choice(("fail", "open")), p=p, key=key, txn=name
            )
            return
        offset = len(self.logs[key])
        self.logs[key].append((value, made))
        made.values[value] = key
        if self.chance.random() < 0.7:
            self.builder.send(value, offset, p=p, key=key, txn=name)
        else:
            self.builder.send(value, None, "open", p=p, key=key, txn=name)

    def plain(self, p: int) -> Iterator[None]:
        """Send a record without a transaction."""
        key = self.chance.choice(self.keys)
        self.logs[key].append((value := next(self._values), None))
        self.builder.send(value, len(self.logs[key]) - 1, p=p, key=key)
        yield

    def reader(self, p: int) -> Iterator[None]:
        """Read a key in two polls, or ask for the offset of the group."""
        isolation = self.chance.choice((READ_COMMITTED, READ_COMMITTED, "read_uncommitted"))
        key = self.chance.choice(self.keys)
        self.builder.done(p, "seek", {key: 0}, isolation=isolation)
        position = 0
        for _ in range(2):
            yield
            stable = self.stable(key)
            limit = stable if isolation == READ_COMMITTED else len(self.logs[key])
            to = self.chance.randint(position, max(position, limit))
            found = self.shown(key, position, to, isolation)
            if found:
                self.builder.poll(*found, p=p, key=key, stable={key: stable})
            self.builder.done(p, "position", {key: to})
            position = to
        if self.with_offsets:
            begun = self.builder.event(p, "invoke", "committed", {"group": "g", "offsets": {"in-0": 0}})  # fmt: skip
            yield
            found_offset = {"group": "g", "offsets": {"in-0": self.group}}
            yield
            self.builder.event(p, "ok", "committed", found_offset, op=begun.i)


def transactional_history(seed: int, *, offsets: bool = False, actors: int = 7) -> list[Event]:
    """Play transactions on a cluster that keeps every guarantee: producers are replaced, answers are lost."""
    chance = random.Random(seed)
    cluster = _Cluster(chance, offsets=offsets)
    acting: list[Iterator[None]] = []
    for p in range(actors):
        kind = chance.random()
        if p == 0 or kind < 0.45:
            acting.append(cluster.producer(p, chance.choice("xxy")))
        else:
            acting.append(cluster.reader(p) if kind < 0.9 else cluster.plain(p))
    while acting:
        one = chance.choice(acting[:3])
        if next(one, acting) is acting:
            acting.remove(one)
    for transaction in cluster.transactions:
        cluster.decide(transaction, "abort")
    for key in cluster.keys:
        for p, isolation in ((98, "read_uncommitted"), (99, READ_COMMITTED)):
            shown = cluster.shown(key, 0, len(cluster.logs[key]), isolation)
            cluster.builder.final(*shown, p=p, key=key, isolation=isolation)
    return cluster.builder.events
