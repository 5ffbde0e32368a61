"""The interface between a connection and the APIs: a frame and its peer go in, the parts of a response come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from kbroker.log.slices import FileSlice

T = TypeVar("T")

Part = bytes | bytearray | memoryview | FileSlice
"""A piece of a response: bytes, or a slice of a file that the transport sends without reading it."""

Answer = Sequence[Part] | None
"""A response without its length; None where the protocol has no response (acks=0)."""


@dataclass(slots=True, eq=False)
class Peer:
    """The other end of one connection."""

    host: str
    port: int
    listener: str
    principal: str = "User:ANONYMOUS"
    broker_id: int = -1
    """The broker that the connection proved to come from (`kbroker.security.core.broker_proof`); -1: none."""
    throttle_seconds: float = 0.0
    """How long the connection is muted once the response is sent (KIP-219); the connection resets it."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class RequestRefusedError(Exception):
    """The request gets no response and the connection is closed; the text is the log line's cause."""


class HeldResponse(Deferred[T]):
    """A response that waits for more content, of a long poll; *send_now* completes it at once.

    The connection calls that when another request has arrived, which would wait behind this one.
    """

    def __init__(self, canceller: Callable[[Any], None], send_now: Callable[[], None]) -> None:
        super().__init__(canceller)
        self.send_now = send_now


Service = Callable[[memoryview, Peer], "Answer | Deferred[Answer]"]
"""Answers one request frame, now or later; a connection passes its next request only after that.

A Deferred is cancelled when the connection is lost. RequestRefusedError and MalformedMessage close the connection.
"""
