"""The acceptor: accepts a bounded number of connections in a turn, and none while there is no file descriptor for them.

Without descriptors the connections wait in the kernel's queue for a moment. The listener decides about each connection,
with the descriptor that it got (S40). Twisted's own port accepts more connections in a turn the more are waiting. It
closes them with two log lines each where there are no descriptors.

Owner: the reactor's thread.
"""

from __future__ import annotations

import errno
import socket
from typing import Any, Protocol, cast

from twisted.internet import main, tcp
from twisted.internet.interfaces import IReactorFDSet
from twisted.python.failure import Failure

from kbroker.common.ip_address import plain_address
from kbroker.network.plaintext_transport import PlaintextTransport
from kbroker.network.transport import UnsentMemory

ACCEPTS_PER_TURN = 100
"""Connections accepted in one turn of the reactor."""

ACCEPT_PAUSE = 0.1
"""Seconds without accepting when there is no file descriptor."""

_PEER_IS_GONE = (errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.EINTR)
"""Errors of accept(2) that concern only the connection at the head of the queue."""

_DONE = Failure(main.CONNECTION_DONE)


class Admission(Protocol):
    """What an `Acceptor` needs of its listener."""

    unsent: UnsentMemory
    """The memory of the unsent responses on all connections of the socket server."""

    def admit(self, host: str, port: int, descriptor: int) -> Any:
        """Return the protocol of the connection from there, on that socket; None: close it."""

    def cannot_accept(self, error: OSError) -> None:
        """Report that the process has no more file descriptors for now."""


class Acceptor(tcp.Port):
    """A listening port that gives each connection a `PlaintextTransport`."""

    reactor: Any
    _pause: Any = None

    def doRead(self) -> None:  # noqa: N802
        """Accept the waiting connections, a bounded number in a turn."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = self.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _PEER_IS_GONE:
                    continue
                cast(Admission, self.factory).cannot_accept(error)
                self.stopReading()
                self._pause = self.reactor.callLater(ACCEPT_PAUSE, self._resume)
                return
            self._take(accepted, address)

    def _take(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        listener = cast(Admission, self.factory)
        host, port = plain_address(str(address[0]).partition("%")[0]), int(address[1])
        protocol = listener.admit(host, port, accepted.fileno())
        if protocol is None:
            accepted.close()
            return
        number, self.sessionno = self.sessionno, self.sessionno + 1
        transport = PlaintextTransport(
            accepted, protocol, address, self, number, self.reactor, account=listener.unsent
        )
        try:
            protocol.makeConnection(transport)
        except OSError as error:  # the peer has reset it already
            transport.connectionLost(Failure(error))

    def _resume(self) -> None:
        self._pause = None
        if self.connected and not self.disconnecting:
            self.startReading()

    def loseConnection(self, connDone: Failure = _DONE) -> Any:  # noqa: N802, N803
        """Stop listening."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        return super().loseConnection(connDone)  # type: ignore[no-untyped-call]

    stopListening = loseConnection  # noqa: N815


def listen(reactor: IReactorFDSet, host: str, port: int, factory: Any, backlog: int) -> Acceptor:
    """Listen at *host* (a name, an address, or empty for all) and *port*; raise CannotListenError."""
    if host:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        host = str(address[0])
        if family == socket.AF_INET6 and "%" in host:
            host = host.partition("%")[0]
    listening = Acceptor(port, factory, backlog, host, reactor)
    listening.startListening()
    return listening
