"""A listener on a real socket pair with a reactor that the test turns by hand."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.task import Clock

from kbroker.common.endpoint import Endpoint
from kbroker.config import KafkaConfig
from kbroker.network.connection import Connection
from kbroker.network.plaintext_transport import PlaintextTransport
from kbroker.network.socket_server import Listener, SocketServer


class TestReactor(Clock):
    """Readers and writers are kept; `turn` calls those with a ready socket."""

    __test__ = False

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[Any] = set()
        self.writers: set[Any] = set()

    def addReader(self, reader: Any) -> None:  # noqa: N802
        self.readers.add(reader)

    def removeReader(self, reader: Any) -> None:  # noqa: N802
        self.readers.discard(reader)

    def addWriter(self, writer: Any) -> None:  # noqa: N802
        self.writers.add(writer)

    def removeWriter(self, writer: Any) -> None:  # noqa: N802
        self.writers.discard(writer)

    def turn(self) -> None:
        """One turn: delayed calls that are due, then every reader and writer once."""
        self.advance(0)
        for each in list(self.readers):
            self._lose(each, each.doRead())
        for each in list(self.writers):
            if each in self.writers:
                self._lose(each, each.doWrite())

    @staticmethod
    def _lose(each: Any, why: Any) -> None:
        from twisted.python.failure import Failure

        if why is not None and each.connected:
            each.connectionLost(Failure(why))


OPENED: list[Line] = []
"""Every line of the current test."""


def close_all() -> None:
    """Close the sockets of the current test."""
    for line in OPENED:
        line.client.close()
        if not line.refused and line.transport.connected:
            line.transport.abortConnection()
            line.reactor.turn()
    OPENED.clear()


class Line:
    """One client socket and the broker's connection at its other end."""

    def __init__(
        self, reactor: TestReactor, network: SocketServer, listener: Listener, descriptor: int
    ) -> None:
        self.reactor = reactor
        OPENED.append(self)
        self.client, server = socket.socketpair()
        self.client.settimeout(2)
        protocol = listener.admit("10.0.0.1", 1234, descriptor)
        self.refused = protocol is None
        if protocol is None:
            server.close()
            return
        self.connection: Connection = protocol
        self.transport = PlaintextTransport(
            server, protocol, ("10.0.0.1", 1234), None, 0, reactor, account=listener.unsent
        )
        # A socket pair is no TCP connection: it has no Nagle to turn off.
        self.transport.setTcpNoDelay = lambda enabled: None  # type: ignore[method-assign]
        protocol.makeConnection(self.transport)  # type: ignore[no-untyped-call]

    def send(self, *bodies: bytes) -> None:
        """Send frames and let the broker have a turn."""
        self.client.sendall(b"".join(struct.pack(">i", len(body)) + body for body in bodies))
        self.reactor.turn()

    def receive(self) -> bytes:
        """Return the body of the next frame that came back."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            self.reactor.turn()
            chunk = self.client.recv(size - len(got))
            assert chunk, "the broker closed the connection"
            got += chunk
        return got

    def closed(self) -> bool:
        """Whether the broker has closed the connection, after a turn."""
        self.reactor.turn()
        self.client.setblocking(False)
        try:
            return self.client.recv(1) == b""
        except BlockingIOError:
            return False
        finally:
            self.client.settimeout(2)


def make(
    service: Callable[..., Any],
    settings: Mapping[str, str] | None = None,
    *,
    descriptor: Callable[[], int] = lambda: 3,
) -> tuple[TestReactor, SocketServer, Callable[[], Line]]:
    """Return a reactor, a network with *service*, and how to connect to it."""
    reactor = TestReactor()
    config = KafkaConfig.of({"zookeeper.connect": "h:1", "broker.id": "1", **(settings or {})})
    network = SocketServer(reactor, config, service, clock=reactor.seconds)
    listener = Listener(Endpoint("PLAINTEXT", "PLAINTEXT", "", 0), network)
    return reactor, network, lambda: Line(reactor, network, listener, descriptor())
