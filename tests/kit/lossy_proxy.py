"""A TCP proxy before a broker that loses answers to Produce: the batch is in the log, and its acknowledgement is lost.

It reads frames in both directions, and knows a Produce answer by the correlation id. `fate` decides about each;
other APIs pass. Threads, sockets and nothing else: librdkafka and kafka-python are on the other side.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

_PREFIX = struct.Struct(">i")
_REQUEST = struct.Struct(">hhi")
_PRODUCE = 0
_SILENCE = 5.0
"""Seconds without an answer of whatever kind after which both connections are closed: a client with answers that were
swallowed sends again then, and not when its own patience ends (kafka-python's: 30 s)."""


class CrashPoint(Enum):
    """What becomes of an answer to Produce."""

    PASS = "pass"
    CUT = "cut"
    """It is lost, and the connection with it."""
    SWALLOW = "swallow"
    """It is lost; the connection stays."""


class LossyProxy:
    """Listens on `port` and connects to *upstream* (host:port). Use as a context manager."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.partition(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        self.port: int = self._listener.getsockname()[1]
        self.fate: Callable[[int], CrashPoint] = lambda _number: CrashPoint.PASS
        """Asked with the number of the Produce answer, counted from 1 over all connections."""
        self.answers = 0
        """Answers to Produce so far."""
        self.lost = 0
        """Those of them that were lost."""

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> LossyProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._listener.close()
        for one in list(self._open):
            self._close(one)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._upstream, _SILENCE)
            except OSError:
                client.close()
                continue
            self._open |= {client, server}
            produced: set[int] = set()
            for target, arguments in (
                (self._requests, (client, server, produced)),
                (self._answers, (server, client, produced)),
            ):
                threading.Thread(target=target, args=arguments, daemon=True).start()

    def _close(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            self._open.discard(one)
            one.close()

    def _requests(self, client: socket.socket, server: socket.socket, produced: set[int]) -> None:
        with suppress(OSError):
            while frame := _read_frame(client):
                api_key, _, correlation_id = _REQUEST.unpack_from(frame)
                if api_key == _PRODUCE:
                    produced.add(correlation_id)
                server.sendall(_PREFIX.pack(len(frame)) + frame)
        self._close(client, server)

    def _answers(self, server: socket.socket, client: socket.socket, produced: set[int]) -> None:
        with suppress(OSError):
            while frame := _read_frame(server):
                (correlation_id,) = _PREFIX.unpack_from(frame)
                if correlation_id in produced:
                    produced.discard(correlation_id)
                    with self._lock:
                        self.answers += 1
                        fate = self.fate(self.answers)
                        self.lost += fate is not CrashPoint.PASS
                    if fate is CrashPoint.SWALLOW:
                        continue
                    if fate is CrashPoint.CUT:
                        break
                client.sendall(_PREFIX.pack(len(frame)) + frame)
        self._close(client, server)


def _read_frame(source: socket.socket) -> bytes:
    """Return the next frame without its length; empty at the end of the stream."""
    prefix = _read_exactly(source, _PREFIX.size)
    return _read_exactly(source, _PREFIX.unpack(prefix)[0]) if prefix else b""


def _read_exactly(source: socket.socket, size: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < size:
        piece = source.recv(size - len(pieces))
        if not piece:
            return b""
        pieces += piece
    return bytes(pieces)
