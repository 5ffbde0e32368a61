"""Turns of the reactor that large requests share."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from kbroker.common.turns import TURN_SECONDS, SharedTurns, WithoutTurns, for_each


class Turns:
    """A reactor that the test turns by hand: a call that is due at once runs in the next turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[Any] = []

    def seconds(self) -> float:
        return self.now

    def callLater(self, delay: float, call: Any) -> None:  # noqa: N802
        assert delay == 0
        self._calls.append(call)

    def turn(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()


def test_waiters_are_resumed_in_the_order_in_which_they_came() -> None:
    reactor = Turns()
    turns = SharedTurns(reactor)
    resumed: list[int] = []
    for number in range(5):
        turns.next().addCallback(lambda _, number=number: resumed.append(number))
    assert resumed == []
    reactor.turn()
    assert resumed == [0, 1, 2, 3, 4]


def test_a_turn_resumes_nothing_after_its_time() -> None:
    reactor = Turns()
    turns = SharedTurns(reactor)
    resumed: list[float] = []

    def work(_: object) -> None:
        resumed.append(reactor.now)
        reactor.now += TURN_SECONDS / 2

    for _ in range(5):
        turns.next().addCallback(work)
    lengths = []
    while len(resumed) < 5:
        before = len(resumed)
        reactor.turn()
        lengths.append(len(resumed) - before)
    assert lengths == [2, 2, 1]


def test_a_waiter_that_waits_again_is_resumed_in_a_later_turn() -> None:
    reactor = Turns()
    turns = SharedTurns(reactor)
    count = 0

    def again(_: object) -> None:
        nonlocal count
        count += 1
        turns.next().addCallback(again)

    turns.next().addCallback(again)
    reactor.turn()
    assert count == 1
    reactor.turn()
    assert count == 2


def test_an_error_of_one_waiter_leaves_the_others_waiting_for_their_turn() -> None:
    reactor = Turns()
    turns = SharedTurns(reactor)
    cancelled = turns.next()
    resumed: list[int] = []
    turns.next().addCallback(resumed.append)
    failures: list[Any] = []
    cancelled.addErrback(failures.append)
    cancelled.cancel()
    reactor.turn()
    assert failures[0].check(CancelledError)
    assert resumed == [None]


def test_work_on_many_things_is_spread_over_turns() -> None:
    reactor = Turns()
    done: list[int] = []

    async def work(thing: int) -> int:
        reactor.now += 0.001
        done.append(thing)
        return thing * 2

    result = Deferred.fromCoroutine(for_each(SharedTurns(reactor), range(200), work))
    per_turn = [len(done)]
    while not result.called:
        before = len(done)
        reactor.turn()
        per_turn.append(len(done) - before)
    assert result.result == [2 * thing for thing in range(200)]
    assert max(per_turn) <= 1000 * TURN_SECONDS + 16


def test_no_more_than_so_many_are_under_way() -> None:
    reactor = Turns()
    waiting: list[Deferred[int]] = []

    def work(thing: int) -> Deferred[int]:
        waiting.append(Deferred())
        return waiting[-1]

    result = Deferred.fromCoroutine(for_each(SharedTurns(reactor), range(10), work, at_once=3))
    assert len(waiting) == 3
    waiting[1].callback(1)
    assert len(waiting) == 4
    for number in (0, 2, 3, 4, 5, 6, 7, 8, 9):
        waiting[number].callback(number)
    assert result.result == list(range(10))


@pytest.mark.parametrize("turns", [SharedTurns(Turns()), WithoutTurns()])
def test_after_an_error_nothing_more_is_begun(turns: Any) -> None:
    begun: list[int] = []

    async def work(thing: int) -> None:
        begun.append(thing)
        if thing == 2:
            raise ValueError("third")

    result = Deferred.fromCoroutine(for_each(turns, range(10), work, at_once=2))
    failures: list[Any] = []
    result.addErrback(failures.append)
    assert failures[0].check(ValueError)
    assert begun == [0, 1, 2]
