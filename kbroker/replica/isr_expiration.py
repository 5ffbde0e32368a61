"""Shrinks ISRs: looks for lagging followers every half of replica.lag.time.max.ms (Kafka's `isr-expiration`).

After a pause of this process (SIGSTOP, a stalled machine) one look is skipped: the fetches that arrived during the
pause are read first. Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.logger import Logger

from kbroker.replica.partition import Partition

log = Logger()

SHORTEST_INTERVAL = 0.05


class IsrExpiration:
    """The timer over all hosted *partitions*; *lag_time_max* in seconds."""

    def __init__(self, reactor: Any, partitions: Iterable[Partition], lag_time_max: float) -> None:
        self._reactor = reactor
        self._partitions = partitions
        self._interval = max(lag_time_max / 2, SHORTEST_INTERVAL)
        self._timer: Any = None
        self._due_at = 0.0

    def start(self) -> None:
        """Start the timer."""
        self._due_at = self._reactor.seconds() + self._interval
        self._timer = self._reactor.callLater(self._interval, self._look)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _look(self) -> None:
        late = self._reactor.seconds() - self._due_at
        self.start()
        if late > self._interval / 2:
            log.warn(
                "this process was paused for {s:.1f} s; no ISR is shrunk before the waiting fetches are read",
                s=late,
            )
            return
        for partition in list(self._partitions):
            try:
                partition.maybe_shrink_isr()
            except Exception:
                log.failure("maybe_shrink_isr of {p} failed", p=repr(partition))
