"""The rules about transactions against a brute-force search for an explanation, and on histories of a right cluster.

The oracle tries every combination of fates and of times of decision. It compares each view as a whole with what would
be visible then. It shares no code with the rules.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from time import thread_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checker.clean_histories import transactional_history
from tests.checker.history import Event
from tests.checker.history_builder import Builder
from tests.checker.verdict import Judgement, check
from tests.kit.property_tests import examples

SEEDS = st.integers(0, 2**32)
ENDS = ("commit_transaction", "abort_transaction")


def events_of(events: list[Event], f: str) -> list[Event]:
    return [event for event in events if event.f == f]


class Oracle:
    """Searches for fates of all transactions that explain a history without offsets of groups."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.ends = {
            event.meta.get("op"): event for event in events if event.meta.get("op") is not None
        }
        self.level = {e.p: e.meta["isolation"] for e in events if "isolation" in e.meta}
        self.names = [e.v["txn"] for e in events if e.f == "begin_transaction"]
        self.sends: list[tuple[str, int, str | None, Event]] = [
            (e.v[0][1], e.v[0][2][1], e.meta.get("txn"), e)
            for e in events
            if e.f == "send" and e.type == "invoke"
        ]
        self.at = {place for e in events for place in self._places(e)}
        self.txn_of = {value: txn for _, value, txn, _ in self.sends}
        self.times = {name: self._times(name) for name in self.names}
        self.shown = {
            name: bool(self._answers(name, "commit_transaction", "ok") or self._reads(name))
            for name in self.names
        }

    def _places(self, event: Event) -> list[tuple[str, int, int]]:
        if event.f == "send" and event.type == "ok":
            _, key, (offset, value) = event.v[0]
            return [(key, offset, value)]
        if event.f == "poll":
            return [(key, o, v) for key, found in event.v[0][1].items() for o, v in found]
        return []

    def explains(self) -> bool:
        """Return whether any world explains the history."""
        written = {(key, value): self._end_type(e) for key, value, _, e in self.sends}
        if any((key, value) not in written for key, _, value in self.at):
            return False
        if any(written[key, value] == "fail" for key, _, value in self.at):
            return False
        for of in (lambda at: (at[0], at[1]), lambda at: (at[0], at[2])):
            if max(Counter(map(of, self.at)).values(), default=0) > 1:
                return False
        if not all(self._is_possible(e) for e in events_of(self.events, "poll")):
            return False
        return any(
            self._explains(dict(zip(self.names, fates, strict=True)))
            for fates in product((True, False), repeat=len(self.names))
        )

    def _is_possible(self, poll: Event) -> bool:
        """Return whether its records were sent before, below the last stable offset."""
        sent = {(key, value): begun.i for key, value, _, begun in self.sends}
        is_committed = self.level[poll.p] == "read_committed"
        return all(
            sent[key, value] < poll.i
            and not (is_committed and offset >= poll.meta.get("stable", {}).get(key, offset + 1))
            for key, offset, value in self._places(poll)
        )

    def _end_type(self, begun: Event) -> str | None:
        end = self.ends.get(begun.i)
        return None if end is None else end.type

    def _explains(self, fates: dict[str, bool]) -> bool:
        decided: dict[str, int] = {}
        for name, is_committed in fates.items():
            if is_committed:
                if not self.times[name]:
                    return False
                decided[name] = max(self.times[name])
            elif self.shown[name]:
                return False
        return (
            all(self._view_is_right(p, key, fates) for p in self.level for key in ("t-0", "t-1"))
            and all(self._final_is_right(e, decided) for e in self.events if e.f == "final")
            and self._in_order(fates)
        )

    def _answers(self, name: str, f: str, type_: str) -> list[int]:
        return [e.i for e in self.events if (e.f, e.type) == (f, type_) and e.v["txn"] == name]

    def _reads(self, name: str) -> list[int]:
        values = {value for _, value, txn, _ in self.sends if txn == name}
        return [
            e.i
            for e in self.events
            if self.level.get(e.p) == "read_committed"
            and e.f == "poll"
            and any(value in values for _, _, value in self._places(e))
        ]

    def _times(self, name: str) -> list[int]:
        """Return the events behind which the commit can be decided."""
        attempts = self._answers(name, "commit_transaction", "invoke")
        if not attempts or self._answers(name, "abort_transaction", "ok"):
            return []
        failed = self._answers(name, "commit_transaction", "fail")
        if len(failed) == len(attempts):
            return []
        upper = self._reads(name) + self._answers(name, "commit_transaction", "ok") + self._fences(name)  # fmt: skip
        return [t for t in range(attempts[0], len(self.events)) if all(t < one for one in upper)]

    def _fences(self, name: str) -> list[int]:
        (begun,) = (e for e in self.events if e.f == "begin_transaction" and e.v["txn"] == name)
        inits = [
            (e.p, e.i, self.ends[e.i].i)
            for e in self.events
            if (e.f, e.type) == ("init_transactions", "invoke")
            and e.v["id"] == begun.v["id"]
            and self._end_type(e) == "ok"
        ]
        own = [end for p, _, end in inits if p == begun.p and end < begun.i]
        since = max(own, default=begun.i)
        return [end for _, start, end in inits if start > since] + [
            e.i
            for e in self.events
            if e.f == "fenced" and e.type == "invoke" and e.p == begun.p and e.v["id"] == begun.v["id"]
        ]  # fmt: skip

    def _shows(self, p: Any, value: int, fates: dict[str, bool]) -> bool:
        txn = self.txn_of[value]
        return txn is None or self.level[p] != "read_committed" or fates[txn]

    def _view_is_right(self, p: Any, key: str, fates: dict[str, bool]) -> bool:
        position = None
        for e in self.events:
            if e.p != p or e.type == "invoke":
                continue
            seen = [(o, v) for k, o, v in self._places(e) if k == key]
            if e.f == "seek" and key in e.v:
                position = e.v[key]
            elif e.f in ("poll", "position", "final"):
                if e.f == "poll":
                    if not seen:
                        continue
                    if seen != sorted(seen) or seen[0][0] < position:
                        return False
                    to = seen[-1][0] + 1
                elif key not in e.v:
                    continue
                else:
                    to = e.v[key]
                due = sorted(
                    (o, v) for k, o, v in self.at
                    if k == key and position <= o < to and self._shows(p, v, fates)
                )  # fmt: skip
                if seen != due:
                    return False
                position = max(position, to)
        return True

    def _final_is_right(self, final: Event, decided: dict[str, int]) -> bool:
        if final.type != "invoke" or self._end_type(final) != "ok":
            return True
        seen = {value for e in self.events if e.p == final.p for _, _, value in self._places(e)}
        for key, value, txn, begun in self.sends:
            if key not in final.v or value in seen:
                continue
            end = self.ends.get(begun.i)
            if txn is not None and self.level[final.p] == "read_committed":
                if (
                    txn in decided
                    and decided[txn] + 1 < final.i
                    and (end is None or end.type != "fail")
                ):
                    return False
            else:
                known = [e.i for e in self.events if e.f == "poll" and self._has(e, key, value)]
                known += [end.i] if end is not None and end.type == "ok" else []
                if any(one < final.i for one in known):
                    return False
        return True

    def _has(self, event: Event, key: str, value: int) -> bool:
        return any((k, v) == (key, value) for k, _, v in self._places(event))

    def _in_order(self, fates: dict[str, bool]) -> bool:
        place = {(key, value): offset for key, offset, value in self.at}
        ids = {e.v["txn"]: e.v["id"] for e in self.events if e.f == "begin_transaction"}
        for number, (key, value, txn, begun) in enumerate(self.sends):
            for other_key, other, other_txn, later in self.sends[number + 1 :]:
                if key != other_key or not {(key, value), (key, other)} <= place.keys():
                    continue
                same_process = begun.p == later.p
                same_id = (
                    txn is not None and other_txn is not None
                    and ids[txn] == ids[other_txn] and fates[txn] and fates[other_txn]
                )  # fmt: skip
                if (same_process or same_id) and place[key, value] > place[key, other]:
                    return False
        return True


