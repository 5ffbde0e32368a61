"""Bytes of requests in memory, all connections together: queued.max.request.bytes (KIP-72).

A frame that fits one read costs nothing beyond the shared buffer and is answered at once. A larger one reserves its
length before it is received, and waits with its connection paused where the budget has no room; the oldest waiter goes
first. One frame is always allowed, however small the budget. Owner: the reactor's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class RequestMemory:
    """A budget of *limit* bytes; -1 is no bound."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        """Bytes reserved now."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def waiting(self) -> int:
        """How many frames wait for room."""
        return len(self._waiting)

    def reserve(self, size: int) -> bool:
        """Take *size* bytes if there is room and nobody came before; return whether it was done."""
        if self._waiting or not self._fits(size):
            return False
        self.used += size
        return True

    def take(self, size: int) -> None:
        """Take *size* bytes that are in memory already."""
        self.used += size

    def wait(self, size: int, granted: Callable[[], None]) -> Callable[[], None]:
        """Have *granted* called once *size* bytes were taken for it; return how to stop waiting."""
        entry = (size, granted)
        self._waiting.append(entry)

        def forget() -> None:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._grant()

        return forget

    def release(self, size: int) -> None:
        """Give *size* bytes back, and let who waited longest go on."""
        self.used -= size
        self._grant()

    def _fits(self, size: int) -> bool:
        return self.limit < 0 or self.used == 0 or self.used + size <= self.limit

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            self.used += size
            granted()
