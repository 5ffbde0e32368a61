"""A wait that another caller can end. A wake-up before the wait is kept."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from kclient.net.waiting import LONGEST_S


class Wakeup:
    """At most one waiter. Owner: the reactor's thread.

    The waiter resumes in a reactor turn of its own, not inside the call to `wake`, because it may run the caller's
    code.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._timer: Any = None
        self._woken = False

    def wake(self) -> None:
        """End the wait, or the next one before it starts."""
        self._woken = True
        if self._timer is not None and self._timer.active():
            self._timer.reset(0)

    async def wait(self, seconds: float) -> None:
        """Wait until woken, at most *seconds*. Cancelling raises CancelledError."""
        if not self._woken:
            over: Deferred[None] = Deferred()
            timer = self._timer = self._reactor.callLater(
                min(max(0.0, seconds), LONGEST_S), over.callback, None
            )
            try:
                await over
            finally:
                self._timer = None
                if timer.active():
                    timer.cancel()
        self._woken = False
