"""Histories for tests: built one event after another, or generated clean from a seed."""

from __future__ import annotations

import random
from typing import Any

from tests.checker.history import Event, Process

MILLISECOND = 1_000_000


class Story:
    """A history in the making; every method adds events, a millisecond each."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, p: Process, type_: str, f: str, v: Any = None, **meta: Any) -> Event:
        """Add one event."""
        err = meta.pop("err", None)
        at = len(self.events)
        self.events.append(Event(at, at * MILLISECOND, p, type_, f, v, err, meta))
        return self.events[-1]

    def done(self, p: Process, f: str, v: Any, outcome: str = "ok", **meta: Any) -> Story:
        """Add an uninterrupted operation. *outcome* "open": it has no end."""
        begun = self.event(p, "invoke", f, v, **meta)
        if outcome != "open":
            self.event(p, outcome, f, v, op=begun.i, **meta)
        return self

    def send(
        self, value: int, offset: int | None = None, outcome: str = "ok", *, p: Process = 0,
        key: str = "t-0", **meta: Any,
    ) -> Story:  # fmt: skip
        """Send one value; *offset* is that of the answer."""
        begun = self.event(p, "invoke", "send", [["send", key, [None, value]]], **meta)
        if outcome != "open":
            self.event(p, outcome, "send", [["send", key, [offset, value]]], op=begun.i, **meta)
        return self

    def poll(self, *records: tuple[int, int], p: Process = 9, key: str = "t-0", **meta: Any) -> Story:  # fmt: skip
        """Poll (offset, value) pairs."""
        found = [["poll", {key: [list(record) for record in records]}]]
        self.event(p, meta.pop("outcome", "ok"), "poll", found, **meta)
        return self

    def final(self, *records: tuple[int, int], p: Process = 99, key: str = "t-0") -> Story:
        """Read the key from its beginning to its end."""
        self.done(p, "seek", {key: 0})
        if records:
            self.poll(*records, p=p, key=key)
        end = records[-1][0] + 1 if records else 0
        return self.done(p, "final", {key: end})


class _Play:
    """Logs that keep every promise, and what clients see of them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.story = Story()
        self.keys = [f"t-{n}" for n in range(chance.randint(1, 3))]
        self.logs: dict[str, list[tuple[int, int]]] = {key: [] for key in self.keys}
        self._positions: dict[tuple[int, str], int] = {}

    def begin(self, p: int) -> int:
        """Let a process begin to read everything."""
        self.story.done(p, "assign", self.keys)
        self.story.done(p, "seek", dict.fromkeys(self.keys, 0))
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
            self.story.send(value, self._append(key, value), p=p, key=key, **meta)
        elif fate < 0.85:
            self.story.send(value, None, "fail", p=p, key=key, **meta)
        else:
            if self.chance.random() < 0.5:
                self._append(key, value)
            self.story.send(value, None, self.chance.choice(("info", "open")), p=p, key=key, **meta)

    def poll(self, p: int) -> None:
        """Poll a few records of one key."""
        key = self.chance.choice(self.keys)
        at = self._positions.get((p, key), 0)
        found = self.logs[key][at : at + self.chance.randint(1, 8)]
        if found:
            self.story.poll(*found, p=p, key=key)
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
            play.story.event(processes[number], "info", "crash")
            processes[number] = play.begin(processes[number] + 10)
    for key in play.keys:
        play.story.final(*play.logs[key], key=key)
    return play.story.events
