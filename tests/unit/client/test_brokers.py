"""The connections of one client: the errors of requests that wait for a closed one."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from kclient.config import CommonConfig
from kclient.errors import Address, ClientClosed, ConnectionClosed
from kclient.net.brokers import Brokers
from tests.kit.scripted_cluster import now

HERE, THERE = Address("here", 9), Address("there", 9)


class SlowNames(Clock):
    """A reactor without name resolution: every connection attempt stays pending."""

    @property
    def nameResolver(self) -> Any:  # noqa: N802 (Twisted's name)
        return self

    def resolveHostName(self, *_: object) -> None:  # noqa: N802 (Twisted's name)
        pass


@pytest.fixture
def brokers() -> Brokers:
    return Brokers(SlowNames(), CommonConfig())


def test_waiters_for_a_broker_that_left_get_a_retriable_error(brokers: Brokers) -> None:
    waiting = brokers.connection(1, HERE)
    assert not waiting.called
    brokers.forget(lambda _: False)
    with pytest.raises(ConnectionClosed, match="broker 1 is no longer at here:9") as caught:
        now(waiting)
    assert caught.value.retriable
    assert caught.value.needs_metadata


def test_waiters_for_a_broker_that_moved_get_a_retriable_error(brokers: Brokers) -> None:
    waiting = brokers.connection(1, HERE)
    elsewhere = brokers.connection(1, THERE)
    with pytest.raises(ConnectionClosed):
        now(waiting)
    assert not elsewhere.called


def test_closing_fails_the_waiters_with_client_closed(brokers: Brokers) -> None:
    waiting = brokers.connection(1, HERE)
    brokers.close()
    with pytest.raises(ClientClosed):
        now(waiting)


def test_a_cancelled_waiter_leaves_the_connection_to_the_others(brokers: Brokers) -> None:
    first, second = brokers.connection(1, HERE), brokers.connection(1, HERE)
    first.addErrback(lambda _: None)
    first.cancel()
    assert not second.called
