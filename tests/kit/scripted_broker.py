"""The other end of a client connection, played by the test: no sockets, no clock but a `Clock`."""

from __future__ import annotations

import struct
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kclient.errors import Address
from kclient.net.connection import Connection
from kclient.wire import messages
from kclient.wire.framing import FrameReader


class Outcome:
    """What a Deferred came to; `value` raises what it failed with."""

    def __init__(self, deferred: Deferred[Any]) -> None:
        self.results: list[Any] = []
        deferred.addBoth(self.results.append)

    @property
    def fired(self) -> bool:
        return bool(self.results)

    @property
    def value(self) -> Any:
        assert self.results, "nothing came of it yet"
        result = self.results[0]
        if isinstance(result, Failure):
            result.raiseException()
        return result

    @property
    def error(self) -> BaseException:
        assert self.results, "nothing came of it yet"
        assert isinstance(self.results[0], Failure), f"it succeeded: {self.results[0]!r}"
        problem = self.results[0].value
        assert problem is not None
        return problem


class PlayedTransport:
    """Keeps what is written, and whether it was aborted.

    Not `twisted.internet.testing.StringTransport`: its module imports trial, and from then on pytest looks up
    Twisted's version before every test (3 % of the time of `make check`).
    """

    def __init__(self) -> None:
        self.written = bytearray()
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def abortConnection(self) -> None:  # noqa: N802 (Twisted's name)
        self.aborted = True


class ScriptedBroker:
    """A `Connection` with the test as its peer."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.connection = Connection(self.clock, Address("broker", 9092), **options)
        self.transport = PlayedTransport()
        connection: Any = self.connection
        connection.makeConnection(self.transport)
        self._requests = FrameReader(1 << 20)

    def requests(self) -> list[tuple[messages.RequestHeader, Any]]:
        """Return the requests that came since the last call."""
        frames = self._requests.feed(bytes(self.transport.written))
        self.transport.written.clear()
        found = []
        for frame in frames:
            header, offset = messages.decode_request_header(frame)
            found.append((header, messages.decode_request(header, frame, offset)))
        return found

    def answer(self, header: messages.RequestHeader, response: object) -> None:
        """Answer one request."""
        self.send(
            messages.encode_response(
                header.api_key, header.api_version, header.correlation_id, response
            )
        )

    def send(self, frame: bytes) -> None:
        """Send a frame, whatever is in it."""
        self.connection.dataReceived(struct.pack(">i", len(frame)) + frame)
