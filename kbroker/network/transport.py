"""What a connection is written against: a transport that sends parts in order, and reads into buffers.

`PlaintextTransport` implements it. A TLS transport will, too: it encrypts the parts, and reads a file slice first.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from kbroker.log.slices import FileSlice
from kbroker.network.service import Part


class UnsentMemory:
    """Bytes of memory in the outgoing queues of several connections."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class FrameReceiver(Protocol):
    """What a transport needs of the connection that it reads for."""

    def get_buffer(self) -> memoryview:
        """Return where to receive the next bytes; empty if they have to wait."""

    def buffer_updated(self, count: int) -> bool:
        """Process *count* received bytes; return whether to read again at once."""

    def drained(self) -> None:
        """Continue: the outgoing queue is empty again."""


class Transport(Protocol):
    """One accepted connection's bytes, in both directions.

    Invariants:
    1. Parts leave in order, each once.
    2. A slice is released when its last byte has left, or when the connection is lost.
    """

    connected: Any
    unsent: int
    """Bytes in the outgoing queue, slices included."""
    unsent_memory: int
    """Bytes in the outgoing queue that use memory."""
    total_sent: int
    """Bytes sent since the beginning."""

    def send(self, parts: Iterable[Part], /) -> None:
        """Queue *parts*; `flush` sends them. After the connection is lost they are released."""

    def flush(self) -> None:
        """Send what can be sent now; the rest is sent when the peer takes it."""

    def startReading(self) -> None:  # noqa: N802
        """Read from the peer."""

    def stopReading(self) -> None:  # noqa: N802
        """Leave the peer's bytes in the kernel."""

    def loseConnection(self) -> Any:  # noqa: N802
        """Send what is queued, then close."""

    def abortConnection(self) -> Any:  # noqa: N802
        """Close at once; what is queued is dropped."""

    def setTcpNoDelay(self, enabled: bool, /) -> Any:  # noqa: N802
        """Set TCP_NODELAY."""

    def setTcpKeepAlive(self, enabled: bool, /) -> Any:  # noqa: N802
        """Set SO_KEEPALIVE."""

    def getHandle(self) -> Any:  # noqa: N802
        """Return the socket."""


def release(parts: Iterable[Part]) -> None:
    """Release the files behind *parts* that will not be sent."""
    for part in parts:
        if isinstance(part, FileSlice):
            part.release()
