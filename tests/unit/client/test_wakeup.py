"""A wait that another may cut short."""

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from kclient.consumer.wakeup import Wakeup
from tests.kit.scripted_cluster import now


@pytest.fixture
def clock():
    return Clock()


def waiting(wakeup, seconds=10.0):
    return Deferred.fromCoroutine(wakeup.wait(seconds))


def test_a_wait_ends_by_itself(clock):
    waits = waiting(Wakeup(clock))
    clock.advance(9.0)
    assert not waits.called
    clock.advance(1.0)
    now(waits)


def test_a_wake_ends_the_wait_in_a_turn_of_its_own(clock):
    wakeup = Wakeup(clock)
    waits = waiting(wakeup)
    wakeup.wake()
    wakeup.wake()
    assert not waits.called
    clock.advance(0)
    now(waits)


def test_a_wake_before_the_wait_is_not_lost_and_counts_once(clock):
    wakeup = Wakeup(clock)
    wakeup.wake()
    now(waiting(wakeup))
    assert not waiting(wakeup).called


def test_a_cancelled_wait_raises_and_leaves_no_timer(clock):
    wakeup = Wakeup(clock)
    waits = waiting(wakeup)
    waits.cancel()
    with pytest.raises(CancelledError):
        now(waits)
    assert clock.getDelayedCalls() == []
    wakeup.wake()
    now(waiting(wakeup))
