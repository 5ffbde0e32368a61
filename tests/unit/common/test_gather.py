"""Waiting for many things at once."""

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from kbroker.common.gather import all_of


def gathering(*parts: Deferred[Any]) -> tuple[Deferred[Any], list[Any]]:
    """Begin to wait for *parts*; what comes of it is put into the list."""
    outcome: list[Any] = []

    async def one(part: Deferred[Any]) -> Any:
        return await part

    waiting = Deferred.fromCoroutine(all_of([one(parts[0]), *parts[1:]]))
    waiting.addCallbacks(outcome.append, lambda failure: outcome.append(failure.value))
    return waiting, outcome


def test_results_are_in_the_order_of_the_calls() -> None:
    first, second = Deferred[int](), Deferred[int]()
    _, outcome = gathering(first, second)
    second.callback(2)
    assert outcome == []
    first.callback(1)
    assert outcome == [[1, 2]]


def test_the_first_error_is_raised_at_once_and_as_it_is() -> None:
    first, second, third = Deferred[int](), Deferred[int](), Deferred[int]()
    _, outcome = gathering(first, second, third)
    error = ValueError("second")
    second.errback(error)
    assert outcome == [error]
    first.errback(ValueError("not observed, and not reported as unobserved"))
    third.callback(3)
    assert outcome == [error]


def test_a_cancelled_gather_cancels_all_of_its_parts() -> None:
    given_up: list[Deferred[int]] = []
    first, second = Deferred[int](given_up.append), Deferred[int](given_up.append)
    waiting, outcome = gathering(first, second)
    waiting.cancel()
    assert given_up == [first, second]
    assert [type(each) for each in outcome] == [CancelledError]


@pytest.mark.parametrize("count", [0, 2])
def test_what_is_there_already_is_not_waited_for(count: int) -> None:
    async def there() -> int:
        return 7

    done: list[Any] = []
    Deferred.fromCoroutine(all_of([there() for _ in range(count)])).addCallback(done.append)
    assert done == [[7] * count]
