"""The checker on generated histories: clean ones are clean, and one falsified record or answer is always noticed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from time import thread_time

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.checker.clean_histories import clean_history
from tests.checker.history import Event
from tests.checker.history_builder import Builder
from tests.checker.verdict import Judgement, check
from tests.kit.property_tests import examples

SEEDS = st.integers(0, 2**32)
NOTHING_FAILED = 3286
"""The seed of a history of 80 sends of which none failed."""
UNKNOWN_VALUE = 10**9
Histories = list[Event]


def _final_polls(events: Histories) -> list[Event]:
    return [event for event in events if event.f == "poll" and event.p == 99]


def _in_final_polls(
    events: Histories, chance: random.Random, change: Callable[[list[list[int]]], None]
) -> Histories:
    """Apply *change* to what one of the final polls returned."""
    event = chance.choice([e for e in _final_polls(events) if len(next(iter(e.v[0][1].values()))) > 3])  # fmt: skip
    ((key, records),) = event.v[0][1].items()
    copies = [list(record) for record in records]
    change(copies)
    changed = replace(event, v=[["poll", {key: copies}]])
    return [changed if one is event else one for one in events]


def _acknowledged(events: Histories) -> list[Event]:
    return [event for event in events if event.f == "send" and event.type == "ok"]


def delete_a_record(events: Histories, chance: random.Random) -> Histories:
    """One record is gone from what every reader saw; unless it was not acknowledged."""
    gone = chance.choice(_acknowledged(events)).v[0][2][1]
    result = []
    for event in events:
        if event.f == "poll":
            ((key, records),) = event.v[0][1].items()
            event = replace(event, v=[["poll", {key: [r for r in records if r[1] != gone]}]])
        result.append(event)
    return result


def leave_a_record_out_of_one_poll(events: Histories, chance: random.Random) -> Histories:
    """An acknowledged one: only its writer may know of another one."""
    acknowledged = {event.v[0][2][1] for event in _acknowledged(events)}

    def change(records: list[list[int]]) -> None:
        del records[chance.choice([n for n, r in enumerate(records) if r[1] in acknowledged])]

    return _in_final_polls(events, chance, change)


def repeat_a_record(events: Histories, chance: random.Random) -> Histories:
    def change(records: list[list[int]]) -> None:
        at = chance.randrange(len(records))
        records.insert(at, records[at])

    return _in_final_polls(events, chance, change)


def store_a_record_twice(events: Histories, chance: random.Random) -> Histories:
    def change(records: list[list[int]]) -> None:
        records.append([records[-1][0] + 1, chance.choice(records)[1]])

    return _in_final_polls(events, chance, change)


def swap_two_records(events: Histories, chance: random.Random) -> Histories:
    def change(records: list[list[int]]) -> None:
        at = chance.randrange(len(records) - 1)
        records[at], records[at + 1] = records[at + 1], records[at]

    return _in_final_polls(events, chance, change)


def alter_a_value(events: Histories, chance: random.Random) -> Histories:
    def change(records: list[list[int]]) -> None:
        chance.choice(records)[1] = UNKNOWN_VALUE

    return _in_final_polls(events, chance, change)


def alter_an_acknowledged_offset(events: Histories, chance: random.Random) -> Histories:
    event = chance.choice(_acknowledged(events))
    _, key, (offset, value) = event.v[0]
    changed = replace(event, v=[["send", key, [offset + chance.choice((-1, 1, 1000)), value]]])
    return [changed if one is event else one for one in events]


def call_a_success_a_failure(events: Histories, chance: random.Random) -> Histories:
    event = chance.choice(_acknowledged(events))
    return [replace(one, type="fail") if one is event else one for one in events]


def acknowledge_what_is_not_there(events: Histories, chance: random.Random) -> Histories:
    failed = [e for e in events if e.f == "send" and e.type == "fail"]
    assume(failed)  # one history of some 4,000 has none
    event = chance.choice(failed)
    _, key, (_, value) = event.v[0]
    changed = replace(event, type="ok", v=[["send", key, [10_000, value]]])
    return [changed if one is event else one for one in events]


FALSIFICATIONS = [
    delete_a_record,
    leave_a_record_out_of_one_poll,
    repeat_a_record,
    store_a_record_twice,
    swap_two_records,
    alter_a_value,
    alter_an_acknowledged_offset,
    call_a_success_a_failure,
    acknowledge_what_is_not_there,
]


@given(SEEDS)
@settings(deadline=None)
def test_a_clean_history_is_clean(seed: int) -> None:
    verdict = check(clean_history(seed))
    assert verdict.judgement is Judgement.CLEAN, verdict.to_text()


@pytest.mark.parametrize("falsify", FALSIFICATIONS, ids=lambda one: one.__name__)
@given(SEEDS)
@example(NOTHING_FAILED)
@settings(deadline=None, max_examples=examples(50))
def test_one_falsification_is_noticed(
    falsify: Callable[[Histories, random.Random], Histories], seed: int
) -> None:
    verdict = check(falsify(clean_history(seed, sends=80), random.Random(seed)))
    assert verdict.judgement is Judgement.BROKEN


@pytest.mark.long
def test_a_long_history_is_judged_in_the_time_of_its_events() -> None:
    """O(events): a quadratic check of these 24,000 takes longer."""
    builder = Builder()
    for value in range(8_000):
        builder.send(value, value)
    for start in range(0, 8_000, 100):
        builder.poll(*((n, n) for n in range(start, start + 100)))
    builder.final(*((n, n) for n in range(8_000)))
    began = thread_time()
    assert check(builder.events).judgement is Judgement.CLEAN
    assert thread_time() - began < 3, "some 0.2 s of CPU time"
