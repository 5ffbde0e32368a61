"""Requests on one connection that wait for their answer, in the order they were sent.

A broker answers the requests of a connection in order, so the queue is a queue: the next frame
belongs to its head, or the stream is broken. A caller that gave up (cancelled its Deferred) leaves
its entry in place, for the answer still comes and must be stepped over. Pure: time is an argument.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from kclient.wire.errors import MalformedMessage


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request: what was asked, who waits (None once they gave up), until when (seconds)."""

    api_key: int
    version: int
    correlation_id: int
    sent_at: float
    deadline: float
    waiter: Any


class PendingRequests:
    """The queue of one connection. Invariant: correlation ids rise by one, modulo 2^31."""

    def __init__(self) -> None:
        self._queue: deque[PendingRequest] = deque()
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._queue)

    def next_correlation_id(self) -> int:
        """Return the id that the request sent next must carry."""
        current = self._next_id
        self._next_id = (current + 1) & 0x7FFFFFFF
        return current

    def sent(self, request: PendingRequest) -> None:
        """Remember a request that is on its way."""
        self._queue.append(request)

    def answered(self, frame: memoryview) -> PendingRequest:
        """Return the request that *frame* answers; MalformedMessage if it answers none."""
        if len(frame) < 4:
            raise MalformedMessage(f"response of {len(frame)} bytes")
        found = int.from_bytes(frame[:4], "big", signed=True)
        if not self._queue:
            raise MalformedMessage(f"response {found} came though nothing was asked")
        expected = self._queue[0].correlation_id
        if found != expected:
            raise MalformedMessage(f"response {found} came where {expected} was due")
        return self._queue.popleft()

    def earliest_deadline(self) -> float | None:
        """Return when the first of the waiting requests times out; None if none waits."""
        return min((request.deadline for request in self._queue), default=None)

    def expired(self, now: float) -> PendingRequest | None:
        """Return a request whose time is over at *now*, if there is one."""
        for request in self._queue:
            if request.deadline <= now:
                return request
        return None

    def take_all(self) -> list[PendingRequest]:
        """Empty the queue: the connection is gone."""
        everything = list(self._queue)
        self._queue.clear()
        return everything
