"""Requests on one connection that wait for their response, in the order of sending.

A broker answers the requests of a connection in order: the next frame belongs to the head of the queue, or the stream
is broken. A cancelled request keeps its entry, because its response still arrives and must be skipped. Pure: the time
is an argument.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from kclient.wire.errors import MalformedMessage


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request: its message, the Deferred (None once cancelled), and its deadline in seconds."""

    api_key: int
    version: int
    correlation_id: int
    sent_at: float
    deadline: float
    waiter: Any


class PendingRequests:
    """The queue of one connection. Invariant: correlation ids increase by one, modulo 2^31."""

    def __init__(self) -> None:
        self._queue: deque[PendingRequest] = deque()
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._queue)

    def next_correlation_id(self) -> int:
        """Return the correlation id of the next request."""
        current = self._next_id
        self._next_id = (current + 1) & 0x7FFFFFFF
        return current

    def sent(self, request: PendingRequest) -> None:
        """Append a request that is being sent."""
        self._queue.append(request)

    def answered(self, frame: memoryview) -> PendingRequest:
        """Return the request that *frame* answers; raise MalformedMessage if it answers none."""
        if len(frame) < 4:
            raise MalformedMessage(f"response of {len(frame)} bytes")
        found = int.from_bytes(frame[:4], "big", signed=True)
        if not self._queue:
            raise MalformedMessage(f"response {found} arrived without a pending request")
        expected = self._queue[0].correlation_id
        if found != expected:
            raise MalformedMessage(f"response {found} arrived instead of {expected}")
        return self._queue.popleft()

    def earliest_deadline(self) -> float | None:
        """Return the earliest deadline of all pending requests; None without any."""
        return min((request.deadline for request in self._queue), default=None)

    def expired(self, now: float) -> PendingRequest | None:
        """Return a request with a deadline before *now*, if there is one."""
        for request in self._queue:
            if request.deadline <= now:
                return request
        return None

    def take_all(self) -> list[PendingRequest]:
        """Empty the queue, because the connection has ended."""
        everything = list(self._queue)
        self._queue.clear()
        return everything
