"""Waiting with a bound."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from kclient.net.waiting import SingleFlight, backoff, deferring, sleep, within
from tests.kit.scripted_broker import Outcome


class TooLate(Exception):
    pass


def test_a_result_in_time_passes_and_stops_the_clock() -> None:
    clock, inner = Clock(), Deferred[int]()
    outcome = Outcome(within(clock, inner, 5, TooLate))
    inner.callback(3)
    assert outcome.value == 3
    assert clock.getDelayedCalls() == []


def test_a_late_result_is_cancelled_and_called_late() -> None:
    clock = Clock()
    cancelled: list[object] = []
    inner: Deferred[int] = Deferred(cancelled.append)
    outcome = Outcome(within(clock, inner, 5, TooLate))
    clock.advance(5)
    assert isinstance(outcome.error, TooLate)
    assert cancelled == [inner]


def test_an_error_in_time_is_itself() -> None:
    inner: Deferred[int] = Deferred()
    outcome = Outcome(within(Clock(), inner, 5, TooLate))
    inner.errback(ValueError("x"))
    assert isinstance(outcome.error, ValueError)


def test_cancelling_from_outside_is_no_timeout() -> None:
    waiting = within(Clock(), Deferred[int](), 5, TooLate)
    outcome = Outcome(waiting)
    waiting.cancel()
    assert isinstance(outcome.error, CancelledError)


def test_a_sleeper_can_be_woken() -> None:
    clock = Clock()
    sleeping = sleep(clock, 10)
    outcome = Outcome(sleeping)
    sleeping.cancel()
    assert isinstance(outcome.error, CancelledError)
    assert clock.getDelayedCalls() == []


def test_concurrent_callers_share_one_run() -> None:
    gates: list[Deferred[int]] = []

    async def fly() -> int:
        gates.append(Deferred())
        return await gates[-1]

    flight = SingleFlight(fly)
    first, second = Outcome(flight.join()), Outcome(flight.join())
    assert len(gates) == 1
    gates[0].callback(1)
    assert (first.value, second.value) == (1, 1)
    third = Outcome(flight.join())
    gates[1].errback(ValueError("x"))
    assert isinstance(third.error, ValueError)


def test_a_cancelled_waiter_does_not_stop_the_run_of_others() -> None:
    gate: Deferred[int] = Deferred()

    async def fly() -> int:
        return await gate

    flight = SingleFlight(fly)
    impatient = flight.join()
    left = Outcome(impatient)
    patient = Outcome(flight.join())
    impatient.cancel()
    gate.callback(5)
    assert isinstance(left.error, CancelledError)
    assert patient.value == 5


def test_a_flight_that_ends_at_once_leaves_no_trace() -> None:
    async def fly() -> int:
        return 1

    flight = SingleFlight(fly)
    assert Outcome(flight.join()).value == 1
    assert flight.flight is None


def test_a_coroutine_method_answers_with_a_deferred() -> None:
    class Asked:
        @deferring
        async def request(self, number: int) -> int:
            return number + 1

    assert Outcome(Asked().request(1)).value == 2


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(0, 0.1), (1, 0.2), (3, 0.8), (9, 1.0), (99, 1.0)]
)
def test_backoffs_double_up_to_the_most(attempt: int, seconds: float) -> None:
    assert backoff(attempt, 0.1, 1.0) == pytest.approx(seconds)


def test_a_waiter_that_another_one_cancels_when_it_fails_ends_with_its_cancellation() -> None:
    gate: Deferred[int] = Deferred()

    async def run() -> int:
        return await gate

    flight = SingleFlight(run)
    first, second = flight.join(), flight.join()
    first.addErrback(lambda _failure: second.cancel())
    outcome = Outcome(second)
    third = Outcome(flight.join())
    gate.errback(ValueError("x"))
    assert isinstance(outcome.error, CancelledError)
    assert isinstance(third.error, ValueError)