def _at_random(events: list[Event], chance: random.Random, f: tuple[str, ...], type_: str) -> Event | None:  # fmt: skip
    found = [e for e in events if e.f in f and e.type == type_ and e.v != [["poll", {}]]]
    return chance.choice(found) if found else None


def _instead(events: list[Event], one: Event | None, **changes: Any) -> list[Event]:
    return [replace(e, **changes) if e is one else e for e in events]


def lose_an_answer(events: list[Event], chance: random.Random) -> list[Event]:
    chosen = _at_random(events, chance, (*ENDS, "send", "init_transactions"), "ok")
    return _instead(events, chosen, type="info")


def invert_an_answer(events: list[Event], chance: random.Random) -> list[Event]:
    chosen = _at_random(events, chance, (*ENDS, "send"), "ok")
    return _instead(events, chosen, type="fail")


def acknowledge_an_end(events: list[Event], chance: random.Random) -> list[Event]:
    chosen = _at_random(events, chance, ENDS, chance.choice(("info", "fail")))
    return _instead(events, chosen, type="ok")


def move_a_position(events: list[Event], chance: random.Random) -> list[Event]:
    chosen = _at_random(events, chance, ("position", "final"), "ok")
    if chosen is None:
        return events
    moved = {key: max(0, at + chance.choice((-1, 1, 2))) for key, at in chosen.v.items()}
    return _instead(events, chosen, v=moved)


