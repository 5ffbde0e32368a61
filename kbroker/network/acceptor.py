"""Accepting connections: a bounded number in a turn, and none while there is no file descriptor for them.

Twisted's own port takes ever more connections in a turn the more are waiting, and where there are no more descriptors
it accepts and closes whoever is next, with two lines of log for each. This one lets callers wait in the kernel's queue
for a moment, and asks its factory about each with the descriptor that it was given (S40).

Owner: the reactor's thread.
"""

from __future__ import annotations

import errno
import socket
from typing import Any, Protocol, cast

from twisted.internet import main, tcp
from twisted.internet.interfaces import IReactorFDSet
from twisted.python.failure import Failure

from kbroker.network.transport import RecordTransport

ACCEPTS_PER_TURN = 100
"""Connections accepted before everybody else gets a turn."""

ACCEPT_PAUSE = 0.1
"""Seconds for which callers wait in the kernel's queue when there is no file descriptor for them."""

_CALLER_IS_GONE = (errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.EINTR)
"""Errors of accept(2) that say nothing of the next one."""

_DONE = Failure(main.CONNECTION_DONE)


class Admission(Protocol):
    """What a `RecordPort` asks of its factory."""

    def admit(self, host: str, port: int, descriptor: int) -> Any:
        """Return the protocol for who calls from there, on that socket, or None: it is closed."""

    def cannot_accept(self, error: OSError) -> None:
        """Hear that the system gives us no more sockets for the moment."""


class RecordPort(tcp.Port):
    """A listening port whose connections are `RecordTransport`s."""

    transport = RecordTransport
    reactor: Any
    _pause: Any = None

    def doRead(self) -> None:  # noqa: N802
        """Accept those who wait, so many in a turn."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = self.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _CALLER_IS_GONE:
                    continue
                cast(Admission, self.factory).cannot_accept(error)
                self.stopReading()
                self._pause = self.reactor.callLater(ACCEPT_PAUSE, self._go_on)
                return
            self._take(accepted, address)

    def _take(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        host, port = str(address[0]).partition("%")[0], int(address[1])
        protocol = cast(Admission, self.factory).admit(host, port, accepted.fileno())
        if protocol is None:
            accepted.close()
            return
        number, self.sessionno = self.sessionno, self.sessionno + 1
        transport = self.transport(accepted, protocol, address, self, number, self.reactor)
        try:
            protocol.makeConnection(transport)
        except OSError as error:  # the peer has reset it already
            transport.connectionLost(Failure(error))

    def _go_on(self) -> None:
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


def listen(reactor: IReactorFDSet, host: str, port: int, factory: Any, backlog: int) -> RecordPort:
    """Listen at *host* (a name, an address, or empty for all) and *port*; raise CannotListenError."""
    if host:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        host = str(address[0])
        if family == socket.AF_INET6 and "%" in host:
            host = host.partition("%")[0]
    listening = RecordPort(port, factory, backlog, host, reactor)
    listening.startListening()
    return listening
