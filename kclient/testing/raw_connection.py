"""One socket to one broker: requests of any API in, decoded responses out."""

from __future__ import annotations

import itertools
import socket
import struct
from types import TracebackType
from typing import Any, Self

from kclient.net.codecs import decode_response, encode_request
from kclient.wire.versions import ApiKey

_LENGTH = struct.Struct(">i")


class RawConnection:
    """A connection that sends what it is given, and retries nothing."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout: float = 10.0,
        source: str = "",
        client_id: str = "raw",
    ) -> None:
        self._client_id = client_id
        self._socket = socket.create_connection(
            (host, port), timeout, (source, 0) if source else None
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._socket.close()

    def ask(self, api: ApiKey, version: int, request: object) -> Any:
        """Send *request* and return its decoded response; ConnectionError if the broker closes."""
        self.send(api, version, request)
        return self.receive(api, version)

    def receive(self, api: ApiKey, version: int) -> Any:
        """Return the next response, which is to a request of *api* in *version*."""
        frame = self._read(_LENGTH.unpack(self._read(4))[0])
        return decode_response(api, version, memoryview(frame))

    def send(self, api: ApiKey, version: int, request: object) -> None:
        """Send *request*; its response, if there is one, is the next on the connection."""
        number = next(self._correlation)
        frame = b"".join(encode_request(api, version, number, self._client_id, request))
        self._socket.sendall(_LENGTH.pack(len(frame)) + frame)

    def _read(self, size: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            piece = self._socket.recv(size - len(pieces))
            if not piece:
                raise ConnectionError("closed by the broker")
            pieces += piece
        return bytes(pieces)
