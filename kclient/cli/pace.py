"""The pace of `kclient produce --rate`: at most so many records a second, also after an input that stood still."""

from __future__ import annotations

from typing import Any

BURST_S = 0.1
"""How far a late record may be behind its time, and those after it follow at once: timers are late by milliseconds."""


class Pace:
    """Lets *per_second* records pass."""

    def __init__(self, reactor: Any, per_second: float) -> None:
        self._reactor = reactor
        self._interval = 1 / per_second
        self._due: float = reactor.seconds()

    async def wait(self) -> None:
        """Wait until the next record is due."""
        # Imported here, so that `kclient --help` does not import Twisted.
        from kclient.net.waiting import sleep

        now = self._reactor.seconds()
        if self._due > now:
            await sleep(self._reactor, self._due - now)
            now = self._reactor.seconds()
        self._due = max(self._due, now - BURST_S) + self._interval
