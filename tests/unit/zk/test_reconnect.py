"""Reading through breaks of the connection to ZooKeeper, without ever spinning."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kbroker.zk.errors import ConnectionLoss
from kbroker.zk.interface import Session, SessionEvent, ZooKeeper
from kbroker.zk.reconnect import PAUSE_SECONDS, Reconnect


class SeemsConnected:
    """A client without a connection, before the event of the loss is handled."""

    connected = True
    session = Session(1, 4.0)

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        pass


def test_a_read_that_fails_while_all_seems_well_leaves_the_reactor_a_turn() -> None:
    clock = Clock()
    attempts: list[float] = []

    async def request() -> str:
        attempts.append(clock.seconds())
        if len(attempts) < 3:
            raise ConnectionLoss("/path")
        return "answer"

    reconnect = Reconnect(cast(ZooKeeper, SeemsConnected()), cast(Any, clock))
    answer = Deferred.fromCoroutine(reconnect.read(SeemsConnected.session, request))
    assert len(attempts) == 1
    clock.advance(PAUSE_SECONDS)
    assert len(attempts) == 2
    clock.advance(PAUSE_SECONDS)
    found: list[str] = []
    answer.addCallback(found.append)
    assert found == ["answer"]


class CutOff:
    """A client without a connection."""

    connected = False
    session = None

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        pass


@pytest.mark.long
def test_giving_up_one_of_thousands_that_wait_costs_no_more_than_one_of_few() -> None:
    def cost() -> float:
        reconnect = Reconnect(cast(ZooKeeper, CutOff()), cast(Any, Clock()))
        failed: list[Any] = []
        waiting = [reconnect.connected() for _ in range(2000)]
        for each in waiting:
            each.addErrback(failed.append)
        began = thread_time()
        for each in waiting:
            reconnect._time_out(each)
        spent = thread_time() - began
        assert len(failed) == 2000
        return spent

    # The cyclic collector may run in one of them, and takes longer than all the rest.
    assert min(cost() for _ in range(3)) < 0.05, (
        "some 0.006 s of CPU time; a pass over the waiters for each took 0.1 s"
    )
