"""The verdict over a history: every rule, what it found, and one word."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tests.checker import cycles, decisions, groups, polls, sends, values, visibility
from tests.checker.anomaly import Anomaly
from tests.checker.derived import Derived, derive
from tests.checker.history import TRANSFERS, Event, ordered

__all__ = ["Anomaly", "Judgement", "Verdict", "check"]

Rule = Callable[[Derived], Iterator[Anomaly]]
RULES: Final[tuple[Rule, ...]] = (
    values.inconsistent_offsets,
    values.lost_writes,
    values.unseen,
    values.vanished,
    values.duplicates,
    values.aborted_reads,
    values.precommitted_reads,
    values.stale_acks,
    values.weak_losses,
    polls.order_of_polls,
    polls.realtime_lag,
    sends.order_of_sends,
    groups.owners,
    groups.commits,
    cycles.information_cycles,
    visibility.aborted_reads,
    visibility.early_reads,
    visibility.phantoms,
    visibility.last_stable_offset,
    visibility.views,
    visibility.unjudged,
    decisions.decided_twice,
    decisions.fenced_commits,
    decisions.order_of_transactions,
    decisions.applied_offsets,
)
SHOWN: Final = 5
"""Findings of one name that are shown with their events."""


class Judgement(Enum):
    """The one word. Its exit code is its place."""

    CLEAN = "clean"
    BROKEN = "broken"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """0 clean, 1 broken, 2 unknown."""
        return list(Judgement).index(self)


@dataclass(frozen=True)
class Verdict:
    """What was found, and in how much."""

    anomalies: tuple[Anomaly, ...]
    figures: dict[str, int]
    history: dict[int, Event]

    @property
    def judgement(self) -> Judgement:
        """Broken if any promise was; unknown if what was acknowledged was not read back."""
        if any(one.bad for one in self.anomalies):
            return Judgement.BROKEN
        is_unjudged = any(one.name == "unjudged" for one in self.anomalies)
        if is_unjudged or not self.figures["acknowledged"]:
            return Judgement.UNKNOWN
        return Judgement.CLEAN

    def names(self, *, bad: bool = True) -> set[str]:
        """Return the names of what was found; of what is only reported if not *bad*."""
        return {one.name for one in self.anomalies if one.bad is bad}

    def to_json(self) -> dict[str, Any]:
        """Give everything, with the events of the first findings of each name."""
        found: dict[str, Any] = {}
        for name, of_name in self._by_name():
            found[name] = {
                "count": len(of_name),
                "bad": any(one.bad for one in of_name),
                "first": [
                    {
                        "text": one.text,
                        "events": [json.loads(self.history[i].to_json()) for i in one.events],
                    }
                    for one in of_name[:SHOWN]
                ],
            }
        return {"verdict": self.judgement.value, "figures": self.figures, "anomalies": found}

    def to_text(self) -> str:
        """Give what a person reads."""
        lines = [f"verdict: {self.judgement.value}"]
        lines += [f"  {name}: {number}" for name, number in self.figures.items()]
        for name, of_name in self._by_name():
            word = "BAD" if any(one.bad for one in of_name) else "reported"
            lines.append(f"{word}: {name} × {len(of_name)}")
            for one in of_name[:SHOWN]:
                lines.append(f"  {one.text}")
                if one.bad:
                    lines += [f"    {_short(self.history[i])}" for i in one.events]
        return "\n".join(lines)

    def _by_name(self) -> list[tuple[str, list[Anomaly]]]:
        grouped: dict[str, list[Anomaly]] = {}
        for one in sorted(self.anomalies, key=lambda one: (not one.bad, one.name)):
            grouped.setdefault(one.name, []).append(one)
        return list(grouped.items())


def _short(event: Event) -> str:
    line = event.to_json()
    return line if len(line) <= 300 else line[:290] + " ..."


def check(events: Iterable[Event], rules: Iterable[Rule] = RULES) -> Verdict:
    """Judge a history by *rules*. Raise HistoryError if it is none."""
    history = ordered(events)
    derived = derive(history)
    found = [anomaly for rule in rules for anomaly in rule(derived)]
    return Verdict(tuple(found), _figures(derived), {event.i: event for event in history})


def _owners(derived: Derived) -> Iterator[tuple[str, int, str]]:
    """Yield of what the rule on owners had to judge: group, generation and key."""
    for event in derived.events:
        if event.f == "assigned" and event.type == "ok":
            for key in event.v["keys"]:
                yield event.v["group"], event.v["generation"], key


def _figures(derived: Derived) -> dict[str, int]:
    outcomes = Counter(
        operation.outcome
        for operation in derived.operations
        if operation.f in TRANSFERS and any(True for _ in operation.sends())
    )
    isolated = [
        record for log in derived.transactions.logs.values() for record in log.records.values()
    ]
    figures = {
        "events": len(derived.events),
        "processes": len({operation.process for operation in derived.operations}),
        "keys": len(derived.logs) + len(derived.transactions.logs),
        "sends": sum(outcomes.values()),
        "ok": outcomes["ok"],
        "fail": outcomes["fail"],
        "info": outcomes["info"],
        "acknowledged": sum(
            write.binding for log in derived.logs.values() for write in log.writes.values()
        )
        + sum(one.is_visible and one.write.is_acknowledged for one in isolated),
        "values read": sum(len(log.readers) for log in derived.logs.values())
        + sum(one.read is not None for one in isolated),
        "owners known": len(set(_owners(derived))),
    }
    return figures | (decisions.figures(derived) if derived.transactions.all else {})
