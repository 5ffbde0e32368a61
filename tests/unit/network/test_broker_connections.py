"""The connections of a broker to the others: all requests to a broker share one."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.network.broker_connections import BrokerConnections
from kclient.errors import ConnectionClosed
from kclient.wire.versions import ApiKey


class Connected:
    """A connection that responds with the request."""

    closed = False

    def on_close(self, _callback: object) -> None:
        pass

    async def request(self, _api: ApiKey, _version: int, request: Any) -> Any:
        return request

    def close(self) -> None:
        self.closed = True


class Dialled:
    """Attempts to connect, which end when a test decides."""

    def __init__(self) -> None:
        self.attempts: list[Deferred[Any]] = []
        self.peers = BrokerConnections(broker_id=1, request_timeout=1.0, dial=self._dial)

    async def _dial(self, *_given: object, **_options: object) -> Any:
        self.attempts.append(Deferred())
        return await self.attempts[-1]

    def ask(self) -> list[Any]:
        """Send a request; return the list that will hold its outcome."""
        ended: list[Any] = []
        asked = self.peers(2, "there", 9092, ApiKey.CONTROLLED_SHUTDOWN, 3, "request")
        asked.addBoth(lambda result: ended.append(getattr(result, "value", result)))
        return ended


@pytest.mark.parametrize("waiting", [1, 2, 3])
def test_a_failed_attempt_to_connect_fails_every_waiting_request(waiting: int) -> None:
    dialled = Dialled()
    asked = [dialled.ask() for _ in range(waiting)]
    assert len(dialled.attempts) == 1
    refused = ConnectionClosed("refused")
    dialled.attempts[0].errback(refused)
    assert asked == [[refused]] * waiting
    dialled.ask()
    assert len(dialled.attempts) == 2


def test_requests_that_wait_for_a_connection_fail_when_the_broker_stops() -> None:
    dialled = Dialled()
    asked = [dialled.ask() for _ in range(2)]
    dialled.peers.close()
    assert all(len(ended) == 1 and isinstance(ended[0], Exception) for ended in asked)
    (refused,) = dialled.ask()
    assert isinstance(refused, ConnectionClosed)


def test_open_connections_are_closed_when_the_broker_stops() -> None:
    dialled = Dialled()
    asked = [dialled.ask() for _ in range(2)]
    connection = Connected()
    dialled.attempts[0].callback(connection)
    assert asked == [["request"]] * 2
    dialled.peers.close()
    assert connection.closed
