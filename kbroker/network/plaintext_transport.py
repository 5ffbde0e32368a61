"""The transport of PLAINTEXT listeners: a TCP connection with an outgoing queue of bytes and file slices.

Theory of operation
===================
Parts are sent as they are: bytes with MSG_MORE while something follows, slices from the page cache to the socket with
sendfile. No byte of a record enters Python. Reads go into the buffer that the connection gives: the shared scratch
buffer, or the buffer of a large frame. Twisted's own `tcp.Server` concatenates what is written and reads 64 KiB at a
time.

A flush sends at once when the queue was empty, so that a small response leaves in the turn that made it. The reactor
watches the socket for room only after EWOULDBLOCK.

Invariants, besides those of `Transport`:
3. A slice that ends early (its file was truncated) ends the connection: its length was sent already.

Owner: the reactor's thread.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from twisted.internet import main, tcp
from twisted.python.failure import Failure

from kbroker.log.slices import FileSlice
from kbroker.network.service import Part
from kbroker.network.transport import FrameReceiver, Transport, UnsentMemory, release

READ_SIZE = 256 * 1024
"""Size of the scratch buffer, and so of one read where no frame's length is known."""

TURN_BYTES = 4 * 1024 * 1024
"""Bytes read or sent for one connection in one turn of the reactor."""

SENDFILE_MAX = 0x7FFFF000
"""The most one sendfile(2) moves."""

GATHER = 64
"""Small parts that one sendmsg joins."""


class PlaintextTransport(tcp.Server):
    """A server-side connection that sends file slices.

    *account* has the sum of `unsent_memory` over all connections of the socket server.
    """

    reactor: Any

    def __init__(self, *args: Any, account: UnsentMemory) -> None:
        self._queue: deque[Part] = deque()
        self._offset = 0  # bytes of the first part that have left
        self._is_aborted = False
        self._writing = False  # the reactor watches the socket for room
        self.unsent = 0
        """Bytes in the queue, slices included."""
        self.unsent_memory = 0
        """Bytes in the queue that take memory."""
        self._account = account
        self.total_sent = 0
        """Bytes handed to the kernel since the beginning."""
        super().__init__(*args)

    # -- receiving -----------------------------------------------------------------------------

    def doRead(self) -> Exception | None:  # type: ignore[override]  # noqa: N802
        """Receive once, or again while a large frame is incomplete and more bytes arrive."""
        protocol = cast(FrameReceiver, self.protocol)
        received = 0
        while True:
            buffer = protocol.get_buffer()
            wanted = len(buffer)
            if not wanted:
                return None
            try:
                count = self.socket.recv_into(buffer)
            except BlockingIOError:
                return None
            except OSError:
                return main.CONNECTION_LOST
            if not count:
                return main.CONNECTION_DONE
            del buffer  # a frame that is answered must have no other references
            more = protocol.buffer_updated(count)
            received += count
            if not more or count < wanted or received >= TURN_BYTES or not self.connected:
                return None

    # -- sending -------------------------------------------------------------------------------

    def send(self, parts: Iterable[Part]) -> None:
        """Queue *parts*; `flush` sends them. After the connection is lost they are released."""
        if not self.connected or self._is_aborted:
            release(parts)
            return
        before = self.unsent_memory
        for part in parts:
            size = len(part)
            if not size:
                release((part,))
                continue
            self._queue.append(part)
            self.unsent += size
            if not isinstance(part, FileSlice):
                self.unsent_memory += size
        self._account.bytes += self.unsent_memory - before

    def flush(self) -> None:
        """Send what can be sent now; the reactor sends the rest when the socket takes it."""
        if not self._queue or not self.connected or self._writing:
            return
        lost = self._send_some()
        if lost is not None:
            # As the reactor does: never from inside a caller that still uses the connection.
            self.reactor.callLater(0, self._lose, lost)
        elif self._queue:
            self.startWriting()

    def doWrite(self) -> Exception | None:  # type: ignore[override]  # noqa: N802
        """Continue to send; the reactor calls this when the socket takes bytes."""
        lost = self._send_some()
        if lost is not None or self._queue:
            return lost
        self.stopWriting()
        if self.disconnecting:
            return main.CONNECTION_DONE
        cast(FrameReceiver, self.protocol).drained()
        return None

    def startWriting(self) -> None:  # noqa: N802
        """Have the reactor call `doWrite` when the socket takes bytes."""
        self._writing = True
        self.reactor.addWriter(self)

    def stopWriting(self) -> None:  # noqa: N802
        """Stop watching the socket."""
        self._writing = False
        self.reactor.removeWriter(self)

    def _lose(self, reason: Exception) -> None:
        if self.connected:
            self.connectionLost(Failure(reason))

    def _send_some(self) -> Exception | None:
        """Send until the queue is empty, the socket is full or the turn is over."""
        queue = self._queue
        budget = TURN_BYTES
        try:
            while queue and budget > 0:
                part = queue[0]
                left = len(part) - self._offset
                if isinstance(part, FileSlice):
                    sent = os.sendfile(
                        self.socket.fileno(),
                        part.fileno(),
                        part.position + self._offset,
                        min(left, SENDFILE_MAX),
                    )
                    if sent == 0:
                        return main.CONNECTION_LOST
                elif len(queue) == 1:
                    sent = self.socket.send(
                        memoryview(part)[self._offset :] if self._offset else part
                    )
                else:
                    sent = self._send_bytes()
                budget -= sent
                self._left(sent)
        except BlockingIOError:
            return None
        except (OSError, ValueError):
            return main.CONNECTION_LOST
        return None

    def _send_bytes(self) -> int:
        """Send the bytes parts at the head of the queue in one call, with MSG_MORE before a slice."""
        gathered: list[Part] = []
        more = 0
        for part in self._queue:
            if isinstance(part, FileSlice) or len(gathered) == GATHER:
                more = socket.MSG_MORE
                break
            gathered.append(part)
        if self._offset:
            gathered[0] = memoryview(cast(bytes, gathered[0]))[self._offset :]
        return self.socket.sendmsg(cast("list[bytes]", gathered), [], more)

    def _left(self, sent: int) -> None:
        """Take *sent* bytes off the head of the queue."""
        self.unsent -= sent
        self.total_sent += sent
        before = self.unsent_memory
        queue = self._queue
        while sent:
            part = queue[0]
            left = len(part) - self._offset
            is_whole = sent >= left
            count = left if is_whole else sent
            sent -= count
            if not isinstance(part, FileSlice):
                self.unsent_memory -= count
            elif is_whole:
                part.release()
            if is_whole:
                self._offset = 0
                queue.popleft()
            else:
                self._offset += count
        self._account.bytes -= before - self.unsent_memory

    # -- the end -------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send *data*; for code that treats this as any other transport."""
        self.send((data,))
        self.flush()

    def writeSequence(self, iovec: Iterable[bytes]) -> None:  # noqa: N802
        """Send all of *iovec*."""
        self.send(iovec)
        self.flush()

    def abortConnection(self) -> None:  # noqa: N802
        """Close without sending the rest, and release its memory at once."""
        self._drop_unsent()
        self._is_aborted = True
        super().abortConnection()  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        """Release what was not sent; then end as every connection."""
        self._drop_unsent()
        super().connectionLost(reason)

    def _drop_unsent(self) -> None:
        release(self._queue)
        self._queue.clear()
        self._account.bytes -= self.unsent_memory
        self.unsent = self.unsent_memory = self._offset = 0


if TYPE_CHECKING:

    def _checked(transport: PlaintextTransport) -> Transport:
        """Have mypy check that the class implements the protocol."""
        return transport
