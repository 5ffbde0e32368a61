"""The transport of a client, on sockets: when data counts as sent, and what reaches a peer after the end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from twisted.internet.selectreactor import SelectReactor

from kclient.errors import Address, ConnectionClosed, KafkaTimeoutError
from kclient.net.connection import Connection
from kclient.net.dial import connect_to_ip
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.versions import ApiKey
from tests.kit.scripted_broker import Outcome

LARGE = 16 << 20
"""Bytes: above the buffers of two sockets."""


class SlowBroker:
    """A connection in its own reactor, and the socket of a peer that reads only in `receive`."""

    def __init__(self, listening: socket.socket, request_timeout: float) -> None:
        self.reactor: Any = SelectReactor()
        host, port = listening.getsockname()
        self.connection = Connection(
            self.reactor, Address(host, port), request_timeout=request_timeout
        )
        connected = Outcome(connect_to_ip(self.reactor, host, port, self.connection, timeout=5))
        self.turn_until(lambda: connected.fired)
        self.peer, _ = listening.accept()
        self.peer.setblocking(False)

    def turn_until(self, done: Callable[[], bool]) -> None:
        end = self.reactor.seconds() + 10
        while not done():
            assert self.reactor.seconds() < end
            self.reactor.iterate(0.01)

    def send(self, size: int) -> Outcome:
        """Send a Produce of about *size* bytes, with acks=0."""
        topics = [ProduceTopic("t", [ProducePartition(0, memoryview(bytes(size)))])]
        outcome = Outcome(self.connection.send(ApiKey.PRODUCE, 9, ProduceRequest(0, 1000, topics)))
        self.reactor.iterate(0)
        return outcome

    def receive(self) -> bytes | None:
        """Return what has arrived; b"" after the end, None if there is nothing now."""
        self.reactor.iterate(0)
        try:
            return self.peer.recv(1 << 20)
        except BlockingIOError:
            return None

    def end(self) -> None:
        """Close both ends."""
        self.connection.close()
        self.turn_until(lambda: self.connection.transport is None)
        self.peer.close()

    def receive_until_end(self) -> int:
        """Return the number of bytes until the end of the connection; a reset raises ConnectionResetError."""
        size = 0
        while (data := self.receive()) != b"":
            size += len(data or b"")
        return size


@pytest.fixture
def slow_broker() -> Iterator[Callable[..., SlowBroker]]:
    made: list[SlowBroker] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def make(request_timeout: float = 30.0) -> SlowBroker:
            made.append(SlowBroker(listening, request_timeout))
            return made[-1]

        yield make
        for each in made:
            each.end()


def test_a_request_without_a_response_is_sent_when_the_kernel_has_all_of_it(
    slow_broker: Callable[..., SlowBroker],
) -> None:
    it = slow_broker()
    small, large = it.send(10), it.send(LARGE)
    assert (small.fired, large.fired) == (True, False)
    while not large.fired:
        it.receive()
    assert large.value is None


def test_what_is_sent_reaches_the_peer_after_the_close(
    slow_broker: Callable[..., SlowBroker],
) -> None:
    it = slow_broker()
    sizes = [1000] * 100
    assert all(it.send(size).fired for size in sizes)
    it.connection.close()
    assert it.receive_until_end() > sum(sizes)


def test_a_request_that_the_peer_does_not_take_fails_in_time(
    slow_broker: Callable[..., SlowBroker],
) -> None:
    it = slow_broker(request_timeout=0.2)
    stuck, behind = it.send(LARGE), it.send(10)
    it.turn_until(lambda: stuck.fired)
    assert isinstance(stuck.error, KafkaTimeoutError)
    assert isinstance(behind.error, KafkaTimeoutError)
    assert isinstance(it.send(10).error, ConnectionClosed)


def test_a_request_that_is_not_sent_fails_at_the_close(
    slow_broker: Callable[..., SlowBroker],
) -> None:
    it = slow_broker()
    stuck = it.send(LARGE)
    it.connection.close(ConnectionClosed("gone"))
    assert isinstance(stuck.error, ConnectionClosed)
    assert 0 < it.receive_until_end() < LARGE


def test_requests_without_a_response_keep_a_connection_in_use(
    slow_broker: Callable[..., SlowBroker],
) -> None:
    it = slow_broker()
    it.connection.last_used = 0.0
    it.send(10)
    assert it.connection.last_used > 0
