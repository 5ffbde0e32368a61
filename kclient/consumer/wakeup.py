"""A wait that another may cut short. A wake that comes before the wait is not lost."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred


class Wakeup:
    """One waiter at a time. Owner: the reactor's thread.

    The waiter goes on in a turn of its own, not inside the call to `wake`: it may be the caller's code.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._timer: Any = None
        self._woken = False

    def wake(self) -> None:
        """End the wait, or the next one before it begins."""
        self._woken = True
        if self._timer is not None and self._timer.active():
            self._timer.reset(0)

    async def wait(self, seconds: float) -> None:
        """Wait until woken, at most *seconds*. Cancelling it raises CancelledError, as anywhere."""
        if not self._woken:
            over: Deferred[None] = Deferred()
            timer = self._timer = self._reactor.callLater(max(0.0, seconds), over.callback, None)
            try:
                await over
            finally:
                self._timer = None
                if timer.active():
                    timer.cancel()
        self._woken = False
