"""Delayed operations complete once: by an event at a key that they watch, their timeout, or their cancellation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from kbroker.replica.purgatory import DelayedOperationPurgatory, PendingPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import NotLeaderOrFollower
from kclient.wire.schema.write_txn_markers import WritableTxnMarkerPartitionResult

A, B = ("a", 0), ("b", 0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def purgatory(clock: Clock) -> DelayedOperationPurgatory:
    return DelayedOperationPurgatory(clock)


def delay(
    purgatory: DelayedOperationPurgatory,
    *keys: tuple[str, int],
    attempt: Callable[[], str | None] = lambda: "done",
    expired: Callable[[], str] = lambda: "expired",
) -> list[Any]:
    """Return the list that receives the result."""
    results: list[Any] = []
    answer: Deferred[str] = purgatory.delay(purgatory.high_watermarks, keys, 5.0, attempt, expired)
    answer.addBoth(results.append)
    return results


def test_only_operations_that_watch_the_key_are_tried(
    purgatory: DelayedOperationPurgatory, clock: Clock
) -> None:
    one, other = delay(purgatory, A), delay(purgatory, B)
    purgatory.high_watermarks.notify(A)
    assert one == [], "no operation runs inside the change"
    clock.advance(0)
    assert (one, other) == (["done"], [])
    assert len(purgatory) == 1


def test_events_of_one_turn_try_an_operation_once(
    purgatory: DelayedOperationPurgatory, clock: Clock
) -> None:
    tries: list[int] = []
    result = delay(purgatory, A, B, attempt=lambda: tries.append(1))
    for key in (A, B, A):
        purgatory.high_watermarks.notify(key)
    clock.advance(0)
    assert (tries, result) == ([1], [])
    assert len(purgatory) == 1


def test_the_kinds_of_events_are_apart(purgatory: DelayedOperationPurgatory, clock: Clock) -> None:
    result = delay(purgatory, A)
    purgatory.log_ends.notify(A)
    clock.advance(0)
    assert result == []


def test_a_timeout_completes_even_an_operation_without_keys(
    purgatory: DelayedOperationPurgatory, clock: Clock
) -> None:
    result, without_keys = delay(purgatory, A, attempt=lambda: None), delay(purgatory)
    clock.advance(5.0)
    assert (result, without_keys) == (["expired"], ["expired"])
    purgatory.high_watermarks.notify(A)
    clock.advance(0)
    assert len(purgatory) == 0
    assert not clock.getDelayedCalls()


def test_a_cancelled_operation_is_not_tried(
    purgatory: DelayedOperationPurgatory, clock: Clock
) -> None:
    tries: list[int] = []
    answer: Deferred[str | None] = purgatory.delay(
        purgatory.high_watermarks, [A], 5.0, lambda: tries.append(1), lambda: None
    )
    answer.addErrback(lambda failure: failure.trap(CancelledError))
    purgatory.high_watermarks.notify(A)
    answer.cancel()
    clock.advance(5.0)
    assert tries == []
    assert not clock.getDelayedCalls()


def test_an_operation_that_raises_does_not_affect_the_others(
    purgatory: DelayedOperationPurgatory, clock: Clock
) -> None:
    def broken() -> str:
        raise RuntimeError("broken")

    one, other = delay(purgatory, A, attempt=broken), delay(purgatory, A)
    purgatory.high_watermarks.notify(A)
    clock.advance(0)
    assert (str(one[0].value), other) == ("broken", ["done"])


def test_an_operation_may_end_another_one(
    purgatory: DelayedOperationPurgatory, clock: Clock
) -> None:
    second: Deferred[str]
    results: list[Any] = []

    def first_attempt() -> str:
        second.cancel()
        return "first"

    first = purgatory.delay(purgatory.high_watermarks, [A], 5.0, first_attempt, lambda: "expired")
    second = purgatory.delay(
        purgatory.high_watermarks, [A], 5.0, lambda: "second", lambda: "expired"
    )
    first.addBoth(results.append)
    second.addErrback(lambda _failure: results.append("cancelled"))
    purgatory.high_watermarks.notify(A)
    clock.advance(0)
    assert results == ["cancelled", "first"]


def test_a_request_waits_until_each_of_its_partitions_is_done(
    purgatory: DelayedOperationPurgatory, clock: Clock
) -> None:
    results = [WritableTxnMarkerPartitionResult(n) for n in range(4)]
    done: set[int] = {0}

    def lost() -> bool:
        if 1 in done:
            raise NotLeaderOrFollower("lost")
        return False

    checks = [lambda: 0 in done, lost, lambda: 2 in done, lambda: 3 in done]
    pending = [
        PendingPartition(A if n < 2 else B, check, result)
        for n, (check, result) in enumerate(zip(checks, results, strict=True))
    ]
    answer = Deferred.fromCoroutine(purgatory.until_done(pending, 5.0))
    done |= {1, 2}
    for key in (A, B):
        purgatory.high_watermarks.notify(key)
    clock.advance(0)
    assert not answer.called
    clock.advance(5.0)
    assert answer.called
    errors = [0, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, ErrorCode.REQUEST_TIMED_OUT]
    assert [each.error_code for each in results] == errors
    assert Deferred.fromCoroutine(purgatory.until_done(pending[:1], 5.0)).called
    assert not clock.getDelayedCalls()
