"""Histories for tests, built one event after another."""

from __future__ import annotations

from typing import Any

from tests.checker.history import Event, Process

MILLISECOND = 1_000_000


class Builder:
    """A history in the making; every method adds events, a millisecond each."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, p: Process, type_: str, f: str, v: Any = None, **meta: Any) -> Event:
        """Add one event."""
        err = meta.pop("err", None)
        at = len(self.events)
        self.events.append(Event(at, at * MILLISECOND, p, type_, f, v, err, meta))
        return self.events[-1]

    def done(self, p: Process, f: str, v: Any, outcome: str = "ok", **meta: Any) -> Builder:
        """Add an uninterrupted operation. *outcome* "open": it has no end."""
        begun = self.event(p, "invoke", f, v, **meta)
        if outcome != "open":
            self.event(p, outcome, f, v, op=begun.i, **meta)
        return self

    def send(
        self, value: int, offset: int | None = None, outcome: str = "ok", *, p: Process = 0,
        key: str = "t-0", **meta: Any,
    ) -> Builder:  # fmt: skip
        """Send one value; *offset* is that of the answer."""
        begun = self.event(p, "invoke", "send", [["send", key, [None, value]]], **meta)
        if outcome != "open":
            self.event(p, outcome, "send", [["send", key, [offset, value]]], op=begun.i, **meta)
        return self

    def poll(self, *records: tuple[int, int], p: Process = 9, key: str = "t-0", **meta: Any) -> Builder:  # fmt: skip
        """Poll (offset, value) pairs."""
        found = [["poll", {key: [list(record) for record in records]}]]
        self.event(p, meta.pop("outcome", "ok"), "poll", found, **meta)
        return self

    def begin(self, txn: str, *, p: Process = 0, id: str = "x") -> Builder:
        """Begin a transaction."""
        self.event(p, "ok", "begin_transaction", {"id": id, "txn": txn})
        return self

    def offsets(self, txn: str, offsets: dict[str, int], *, p: Process = 0) -> Builder:
        """Send the offsets of a group in a transaction."""
        return self.done(p, "send_offsets", {"txn": txn, "group": "g", "offsets": offsets})

    def commit(self, txn: str, outcome: str = "ok", *, p: Process = 0) -> Builder:
        """Attempt to commit a transaction."""
        return self.done(p, "commit_transaction", {"txn": txn}, outcome)

    def abort(self, txn: str, outcome: str = "ok", *, p: Process = 0) -> Builder:
        """Attempt to abort a transaction."""
        return self.done(p, "abort_transaction", {"txn": txn}, outcome)

    def init(self, *, p: Process = 0, id: str = "x", outcome: str = "ok") -> Builder:
        """Initialize the producer of a transactional id."""
        return self.done(p, "init_transactions", {"id": id}, outcome)

    def view(
        self, *records: tuple[int, int], to: int, p: Process = 5, key: str = "t-0",
        isolation: str = "read_committed",
    ) -> Builder:  # fmt: skip
        """Read a key from its beginning to a position."""
        self.done(p, "seek", {key: 0}, isolation=isolation)
        if records:
            self.poll(*records, p=p, key=key)
        return self.done(p, "position", {key: to})

    def final(
        self, *records: tuple[int, int], p: Process = 99, key: str = "t-0", isolation: str | None = None
    ) -> Builder:  # fmt: skip
        """Read the key from its beginning to its end."""
        self.done(p, "seek", {key: 0}, **({} if isolation is None else {"isolation": isolation}))
        if records:
            self.poll(*records, p=p, key=key)
        end = records[-1][0] + 1 if records else 0
        return self.done(p, "final", {key: end})
