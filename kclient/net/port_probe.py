"""Probes a port that does not answer as a Kafka broker: finds what kind of server listens there.

Each request is sent on a connection of its own, in the protocol of one kind of server; `kclient.net.port_kinds`
recognizes the answers.
"""

from __future__ import annotations

import ssl
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.python.failure import Failure

from kclient.net.port_kinds import PortKind, kind_of
from kclient.net.waiting import all_of

_ENOUGH = 64
"""Bytes of an answer that distinguish the kinds."""


def _client_hello() -> bytes:
    """Return the first bytes of a TLS client."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(received, sent)
    try:
        connection.do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake cannot end before the server's part")


async def probe_port(reactor: Any, ip: str, port: int, timeout: float) -> PortKind | None:
    """Return what listens at *ip* and *port*, None without a connection; takes *timeout* seconds at most."""
    requests = (_client_hello(), b"GET / HTTP/1.0\r\n\r\n", b"srvr")
    answers = await all_of(_send(reactor, ip, port, request, timeout) for request in requests)
    received = [answer for answer in answers if answer is not None]
    return kind_of(received) if received else None


def _send(
    reactor: Any, ip: str, port: int, request: bytes, timeout: float
) -> Deferred[bytes | None]:
    """Send *request* and fire with the first bytes of the answer, None without a connection."""
    factory = _ProbeFactory(request)
    connector = reactor.connectTCP(ip, port, factory, timeout)
    timer = reactor.callLater(timeout, connector.disconnect)

    def ended(received: bytes | None) -> bytes | None:
        if timer.active():
            timer.cancel()
        return received

    factory.answered.addCallback(ended)
    return factory.answered


class _ProbeFactory(ClientFactory):
    noisy = False

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.answered: Deferred[bytes | None] = Deferred()

    def buildProtocol(self, addr: IAddress | None) -> Protocol:  # noqa: N802 (Twisted's name)
        return _ProbeProtocol(self._request, self.answered)

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:  # noqa: N802
        if not self.answered.called:
            self.answered.callback(None)


class _ProbeProtocol(Protocol):
    def __init__(self, request: bytes, answered: Deferred[bytes | None]) -> None:
        self._request = request
        self._answered = answered
        self._received = b""

    def connectionMade(self) -> None:  # noqa: N802 (Twisted's name)
        transport: Any = self.transport
        transport.write(self._request)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 (Twisted's name)
        self._received += data
        if len(self._received) >= _ENOUGH:
            transport: Any = self.transport
            transport.abortConnection()

    def connectionLost(self, reason: Any = None) -> None:  # noqa: N802 (Twisted's name)
        if not self._answered.called:
            self._answered.callback(self._received)
