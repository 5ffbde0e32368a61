"""A connection thread that failed is replaced: the session goes on, and with it what it has seen."""

from __future__ import annotations

from typing import Any

from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import KeeperState
from twisted.internet.task import Clock

from kbroker.zk import errors
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.connection import Connection, ConnectionState
from kbroker.zk.session_state import RESTART_DELAY


class Reactor(Clock):
    def callFromThread(self, function: Any, *args: Any) -> None:  # noqa: N802
        self.callLater(0, function, *args)


class Unopened(Connection):
    """A connection without a thread."""

    def open(self) -> None:
        pass


def test_a_replaced_connection_accepts_no_server_behind_what_its_session_has_seen() -> None:
    """A server that is behind would show older offsets and partition states than this session has acknowledged."""
    reactor: Any = Reactor()
    made: list[Unopened] = []

    def connection(hosts: str, **given: Any) -> Connection:
        made.append(Unopened(hosts, **given))
        return made[-1]

    client = ZooKeeperClient(reactor, "zk:1", connection=connection, now=reactor.seconds)
    client.start(10)
    first = made[0]
    state = ConnectionState(
        connected=True, expired=False, session_id=7, password=b"p", timeout=6.0, received_at=0.0
    )
    client.connection_state(first, state)
    first.client.last_zxid = 0x1234  # of an answer
    first.client._session_callback(KeeperState.CONNECTED)
    first.client._session_callback(KeeperState.CLOSED)  # as kazoo ends its thread
    client.connection_ended(first, ConnectionLoss())
    reactor.advance(RESTART_DELAY)
    assert (made[1].client._session_id, made[1].client._session_passwd) == (7, b"p")
    assert made[1].client.last_zxid == 0x1234


def test_a_request_that_may_have_been_sent_has_no_known_outcome_when_the_client_stops() -> None:
    """It was "not sent": a registration that ZooKeeper had made counted as refused, in files that the stop writes."""
    reactor: Any = Reactor()
    made: list[Unopened] = []

    def connection(hosts: str, **given: Any) -> Connection:
        made.append(Unopened(hosts, **given))
        return made[-1]

    client = ZooKeeperClient(reactor, "zk:1", connection=connection, now=reactor.seconds)
    client.start(10)
    client.connection_state(
        made[0],
        ConnectionState(
            connected=True, expired=False, session_id=7, password=b"p", timeout=6.0, received_at=0.0
        ),
    )
    made[0].client._session_callback(KeeperState.CONNECTED)
    results: list[Any] = []
    client.create("/brokers/ids/1", b"{}", ephemeral=True).addBoth(results.append)
    client.stop()
    reactor.advance(1)
    (failure,) = results
    assert type(failure.value) is errors.ConnectionLoss
