"""A client's TCP connection: receives into the frame that is being read, sends buffers without joining them.

Theory of operation
===================
Twisted's transport reads 64 KiB at a time and joins all written data into one string, which copies every record in
each direction. This transport avoids both copies. Received bytes go into the buffer of the protocol (``recv_into``).
Buffers to send go to ``sendmsg`` together, at once; what the kernel does not accept is queued.

Invariants: 1. buffers leave in order, each once. 2. data written after the connection is lost or closing is dropped.
3. data that the kernel has accepted reaches the peer after `end`.
Owner: the reactor's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.internet.tcp import Client, Connector

if TYPE_CHECKING:
    from kclient.wire.batches import Buffer

GATHER = 64
"""Buffers per sendmsg."""

TURN_BYTES = 4 * 1024 * 1024
"""Bytes sent before other connections get a turn."""


class ReceivesIntoBuffer(Protocol):
    """A Twisted protocol that provides the buffer to receive into."""

    def get_buffer(self) -> memoryview:
        """Return writable memory for the next bytes; at least one byte long."""

    def buffer_updated(self, count: int) -> None:
        """Handle *count* bytes received into the last buffer."""


class PartsClient(Client):
    """The transport; `PartsConnector` creates it."""

    protocol: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._queue: deque[memoryview] = deque()
        self._accepted = 0
        """Bytes that the kernel has accepted so far."""
        self._unsent: deque[tuple[int, Deferred[None]]] = deque()
        """What `when_sent` has returned, each with the value of `_accepted` that fires it."""
        self._is_orderly = False
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]

    # --- receiving

    def doRead(self) -> Any:  # noqa: N802 (Twisted's name)
        """Receive once; readiness is level-triggered, so the reactor calls again for the rest."""
        try:
            count = self.socket.recv_into(self.protocol.get_buffer())
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        if not count:
            return CONNECTION_DONE
        self.protocol.buffer_updated(count)
        return None

    # --- sending

    def write(self, data: Buffer) -> None:
        """Send *data*."""
        self.writeSequence((data,))

    def writeSequence(self, iovec: Iterable[Buffer]) -> None:  # noqa: N802 (Twisted's name)
        """Send all buffers of *iovec*; none of them may change from now on."""
        if not self.connected or self.disconnecting:
            return
        queue = self._queue
        is_first = not queue
        queue.extend(memoryview(part) for part in iovec if len(part))
        if is_first and queue:
            # At once, because a reactor turn is most of the cost of a small request. An error of the
            # connection is handled by `doWrite`, never inside the caller.
            with suppress(OSError):
                self._send(queue)
        if queue:
            self.startWriting()  # type: ignore[no-untyped-call]

    def when_sent(self) -> Deferred[None]:
        """Fire when the kernel has accepted all data written so far; never, if the connection ends before."""
        if not self._queue:
            return succeed(None)
        sent: Deferred[None] = Deferred()
        self._unsent.append((self._accepted + sum(map(len, self._queue)), sent))
        return sent

    def end(self) -> None:
        """Close the connection at once, without the reset of `abortConnection`: it would drop accepted data, too."""
        self._is_orderly = True
        self.abortConnection()  # type: ignore[no-untyped-call]

    def doWrite(self) -> Any:  # noqa: N802 (Twisted's name)
        """Send what the socket accepts, at most `TURN_BYTES`."""
        result = self._send_queue()
        while self._unsent and self._unsent[0][0] <= self._accepted:
            self._unsent.popleft()[1].callback(None)
        return result

    def _send_queue(self) -> Any:
        queue = self._queue
        budget = TURN_BYTES
        try:
            while queue and budget > 0:
                budget -= self._send(queue)
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        if queue:
            return None
        self.stopWriting()  # type: ignore[no-untyped-call]
        return self._postLoseConnection() if self.disconnecting else None  # type: ignore[no-untyped-call]

    def _send(self, queue: deque[memoryview]) -> int:
        """Send the head of the queue; return the number of accepted bytes."""
        alone = len(queue) == 1
        sent = self.socket.send(queue[0]) if alone else self.socket.sendmsg(_first(queue, GATHER))
        self._accepted += sent
        left = sent
        while queue and left >= len(queue[0]):
            left -= len(queue.popleft())
        if left:
            queue[0] = queue[0][left:]
        return sent

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 (Twisted's name)
        """Drop unsent data."""
        self._queue.clear()
        self._unsent.clear()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def _closeSocket(self, orderly: bool) -> None:  # noqa: N802 (Twisted's name)
        """Reset the connection unless *orderly*, or after `end`."""
        super()._closeSocket(orderly or self._is_orderly)  # type: ignore[no-untyped-call]


class PartsConnector(Connector):
    """Creates `PartsClient` transports."""

    def _makeTransport(self) -> Client:  # noqa: N802 (Twisted's name)
        make: Any = PartsClient
        transport: Client = make(self.host, self.port, self.bindAddress, self, self.reactor)
        return transport


def _first(queue: deque[memoryview], number: int) -> Sequence[memoryview]:
    if len(queue) <= number:
        return list(queue)
    return [queue[n] for n in range(number)]