def hide_a_record(events: list[Event], chance: random.Random) -> list[Event]:
    chosen = _at_random(events, chance, ("poll",), "ok")
    if chosen is None:
        return events
    ((key, found),) = chosen.v[0][1].items()
    left = list(found)
    del left[chance.randrange(len(left))]
    return _instead(events, chosen, v=[["poll", {key: left} if left else {}]])


def hide_a_value(events: list[Event], chance: random.Random) -> list[Event]:
    """Hide it from all readers with read_committed."""
    level = {e.p: e.meta["isolation"] for e in events if "isolation" in e.meta}
    chosen = _at_random(events, chance, ("send",), "invoke")
    if chosen is None:
        return events
    _, key, (_, value) = chosen.v[0]
    result = []
    for e in events:
        if e.f == "poll" and level[e.p] == "read_committed" and key in e.v[0][1]:
            left = [r for r in e.v[0][1][key] if r[1] != value]
            e = replace(e, v=[["poll", {key: left} if left else {}]])
        result.append(e)
    return result


def show_a_record(events: list[Event], chance: random.Random) -> list[Event]:
    """Show a record of which the place is known to a reader."""
    places = [
        (key, r)
        for e in events
        for key, found in (e.v[0][1].items() if e.f == "poll" else ())
        for r in found
    ]
    chosen = _at_random(events, chance, ("poll",), "ok")
    if chosen is None:
        return events
    ((key, found),) = chosen.v[0][1].items()
    record = chance.choice([r for k, r in places if k == key])
    shown = sorted([*found, record]) if record not in found else found
    return _instead(events, chosen, v=[["poll", {key: shown}]])


def exchange_two_places(events: list[Event], chance: random.Random) -> list[Event]:
    chosen = _at_random(events, chance, ("poll",), "ok")
    if chosen is None:
        return events
    ((key, found),) = chosen.v[0][1].items()
    one, other = chance.choice(found)[1], chance.choice(found)[1]
    swap = {one: other, other: one}
    result = []
    for e in events:
        if e.f == "poll" and key in e.v[0][1]:
            changed = [[o, swap.get(v, v)] for o, v in e.v[0][1][key]]
            e = replace(e, v=[["poll", {key: changed}]])
        result.append(e)
    return result


def move_an_event(events: list[Event], chance: random.Random) -> list[Event]:
    """Move an end to a later place, or a beginning to an earlier one, among events of other processes."""
    order = list(events)
    at = chance.randrange(len(order))
    step = -1 if order[at].type == "invoke" else 1
    for _ in range(chance.randint(1, 12)):
        if not 0 <= at + step < len(order) or order[at + step].p == order[at].p:
            break
        order[at], order[at + step] = order[at + step], order[at]
        at += step
    number = {e.i: i for i, e in enumerate(order)}
    moved = []
    for i, e in enumerate(order):
        meta = {**e.meta, "op": number[e.meta["op"]]} if "op" in e.meta else e.meta
        moved.append(replace(e, i=i, meta=meta))
    return moved


CHANGES: list[Callable[[list[Event], random.Random], list[Event]]] = [
    lose_an_answer, invert_an_answer, acknowledge_an_end, move_a_position, hide_a_record, hide_a_value,
    show_a_record, exchange_two_places, move_an_event,
]  # fmt: skip


@given(SEEDS, st.booleans())
@settings(deadline=None)
def test_a_right_cluster_has_a_clean_history(seed: int, offsets: bool) -> None:
    verdict = check(transactional_history(seed, offsets=offsets, actors=12))
    assert verdict.names() == set(), verdict.to_text()


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
@given(SEEDS, st.integers(0, 2))
@settings(deadline=None, max_examples=examples(60))
def test_a_history_is_broken_if_nothing_explains_it(
    change: Callable[[list[Event], random.Random], list[Event]], seed: int, more: int
) -> None:
    chance = random.Random(seed)
    events = change(transactional_history(seed), chance)
    for _ in range(more):
        events = chance.choice(CHANGES)(events, chance)
    verdict = check(events)
    assert (verdict.names() == set()) is Oracle(events).explains(), verdict.to_text()


@pytest.mark.long
def test_a_long_history_of_transactions_is_judged_in_the_time_of_its_events() -> None:
    """O(events): a quadratic check of 3,000 transactions and 60 views takes longer."""
    builder = Builder().init()
    for number in range(3_000):
        name = str(number)
        builder.begin(name)
        for value in range(2):
            builder.send(2 * number + value, 3 * number + value, txn=name)
        builder.offsets(name, {"in-0": number + 1})
        builder.commit(name, "open" if number % 3 else "ok")
    everything = [(3 * n // 2, n) for n in range(6_000)]
    for p in range(60):
        builder.view(*everything, to=9_000, p=1000 + p)
    builder.final(*everything, isolation="read_committed")
    began = thread_time()
    assert check(builder.events).judgement is Judgement.CLEAN
    assert thread_time() - began < 6, "some 1 s of CPU time"
