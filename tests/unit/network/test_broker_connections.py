"""The connections of a broker to the others, which whoever has something to say shares."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.network.broker_connections import Peers
from kclient.errors import ConnectionClosed
from kclient.wire.versions import ApiKey


class Connected:
    """A connection that gives back what is said."""

    closed = False

    def on_close(self, _callback: object) -> None:
        pass

    async def request(self, _api: ApiKey, _version: int, request: Any) -> Any:
        return request

    def close(self) -> None:
        self.closed = True


class Dialled:
    """Connections that are wished for, one by one."""

    def __init__(self) -> None:
        self.wishes: list[Deferred[Any]] = []
        self.peers = Peers(broker_id=1, request_timeout=1.0, dial=self._dial)

    async def _dial(self, *_given: object, **_options: object) -> Any:
        self.wishes.append(Deferred())
        return await self.wishes[-1]

    def ask(self) -> list[Any]:
        """Send a request; the list is to hold how that ended."""
        ended: list[Any] = []
        asked = self.peers(2, "there", 9092, ApiKey.CONTROLLED_SHUTDOWN, 3, "request")
        asked.addBoth(lambda result: ended.append(getattr(result, "value", result)))
        return ended


@pytest.mark.parametrize("waiting", [1, 2, 3])
def test_all_who_wait_for_a_connection_hear_why_there_is_none(waiting: int) -> None:
    dialled = Dialled()
    asked = [dialled.ask() for _ in range(waiting)]
    assert len(dialled.wishes) == 1
    refused = ConnectionClosed("refused")
    dialled.wishes[0].errback(refused)
    assert asked == [[refused]] * waiting
    dialled.ask()
    assert len(dialled.wishes) == 2


def test_what_waits_for_a_connection_fails_when_the_broker_stops() -> None:
    dialled = Dialled()
    asked = [dialled.ask() for _ in range(2)]
    dialled.peers.close()
    assert all(len(ended) == 1 and isinstance(ended[0], Exception) for ended in asked)
    (refused,) = dialled.ask()
    assert isinstance(refused, ConnectionClosed)


def test_connections_that_are_there_are_closed_when_the_broker_stops() -> None:
    dialled = Dialled()
    asked = [dialled.ask() for _ in range(2)]
    connection = Connected()
    dialled.wishes[0].callback(connection)
    assert asked == [["request"]] * 2
    dialled.peers.close()
    assert connection.closed
